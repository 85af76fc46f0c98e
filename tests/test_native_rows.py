"""The native kernels give the numbers of the tensor operations, on every instruction set that the processor has."""

import math
import time
from types import SimpleNamespace

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from conftest import needs_native_kernels
from oracle import causal_mask, draw, draw_mask, largest_difference, marginals_by_loops

import hybrid_attention.native_rows as native_rows
import hybrid_attention.row_sets as row_sets
from hybrid_attention import exact_marginals
from hybrid_attention.row_arrangement import arrange_rows

pytestmark = needs_native_kernels
row_kernels = native_rows.row_kernels
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
both_precisions = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
MASKS = {
    "none": lambda length: None,
    "causal": causal_mask,
    "holes": lambda length: draw_mask(length, length, seed=length, kept=0.8),
    "some rows empty": lambda length: draw_mask(length, length, seed=length) & draw_mask(length, 1, seed=1),
}
masks = pytest.mark.parametrize("mask", MASKS)


@pytest.fixture(params=row_kernels.instruction_sets() if row_kernels else [])
def instruction_set(request):
    row_kernels.use_instruction_set(request.param)
    yield request.param
    row_kernels.use_instruction_set(row_kernels.instruction_sets()[0])


@pytest.fixture
def threads():
    """Set the number of threads, of which even little work is given to each."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sets, "_LEAST_THREADED_COST", 1)
        native_rows._remembered_plan.cache_clear()
        yield torch.set_num_threads
    torch.set_num_threads(before)
    native_rows._remembered_plan.cache_clear()


def value_and_gradients(h, J, present):
    h, J = h.detach().clone().requires_grad_(), J.detach().clone().requires_grad_()
    p = exact_marginals(h, J, present)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    return p.detach(), *torch.autograd.grad((weights * p).sum(), (h, J))


def by_tensor_operations(h, J, present):
    """In float64, whatever the precision of the input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRID_ATTENTION_NATIVE", "0")
        return value_and_gradients(h.double(), J.double(), present)


def assert_same(h, J, present, dtype):
    """Values to the tolerance; gradients, sums of terms of the size of the loss's weights, to twice as much."""
    ours = value_and_gradients(h.to(dtype), J.to(dtype), present)
    theirs = by_tensor_operations(h.to(dtype), J.to(dtype), present)
    assert all(mine.dtype == dtype for mine in ours)
    assert largest_difference(ours[0], theirs[0]) <= TOLERANCE[dtype]
    for mine, reference in zip(ours[1:], theirs[1:], strict=True):
        assert largest_difference(mine, reference) <= 2 * TOLERANCE[dtype] * max(1.0, float(reference.abs().max()))


@both_precisions
@masks
@pytest.mark.parametrize("length", range(1, 15))
def test_values_and_gradients_are_those_of_the_tensor_operations(length, mask, dtype):
    assert_same(draw(3, length, length, seed=1), draw(length, length, seed=2, spread=0.4), MASKS[mask](length), dtype)


@pytest.mark.usefixtures("instruction_set")
@both_precisions
@masks
@pytest.mark.parametrize("length", [1, 2, 5, 8, 11])
def test_instruction_sets_give_the_same_numbers(length, mask, dtype):
    h, J = draw(9, 2, length, length, seed=1), draw(2, 1, length, length, seed=2, spread=0.4)
    assert_same(h, J, MASKS[mask](length), dtype)


@both_precisions
@pytest.mark.parametrize("mask", ["none", "causal", "holes"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 63, 64, 65, 200])
def test_any_number_of_rows_fills_its_lanes(rows, mask, dtype):
    """Rows are solved 64 at a time, padded to full vectors."""
    assert_same(draw(rows, 6, 6, seed=rows), draw(6, 6, seed=2, spread=0.5), MASKS[mask](6), dtype)


@both_precisions
def test_each_row_equals_the_loops(dtype):
    h, J, present = draw(5, 7, seed=1).to(dtype), draw(7, 7, seed=2).to(dtype), MASKS["holes"](7)[:5]
    expected = torch.stack([marginals_by_loops(*row) for row in zip(h, J.expand(5, 7, 7), present, strict=True)])
    assert largest_difference(exact_marginals(h, J, present), expected) < TOLERANCE[dtype]


