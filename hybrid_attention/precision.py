"""Computations in the precision of their tensors, also where autocast is on."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_Backward = TypeVar("_Backward", bound=Callable[..., Any])


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context with autocast off, which takes no time where it is off already."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def without_autocast(backward: _Backward) -> _Backward:
    """Return an autograd.Function's backward(ctx, grad, ...) that runs with autocast off."""

    @wraps(backward)
    def run(ctx: Any, grad: Tensor, *rest: Any) -> Any:
        with full_precision(grad.device):
            return backward(ctx, grad, *rest)

    return cast(_Backward, run)


class DoublePrecisionNumbers(TorchFunctionMode):
    """Make float64 tensors of Python numbers: PennyLane would make float32 ones of lightning's <Z>."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.as_tensor and args and isinstance(args[0], float):
            kwargs = {"dtype": torch.float64, **kwargs}
        return func(*args, **kwargs)
