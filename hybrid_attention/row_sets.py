"""Which rows the native kernels solve together: rows that have the same spins share their tables.

Where many sets of spins hold few rows each, those that reach to the same last spin are joined, and solved on the spins
that any of them has; the spins that a row lacks are pinned to +1.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

_VECTOR = 16
_TABLE_COST = 16
_LEAST_THREADED_COST = 2**20


@dataclass(frozen=True)
class RowSet:
    """Rows v of (V, G, T, R) that share a group's couplings, and are solved on the same spins.

    Bit j of absent[i] says that rows[i] lacks spins[j]. Of the lanes, the R repeats of each row in turn, those from
    `first` to `last` are solved.
    """

    group: int
    spins: tuple[int, ...]
    rows: tuple[int, ...]
    absent: tuple[int, ...]
    first: int
    last: int

    def cost(self) -> int:
        """Return the work of the set: what its lanes and its table of pair weights take, for each state."""
        return _cost(len(self.spins), self.last - self.first)


def share_tables(masks: Sequence[Sequence[int]], groups: int, repeats: int) -> list[RowSet]:
    """Return the sets for masks of present spins, as bits of a number, for each row of each group (G or 1, V)."""
    of_masks = [_join_rows(of_group, repeats) for of_group in masks]
    return [
        replace(rows, group=group) for group in range(groups) for rows in of_masks[group if len(of_masks) > 1 else 0]
    ]


def _join_rows(masks: Sequence[int], repeats: int) -> list[RowSet]:
    reaches: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, mask in enumerate(masks):
        if mask:
            reaches[mask.bit_length()][mask].append(row)
    sets = []
    for sharing in reaches.values():
        apart = [_row_set({mask: rows}, repeats) for mask, rows in sharing.items()]
        together = _row_set(sharing, repeats)
        sets += apart if sum(rows.cost() for rows in apart) <= together.cost() else [together]
    return sets


def _row_set(sharing: dict[int, list[int]], repeats: int) -> RowSet:
    """Return the set of the rows of some masks."""
    union = 0
    for mask in sharing:
        union |= mask
    spins = tuple(j for j in range(union.bit_length()) if union >> j & 1)
    absent = {mask: sum((~mask >> spin & 1) << j for j, spin in enumerate(spins)) for mask in sharing}
    rows = sorted((row, absent[mask]) for mask, of_mask in sharing.items() for row in of_mask)
    return RowSet(0, spins, tuple(r for r, _ in rows), tuple(a for _, a in rows), 0, len(rows) * repeats)


def _cost(num_spins: int, lanes: int) -> int:
    """Return the work for 2^num_spins states: lanes come in full vectors, and a table of pair weights costs as some."""
    return (-(-lanes // _VECTOR) * _VECTOR + _TABLE_COST) << num_spins


def split_sets(sets: Sequence[RowSet], threads: int) -> list[list[RowSet]]:
    """Return what each thread does, of about equal cost: one thread does all where that is little."""
    total = sum(rows.cost() for rows in sets)
    if threads == 1 or total < _LEAST_THREADED_COST:
        return [list(sets)]
    pieces = [piece for rows in sets for piece in _cut(rows, total // threads)]
    shares: list[list[RowSet]] = [[] for _ in range(threads)]
    costs = [0] * threads
    for piece in sorted(pieces, key=RowSet.cost, reverse=True):
        least = costs.index(min(costs))
        shares[least].append(piece)
        costs[least] += piece.cost()
    return [share for share in shares if share]


def _cut(rows: RowSet, most: int) -> list[RowSet]:
    """Cut the lanes into equal pieces of full vectors, so that each costs about `most` or less."""
    parts = -(-rows.cost() // most)
    lanes = max(1, -(-(rows.last - rows.first) // (parts * _VECTOR))) * _VECTOR
    return [
        replace(rows, first=start, last=min(start + lanes, rows.last)) for start in range(rows.first, rows.last, lanes)
    ]
