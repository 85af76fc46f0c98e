"""Exact marginals on the CPU by native kernels: the algorithm of meet_in_the_middle.py without tensor operations.

The kernels (native/, in C) are compiled when the package is installed, where there is a C compiler. Without them, and
with HYBRID_ATTENTION_NATIVE=0 in the environment, tensor operations compute the same numbers.
"""

import os
import warnings
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hybrid_attention.row_arrangement import RowArrangement
from hybrid_attention.row_sets import RowSet, share_tables, split_sets
from hybrid_attention.row_tables import smallest_partition

try:
    import hybrid_attention.row_kernels as row_kernels
except ImportError:
    row_kernels = None  # type: ignore[assignment]

_Result = TypeVar("_Result")
_SAVED_ENTRIES = 2**22
_LARGEST_REMEMBERED_MASK = 4096
_INTERFACE = 1


def interface_fits(kernels: Any) -> bool:
    """Return whether kernels were compiled from sources that this module fits, and warn if not."""
    fits = getattr(kernels, "interface", lambda: 0)() == _INTERFACE
    if not fits:
        warnings.warn(
            "The kernels of the exact layer were compiled from other sources than these, so tensor operations are used "
            "in their place: install the package again.",
            stacklevel=2,
        )
    return fits


if row_kernels is not None and not interface_fits(row_kernels):
    row_kernels = None  # type: ignore[assignment]


def native_is_used(fields: Tensor, couplings: Tensor) -> bool:
    """Return whether the native kernels take these tensors: plain ones on the CPU, in float32 or float64."""
    return (
        row_kernels is not None
        and os.environ.get("HYBRID_ATTENTION_NATIVE") != "0"
        and fields.device.type == "cpu"
        and fields.dtype in (torch.float32, torch.float64)
        and fields.dtype == couplings.dtype
        and type(fields) in (Tensor, nn.Parameter)
        and type(couplings) in (Tensor, nn.Parameter)
        and not (fields.is_neg() or couplings.is_neg())
        and not torch.compiler.is_compiling()
    )


def native_marginals(
    fields: Tensor, couplings: Tensor, present: Tensor | None, arrangement: RowArrangement
) -> Tensor | None:
    """Return the exact marginals p (..., T), 0 at absent spins.

    Args:
        fields: (..., T), in nats, as `native_is_used` takes them.
        couplings: (..., T, T), in nats, of which the strict upper triangle is read.
        present: bool (..., T), or None where all spins are.
        arrangement: how these shapes, of which that of fields is the whole, become rows.

    Returns:
        p, or None if the partition function of a row underflows, or a present field or a coupling is not finite.

    Cost: about 6 2^t multiplications for a row of t spins, forward and backward; memory as meet_in_the_middle.py.
    Source: arXiv 2606.12478, the marginals of Boltzmann attention.
    """
    plans = _plan(present, arrangement, fields.shape[-1], fields.dtype == torch.float64, torch.get_num_threads())
    trains = torch.is_grad_enabled() and (fields.requires_grad or couplings.requires_grad)
    p, least = NativeRows.apply(fields, couplings, arrangement, plans, trains)
    return p if least >= smallest_partition(p.dtype) else None


class Plan:
    """What one thread solves, in the layout of native/call.h, and how many entries that saves and takes as scratch."""

    def __init__(self, sets: Sequence[RowSet], repeats: int, length: int, double: bool) -> None:
        self._code = array("q", [len(sets), repeats, length])
        for rows in sets:
            self._code.extend((rows.group, len(rows.spins), len(rows.rows), rows.first, rows.last))
            for numbers in (rows.spins, rows.rows, rows.absent):
                self._code.extend(numbers)
        self.address = self._code.buffer_info()[0]
        self.saved_entries, self.scratch_entries = row_kernels.entries(double, self.address)


