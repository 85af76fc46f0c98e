"""A callback that records what a paired comparison of runs rests on: initial weights, data order, and time."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

_OF_A_VARIANT = ("couplings", "position_bias")
FILE = "record.json"


class RunRecord(pl.Callback):
    """Write record.json to the folder of a run when training ends.

    It holds hashes of the initial weights that all variants of attention share (couplings and position biases are left
    out, which start at 0) and of the training batches in their order; numbers of parameters; steps, and seconds from
    the first step to the last, with validation. With several processes it is that of the first.

    Cost: a hash of every batch, microseconds.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hash the weights and start the clock."""
        weights = hashlib.sha256()
        self._parameters = {"total": 0, "pairs": 0}
        for name, parameter in pl_module.named_parameters():
            self._parameters["total"] += parameter.numel()
            if name.endswith(_OF_A_VARIANT):
                self._parameters["pairs"] += parameter.numel()
            else:
                weights.update(name.encode() + _bytes(parameter))
        self._weights = weights.hexdigest()
        self._order = hashlib.sha256()
        self._start = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Hash the tokens of the batch."""
        self._order.update(_bytes(batch[0]))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the record."""
        if not trainer.is_global_zero or trainer.log_dir is None:
            return
        record = {
            "initial_weights": self._weights,
            "data_order": self._order.hexdigest(),
            "parameters": self._parameters,
            "steps": trainer.global_step,
            "train_seconds": time.perf_counter() - self._start,
            "device": str(pl_module.device),
        }
        path = Path(trainer.log_dir) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
