"""The configuration of a run, written once the run has begun."""

from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.cli import SaveConfigCallback


class SaveConfigOnStart(SaveConfigCallback):
    """Write config.yaml to the folder of a run when its first stage starts, so that mistakes before leave no folder.

    A file that exists is never overwritten: the new one is config-v1.yaml, config-v2.yaml, ...
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write nothing yet."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file."""
        self._write(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file, unless validation is a part of training."""
        if trainer.state.fn == "validate":
            self._write(trainer)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file."""
        self._write(trainer)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file."""
        self._write(trainer)

    def _write(self, trainer: pl.Trainer) -> None:
        if self.already_saved:
            return
        self.already_saved = True
        folder = trainer.log_dir  # broadcasts
        if trainer.is_global_zero and folder is not None:
            path = free_path(Path(folder) / self.config_filename)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.parser.save(self.config, str(path), skip_none=False, multifile=self.multifile)


def free_path(path: Path) -> Path:
    """Return the path, or with -v1, -v2, ... before its suffix the first that does not exist."""
    version, found = 0, path
    while found.exists():
        version += 1
        found = path.with_stem(f"{path.stem}-v{version}")
    return found
