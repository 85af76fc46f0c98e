"""The command `hybrid-attention`: LightningCLI for the two tasks, with errors in one sentence."""

import inspect
import json
import logging
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentError
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from lightning_modules.calibrate import calibrate_command
from lightning_modules.checkpoint_files import LINKED, check_same_class, checkpoint_config
from lightning_modules.config_files import check_config_files, checkpoint_path, null_settings_as_config
from lightning_modules.error_sentences import is_of_the_project, sentence
from lightning_modules.estimate import estimate
from lightning_modules.fit_checks import check_length, check_monitors, check_validation
from lightning_modules.generate import generate_command
from lightning_modules.inspect_command import inspect_command
from lightning_modules.layer_factories import imported
from lightning_modules.save_config import SaveConfigOnStart, free_path
from lightning_modules.studies.report import report_command
from lightning_modules.studies.study import study_command

_TRACEBACK = "HYBRID_ATTENTION_TRACEBACK"
_SUBCOMMANDS = ("fit", "validate", "test", "predict", "estimate")
_OTHER_SUBCOMMANDS = {
    "calibrate": calibrate_command,
    "generate": generate_command,
    "inspect": inspect_command,
    "report": report_command,
}
_NO_FILES = ("", "null", "best", "last", "hpc", "registry")
_DESCRIPTION = f"""Train and test attention with learnable Ising couplings. Give YAML files with --config, each merged
over the ones before it, then single settings such as --model.init_args.embed_dim=16. With --ckpt_path the settings of
the checkpoint come first, and config files and the command line win over them. More subcommands have a --help of their
own: calibrate compares the annealing circuit with Boltzmann distributions and tunes its schedule, generate writes text
with a trained model, inspect draws what a model does with an input, study trains a grid of models, and report shows
what it found. Set {_TRACEBACK}=1 to see where an error comes from."""


class EstimatingTrainer(pl.Trainer):
    """Lightning's Trainer, which can also say what training would run in circuits."""

    def estimate(
        self, model: pl.LightningModule, datamodule: pl.LightningDataModule, ckpt_path: str | None = None
    ) -> None:
        """Print how many circuits fit would run, without running them.

        Args:
            model: The model to fit.
            datamodule: The data to fit it to.
            ckpt_path: Checkpoint that the settings are taken from; its weights change no number.
        """
        print(estimate(model, datamodule, self))


