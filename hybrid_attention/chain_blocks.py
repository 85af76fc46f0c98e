"""A chain of spins with couplings of a range, cut into blocks: what a sweep keeps, and the weights of a step.

A sweep adds one block of b spins at a time. The weights of its pairs, with each other and with earlier spins, depend
on the block itself (`new`) and on the block that no later spin is coupled to (`old`); where two blocks reach back w
spins, also on the one between them (`stay`). A message holds the states of `stay` and `new`.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hybrid_attention.state_tables import spins

_LARGEST_SINGLE = 5
_SMALLEST_BLOCK = 4


@dataclass(frozen=True)
class Blocks:
    """How many spins a block has, and how many of them a message holds.

    Args:
        size: spins b in a block.
        kept: blocks in a message, 1 or 2; kept * size is at least the range.
    """

    size: int
    kept: int

    @property
    def stay_states(self) -> int:
        """Number of states of the block between `old` and `new`, 1 where there is none."""
        return int(2 ** (self.size * (self.kept - 1)))

    @property
    def states(self) -> int:
        """Number of states of a block."""
        return int(2**self.size)

    @property
    def message_states(self) -> int:
        """Number of entries of a message."""
        return self.stay_states * self.states

    def count(self, num_spins: int) -> int:
        """Return the number of blocks that hold `num_spins` spins."""
        return -(-num_spins // self.size)

    def turn(self, message: Tensor) -> Tensor:
        """Exchange the two blocks of a message (stay, new, ...): its `new` stays in the next step."""
        return message.transpose(0, 1) if self.kept == 2 else message


def blocks_of(coupling_range: int) -> Blocks:
    """Return the blocks for couplings of a range of 1 or more.

    A single kept block of b spins takes 2^(2b) / b multiplications a spin, two take 2^(3b) / b for twice the range.
    """
    if coupling_range <= _LARGEST_SINGLE:
        return Blocks(max(coupling_range, _SMALLEST_BLOCK), 1)
    return Blocks((coupling_range + 1) // 2, 2)


def log_weights(couplings: Tensor, blocks: Blocks) -> Tensor:
    """Return the exponents that pairs add in each step.

    Args:
        couplings: (T, w), J of spin t with spin t - d at [t, d - 1], in nats, 0 where there is none.
        blocks: from blocks_of(w).

    Returns:
        (count, stay, new, old) in nats, spin t - d before the first one included at any value.
    """
    length, reach = couplings.shape
    count = blocks.count(length)
    padded = torch.nn.functional.pad(couplings, (0, 0, 0, count * blocks.size - length))
    products = _pair_products(blocks, reach, couplings.dtype, couplings.device)
    exponents = padded.view(count, blocks.size * reach) @ products
    return exponents.view(count, blocks.stay_states, blocks.states, blocks.states)


def coupling_gradients(grad: Tensor, blocks: Blocks, length: int, reach: int) -> Tensor:
    """Return the gradients (length, reach) of couplings from those of their exponents (count, stay, new, old)."""
    products = _pair_products(blocks, reach, grad.dtype, grad.device)
    return (grad.flatten(1) @ products.T).view(-1, reach)[:length]


@lru_cache(maxsize=64)
def _pair_products(blocks: Blocks, reach: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return s_i s_(i-d) for each spin i of a block and distance d: (b w, states of stay, new and old)."""
    with torch.inference_mode(False):
        s = spins(blocks.size, dtype, device)
        shape = (-1, blocks.stay_states, blocks.states, blocks.states)
        new = s.view(-1, 1, blocks.states, 1).expand(shape)
        old = s.view(-1, 1, 1, blocks.states).expand(shape)
        earlier = [old, s.view(-1, blocks.states, 1, 1).expand(shape)] if blocks.kept == 2 else [old]
        line = torch.cat((*earlier, new)).flatten(1)
        first = blocks.size * blocks.kept
        products = [line[i] * line[i - d] for i in range(first, first + blocks.size) for d in range(1, reach + 1)]
        return torch.stack(products)
