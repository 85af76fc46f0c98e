"""Backward passes in the precision of their tensors, also where autocast is on."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

_Backward = TypeVar("_Backward", bound=Callable[..., Any])


def without_autocast(backward: _Backward) -> _Backward:
    """Return an autograd.Function's backward(ctx, grad, ...) that runs with autocast off."""

    @wraps(backward)
    def run(ctx: Any, grad: Tensor, *rest: Any) -> Any:
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad, *rest)

    return cast(_Backward, run)
