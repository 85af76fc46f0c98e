"""The parts of a quench step: the phases as products of small tables, and the mixers as real matrices."""

import itertools
from functools import reduce

import pytest
import torch
from trotter_oracle import X, on_wires

from devices.mixers import mix, mixer_generator, mixer_groups, mixer_matrices, multiply_group
from devices.phase_tables import (
    cut_into_groups,
    energy_matrices,
    expand_tables,
    faces,
    multiply_by_tables,
    sum_to_tables,
)
from devices.plain_quench import quarter_turns

COLUMNS = 3
CPU = torch.device("cpu")
every_size = pytest.mark.parametrize("num_wires", range(1, 10))
every_group = pytest.mark.parametrize("size", range(1, 5))


def mixers_of(angles, size):
    return torch.stack(mixer_matrices(tuple(angles.tolist()), size, torch.float64, CPU))


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def draw_tables(num_wires):
    """Fields (columns, T), couplings (columns, pairs), and their tables (entries, columns)."""
    fields, couplings = normal(COLUMNS, num_wires), normal(COLUMNS, num_wires * (num_wires - 1) // 2, seed=1)
    of_fields, of_pairs = energy_matrices(num_wires, torch.float64, CPU)
    return fields, couplings, of_fields @ fields.T, of_pairs @ couplings.T


def energies(fields, couplings):
    """h.s and sum_{j<k} J_jk s_j s_k of all states: (2^T, columns) each."""
    num_wires = fields.shape[1]
    states = torch.tensor(list(itertools.product((1.0, -1.0), repeat=num_wires)), dtype=torch.float64)
    pairs = list(itertools.combinations(range(num_wires), 2))
    products = torch.stack([states[:, j] * states[:, k] for j, k in pairs], 1) if pairs else states[:, :0]
    return states @ fields.T, products @ couplings.T


@every_size
def test_product_of_the_tables_is_the_exponential_of_the_energy(num_wires):
    fields, couplings, field_tables, pair_tables = draw_tables(num_wires)
    of_fields, of_pairs = energies(fields, couplings)
    start = normal(2**num_wires, COLUMNS, seed=2, dtype=torch.complex128)
    state = start.clone()
    multiply_by_tables(state, torch.exp(1j * (0.3 * field_tables - 0.7 * pair_tables)), num_wires)
    assert (state - start * torch.exp(1j * (0.3 * of_fields - 0.7 * of_pairs))).abs().max() < 1e-12


@every_size
def test_tables_multiply_each_of_the_halves_of_a_tensor(num_wires):
    tables = torch.exp(1j * draw_tables(num_wires)[2])
    both = normal(2**num_wires, 2, COLUMNS, dtype=torch.complex128)
    halves = [half.contiguous() for half in both.clone().unbind(1)]
    multiply_by_tables(both, tables.unsqueeze(1), num_wires)
    for index, half in enumerate(halves):
        multiply_by_tables(half, tables, num_wires)
        assert (both[:, index] - half).abs().max() < 1e-14


@every_size
def test_expanded_tables_hold_the_product_of_each_states_entries(num_wires):
    tables = torch.exp(1j * draw_tables(num_wires)[2])
    ones = torch.ones(2**num_wires, COLUMNS, dtype=torch.complex128)
    multiply_by_tables(ones, tables, num_wires)
    assert (expand_tables(tables, num_wires) - ones).abs().max() < 1e-14


@every_size
def test_sum_to_tables_is_the_adjoint_of_the_product_in_logarithms(num_wires):
    entries = faces(num_wires)[-1].stop
    tables, values = 0.1 * normal(entries, COLUMNS), normal(2**num_wires, COLUMNS, seed=1)
    spread = torch.ones(2**num_wires, COLUMNS, dtype=torch.float64)
    multiply_by_tables(spread, tables.exp(), num_wires)
    sums = sum_to_tables(values, num_wires)
    assert sums.shape == tables.shape
    assert ((sums * tables).sum(0) - (values * spread.log()).sum(0)).abs().max() < 1e-11


@every_size
def test_each_term_is_a_sign_on_all_entries_of_one_face(num_wires):
    pairs = num_wires * (num_wires - 1) // 2
    for matrix, terms in zip(energy_matrices(num_wires, torch.float64, CPU), (num_wires, pairs), strict=True):
        assert matrix.shape[1] == terms
        counts = torch.stack([matrix[face.start : face.stop].abs().sum(0) for face in faces(num_wires)])
        sizes = torch.tensor([face.stop - face.start for face in faces(num_wires)], dtype=torch.float64)
        assert set(matrix.unique().tolist()) <= {-1.0, 0.0, 1.0}
        assert ((counts == sizes.unsqueeze(1)).sum(0) == 1).all()
        assert ((counts == 0).sum(0) == len(sizes) - 1).all()


@pytest.mark.parametrize("num_wires", range(1, 25))
def test_groups_hold_all_wires_and_faces_have_about_two_thirds_of_them(num_wires):
    groups = cut_into_groups(num_wires)
    assert sum(groups) == num_wires
    assert sorted(groups, reverse=True) == list(groups)
    ends = [0, *(face.stop for face in faces(num_wires))]
    for face, start in zip(faces(num_wires), ends, strict=False):
        assert face.start == start
        assert face.stop - face.start == face.shape[0] * face.shape[1] * face.shape[2]
        assert all(size in (1, 2**group) for size, group in zip(face.shape, groups, strict=True))
    assert ends[-1] <= 3 * 2 ** (2 * (-(-num_wires // 3)))


@every_size
def test_quarter_turns_count_the_ones(num_wires):
    expected = reduce(torch.kron, [torch.tensor([1, 1j], dtype=torch.complex128)] * num_wires)
    assert torch.equal(quarter_turns(num_wires, torch.complex128, CPU), expected)


@pytest.mark.parametrize("num_wires", range(1, 25))
def test_mixer_groups_hold_all_wires_at_most_four_each_as_even_as_possible(num_wires):
    groups = mixer_groups(num_wires)
    assert sum(groups) == num_wires
    assert min(groups) >= 1
    assert max(groups) <= 4
    assert max(groups) - min(groups) <= 1
    assert len(groups) == -(-num_wires // 4)


@every_group
def test_mixers_are_orthogonal_and_add_their_angles(size):
    angles = normal(5)
    matrices = mixers_of(angles, size)
    assert (matrices @ matrices.mT - torch.eye(2**size)).abs().max() < 1e-14
    assert (matrices[0] @ matrices[1] - mixers_of(angles[:2].sum(0, keepdim=True), size)).abs().max() < 1e-14
    assert torch.equal(mixers_of(torch.zeros(1), size)[0], torch.eye(2**size).double())


@every_group
def test_mixers_between_quarter_turns_are_the_exponential_of_the_x_sum(size):
    x = torch.tensor(sum(on_wires(X, [j], size) for j in range(size)))
    turns = quarter_turns(size, torch.complex128, CPU)
    for angle, matrix in zip(normal(4), mixers_of(normal(4), size), strict=True):
        turned = turns.unsqueeze(1) * matrix * turns.conj()
        assert (turned - torch.matrix_exp(1j * angle * x)).abs().max() < 1e-13


@every_group
def test_generator_is_the_derivative_of_the_mixers(size):
    angles = normal(3)
    generator = mixer_generator(size, torch.float64, CPU)
    step = 1e-5
    slope = (mixers_of(angles + step, size) - mixers_of(angles - step, size)) / (2 * step)
    assert torch.equal(generator, -generator.T)
    assert (slope - generator @ mixers_of(angles, size)).abs().max() < 1e-8


@every_group
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", [0, 2])
def test_product_with_a_group_leaves_the_other_wires_alone(size, before, after):
    matrix = normal(2**size, 2**size)
    state = normal(2 ** (before + size + after), COLUMNS, seed=1, dtype=torch.complex128)
    kept, out = state.clone(), torch.empty_like(state)
    multiply_group(matrix, state, out, 2**before)
    whole = torch.kron(torch.kron(torch.eye(2**before), matrix), torch.eye(2**after)).to(state.dtype)
    assert (out - whole @ state).abs().max() < 1e-12
    assert torch.equal(state, kept)


@pytest.mark.parametrize("num_wires", [1, 4, 5, 8, 9])
def test_mix_is_the_kronecker_product_of_the_groups_in_order(num_wires):
    matrices = [normal(2**size, 2**size, seed=index) for index, size in enumerate(mixer_groups(num_wires))]
    state = normal(2**num_wires, COLUMNS, seed=9, dtype=torch.complex128)
    expected = reduce(torch.kron, matrices).to(state.dtype) @ state
    found, spare = mix(matrices, state, torch.empty_like(state))
    assert (found - expected).abs().max() < 1e-10
    assert spare.data_ptr() != found.data_ptr()
