"""A Lightning trainer for benchmarks that measure trained models: it keeps, validates and prints nothing."""

import logging
import warnings

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


def be_quiet() -> None:
    """Leave out what Lightning prints for every trainer."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for noise in (".*does not have many workers.*", ".*LeafSpec.*"):
        warnings.filterwarnings("ignore", noise)
