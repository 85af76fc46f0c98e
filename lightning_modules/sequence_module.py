"""What both tasks share: the model, the optimizer with its own learning rate for couplings, and logging."""

import math
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from datamodules.bracket_words import NOT_SCORED
from datamodules.tensor_batches import ResumableLoader, settle
from hybrid_attention import BoltzmannAttention, DecoderOnlyTransformer, DQALayer, IsingLayer, SoftmaxAttention
from hybrid_attention.sampling_layer import SamplingLayer
from lightning_modules.checkpoint_files import check_same_class
from lightning_modules.layer_factories import LayerFactory, class_path, to_factory, to_plain

_RESCALED = "rescaled_layers"
_PASSES = "training_passes"


class SequenceModule(pl.LightningModule):
    """Train a decoder-only transformer to predict a class at the scored positions of a sequence.

    Batches are (tokens, targets), int64 (B, T); a target of -100 is not scored. The loss is the mean cross-entropy in
    nats over scored positions, of a batch and of an epoch. The optimizer is AdamW with a one-cycle schedule; the
    couplings of Ising layers, and the position biases of softmax attention, have a learning rate of their own and, like
    biases, norms and embeddings, no weight decay.

    Args:
        vocab_size: number of token ids.
        num_classes: number of classes at every position.
        causal: whether a position sees earlier positions only.
        hyper_parameters: the subclass's arguments by name, which a checkpoint keeps; of these are used here:
            context_length: the longest sequence T.
            embed_dim: width of the model.
            num_heads: number of attention heads.
            num_blocks: number of transformer blocks.
            feed_forward: whether the blocks have a feed-forward network.
            layer: called (num_spins, num_heads) once for every block, returns its Ising layer: a layer class, a
                functools.partial of one, or a dict {class_path, init_args}. None is softmax attention.
            use_fields: False sets the fields to 0 (the variant couplings_only).
            position_bias: whether softmax attention has a learned bias for every pair of positions, which are as many
                parameters as couplings.
            learning_rate: peak of the schedule.
            weight_decay: of linear maps.
            coupling_learning_rate_factor: learning rate of the couplings, or of the position biases, over that of
                everything else.

    Raises:
        ValueError: if an argument is not allowed, or the layer cannot be built or written to a checkpoint.
    """

    def __init__(self, vocab_size: int, num_classes: int, causal: bool, hyper_parameters: dict[str, Any]) -> None:
        super().__init__()
        self._loader_state: dict[str, Any] | None = None
        plain_layer = to_plain(hyper_parameters["layer"])
        self.save_hyperparameters({**hyper_parameters, "layer": plain_layer, "_class_path": class_path(type(self))})
        for name in ("learning_rate", "weight_decay", "coupling_learning_rate_factor"):
            if not 0 <= self.hparams[name] < math.inf:
                raise ValueError(f"{name}={self.hparams[name]} was given: give a finite number, 0 or more.")
        if plain_layer is not None and self.hparams["position_bias"]:
            raise ValueError(
                f"position_bias=True was given with the layer {plain_layer['class_path']}: it belongs to softmax "
                "attention, so set layer to null or position_bias to false."
            )
        factory = None if plain_layer is None else to_factory(plain_layer)
        self.model = DecoderOnlyTransformer(
            vocab_size,
            num_classes,
            self.hparams["context_length"],
            self.hparams["embed_dim"],
            lambda: self._attention(factory, causal),
            self.hparams["num_blocks"],
            self.hparams["feed_forward"],
        )
        self.accuracy = per_stage(
            MulticlassAccuracy(num_classes, average="micro", ignore_index=NOT_SCORED, validate_args=False)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, T, num_classes) for token ids (B, T)."""
        logits: Tensor = self.model(tokens)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss, and log it with the metrics and with what the layers report."""
        for number, layer in enumerate(self.ising_layers()):
            for name, value in layer.metrics().items():
                self.log(f"train_{name}_{number}", value.float())
        return self._scored(batch, "train")

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the loss and the metrics of the validation split."""
        self._scored(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the loss and the metrics of the test split."""
        self._scored(batch, "test")

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the most likely class at every position, int64 (B, T)."""
        return self(batch[0]).argmax(-1)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return AdamW and the one-cycle schedule over all steps of the trainer."""
        steps = self.trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            raise ValueError(
                f"Training for {steps} steps was asked for: set trainer.max_steps or trainer.max_epochs to 1 or more."
            )
        rate = self.hparams["learning_rate"]
        linear_maps = {module.weight for module in self.modules() if isinstance(module, nn.Linear)}
        couplings = {layer.couplings for layer in self.ising_layers() if layer.couplings is not None}
        couplings |= {
            module.position_bias
            for module in self.modules()
            if isinstance(module, SoftmaxAttention) and module.position_bias is not None
        }
        trained = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p in linear_maps], "weight_decay": self.hparams["weight_decay"]},
            {"params": [p for p in trained if p not in linear_maps and p not in couplings], "weight_decay": 0.0},
            {"params": [p for p in trained if p in couplings], "weight_decay": 0.0},
        ]
        rates = [rate, rate, rate * self.hparams["coupling_learning_rate_factor"]]
        kept = [number for number, group in enumerate(groups) if group["params"]]
        optimizer = torch.optim.AdamW([groups[number] for number in kept], lr=rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=[rates[number] for number in kept], total_steps=int(steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def ising_layers(self) -> list[IsingLayer]:
        """Return the Ising layers, one for each block; none with softmax attention."""
        return [module for module in self.modules() if isinstance(module, IsingLayer)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the divisors of rescaled layers, and where samples and the training loader go on."""
        checkpoint[_RESCALED] = [
            {"schedule": repr(layer.schedule), "beta_scale": list(layer.beta_scale)}
            if isinstance(layer, DQALayer) and layer.beta_scale != (1, 1)
            else None
            for layer in self.ising_layers()
        ]
        samplers = {place: x for place, x in enumerate(self.ising_layers()) if isinstance(x, SamplingLayer)}
        checkpoint[_PASSES] = {place: layer.training_passes for place, layer in samplers.items()}
        if "loops" not in checkpoint:  # of weights alone
            return
        fit_loop = checkpoint["loops"]["fit_loop"]
        progress = fit_loop["epoch_loop.batch_progress"]
        unfinished = progress["current"]["ready"] - progress["current"]["processed"]
        for place, passes in checkpoint[_PASSES].items():
            checkpoint[_PASSES][place] = max(passes - unfinished, 0)
        for counts in (progress["current"], progress["total"]):
            counts.update({name: counts[name] - unfinished for name in ("ready", "started")})
        for state in fit_loop["state_dict"].get("combined_loader", []):
            settle(state, unfinished, progress["is_last_batch"] and not unfinished)

    def on_train_start(self) -> None:
        """Restore the training loader, which Lightning does not where an epoch has just ended."""
        loader = self.trainer.train_dataloader
        if self._loader_state is not None and isinstance(loader, ResumableLoader):
            loader.load_state_dict(self._loader_state)
        self._loader_state = None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise ValueError where the weights, the vocabulary or the schedule of a checkpoint do not fit.

        Quantum layers of the annealing schedule that a checkpoint was rescaled for are rescaled as it was.
        """
        saved = checkpoint.get("hyper_parameters", {})
        kind = self.hparams["_class_path"]
        check_same_class(saved.get("_class_path", kind), kind)
        if saved.get("vocabulary", self.hparams.get("vocabulary")) != self.hparams.get("vocabulary"):
            raise ValueError(
                "The checkpoint was trained on another vocabulary than the model's "
                f"({saved['vocabulary']!r}, not {self.hparams.get('vocabulary')!r}): give the data that it was trained "
                "on."
            )
        length = saved.get("context_length", self.hparams["context_length"])
        if length != self.hparams["context_length"]:
            raise ValueError(
                f"The checkpoint was trained at a context_length of {length}, and the data has "
                f"{self.hparams['context_length']}: set --data.init_args.context_length={length}."
            )
        ours = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()}
        differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if differing:
            name = differing[0]
            raise ValueError(
                f"The checkpoint does not fit the model: {name} has shape {theirs.get(name, 'none')} in the checkpoint "
                f"and {ours.get(name, 'none')} in the model ({len(differing)} differ); give the sizes, the "
                "attention and the couplings that it was trained with."
            )
        fit_loop = checkpoint.get("loops", {}).get("fit_loop", {})
        self._loader_state = next(iter(fit_loop.get("state_dict", {}).get("combined_loader", [])), None)
        if self._trainer is not None and self.trainer.training and checkpoint.get("lr_schedulers"):
            before, now = checkpoint["lr_schedulers"][0]["total_steps"], self.trainer.estimated_stepping_batches
            if before != now:
                raise ValueError(
                    f"The learning-rate schedule of the checkpoint has {before} steps and this run {now}: a one-cycle "
                    f"schedule ends where it was meant to, so set trainer.max_steps={before}, or train anew."
                )
            if checkpoint["global_step"] >= before:
                self.print(f"The checkpoint has all its {before} steps: there is nothing left to train.")
        for layer, kept in zip(self.ising_layers(), checkpoint.get(_RESCALED, []), strict=False):
            if kept and isinstance(layer, DQALayer) and repr(layer.schedule) == kept["schedule"]:
                layer.rescale(*kept["beta_scale"])
        for place, layer in enumerate(self.ising_layers()):
            if isinstance(layer, SamplingLayer):
                layer.training_passes = checkpoint.get(_PASSES, {}).get(place, 0)

    def on_fit_start(self) -> None:
        """Say what is trained, on which layer and device."""
        self.print(self.describe("Training"))

    def on_validation_start(self) -> None:
        """Say what is validated, unless that is a part of training."""
        if self.trainer.state.fn == "validate":
            self.print(self.describe("Validating"))

    def on_test_start(self) -> None:
        """Say what is tested, on which layer and device."""
        self.print(self.describe("Testing"))

    def on_predict_start(self) -> None:
        """Say what predicts, on which layer and device."""
        self.print(self.describe("Predicting with"))

    def describe(self, doing: str) -> str:
        """Return `doing` and which attention, layer and device it is done with, on one line."""
        attention = cast(nn.Module, self.model.blocks[0].attention)
        inside = [f"{name}={module}" for name, module in attention.named_children() if isinstance(module, IsingLayer)]
        settings = ", ".join([attention.extra_repr(), *inside])
        return f"{doing} {len(self.model.blocks)} block(s) of {type(attention).__name__}({settings})"

    def logged_in_validation(self) -> list[str]:
        """Return the names of the loss and of the metrics of the validation split."""
        metrics = [name for name, module in self.named_children() if isinstance(module, nn.ModuleDict)]
        return ["val_loss", *(f"val_{name}" for name in metrics)]

    def _attention(self, factory: LayerFactory | None, causal: bool) -> nn.Module:
        embed_dim, num_heads = self.hparams["embed_dim"], self.hparams["num_heads"]
        if factory is None:
            biased = self.hparams["context_length"] if self.hparams["position_bias"] else 0
            return SoftmaxAttention(embed_dim, num_heads, causal, biased)
        layer = factory(self.hparams["context_length"], num_heads)
        return BoltzmannAttention(embed_dim, layer, causal, self.hparams["use_fields"])

    def _scored(self, batch: tuple[Tensor, Tensor], stage: str) -> Tensor:
        """Return the loss, and log it, weighted by the number of scored positions, and the metrics."""
        tokens, targets = batch
        logits = self(tokens)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_SCORED)
        if stage == "train":
            self.log("train_loss", loss, prog_bar=True)
        else:
            scored = int((targets != NOT_SCORED).sum())
            self.log(f"{stage}_loss", loss, prog_bar=True, batch_size=scored, sync_dist=True)
        self._log_metrics(logits.detach(), targets, stage)
        return loss

    def _log_metrics(self, logits: Tensor, targets: Tensor, stage: str) -> None:
        """Log the metrics of logits (B, T, num_classes) and targets (B, T), for each step of training or once."""
        self.log_metric("accuracy", self.accuracy, stage, logits.movedim(-1, 1), targets)

    def log_metric(self, name: str, metrics: nn.ModuleDict, stage: str, *given: Tensor) -> None:
        """Update the metric of a stage and log it."""
        metric = cast(Metric, metrics[f"{stage}_"])
        if stage == "train":
            metric(*given)
        else:
            metric.update(*given)
        self.log(f"{stage}_{name}", metric, prog_bar=stage != "train")


def per_stage(metric: Metric) -> nn.ModuleDict:
    """Return a metric of its own for every stage."""
    return nn.ModuleDict({f"{stage}_": metric.clone() for stage in ("train", "val", "test")})
