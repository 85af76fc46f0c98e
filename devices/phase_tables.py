"""The diagonal of a quench step as products of small tables.

The energy of a state has terms of one and two spins only. With the wires cut into three groups A, B and C, every term
lies on one of the faces (A, B), (A, C) and (B, C), so the phases of all 2^T states are products of three tables with
about 2^(2T/3) entries each: sines and cosines are taken of the tables alone, and none is kept per step.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

_LARGEST_SINGLE_TABLE = 4


@dataclass(frozen=True)
class Face:
    """Entries start..stop of the flat tables: one for each state of the groups whose dimension is not 1 in `shape`."""

    start: int
    stop: int
    shape: tuple[int, int, int]


@lru_cache(maxsize=64)
def cut_into_groups(num_wires: int) -> tuple[int, int, int]:
    """Return the sizes of A, B and C, which are adjacent wires in order; few wires are all in A."""
    if num_wires <= _LARGEST_SINGLE_TABLE:
        return num_wires, 0, 0
    return (num_wires + 2) // 3, (num_wires + 1) // 3, num_wires // 3


@lru_cache(maxsize=64)
def faces(num_wires: int) -> tuple[Face, ...]:
    """Return the faces in the order of the flat tables: (A, B), then (A, C) and (B, C) where there is a C."""
    a, b, c = (2**size for size in cut_into_groups(num_wires))
    shapes = [(a, b, 1)] if c == 1 else [(a, b, 1), (a, 1, c), (1, b, c)]
    found = []
    start = 0
    for shape in shapes:
        size = shape[0] * shape[1] * shape[2]
        found.append(Face(start, start + size, shape))
        start += size
    return tuple(found)


@lru_cache(maxsize=64)
def energy_matrices(num_wires: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what turns fields and couplings into tables: (entries, T) and (entries, T (T - 1) / 2), of 0, -1 and +1.

    tables = matrix @ fields.T holds sum_j h_j s_j spread over the faces; each term is on one face only. Pairs are the
    strict upper triangle row by row, wire 0 is the leftmost bit of a state, and spin +1 is |0>.
    """
    with torch.inference_mode(False):
        group = [index for index, size in enumerate(cut_into_groups(num_wires)) for _ in range(size)]
        pairs = list(combinations(range(num_wires), 2))
        entries = faces(num_wires)[-1].stop
        of_fields = torch.zeros(entries, num_wires, dtype=dtype, device=device)
        of_pairs = torch.zeros(entries, len(pairs), dtype=dtype, device=device)
        homes = [{0, 1}, {0, 2}, {1, 2}]
        bits = torch.arange(2**num_wires, device=device)
        for face, home in zip(faces(num_wires), homes, strict=False):
            states = bits.view([2**size for size in cut_into_groups(num_wires)])
            for dim in range(3):
                if face.shape[dim] == 1:
                    states = states.narrow(dim, 0, 1)
            wire = torch.arange(num_wires - 1, -1, -1, device=device)
            spins = (1 - 2 * ((states.reshape(-1, 1) >> wire) & 1)).to(dtype)
            rows = slice(face.start, face.stop)
            for j in range(num_wires):
                if next(h for h in homes if group[j] in h) == home:
                    of_fields[rows, j] = spins[:, j]
            for index, (j, k) in enumerate(pairs):
                if next(h for h in homes if {group[j], group[k]} <= h) == home:
                    of_pairs[rows, index] = spins[:, j] * spins[:, k]
        return of_fields, of_pairs


def multiply_by_tables(state: Tensor, tables: Tensor, num_wires: int, part: int = 0, parts: int = 1) -> None:
    """Multiply each amplitude by its entry on every face.

    Args:
        state: (2^T / parts, ..., columns), contiguous, changed in place.
        tables: (entries, ..., columns), where all but the first dimension broadcast to those of state.
        num_wires: T.
        part: which part of the states is given, where the states of A are cut into `parts` parts.
        parts: number of parts, a power of two up to the number of states of A.
    """
    a, b, c = (2**size for size in cut_into_groups(num_wires))
    view = state.unflatten(0, (a // parts, b, c))
    for face in faces(num_wires):
        table = tables[face.start : face.stop].unflatten(0, face.shape)
        if parts > 1 and face.shape[0] > 1:
            table = table[part * (a // parts) : (part + 1) * (a // parts)]
        view *= table


def expand_tables(tables: Tensor, num_wires: int) -> Tensor:
    """Return the product of each state's entries: (entries, columns) -> (2^T, columns)."""
    found = list(faces(num_wires))
    views = [tables[face.start : face.stop].unflatten(0, face.shape) for face in found]
    product = views[0] if len(views) == 1 else views[0] * views[1]
    for view in views[2:]:
        product *= view
    return product.flatten(0, 2)


def sum_to_tables(values: Tensor, num_wires: int) -> Tensor:
    """Return the sums of values (2^T, columns) over the states that share an entry: (entries, columns)."""
    view = values.view(*(2**size for size in cut_into_groups(num_wires)), -1)
    sums = []
    for face in faces(num_wires):
        summed = [dim for dim in range(3) if face.shape[dim] == 1 and view.shape[dim] > 1]
        sums.append((view.sum(summed) if summed else view).reshape(face.stop - face.start, -1))
    return torch.cat(sums)
