"""Which rows of a batch are solved together: rows that reach to spins close to each other share tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_SHORT = 8
_SMALL = 10
_MEDIUM = 12
_LARGE = 14
_LARGEST_REMEMBERED_MASK = 4096


@dataclass(frozen=True)
class Bucket:
    """Rows start..stop of the sorted batch, solved on their first `size` spins.

    A row reaches to its last spin that is present. Where each reach holds as many rows as any other, the reaches are
    groups of their own, whose couplings to later spins are cut; otherwise `reaches` is None, and the rows share one
    set of couplings, from which absent spins are taken out by pinning them to +1.
    """

    size: int
    start: int
    stop: int
    reaches: tuple[int, ...] | None

    def take(self, rows: Tensor, piece: slice | None, size: int | None = None) -> Tensor:
        """Select the bucket, a piece of R, and the first `size` places, the bucket's own without it.

        (V, G, T, ..., R) -> (V G, size, ..., R) where reaches are groups, (G, size, ..., V R) otherwise.
        """
        part = self._part(rows, piece, size or self.size)
        return part.flatten(0, 1) if self.reaches else part.movedim(0, -2).flatten(-2)

    def put(self, rows: Tensor, values: Tensor, piece: slice | None) -> None:
        """Write what `take` returned the shape of to the bucket's place in (V, G, T, R)."""
        target = self._part(rows, piece, self.size)
        if self.reaches:
            target.copy_(values.view(target.shape))
        else:
            target.copy_(values.unflatten(-1, (len(target), -1)).movedim(-2, 0))

    def _part(self, rows: Tensor, piece: slice | None, size: int) -> Tensor:
        part = rows
        if self.stop - self.start < rows.shape[0] or size < rows.shape[2]:
            part = rows[self.start : self.stop, :, :size]
        return part if piece is None else part[..., piece]

    def couplings(self, couplings: Tensor) -> Tensor:
        """Return the couplings of each group, (V G, size, size) or (G, size, size), for the strict upper triangle."""
        if self.size < couplings.shape[-1]:
            couplings = couplings[:, : self.size, : self.size]
        if self.reaches is None or len(self.reaches) == 1:
            return couplings
        return (couplings * _within(self.reaches, self.size, couplings.dtype, couplings.device)).flatten(0, 1)

    def counted_states(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Return 1 where spins past a row's reach are at +1 and 0 at other states, (V, 1, 2^b, 2^a); None if all count.

        Half a holds the first a = size // 2 spins, half b the rest.
        """
        if self.reaches is None or len(self.reaches) == 1:
            return None
        return _counted_states(self.reaches, self.size, dtype, device)

    def add_couplings_gradient(self, total: Tensor, grad: Tensor) -> None:
        """Add the gradient of `couplings` to (G, T, T)."""
        if self.reaches is not None and len(self.reaches) > 1:
            within = _within(self.reaches, self.size, grad.dtype, grad.device)
            grad = (grad.unflatten(0, (len(self.reaches), -1)) * within).sum(0)
        total[:, : self.size, : self.size] += grad


@lru_cache(maxsize=256)
def _counted_states(reaches: tuple[int, ...], size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    half = size // 2
    with torch.inference_mode(False):
        counted = torch.zeros(len(reaches), 1, 2 ** (size - half), 2**half, dtype=dtype, device=device)
        for row, reach in enumerate(reaches):
            counted[row, :, : 2 ** max(reach - half, 0), : 2 ** min(reach, half)] = 1
        return counted


@lru_cache(maxsize=256)
def _within(reaches: tuple[int, ...], size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (V, 1, 1, size): 1 where a column of a strict upper triangle is a spin within the row's reach."""
    with torch.inference_mode(False):
        reach = torch.tensor(reaches, device=device).view(-1, 1, 1, 1)
        return (torch.arange(size, device=device) < reach).to(dtype)


@dataclass(frozen=True)
class RowOrder:
    """How to sort rows (None where they are sorted), their buckets, and how many spins of each row can be pinned."""

    rows: tuple[int, ...] | None
    buckets: tuple[Bucket, ...]
    pinned: tuple[int, ...] | None


def plan_rows(present: Tensor) -> RowOrder:
    """Return the order and the buckets for rows of present spins, bool (V, G or 1, T, 1).

    Masks of a few thousand entries, such as the causal one, are remembered by their content.
    """
    if present.numel() > _LARGEST_REMEMBERED_MASK:
        return _plan(present)
    return _remembered_plan(present.cpu().numpy().tobytes(), tuple(present.shape))


@lru_cache(maxsize=256)
def _remembered_plan(content: bytes, shape: tuple[int, ...]) -> RowOrder:
    with torch.inference_mode(False):
        return _plan(torch.frombuffer(bytearray(content), dtype=torch.bool).view(shape))


def _plan(present: Tensor) -> RowOrder:
    places = torch.arange(1, present.shape[2] + 1, device=present.device).view(-1, 1)
    reach = (present * places).amax((1, 2)).squeeze(-1)
    holes = (present.sum(2).amin(1).squeeze(-1) < reach).any()
    *reached, has_holes = torch.cat((reach, holes.unsqueeze(0))).tolist()
    order = sorted(range(len(reached)), key=reached.__getitem__)
    buckets = _cut_buckets([reached[v] for v in order], bool(has_holes))
    pinned = None
    if any(bucket.reaches is None for bucket in buckets):
        sizes = [0] * len(order)
        for bucket in buckets:
            if bucket.reaches is None:
                sizes[bucket.start : bucket.stop] = [bucket.size] * (bucket.stop - bucket.start)
        pinned = tuple(sizes)
    is_sorted = order == list(range(len(order)))
    return RowOrder(None if is_sorted else tuple(order), tuple(buckets), pinned)


def _cut_buckets(reaches: Sequence[int], pinned: bool) -> list[Bucket]:
    """Cut rows, sorted by reach in ascending order, into buckets of similar reach.

    Shorter rows cost less on their own tables, yet each bucket costs some forty tensor operations: the buckets are
    wide where the tables are small. `pinned` says that some row lacks a spin within its reach. Rows that reach no
    spin are in no bucket.
    """
    buckets = []
    stop = len(reaches)
    while stop > 0 and reaches[stop - 1] > 0:
        size = reaches[stop - 1]
        if size <= _SMALL:
            floor = 0
        elif size <= _MEDIUM:
            floor = _SHORT
        else:
            floor = size - (2 if size <= _LARGE else 1)
        start = stop
        while start > 0 and reaches[start - 1] > floor:
            start -= 1
        inside = tuple(reaches[start:stop])
        grouped = not pinned and len(set(inside)) == len(inside)
        buckets.append(Bucket(size, start, stop, inside if grouped else None))
        stop = start
    return buckets
