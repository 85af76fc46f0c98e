"""Rows that reach to few spins run on few wires: how many wires, in how many executions, and with the same results."""

import itertools

import pennylane as qml
import pytest
import torch

from hybrid_attention import DQALayer, LinearSchedule, circuit_sizes
from hybrid_attention.circuit_sizes import MAX_EXECUTIONS, choose_sizes, reaches
from hybrid_attention.circuits import QuenchCircuits

CAUSAL_16 = tuple((reach, 32) for reach in range(1, 17))
COUNTS = {
    "one reach": ((5, 7),),
    "short rows only": tuple((reach, 10) for reach in range(1, 7)),
    "causal": CAUSAL_16,
    "causal, many rows": tuple((reach, 3000) for reach in range(1, 12)),
    "few long rows": ((2, 5000), (3, 4000), (9, 1), (14, 3)),
    "all long": ((13, 100), (14, 1), (15, 900)),
    "two far apart": ((1, 1), (16, 1)),
}
every_count = pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)


def cost(sizes, counts, steps):
    """P 2^n for each row on the fewest of the wires n that hold it, 2^17 for each execution."""
    rows = sum(count * 2 ** min(size for size in sizes if size >= reach) for reach, count in counts)
    return steps * rows + 2**17 * len(sizes)


@every_count
@pytest.mark.parametrize("steps", [1, 8, 40])
def test_sizes_are_the_cheapest_of_all_choices_of_up_to_four(counts, steps):
    sizes = choose_sizes(counts, steps)
    largest = counts[-1][0]
    choices = (
        (*below, largest)
        for count in range(MAX_EXECUTIONS)
        for below in itertools.combinations(range(1, largest), count)
    )
    assert cost(sizes, counts, steps) == min(cost(choice, counts, steps) for choice in choices)


@every_count
@pytest.mark.parametrize("steps", [1, 8, 40])
def test_sizes_ascend_to_the_largest_reach_and_are_at_most_four(counts, steps):
    sizes = choose_sizes(counts, steps)
    assert 1 <= len(sizes) <= 4
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == counts[-1][0]


def test_work_that_costs_less_than_an_execution_is_not_divided():
    assert choose_sizes(COUNTS["short rows only"], 1) == (6,)
    assert len(choose_sizes(CAUSAL_16, 40)) == 4


def reaches_by_loops(present, shape):
    rows = present.expand(shape).movedim(1, -2).flatten(0, -3)
    return [
        max([j + 1 for head in row for j in range(shape[-1]) if head[j]], default=0)
        for row in rows.reshape(-1, *rows.shape[-2:]).tolist()
    ]


def some(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3)) > 0.6


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
PADDED = (torch.arange(5) < torch.tensor([[5], [3], [0]])).view(3, 1, 1, 5)


@pytest.mark.parametrize(
    ("present", "shape", "expected"),
    [
        (CAUSAL, (2, 3, 5, 5), [1, 2, 3, 4, 5] * 2),
        (PADDED, (3, 2, 5, 5), [5] * 5 + [3] * 5 + [0] * 5),
        (CAUSAL & PADDED, (3, 2, 5, 5), [1, 2, 3, 4, 5, 1, 2, 3, 3, 3, 0, 0, 0, 0, 0]),
        (torch.eye(5, dtype=torch.bool)[[1, 3]].view(2, 1, 5), (1, 2, 4, 5), [4] * 4),
        (some(3, 2, 4, 5), (3, 2, 4, 5), None),
        (some(2, 4, 5), (3, 2, 4, 5), None),
        (some(1, 2, 1, 5), (3, 2, 4, 5), None),
        (some(3, 1, 4, 1), (3, 2, 4, 5), None),
        (torch.zeros(5, dtype=torch.bool), (2, 2, 5), [0, 0]),
        (torch.tensor(True), (2, 2, 3, 5), [5] * 6),
        (torch.tensor(False), (2, 2, 3, 5), [0] * 6),
    ],
    ids=[
        "causal", "padded", "causal and padded", "per head", "each its own", "shared by the batch",
        "shared by the queries", "all spins alike", "nothing present", "all present", "nothing at all",
    ],
)  # fmt: skip
def test_reach_is_the_last_present_spin_of_any_head(present, shape, expected):
    found = reaches(present, torch.Size(shape))
    assert found.tolist() == reaches_by_loops(present, shape)
    assert expected is None or found.tolist() == expected