class NativeRows(Function):
    """The marginals of fields (..., T) and couplings, and their least partition function, as a number."""

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, couplings: Tensor, arrangement: RowArrangement, plans: tuple[Plan, ...], trains: bool
    ) -> tuple[Tensor, float]:
        """Return the marginals, and the least partition function, NaN if a field or a coupling is not finite."""
        rows, couplings = arrangement.rows(fields), couplings.contiguous()
        p, saved, least = _solve(rows, couplings, plans, save=trains)
        ctx.arrangement, ctx.plans = arrangement, plans
        ctx.save_for_backward(rows, couplings, p, saved)
        return arrangement.restore(p), least

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor | None, None, None, None]:
        """Return the gradients for fields and couplings."""
        fields, couplings, p, saved = ctx.saved_tensors
        plans: tuple[Plan, ...] = ctx.plans
        grad = ctx.arrangement.rows(grad.resolve_neg())
        grad_fields = torch.zeros_like(fields)
        partial = None
        if ctx.needs_input_grad[1]:
            partial = torch.zeros(len(plans), *couplings.shape, dtype=torch.float64)
        scratch = _scratch(plans, p)
        tensors = [*_place(fields), *_place(p), *_place(grad), *_place(grad_fields)]

        def run(number: int) -> None:
            start = 0 if saved is None else sum(plan.saved_entries for plan in plans[:number])
            row_kernels.gradient(
                p.dtype == torch.float64,
                plans[number].address,
                couplings.data_ptr(),
                0 if saved is None else saved[start:].data_ptr(),
                scratch[number].data_ptr(),
                *tensors,
                0 if partial is None else partial[number].data_ptr(),
            )

        _on_threads(run, len(plans))
        grad_couplings = None if partial is None else partial.sum(0).to(p.dtype)
        return ctx.arrangement.restore(grad_fields), grad_couplings, None, None, None


def _solve(
    fields: Tensor, couplings: Tensor, plans: tuple[Plan, ...], save: bool
) -> tuple[Tensor, Tensor | None, float]:
    """Return p, what is kept for the backward pass where `save` asks for it and it is not too much, and the least Z."""
    p = torch.zeros_like(fields)
    entries = sum(plan.saved_entries for plan in plans)
    saved = p.new_empty(entries) if save and entries <= _SAVED_ENTRIES else None
    scratch = _scratch(plans, p)
    tensors = [*_place(fields), *_place(p)]

    def run(number: int) -> float:
        start = sum(plan.saved_entries for plan in plans[:number])
        return row_kernels.solve(
            p.dtype == torch.float64,
            plans[number].address,
            couplings.data_ptr(),
            0 if saved is None else saved[start:].data_ptr(),
            scratch[number].data_ptr(),
            *tensors,
        )

    least = _on_threads(run, len(plans))
    return p, saved, float(torch.tensor(least).amin()) if len(least) > 1 else least[0]


def _place(tensor: Tensor) -> tuple[int, ...]:
    return tensor.data_ptr(), *tensor.stride()


def _scratch(plans: Sequence[Plan], like: Tensor) -> list[Tensor]:
    return [like.new_empty(plan.scratch_entries) for plan in plans]


def _on_threads(run: Callable[[int], _Result], count: int) -> list[_Result]:
    """Return run(0), ..., run(count - 1), the first of which this thread does itself.

    No thread is left running when this is interrupted, as it would go on to use memory that is free then.
    """
    others = [_pool().submit(run, number) for number in range(1, count)]
    try:
        return [run(0), *(other.result() for other in others)]
    finally:
        wait(others)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="hybrid_attention")


os.register_at_fork(after_in_child=_pool.cache_clear)


def _plan(
    present: Tensor | None, arrangement: RowArrangement, length: int, double: bool, threads: int
) -> tuple[Plan, ...]:
    """Return what each thread solves. Masks of a few thousand entries, such as the causal one, are remembered."""
    if present is None:
        return _remembered_plan(None, torch.Size(), arrangement, length, double, threads)
    if present.numel() > _LARGEST_REMEMBERED_MASK:
        return _cut_plan(present, arrangement, length, double, threads)
    return _remembered_plan(present.numpy().tobytes(), present.shape, arrangement, length, double, threads)


@lru_cache(maxsize=256)
def _remembered_plan(
    mask: bytes | None, shape: torch.Size, arrangement: RowArrangement, length: int, double: bool, threads: int
) -> tuple[Plan, ...]:
    present = None if mask is None else torch.frombuffer(bytearray(mask), dtype=torch.bool).view(shape)
    return _cut_plan(present, arrangement, length, double, threads)


def _cut_plan(
    present: Tensor | None, arrangement: RowArrangement, length: int, double: bool, threads: int
) -> tuple[Plan, ...]:
    rows, groups, repeats = arrangement.sizes
    masks = [[(1 << length) - 1] * rows]
    if present is not None:
        bits = arrangement.mask(present, length).squeeze(3) * 2 ** torch.arange(length)
        masks = bits.sum(2).T.tolist()
    sets = share_tables(masks, groups, repeats)
    return tuple(Plan(share, repeats, length, double) for share in split_sets(sets, threads))
