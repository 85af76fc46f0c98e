"""Marginals of chains of spins by sweeps of matrix products, with an analytic backward pass.

Messages M_k (stay, new, rows) hold the weights of all spins up to block k, L_k those of the later ones. With W_k the
weights of the pairs of step k, shared by all rows, and f_k (new, rows) those of the fields, each at most 1,

    M_k = c_(k-1) f_k (W_k M_(k-1))     c_k = 1 / max M_k     L_(k-1) = W_k^T (c_(k-1) f_k L_k)     sum M_k L_k = 1

and the marginals of block k are those of M_k L_k. In the backward pass, with g = dL/dp and n the occupations, a spin
adds g (n - p) to a sum G of mean 0; M'_k and L'_k carry the weights times the part of G that they cover, so

    dL/dh_k = 2 E[G n]             from M'_k L_k + M_k L'_k
    dL/dlog W_k = W_k E[G | k]     from X_k M'_(k-1) + X'_k M_(k-1), summed over rows, with X_k = c_(k-1) f_k L_k

Rows are sorted by their number of blocks, most first: those that reach step k are its first columns.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hybrid_attention.chain_blocks import Blocks, coupling_gradients, log_weights
from hybrid_attention.precision import without_autocast
from hybrid_attention.state_tables import occupations

_NEVER = 1e9
_LOST = {torch.float32: 1e24, torch.float64: 1e290}
_ENTRIES_AT_ONCE = 2**16
_FEWEST_ROWS = 32


class ChainSweeps(Function):
    """Marginals of rows that share their couplings.

    Input: fields (count b, R), float32 or float64, of spins in blocks; present bool (count b, R); couplings (T, w), as
    for log_weights; blocks; and for each step the number of its rows, which are the first ones. An absent spin before
    the end of its row is taken at +1, and its couplings count.

    Output: p (count b, R), 0 at absent spins, and bool (R,), rows whose weights span more than floating point does,
    which have no valid p or gradients.

    Cost: for each row and block 2^((kept + 1) b) multiplications in two products, and five more in the backward pass,
    and a few times 2^(kept b) other operations. For gradients all M_k are kept: 2^(kept b) / b numbers a spin and row.
    """

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, present: Tensor, couplings: Tensor, blocks: Blocks, rows: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return the marginals, and which rows have none."""
        exponents = log_weights(couplings, blocks)
        weights = (exponents - exponents.amax((1, 2, 3), keepdim=True)).exp_()
        p, lost = torch.zeros_like(fields), torch.zeros_like(fields[0], dtype=torch.bool)
        saved: list[Tensor] = []
        for start, stop in _pieces(rows, blocks):
            columns = slice(start, stop)
            chain = _Chain(blocks, weights, [min(n, stop) - start for n in rows if n > start])
            chain.fill(fields[:, columns], present[:, columns])
            p[: chain.length, columns], lost[columns] = chain.marginals()
            if any(ctx.needs_input_grad):
                saved += [*chain.messages, *chain.scales, *chain.factors]
        p.masked_fill_(~present, 0)
        ctx.save_for_backward(weights, present, p, *saved)
        ctx.blocks, ctx.rows, ctx.shape = blocks, rows, couplings.shape
        ctx.mark_non_differentiable(lost)
        return p, lost

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return dL/dh and dL/dJ."""
        weights, present, p, *saved = ctx.saved_tensors
        grad = grad.masked_fill(~present, 0)
        grad_fields, grad_weights = torch.zeros_like(p), torch.zeros_like(weights)
        for start, stop in _pieces(ctx.rows, ctx.blocks):
            columns = slice(start, stop)
            chain = _Chain(ctx.blocks, weights, [min(n, stop) - start for n in ctx.rows if n > start])
            steps = len(chain.rows)
            chain.messages, chain.scales, chain.factors = (saved[i * steps : (i + 1) * steps] for i in range(3))
            saved = saved[3 * steps :]
            grad_fields[: chain.length, columns] = chain.gradients(
                grad[: chain.length, columns], p[: chain.length, columns], grad_weights
            )
        grad_couplings = coupling_gradients(grad_weights.mul_(weights), ctx.blocks, *ctx.shape)
        return grad_fields.masked_fill_(~present, 0), None, grad_couplings, None, None


class _Chain:
    """The messages of some rows."""

    def __init__(self, blocks: Blocks, weights: Tensor, rows: list[int]) -> None:
        self.blocks = blocks
        self.weights = weights
        self.rows = rows
        self.length = len(rows) * blocks.size
        self.occupied = occupations(blocks.size, weights.dtype, weights.device)
        self.messages: list[Tensor] = []
        self.scales: list[Tensor] = []
        self.factors: list[Tensor] = []

    def fill(self, fields: Tensor, present: Tensor) -> None:
        """Sweep forward, and keep all messages."""
        blocks, columns = self.blocks, fields.shape[1]
        doubled = 2 * fields[: self.length]
        at_plus = (-doubled).clamp_min(0)
        at_minus = doubled.clamp_min(0).masked_fill(~present[: self.length], _NEVER)
        costs = torch.cat([x.view(len(self.rows), blocks.size, columns) for x in (at_plus, at_minus)], dim=1)
        missed = torch.cat((self.occupied, 1 - self.occupied)).T.neg()
        factors = (missed @ costs).exp_()
        message = fields.new_zeros(blocks.stay_states, blocks.states, columns)
        message[0, 0] = 1
        scale = fields.new_ones(columns)
        for weights, factor, count in zip(self.weights, factors, self.rows, strict=False):
            scaled = factor[:, :count] * scale[:count]
            message = torch.bmm(weights, blocks.turn(message[..., :count])).mul_(scaled)
            scale = message.amax((0, 1)).reciprocal_()
            self.messages.append(message)
            self.factors.append(scaled)
            self.scales.append(scale)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Sweep back: return p (length, rows), and which rows were lost."""
        p = self.scales[0].new_zeros(self.length, self.rows[0])
        largest = torch.zeros_like(self.scales[0])
        later = self.scales[0].new_empty(self.blocks.stay_states, self.blocks.states, 0)
        for step in range(len(self.rows) - 1, -1, -1):
            message, count = self.messages[step], self.rows[step]
            later = self._with_ends(later, message)
            torch.maximum(largest[:count], later.amax((0, 1)) * self.scales[step], out=largest[:count])
            joint = (message * later).sum(0)
            p[self._spins(step), :count] = (self.occupied @ joint / joint.sum(0)).clamp_(max=1)
            if step:
                later = self._earlier(step, later * self.factors[step])
        return p, ~(largest < _LOST[p.dtype])

    def gradients(self, grad: Tensor, p: Tensor, grad_weights: Tensor) -> Tensor:
        """Return dL/dh (length, rows), and add dL/dW to that of all rows."""
        turned = self._turned(grad, p)
        moved = self._moved_forward(turned)
        found = torch.zeros_like(grad)
        later = moved_later = grad.new_empty(self.blocks.stay_states, self.blocks.states, 0)
        for step in range(len(self.rows) - 1, -1, -1):
            message, count = self.messages[step], self.rows[step]
            later = self._with_ends(later, message)
            moved_later = torch.nn.functional.pad(moved_later, (0, count - moved_later.shape[-1]))
            joint = (moved[step] * later).addcmul_(message, moved_later).sum(0)
            found[self._spins(step), :count] = 2 * self.occupied @ joint
            both = torch.cat((later, moved_later.addcmul_(turned[step][:, :count], later)), dim=-1)
            both *= self.factors[step].repeat(1, 2)
            if step:
                before = torch.cat((moved[step - 1][..., :count], self.messages[step - 1][..., :count]), dim=-1)
            else:
                before = torch.zeros_like(both)
                before[0, 0, count:] = 1
            grad_weights[step].baddbmm_(both, self.blocks.turn(before).mT)
            if step:
                later, moved_later = self._earlier(step, both).split(count, dim=-1)
        return found

    def _turned(self, grad: Tensor, p: Tensor) -> Tensor:
        """Return sum of g (n - p) over the spins of each block: (steps, new, rows)."""
        weighted = grad.view(len(self.rows), self.blocks.size, -1)
        means = (grad * p).view(weighted.shape).sum(1, keepdim=True)
        return self.occupied.T @ weighted - means

    def _moved_forward(self, turned: Tensor) -> list[Tensor]:
        """Return M'_k of all steps."""
        moved = torch.zeros_like(self.messages[0])
        found = []
        for step, count in enumerate(self.rows):
            moved = torch.bmm(self.weights[step], self.blocks.turn(moved[..., :count])) if step else moved
            moved = moved.mul_(self.factors[step]).addcmul_(turned[step][:, :count], self.messages[step])
            found.append(moved)
        return found

    def _with_ends(self, later: Tensor, message: Tensor) -> Tensor:
        """Add the rows that end at this step to L, where it is 1 / sum M."""
        ended = message[..., later.shape[-1] :]
        if not ended.shape[-1]:
            return later
        ends = ended.sum((0, 1)).reciprocal_().expand(ended.shape)
        return torch.cat((later, ends), dim=-1)

    def _earlier(self, step: int, later: Tensor) -> Tensor:
        return self.blocks.turn(torch.bmm(self.weights[step].mT, later))

    def _spins(self, step: int) -> slice:
        return slice(step * self.blocks.size, (step + 1) * self.blocks.size)


def _pieces(rows: tuple[int, ...], blocks: Blocks) -> list[tuple[int, int]]:
    """Return chunks (start, stop) of rows whose messages fit a processor's cache."""
    at_once = max(_FEWEST_ROWS, _ENTRIES_AT_ONCE // blocks.message_states)
    return [(start, min(start + at_once, rows[0])) for start in range(0, rows[0], at_once)]
