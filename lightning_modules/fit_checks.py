"""What can be known to be wrong before a run is started."""

from difflib import get_close_matches
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_info

_ALWAYS_THERE = ("epoch", "step")
_DURING_TRAINING = ("train_", "calibration_")


def check_length(trainer: pl.Trainer) -> None:
    """Raise ValueError where no step would be trained."""
    for name in ("max_steps", "max_epochs", "limit_train_batches"):
        if getattr(trainer, name) == 0:
            raise ValueError(
                f"trainer.{name}=0 was given, so training would have 0 steps: set it to 1 or more, or leave it out."
            )


def check_validation(trainer: pl.Trainer) -> None:
    """Say so where training ends before its first validation, so that no checkpoint is chosen by it."""
    interval, steps = trainer.val_check_interval, trainer.max_steps
    counts_batches = trainer.check_val_every_n_epoch is None and isinstance(interval, int)
    batches = steps * trainer.accumulate_grad_batches  # which is what the interval counts
    if counts_batches and trainer.limit_val_batches and 0 < batches < interval:
        rank_zero_info(
            f"There will be no validation in {batches} batches, as trainer.val_check_interval is {interval}: set it to "
            f"{batches} or less for one."
        )


def check_monitors(trainer: pl.Trainer, model: Any) -> None:
    """Raise ValueError where a callback watches a number that the model does not log.

    Args:
        trainer: its callbacks are looked at.
        model: has `logged_in_validation`, the names that it logs; others are not checked.
    """
    logged = getattr(model, "logged_in_validation", None)
    if logged is None or not trainer.limit_val_batches:
        return
    known = [*logged(), *_ALWAYS_THERE]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        name = getattr(callback, "monitor", None)
        if name is None or name in known or name.startswith(_DURING_TRAINING):
            continue
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"{type(callback).__name__} monitors {name!r}, which is not logged: {hint}take one of {', '.join(known)}, "
            "or one of training, such as train_loss."
        )
