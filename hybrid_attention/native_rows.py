"""Exact marginals on the CPU by native kernels: the algorithm of meet_in_the_middle.py without tensor operations.

The kernels (native/, in C) are compiled when the package is installed, where there is a C compiler. Without them, and
with HYBRID_ATTENTION_NATIVE=0 in the environment, tensor operations compute the same numbers.
"""

import os
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hybrid_attention.row_sets import RowSet, share_tables, split_sets
from hybrid_attention.row_tables import smallest_partition

try:
    import hybrid_attention.row_kernels as row_kernels
except ImportError:
    row_kernels = None  # type: ignore[assignment]

_Result = TypeVar("_Result")
_SAVED_ENTRIES = 2**22
_LARGEST_REMEMBERED_MASK = 4096


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
        and not torch.compiler.is_compiling()
    )


def native_marginals(fields: Tensor, couplings: Tensor, present: Tensor | None) -> Tensor | None:
    """Return the exact marginals p (V, G, T, R), 0 at absent spins.

    Args:
        fields: (V, G, T, R), in nats, as `native_is_used` takes them.
        couplings: (G, T, T), in nats, of which the strict upper triangle is read.
        present: bool (V, G or 1, T, 1), or None where all spins are.

    Returns:
        p, or None if the partition function of a row underflows, or a present field or a coupling is not finite.

    Cost: about 6 2^t multiplications for a row of t spins, forward and backward; memory as meet_in_the_middle.py.
    Source: arXiv 2606.12478, the marginals of Boltzmann attention.
    """
    plans = _plan(present, fields.shape, fields.dtype == torch.float64, torch.get_num_threads())
    with_gradient = torch.is_grad_enabled() and (fields.requires_grad or couplings.requires_grad)
    if not with_gradient:
        p, _, least = _solve(fields, couplings.contiguous(), plans, save=False)
    else:
        p, least = NativeRows.apply(fields, couplings.contiguous(), plans)
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
    """The marginals of rows (V, G, T, R), and their least partition function, as a number."""

    @staticmethod
    def forward(ctx: Any, fields: Tensor, couplings: Tensor, plans: tuple[Plan, ...]) -> tuple[Tensor, float]:
        """Return the marginals, and the least partition function, NaN if a field or a coupling is not finite."""
        p, saved, least = _solve(fields, couplings, plans, save=True)
        ctx.plans = plans
        ctx.save_for_backward(fields, couplings, p, saved)
        return p, least

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor | None, None]:
        """Return the gradients for fields and couplings."""
        fields, couplings, p, saved = ctx.saved_tensors
        plans: tuple[Plan, ...] = ctx.plans
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
        return grad_fields, None if partial is None else partial.sum(0).to(p.dtype), None


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
    """Return run(0), ..., run(count - 1), the first of which this thread does itself."""
    others = [_pool().submit(run, number) for number in range(1, count)]
    return [run(0), *(other.result() for other in others)]


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="hybrid_attention")


os.register_at_fork(after_in_child=_pool.cache_clear)


def _plan(present: Tensor | None, shape: torch.Size, double: bool, threads: int) -> tuple[Plan, ...]:
    """Return what each thread solves. Masks of a few thousand entries, such as the causal one, are remembered."""
    if present is None:
        return _remembered_plan(None, tuple(shape), double, threads)
    if present.numel() > _LARGEST_REMEMBERED_MASK:
        places = 2 ** torch.arange(shape[2])
        masks = (present.squeeze(3) * places).sum(2).T.tolist()
        return _cut_plan(masks, tuple(shape), double, threads)
    return _remembered_plan(present.numpy().tobytes(), tuple(shape), double, threads)


@lru_cache(maxsize=256)
def _remembered_plan(content: bytes | None, shape: tuple[int, ...], double: bool, threads: int) -> tuple[Plan, ...]:
    rows, _, length, _ = shape
    if content is None:
        return _cut_plan([[(1 << length) - 1] * rows], shape, double, threads)
    masks = [sum(content[start + j] << j for j in range(length)) for start in range(0, len(content), length)]
    groups = len(masks) // rows
    return _cut_plan([masks[group::groups] for group in range(groups)], shape, double, threads)


def _cut_plan(masks: list[list[int]], shape: tuple[int, ...], double: bool, threads: int) -> tuple[Plan, ...]:
    _, groups, length, repeats = shape
    sets = share_tables(masks, groups, repeats)
    return tuple(Plan(share, repeats, length, double) for share in split_sets(sets, threads))
