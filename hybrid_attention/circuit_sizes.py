"""How many wires each circuit of a batch gets: rows that reach to few spins run on few wires, in few executions."""

from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

MAX_EXECUTIONS = 4
_EXECUTION_COST = 2**17


def reaches(present: Tensor, shape: torch.Size) -> Tensor:
    """Return the number of leading spins up to the last present one, the largest over heads: int (batch x ...,).

    Args:
        present: bool, broadcasts to shape.
        shape: (batch, H, ..., T), of the fields.
    """
    mask = present.view((1,) * (len(shape) - present.dim()) + present.shape)
    places = torch.arange(1, shape[-1] + 1, device=present.device)
    reach = (mask * places).amax(-1).amax(1)
    return reach.expand(shape[0], *shape[2:-1]).flatten().contiguous()


@lru_cache(maxsize=256)
def choose_sizes(counts: tuple[tuple[int, int], ...], steps: int) -> tuple[int, ...]:
    """Return the numbers of wires to run on, ascending, at most 4: a row takes the first that holds its reach.

    Args:
        counts: (reach, number of rows) for each reach that occurs, ascending in reach.
        steps: number of Trotter steps P.

    A row on n wires costs P 2^n, and an execution as much as 2^17 of that. Cost: a few thousand sums, once for
    each set of counts.
    """
    occurring = [reach for reach, _ in counts]

    def cost(sizes: tuple[int, ...]) -> int:
        rows = sum(count * 2 ** next(size for size in sizes if size >= reach) for reach, count in counts)
        return steps * rows + _EXECUTION_COST * len(sizes)

    options = ((*below, occurring[-1]) for few in range(MAX_EXECUTIONS) for below in combinations(occurring[:-1], few))
    return min(options, key=cost)
