"""A Lightning trainer for benchmarks that measure trained models: it keeps nothing, validates nothing, and is quiet."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

import pytorch_lightning as pl


def trainer_of(steps: int) -> pl.Trainer:
    """Return a trainer of so many steps on the CPU."""
    return pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what Lightning prints for every trainer, as long as this lasts."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for noise in (".*does not have many workers.*", ".*LeafSpec.*"):
                warnings.filterwarnings("ignore", noise)
            yield
    finally:
        logger.setLevel(level)
