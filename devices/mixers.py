"""The mixer of a quench step, RX on every wire, as real matrix products.

With diag(1, i) on every wire, RX(-2 c) = exp(i c X) becomes the rotation [[cos c, -sin c], [sin c, cos c]]. The factors
commute with the phases between the mixers and change no probability, so a whole quench runs on real matrices: the
mixers of up to four adjacent wires are one 16 x 16 matrix, which multiplies real and imaginary parts alike.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

_LARGEST_GROUP = 4
_ROTATION = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)


@lru_cache(maxsize=64)
def mixer_groups(num_wires: int) -> tuple[int, ...]:
    """Return the sizes of the groups of adjacent wires that share a matrix, as even as possible, at most four."""
    count = -(-num_wires // _LARGEST_GROUP)
    return tuple((num_wires + index) // count for index in range(count))


@lru_cache(maxsize=64)
def mixer_matrices(
    angles: tuple[float, ...], size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Return exp(c K) on `size` wires for each angle c: (2^size, 2^size), K the sum of [[0, -1], [1, 0]] on each."""
    with torch.inference_mode(False):
        angle = torch.tensor(angles, dtype=torch.float64)
        cos, sin = angle.cos(), angle.sin()
        single = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)
        matrix = single
        for _ in range(size - 1):
            matrix = torch.einsum("pij,pkl->pikjl", matrix, single).flatten(3).flatten(1, 2)
        return matrix.to(dtype=dtype, device=device).unbind()


@lru_cache(maxsize=64)
def mixer_generator(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return K, the sum of [[0, -1], [1, 0]] on each of `size` wires: (2^size, 2^size)."""
    with torch.inference_mode(False):
        total = torch.zeros(2**size, 2**size, dtype=torch.float64)
        for wire in range(size):
            left, right = (
                torch.eye(2**wire, dtype=torch.float64),
                torch.eye(2 ** (size - wire - 1), dtype=torch.float64),
            )
            total += torch.kron(torch.kron(left, _ROTATION), right)
        return total.to(dtype=dtype, device=device)


def multiply_group(matrix: Tensor, state: Tensor, out: Tensor, left: int) -> None:
    """Write to `out` the product of a real matrix with the wires that follow the first log2(left) ones.

    Args:
        matrix: (2^size, 2^size), real.
        state: (2^T, ..., columns), complex, contiguous.
        out: of the shape of state, contiguous.
        left: number of states of the wires before the group.
    """
    size = matrix.shape[0]
    source = torch.view_as_real(state).view(left, size, -1)
    target = torch.view_as_real(out).view(left, size, -1)
    if left == 1:
        torch.mm(matrix, source[0], out=target[0])
    else:
        torch.bmm(matrix.expand(left, size, size), source, out=target)


def mix(matrices: Sequence[Tensor], state: Tensor, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply the groups of all wires by their matrices in turn; return the result and a buffer that is free."""
    left = 1
    for matrix in matrices:
        multiply_group(matrix, state, spare, left)
        left *= matrix.shape[0]
        state, spare = spare, state
    return state, spare
