"""A callback that logs pictures of the attention while a model trains."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from torch import Tensor

from lightning_modules.attention_figures import attention_figures
from lightning_modules.inspection import inspect_sequence
from lightning_modules.plotting import check_matplotlib


class AttentionPictures(pl.Callback):
    """Log pictures of the first validation sequence, each time that a training run validates.

    They are those of `hybrid-attention inspect`: attention weights, correlations of spins, couplings as heat maps and
    by distance, energies. TensorBoard gets figures and Weights & Biases images; for other loggers, PNG files go into
    the folder `pictures` of the run. No file is overwritten.

    Raises:
        ValueError: if matplotlib is not installed, or when training starts without a logger.

    With shots the pictures take samples of the simulator that training would have had, so that what follows has others.

    Cost: that of inspect_sequence for each validation; with a quantum layer two circuits for each block, head and
    position.
    """

    def __init__(self) -> None:
        check_matplotlib()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Raise ValueError where there is nothing to log to."""
        if stage == "fit" and not trainer.loggers:
            raise ValueError("AttentionPictures has no logger: set trainer.logger, or leave the callback out.")

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: tuple[Tensor, Tensor],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Log the pictures of the first batch's first sequence."""
        is_part_of_training = trainer.state.fn == "fit" and not trainer.sanity_checking
        if batch_idx or dataloader_idx or not is_part_of_training or not trainer.is_global_zero:
            return
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        tokens = batch[0][0]
        figures = attention_figures(inspect_sequence(pl_module, tokens), [str(token) for token in tokens.tolist()])
        for logger in trainer.loggers:
            for name, figure in figures.items():
                _log(logger, name, figure, trainer.global_step, trainer.default_root_dir)


def _log(logger: Logger, name: str, figure: Any, step: int, default_folder: str) -> None:
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_figure(f"pictures/{name}", figure, step, close=False)
    elif isinstance(logger, WandbLogger):
        from PIL import Image

        logger.log_image(f"pictures/{name}", [Image.open(BytesIO(_png(figure)))], step)
    else:
        folder = Path(logger.log_dir or logger.save_dir or default_folder) / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        _free(folder, f"{name}_step_{step}").write_bytes(_png(figure))


def _png(figure: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _free(folder: Path, stem: str) -> Path:
    """Return a path that no file has."""
    path, number = folder / f"{stem}.png", 0
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.png"
    return path
