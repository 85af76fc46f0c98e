"""How close a sampler comes to the Boltzmann distributions of some Ising models."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hybrid_attention.annealing import Annealer
from hybrid_attention.effective_betas import Betas, counted_pseudo_likelihood_betas, likelihood_betas
from hybrid_attention.instances import Instances, boltzmann_log_probabilities, magnetizations
from hybrid_attention.schedules import Schedule


@dataclass(frozen=True)
class Calibration:
    """What a sampler's distributions q are against the Boltzmann distributions P of N models of T spins.

    Args:
        num_spins: T.
        count: N.
        shots: samples for each model, or None where q is exact.
        rms_error: root of the mean square of <s_j> under q less <s_j> under P, over models and spins.
        sampling_error: the part of rms_error that as many independent samples would have; 0 without shots.
        rms_magnetization: root of the mean square of <s_j> under P.
        correlation: of <s_j> under q and under P, over models and spins; nan where one of them does not vary.
        kl: mean of KL(q || P), in nats; with shots less the bias (observed states - 1) / (2 shots) of its estimate.
        reverse_kl: mean of KL(P || q), in nats; nan with shots.
        betas: the (beta_h, beta_J) of greatest likelihood; (1, 1) is right.
        pseudo_betas: the same by pseudo-likelihood, which needs samples alone.

    Source of the bias: G. A. Miller, "Note on the bias of information estimates" (1955).
    """

    num_spins: int
    count: int
    shots: int | None
    rms_error: float
    sampling_error: float
    rms_magnetization: float
    correlation: float
    kl: float
    reverse_kl: float
    betas: Betas
    pseudo_betas: Betas


def calibrate(instances: Instances, schedule: Schedule, annealer: Annealer | None = None) -> Calibration:
    """Return how close the annealing circuit comes to the Boltzmann distributions of models.

    Args:
        instances: the models, N of T spins.
        schedule: the quench.
        annealer: the device and its shots; hybrid.statevector without shots by default.

    Raises:
        ValueError: if there are more than 14 spins, or the device cannot be made.

    Cost: N circuits, and O(T^2 2^T) for each model.
    """
    annealer = Annealer() if annealer is None else annealer
    return compare(instances, annealer(instances, schedule), annealer.shots)


def compare(instances: Instances, probabilities: Tensor, shots: int | None = None) -> Calibration:
    """Return how close distributions are to the Boltzmann distributions of models.

    Args:
        instances: the models, N of T spins.
        probabilities: (N, 2^T), q of each model, exact or counted, wire 0 the leftmost bit.
        shots: the number of samples that were counted for each model, 2 or more.

    Raises:
        ValueError: if there are more than 14 spins, or the shapes do not fit.
    """
    betas = likelihood_betas(instances, probabilities)
    q, log_p = probabilities.double().clamp_min(0), boltzmann_log_probabilities(instances).double()
    p = log_p.exp()
    ours, exact = magnetizations(q), magnetizations(p)
    kl = (torch.special.xlogy(q, q) - q * log_p).sum(1)
    if shots is None:
        reverse, sampling = (p * (log_p - q.log())).sum(1), ours.new_zeros(())
    else:
        kl = kl - ((q > 0).sum(1) - 1) / (2 * shots)
        reverse, sampling = kl * math.nan, ((1 - ours.square()) / (shots - 1)).mean()
    return Calibration(
        num_spins=instances.num_spins,
        count=len(instances),
        shots=shots,
        rms_error=float((ours - exact).square().mean().sqrt()),
        sampling_error=float(sampling.sqrt()),
        rms_magnetization=float(exact.square().mean().sqrt()),
        correlation=_correlation(ours, exact),
        kl=float(kl.mean()),
        reverse_kl=float(reverse.mean()),
        betas=betas,
        pseudo_betas=counted_pseudo_likelihood_betas(instances, probabilities),
    )


def _correlation(ours: Tensor, exact: Tensor) -> float:
    if ours.numel() < 2 or not (ours.std() > 0 and exact.std() > 0):
        return math.nan
    return float(torch.corrcoef(torch.stack((ours.flatten(), exact.flatten())))[0, 1])