@masks
@pytest.mark.parametrize("length", [4, 9, 12])
def test_marginals_of_negative_fields_keep_their_relative_precision_in_float32(length, mask):
    h, J, present = torch.full((length, length), -12.0), draw(length, length, spread=0.2).float(), MASKS[mask](length)
    p, by_fields, by_couplings = value_and_gradients(h, J, present)
    q, exact_fields, exact_couplings = by_tensor_operations(h, J, present)
    assert ((p - q).abs() <= 1e-5 * q).all()
    assert largest_difference(by_fields, exact_fields) < 1e-5 * float(exact_fields.abs().max())
    assert largest_difference(by_couplings, exact_couplings) < 1e-5 * float(exact_couplings.abs().max())


@both_precisions
@masks
@pytest.mark.parametrize(("fields", "couplings"), [(1e4, 50), (10, 50), (1, 50), (10, 5), (1e4, 0)])
def test_strong_fields_and_couplings(fields, couplings, mask, dtype):
    """Pair weights are scaled; rows whose partition function underflows are left to the tensor operations."""
    assert_same(fields * draw(3, 9, 9, seed=1), couplings * draw(9, 9, seed=2), MASKS[mask](9), dtype)


def test_a_batch_with_a_row_that_underflows_is_given_to_the_tensor_operations():
    h, J = torch.zeros(2, 8), torch.full((8, 8), 10.0)
    h[1] = 40.0 * (1 - 2 * (torch.arange(8) % 2))
    for rows, underflows in ((h[:1], False), (h, True)):
        p = native_rows.native_marginals(rows, J, None, arrange_rows(rows.shape[:-1], J.shape[:-2], None))
        assert (p is None) == underflows


@pytest.mark.parametrize("mask", ["none", "causal", "holes"])
def test_threads_share_the_work_and_give_the_same_numbers(threads, mask):
    h, J, present = draw(100, 2, 10, 10, seed=1), draw(2, 1, 10, 10, seed=2, spread=0.4), MASKS[mask](10)
    found = {}
    for number in (1, 2, 3):
        threads(number)
        found[number] = value_and_gradients(h, J, present)
    for number in (2, 3):
        assert torch.equal(found[number][0], found[1][0])
        assert torch.equal(found[number][1], found[1][1])
        assert largest_difference(found[number][2], found[1][2]) < 1e-12 * float(found[1][2].abs().max())


def test_little_work_stays_on_one_thread(threads, monkeypatch):
    threads(2)
    present, arrangement = causal_mask(12), arrange_rows(torch.Size((64, 12)), torch.Size(), torch.Size((12,)))
    assert len(native_rows._plan(present, arrangement, 12, False, 2)) == 2
    monkeypatch.undo()
    monkeypatch.setattr(row_sets, "_LEAST_THREADED_COST", 2**30)
    native_rows._remembered_plan.cache_clear()
    assert len(native_rows._plan(present, arrangement, 12, False, 2)) == 1


@pytest.mark.parametrize("saved", [0, 2**22])
@masks
def test_tables_are_kept_or_made_again(monkeypatch, saved, mask):
    monkeypatch.setattr(native_rows, "_SAVED_ENTRIES", saved)
    assert_same(draw(70, 9, 9, seed=1), draw(9, 9, seed=2, spread=0.5), MASKS[mask](9), torch.float64)


def test_without_gradients_nothing_is_kept(monkeypatch):
    kept = []
    original = native_rows._solve
    monkeypatch.setattr(native_rows, "_solve", lambda *args, save: kept.append(save) or original(*args, save=save))
    h, J = draw(4, 6), draw(6, 6, seed=1)
    exact_marginals(h, J)
    exact_marginals(h.requires_grad_(), J)
    with torch.no_grad():
        exact_marginals(h, J)
    assert kept == [False, True, False]


