"""A callback that logs how Boltzmann the annealing is while a model trains."""

import math
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from hybrid_attention import DQALayer
from hybrid_attention.annealing import DEFAULT_DEVICE, Annealer
from hybrid_attention.calibration import compare
from hybrid_attention.effective_betas import pseudo_likelihood_betas
from hybrid_attention.instances import MAX_ENUMERATED
from lightning_modules.checkpoint_instances import group_rows, record_models

_SHOTS = 1000
_LEAST_SCALE, _MOST_SCALE = 0.5, 2.0


class CalibrationCallback(pl.Callback):
    """Log the effective inverse temperatures, the KL divergence and the error of each quantum layer during training.

    Every so many training steps, the queries of the step that see the most positions are run once more and compared
    with their Boltzmann distributions. For layer n, `calibration_beta_h_n` and `calibration_beta_J_n` are 1 where the
    annealing samples at the temperature that is meant, `calibration_kl_n` is KL(DQA || Boltzmann) in nats, and
    `calibration_rms_error_n` the rms error of magnetizations. They leave these values as fields and couplings leave the
    range where the schedule is a good sampler. With more than 14 positions nothing is enumerated: the inverse
    temperatures are those of greatest pseudo-likelihood of samples, and there is no KL and no error.

    With `rescale`, each layer then divides its fields and couplings by these inverse temperatures, on top of the
    divisions before, unless this makes the error of the same queries larger; `calibration_beta_h_scale_n` and
    `calibration_beta_J_scale_n` are the product of all divisors so far, held between 1/2 and 2. An inverse temperature
    that is not positive, or has no value as there are no couplings, changes nothing. Checkpoints keep the divisors.

    Args:
        every_n_steps: training steps between two comparisons, 1 or more.
        count: queries to compare, at most.
        device: PennyLane device that they run on, beside the layer and not counted by its max_circuits; simulated by
            default.
        device_options: further options of the device.
        shots: samples for each query; exact probabilities without, or 1,000 samples with more than 14 positions.
        rescale: divide by the inverse temperatures that were measured.

    Raises:
        ValueError: if every_n_steps or count is not positive, or the shots do not fit the device; at the start of
            training, if layers are to be rescaled and none is a DQALayer.

    Cost: `count` circuits for each layer and comparison, twice as many with `rescale`.
    """

    def __init__(
        self,
        every_n_steps: int = 100,
        count: int = 64,
        device: str = DEFAULT_DEVICE,
        device_options: dict[str, Any] | None = None,
        shots: int | None = None,
        rescale: bool = False,
    ) -> None:
        if every_n_steps < 1 or count < 1:
            raise ValueError(f"every_n_steps={every_n_steps} and count={count} were given: give 1 or more of both.")
        self.every_n_steps = every_n_steps
        self.count = count
        self.rescale = rescale
        self.annealer = Annealer(device, shots, device_options)
        self.sampler = Annealer(device, _SHOTS if shots is None else shots, device_options)
        self._seen: list[list[tuple[Tensor, Tensor, Tensor]]] = []
        self._hooks: list[Any] = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Raise ValueError if there is nothing to rescale."""
        if self.rescale and not any(isinstance(module, DQALayer) for module in pl_module.modules()):
            raise ValueError(
                "rescale=True of a CalibrationCallback was given to a model without a DQALayer, which has no inverse "
                "temperatures: leave it out, or take a quantum layer."
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Listen to the quantum layers, where the step is one to compare."""
        if trainer.global_step % self.every_n_steps:
            return
        layers = [module for module in pl_module.modules() if isinstance(module, DQALayer)]
        self._seen = [[] for _ in layers]
        self._hooks = [
            layer.register_forward_pre_hook(record_models(seen)) for layer, seen in zip(layers, self._seen, strict=True)
        ]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what the comparison finds."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        layers = [module for module in pl_module.modules() if isinstance(module, DQALayer)]
        for number, (layer, seen) in enumerate(zip(layers, self._seen, strict=False)):
            found = self.measure(layer, seen)
            if self.rescale and found:
                found |= self.follow(layer, seen, found)
            for name, value in found.items():
                pl_module.log(f"calibration_{name}_{number}", value)
        self._seen = []

    def follow(
        self, layer: DQALayer, seen: list[tuple[Tensor, Tensor, Tensor]], found: dict[str, float]
    ) -> dict[str, float]:
        """Rescale a layer by what `measure` found, unless that makes it worse; return its divisors by name.

        Beyond its range a circuit that is given more samples at even lower inverse temperatures, and following these
        would run away: worse is a larger rms error, or inverse temperatures further from 1 where there is no error.
        """
        before = layer.beta_scale
        layer.rescale(*_times(before, (found["beta_h"], found["beta_J"])))
        if not _badness(self.measure(layer, seen)) < _badness(found):
            layer.rescale(*before)
        return dict(zip(("beta_h_scale", "beta_J_scale"), layer.beta_scale, strict=True))

    def measure(self, layer: DQALayer, seen: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
        """Return what is logged of a layer, by name, for rows as `record_models` keeps them."""
        if not seen:
            return {}
        groups = group_rows(seen, self.count, seed=0, largest=layer.num_spins)
        if not groups:
            return {}
        models = groups[-1]
        if models.num_spins > MAX_ENUMERATED:
            betas = pseudo_likelihood_betas(models, self.sampler.samples(models, layer.rescaled_schedule, layer.clip))
            return {"beta_h": betas.beta_h, "beta_J": betas.beta_J}
        found = compare(models, self.annealer(models, layer.rescaled_schedule, layer.clip), self.annealer.shots)
        return {
            "beta_h": found.betas.beta_h,
            "beta_J": found.betas.beta_J,
            "kl": found.kl,
            "rms_error": found.rms_error,
        }


def _times(scales: tuple[float, float], betas: tuple[float, float]) -> list[float]:
    """Return the product, bounded; an inverse temperature that is not positive or not a number counts as 1."""
    products = (scale * (beta if beta > 0 else 1) for scale, beta in zip(scales, betas, strict=True))
    return [min(max(product, _LEAST_SCALE), _MOST_SCALE) for product in products]


def _badness(found: dict[str, float]) -> float:
    if "rms_error" in found:
        return found["rms_error"]
    betas = (found["beta_h"], found["beta_J"])
    return sum((math.log(beta) ** 2 if beta > 0 else math.inf) for beta in betas if not math.isnan(beta))