@pytest.fixture
def divide(monkeypatch):
    """Set what an execution costs, and how many there may be."""

    def set_costs(execution_cost, most=MAX_EXECUTIONS):
        monkeypatch.setattr(circuit_sizes, "_EXECUTION_COST", execution_cost)
        monkeypatch.setattr(circuit_sizes, "MAX_EXECUTIONS", most)
        choose_sizes.cache_clear()

    yield set_costs
    choose_sizes.cache_clear()


def build(num_spins, num_heads=2, name="hybrid.statevector", steps=3):
    layer = DQALayer(num_spins, num_heads, name, LinearSchedule(steps, 1.0 * steps)).double()
    with torch.no_grad():
        layer.couplings.normal_(0.1, 0.4, generator=torch.Generator().manual_seed(0))
    return layer


def gradients(layer, fields, present):
    """p, dL/dfields and dL/dcouplings of a loss that tells all outputs apart."""
    fields = fields.clone().requires_grad_()
    p = layer(fields, present)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    return p.detach(), *torch.autograd.grad((weights * p).sum(), (fields, layer.couplings))


def draw_fields(*shape):
    return 0.2 + 0.6 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


MASKS = {
    "causal": CAUSAL,
    "padded": PADDED,
    "causal and padded": CAUSAL & PADDED,
    "per head": some(3, 2, 5, 5),
    "mostly empty": CAUSAL & (torch.arange(5) < 1).view(5, 1),
    "not all of the wires": CAUSAL & (torch.arange(5) < 3),
}


@pytest.mark.parametrize("name", ["hybrid.statevector", "lightning.qubit"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_results_on_fewer_wires_equal_those_on_all_wires(mask, name, divide):
    layer, fields = build(5, name=name), draw_fields(3, 2, 5, 5)
    divide(1, most=1)
    whole = gradients(layer, fields, mask)
    counts = reaches(mask, fields.shape).clamp_min(1).unique(return_counts=True)
    divide(1)
    divided = gradients(layer, fields, mask)
    if len(counts[0]) > 1:
        assert len({length for length, _ in layer._circuits.made}) > 1
    for ours, theirs in zip(divided, whole, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


def test_no_row_runs_on_fewer_wires_than_its_reach_or_on_more_than_it_needs(divide, monkeypatch):
    divide(1)
    layer, mask = build(6), some(2, 2, 6, 6)
    seen = []
    run = QuenchCircuits.run

    def spy(self, queries):
        for each in queries:
            present = each.inputs[:, :, 1].amax(0)
            last = (present * torch.arange(1, each.num_wires + 1)).amax(-1)
            seen.append((each.num_wires, last.tolist()))
        return run(self, queries)

    monkeypatch.setattr(QuenchCircuits, "run", spy)
    layer(draw_fields(2, 2, 6, 6), mask)
    sizes = [length for length, _ in seen]
    found = sorted(reach for _, rows in seen for reach in rows)
    assert len(sizes) > 1
    assert found == sorted(reaches(mask, torch.Size((2, 2, 6, 6))).tolist())
    for length, rows in seen:
        below = max([size for size in sizes if size < length], default=0)
        assert all(below < max(reach, 1) <= length for reach in rows)


def test_a_causal_call_makes_at_most_four_simulations_whatever_its_rows():
    layer = build(16, 1, steps=1).float()
    causal = torch.ones(16, 16, dtype=torch.bool).tril()
    fields = draw_fields(2, 1, 16, 16).float()
    layer(fields, causal)
    with qml.Tracker(layer._circuits.device) as tracker:
        layer(fields, causal)
    assert tracker.totals["batches"] == 1
    assert 1 < tracker.totals["simulations"] <= 4