@pytest.mark.parametrize(("value", "native"), [("0", False), ("1", True), (None, True)])
def test_the_environment_switches_the_kernels_off(monkeypatch, value, native):
    if value is None:
        monkeypatch.delenv("HYBRID_ATTENTION_NATIVE", raising=False)
    else:
        monkeypatch.setenv("HYBRID_ATTENTION_NATIVE", value)
    h, J = draw(2, 4), draw(4, 4, seed=1)
    assert native_rows.native_is_used(h, J) == native
    assert not native_rows.native_is_used(h.to("meta"), J.to("meta"))
    assert not native_rows.native_is_used(h.half(), J.half())


def lazily_negated(x):
    """-x, which torch keeps as x and a flag."""
    negated = torch.view_as_complex(torch.stack((x, x), -1)).conj().imag
    assert negated.is_neg()
    return negated


@pytest.mark.parametrize("negated", ["fields", "couplings", "gradient"])
def test_lazily_negated_tensors_have_the_values_that_torch_gives_them(negated):
    given = {"fields": draw(3, 5), "couplings": draw(5, 5, seed=1), "gradient": draw(3, 5, seed=2)}

    def results(fields, couplings, grad):
        fields, couplings = fields.detach().requires_grad_(), couplings.detach().requires_grad_()
        p = exact_marginals(fields, couplings)
        return p.detach(), *torch.autograd.grad(p, (fields, couplings), grad)

    expected = results(*{**given, negated: -given[negated]}.values())
    found = results(*{**given, negated: lazily_negated(given[negated])}.values())
    assert all(largest_difference(*pair) < 1e-12 for pair in zip(found, expected, strict=True))


def test_derivatives_that_the_kernels_do_not_have_are_refused():
    h, J = draw(3, 4), draw(4, 4, seed=1)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        exact_marginals(forward_ad.make_dual(h, torch.ones_like(h)), J)
    with pytest.raises(RuntimeError, match="autograd"):
        torch.func.vmap(lambda fields: exact_marginals(fields, J))(h)


def test_an_interrupted_call_waits_for_its_threads():
    finished = []

    def run(number):
        if number == 0:
            raise KeyboardInterrupt
        time.sleep(0.1)
        finished.append(number)

    with pytest.raises(KeyboardInterrupt):
        native_rows._on_threads(run, 3)
    assert sorted(finished) == [1, 2]


def test_without_compiled_kernels_tensor_operations_compute_the_same(monkeypatch):
    h, J = draw(5, 5), draw(5, 5, seed=1)
    expected = exact_marginals(h, J, causal_mask(5))
    monkeypatch.setattr(native_rows, "row_kernels", None)
    assert largest_difference(exact_marginals(h, J, causal_mask(5)), expected) < 1e-12


def test_kernels_compiled_from_other_sources_are_left_out_with_a_warning():
    assert native_rows.interface_fits(row_kernels)
    older = SimpleNamespace(interface=lambda: row_kernels.interface() - 1)
    for kernels in (older, SimpleNamespace()):
        with pytest.warns(UserWarning, match="install the package again"):
            assert not native_rows.interface_fits(kernels)


@both_precisions
def test_the_exponential_is_right_to_its_last_digits(instruction_set, dtype):
    least = -87.0 if dtype == torch.float32 else -700.0
    x = torch.cat((torch.linspace(least, 32, 20001), draw(5000), torch.tensor([0.0]))).double()
    out = torch.empty(len(x), dtype=dtype)
    row_kernels.exponentials(dtype == torch.float64, x.data_ptr(), out.data_ptr(), len(x))
    expected = torch.tensor([math.exp(value) for value in x.tolist()], dtype=torch.float64)
    assert ((out.double() - expected).abs() <= torch.finfo(dtype).eps * expected).all()


@both_precisions
def test_the_exponential_of_what_leaves_the_range_is_zero(instruction_set, dtype):
    x = torch.tensor([-1e3, -1e9, -math.inf, -709.0], dtype=torch.float64)
    out = torch.empty(len(x), dtype=dtype)
    row_kernels.exponentials(dtype == torch.float64, x.data_ptr(), out.data_ptr(), len(x))
    assert (out == 0).all()


def test_an_instruction_set_that_the_processor_lacks_is_an_error():
    with pytest.raises(ValueError, match=r"'abacus' is none of the instruction sets"):
        row_kernels.use_instruction_set("abacus")