class HybridAttentionCLI(LightningCLI):
    """The subcommands fit, validate, test, predict and estimate; fit ends with a test of its best checkpoint."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the subcommands, each with the arguments that are not settings."""
        return {**LightningCLI.subcommands(), "estimate": {"model", "datamodule"}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Let the model take its sizes from the data, and add checkpoints and the test after training."""
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {
                "checkpoint.monitor": "val_loss",
                "checkpoint.filename": "{epoch}-{step}",
                "checkpoint.save_last": True,
                "checkpoint.save_on_exception": True,
            }
        )
        parser.add_argument(
            "--test_after_fit", type=bool, default=True, help="Whether fit ends with a test of its best checkpoint."
        )
        parser.link_arguments("data.init_args.context_length", "model.init_args.context_length")
        parser.link_arguments("data", "model.init_args.vocabulary", _vocabulary, apply_on="instantiate")
        parser.link_arguments("data", "model.init_args.num_types", _num_types, apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the command line, after the settings of the checkpoint if it names one."""
        arguments = list(sys.argv[1:] if args is None else args)
        for argument in arguments:
            _, found, name = argument.partition("=")[0].rpartition("--model.")
            name = name.removeprefix("init_args.")
            if found and name in LINKED:
                raise ValueError(f"The model takes {name} from the data: set --data.init_args.{name} or other data.")
        saved = _checkpoint_config(arguments)
        self.config = parser.parse_args(_checkpoint_first(arguments, saved))
        if "model" in saved:
            check_same_class(saved["model"]["class_path"], self.config[self.config.subcommand].model.class_path)

    def _parse_ckpt_path(self) -> None:
        """Leave the parsed settings as they are: LightningCLI would let those of the checkpoint win."""

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Return the trainer, without the checkpoint callback where no checkpoint is to be written."""
        settings = self._get(self.config_init, "trainer")
        if settings["enable_checkpointing"] is False or settings["fast_dev_run"]:
            self._parser(self.subcommand).callback_keys.remove("checkpoint")
        return super().instantiate_trainer(**kwargs)

    def before_instantiate_classes(self) -> None:
        """Refuse data that the model cannot use, and say so where the weights will be random."""
        self._check_data()
        if self.subcommand not in ("fit", "estimate") and not self._get(self.config, "ckpt_path"):
            print(f"No --ckpt_path was given: {self.subcommand} runs on random weights.")

    def before_fit(self) -> None:
        """Refuse what would fail later, before the run has a folder."""
        check_length(self.trainer)
        check_monitors(self.trainer, self.model)
        check_validation(self.trainer)
        self.datamodule.setup("fit")

    def after_fit(self) -> None:
        """Say where the checkpoints are, and test the best one, or the last weights where there is none."""
        last = getattr(self.trainer.checkpoint_callback, "last_model_path", "")
        if last:
            self.model.print(f"Last checkpoint: {last}")
        if not self.config[self.subcommand]["test_after_fit"]:
            return
        best = getattr(self.trainer.checkpoint_callback, "best_model_path", "")
        best = self.trainer.strategy.broadcast(best if Path(best).is_file() else "")
        if best:
            self.model.print(f"Best checkpoint: {best}")
        else:
            self.model.print("No checkpoint was written by validation; the last weights are tested.")
        self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best or None)

    def predict(self, **kwargs: Any) -> None:
        """Write the most likely classes of every batch to predictions.pt in the folder of the run."""
        predictions = self.trainer.predict(**kwargs)
        folder = self.trainer.log_dir or "."
        if self.trainer.is_global_zero:
            path = free_path(Path(folder) / "predictions.pt")
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(predictions, path)
            print(f"Predictions: {path}")

    def _check_data(self) -> None:
        """Raise ValueError where the model needs what the data does not have."""
        model, data = (self._get(self.config, key) for key in ("model", "data"))
        if model is None or data is None:
            return
        needs = inspect.signature(imported(model.class_path)).parameters
        data_class = imported(data.class_path)
        for name in ("vocabulary", "num_types"):
            has = hasattr(data_class, name) or name in inspect.signature(data_class).parameters
            if name in needs and not has:
                raise ValueError(
                    f"{model.class_path} needs data with a {name}, and {data.class_path} has none: take the other "
                    "model or other data."
                )


def main(args: list[str] | None = None) -> None:
    """Run the command line; `args` replaces sys.argv[1:]."""
    # the datasets lie in memory, so workers would only slow them down
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*LeafSpec.*", module="pytorch_lightning")
    warnings.filterwarnings("ignore", ".*tensorboardX.*")  # the CSV logger that stands in is what is wanted
    warnings.filterwarnings("ignore", ".*The dirpath has changed.*")  # every run has a folder of its own
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_no_tip)
    given = list(sys.argv[1:] if args is None else args)
    parser_settings: dict[str, Any] = {"exit_on_error": False, "description": _DESCRIPTION}
    try:
        if given and given[0] in _OTHER_SUBCOMMANDS:
            _OTHER_SUBCOMMANDS[given[0]](given[1:])
            return
        if given[:1] == ["study"]:
            study_command(given[1:], main)
            return
        HybridAttentionCLI(
            pl.LightningModule,
            pl.LightningDataModule,
            trainer_class=EstimatingTrainer,
            save_config_callback=SaveConfigOnStart,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            seed_everything_default=42,
            trainer_defaults={"default_root_dir": "runs"},
            parser_kwargs={**parser_settings, **{name: {"exit_on_error": False} for name in _SUBCOMMANDS}},
            args=args,
        )
    except BrokenPipeError:  # the reader of a pipe has gone, such as head
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ArgumentError, MisconfigurationException, ValueError, OSError) as error:
        _stop(error)
    except RuntimeError as error:
        if not is_of_the_project(error):
            raise
        _stop(error)


def _no_tip(record: logging.LogRecord) -> bool:
    """Leave out what Lightning says of other packages that could be installed."""
    return "Tip:" not in record.getMessage()


def _stop(error: Exception) -> NoReturn:
    if os.environ.get(_TRACEBACK):
        raise error
    sys.exit(f"hybrid-attention: error: {sentence(error)}")


def _vocabulary(data: Any) -> Any:
    try:
        return getattr(data, "vocabulary", None)
    except ValueError as error:
        _stop(error)  # the parser would print the data, which reads the text again and again


def _num_types(data: Any) -> Any:
    return getattr(data, "num_types", None)


def _checkpoint_config(arguments: list[str]) -> dict[str, Any]:
    """Return the settings of the checkpoint that the arguments name, or none."""
    if not arguments or arguments[0] not in _SUBCOMMANDS:
        return {}
    path = checkpoint_path(arguments)
    return {} if path in (None, *_NO_FILES) else checkpoint_config(str(path))


def _checkpoint_first(arguments: list[str], saved: dict[str, Any]) -> list[str]:
    """Insert the settings of the checkpoint as the first config after the subcommand, and check the config files."""
    if not arguments or arguments[0] not in _SUBCOMMANDS:
        return arguments
    check_config_files(arguments, saved.get("model"))
    subcommand, *given = null_settings_as_config(arguments)
    return [subcommand, *(["--config", json.dumps(saved)] if saved else []), *given]
