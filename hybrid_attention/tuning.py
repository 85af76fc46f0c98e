"""Schedules tuned to Ising models: a ramp's duration, or all step angles, for the least error of magnetizations."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hybrid_attention.annealing import Annealer
from hybrid_attention.clipping import clip_fields
from hybrid_attention.free_schedule import FreeSchedule
from hybrid_attention.instances import Instances, boltzmann_log_probabilities, magnetizations
from hybrid_attention.schedules import LinearSchedule, RampSchedule, Schedule, inverse_temperatures
from hybrid_attention.single_spin import single_spin_loss

Progress = Callable[[str], None]
_SHORTEST = 0.2
_DURATIONS = 24
_REFINEMENTS = 10
_GOLDEN = (math.sqrt(5) - 1) / 2
_RELATIVE_PERTURBATIONS = (0.2, 0.4, 0.6)
_ABSOLUTE_PERTURBATION = 0.25
_FEW_MODELS = 24
_FINALISTS = 4
_SAME_ERROR = 1e-3
_TAU_PER_STEP = 1.25
_CLIP_ROUNDS = 3
_HISTORY = 40
_SLOPE_PENALTY = 0.05
_SMALLEST_ERROR = 1e-12
_SMALLEST_PROBABILITY = 1e-300
_DIVERGENCE_WEIGHT = 0.03


def rms_errors(groups: Sequence[Instances], schedule: Schedule, annealer: Annealer | None = None) -> list[float]:
    """Return the rms error of the magnetizations of each group of models, under a schedule."""
    annealer = Annealer() if annealer is None else annealer
    return [
        float((magnetizations(annealer(group, schedule)) - _exact(group)).square().mean().sqrt()) for group in groups
    ]


def tune_duration(
    groups: Sequence[Instances], start: RampSchedule, progress: Progress | None = None
) -> tuple[RampSchedule, list[tuple[float, float]]]:
    """Return a ramp with the duration tau of least error, its other settings as given.

    Args:
        groups: models, of different sizes or spreads; they are simulated on hybrid.statevector, and the geometric
            mean of their rms errors is minimized.
        start: says the kind of ramp, its steps, gamma and order; its tau is not used.
        progress: is called with a line about each stage.

    Returns:
        The schedule, and the (tau, error) of every duration that was tried and makes a schedule, ascending: 24 on a
        grid up to the longest that makes one, and those of a golden-section search around the best.

    Raises:
        ValueError: if no duration makes a schedule.

    Cost: about 34 circuits for each model.
    """
    tried: dict[float, float] = {}

    def error(tau: float) -> float:
        if tau not in tried:
            try:
                schedule = dataclasses.replace(start, tau=tau)
            except ValueError:
                return math.inf
            tried[tau] = _geometric_mean(rms_errors(groups, schedule))
        return tried[tau]

    longest = math.pi / 2 * start.steps / start.gamma / max(1 - 1 / start.steps, 0.5)
    grid = [longest * (_SHORTEST + (1 - _SHORTEST) * k / (_DURATIONS - 1)) for k in range(_DURATIONS)]
    best = min(grid, key=error)
    if best not in tried:
        raise ValueError(f"No duration makes a schedule of {start}: take more steps.")
    _tell(progress, f"best of {len(tried)} durations: tau = {best:.4g}, rms error {error(best):.4f}")
    spacing = grid[1] - grid[0]
    low, high = best - spacing, best + spacing
    for _ in range(_REFINEMENTS // 2):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if error(left) < error(right) else (left, high)
    best = min(tried, key=lambda tau: tried[tau])
    _tell(progress, f"refined: tau = {best:.4g}, rms error {error(best):.4f}")
    return dataclasses.replace(start, tau=best), sorted(tried.items())


def tune_angles(
    groups: Sequence[Instances],
    starts: Sequence[Schedule],
    restarts: int = 16,
    iterations: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
    reach: float = 2.0,
) -> FreeSchedule:
    """Return the schedule of free step angles of least error that gradient descent finds.

    Minimized is the mean over groups of the mean square error of the magnetizations and, with a weight of 0.03, of
    KL(DQA || Boltzmann), each over that of the linear schedule of tau = 1.25 P, so that groups count alike, and those
    that gain least count most; and `single_spin_loss` up to |h| = reach. Without the divergence, which costs the
    magnetizations little, correlations of pairs are left to chance; without the response of a single spin, what is left
    of p where a large field says that a key is ignored.

    Each start, and copies of the starts whose angles x become x exp(r N(0, 1)) + r N(0, 1) / 4 with r of 0.2, 0.4 and
    0.6 in turn, first descend on some models of the groups with fewest spins; the four best that differ descend further
    on all models, with fields clipped as DQALayer clips them. The circuit is tuned to sample at beta = 1 over the whole
    range of the models, so the schedule's betas are 1; what they are to first order is held close to 1 by a penalty of
    0.05 times the squares of their differences from 1.

    Args:
        groups: models, of different sizes or spreads; they are simulated on hybrid.statevector.
        starts: schedules of the same number of steps, one or more.
        restarts: number of perturbed copies.
        iterations: of L-BFGS for the last descent; the first ones take a quarter.
        seed: fixes the perturbations.
        progress: is called with a line about each stage.
        reach: the |h| in nats up to which a single spin's response is tuned; 0 leaves it out.

    Raises:
        ValueError: if there is no start, the numbers of steps differ, or reach is negative or not finite.

    Cost: about 3 circuits for each model and iteration, backward passes included.
    Source: angles by gradient descent as in arXiv 1411.4028; D. C. Liu, J. Nocedal, "On the limited memory BFGS method
    for large scale optimization" (1989).
    """
    steps = {len(start.angles()) for start in starts}
    if len(steps) != 1:
        raise ValueError(f"Starts of {sorted(steps)} steps were given: give one or more of the same number of steps.")
    if not 0 <= reach < math.inf:
        raise ValueError(f"reach={reach} was given: give a finite number, 0 or more.")
    (number_of_steps,) = steps
    linear = LinearSchedule(number_of_steps, _TAU_PER_STEP * number_of_steps)
    scales = [_deviations(_annealed(group, linear), boltzmann_log_probabilities(group)) for group in groups]
    candidates = _candidates(starts, restarts, seed)
    fewest = min(group.num_spins for group in groups)
    few, few_scales = zip(
        *(
            (Instances(group.fields[:_FEW_MODELS], group.couplings[:_FEW_MODELS]), scale)
            for group, scale in zip(groups, scales, strict=True)
            if group.num_spins == fewest
        ),
        strict=True,
    )
    found: list[tuple[Tensor, float]] = []
    for number, candidate in enumerate(candidates):
        angles, error = _descend(candidate, few, few_scales, reach, reach or math.inf, max(iterations // 4, 1))
        if error < min((least for _, least in found), default=math.inf):
            _tell(progress, f"start {number + 1} of {len(candidates)}: {error:.4f} of the linear schedule's loss")
        if not any(abs(error - other) <= _SAME_ERROR * other for _, other in found):
            found.append((angles, error))
    _tell(progress, f"all {len(candidates)} starts tried")
    schedules = []
    for rank, (angles, _) in enumerate(sorted(found, key=lambda each: each[1])[:_FINALISTS]):
        schedules.append(_schedule(angles))
        for number in range(_CLIP_ROUNDS):
            limit = schedules[-1].max_field
            angles, _ = _descend(schedules[-1].angles(), groups, scales, reach, limit, -(-iterations // _CLIP_ROUNDS))
            schedules.append(_schedule(angles))
            error = _mean_loss(groups, schedules[-1], scales, reach)
            place = f"best start {rank + 1}, descent {number + 1} of {_CLIP_ROUNDS}"
            _tell(progress, f"{place}: {error:.4f} of the linear schedule's loss")
    return min(schedules, key=lambda schedule: _mean_loss(groups, schedule, scales, reach))


def _candidates(starts: Sequence[Schedule], restarts: int, seed: int) -> list[Tensor]:
    """Return the angles of the starts at beta = 1 to first order, and perturbed copies."""
    generator = torch.Generator().manual_seed(seed)
    candidates = [start.angles() / torch.tensor((start.beta_h, start.beta_J, 1.0)) for start in starts]
    for number in range(restarts):
        given = candidates[number % len(starts)]
        size = _RELATIVE_PERTURBATIONS[number // len(starts) % len(_RELATIVE_PERTURBATIONS)]
        factors, shifts = torch.randn(2, *given.shape, dtype=torch.float64, generator=generator)
        candidates.append(given * (size * factors).exp() + _ABSOLUTE_PERTURBATION * size * shifts)
    return candidates


def _schedule(angles: Tensor) -> FreeSchedule:
    return FreeSchedule.from_angles(angles, betas=(1.0, 1.0))


def _descend(
    angles: Tensor,
    groups: Sequence[Instances],
    scales: Sequence[Tensor],
    reach: float,
    limit: float,
    iterations: int,
) -> tuple[Tensor, float]:
    """Return angles of less loss, and the loss, which is infinite where they make no schedule."""
    annealer = Annealer()
    clipped = [
        group if limit == math.inf else Instances(clip_fields(group.fields, limit), group.couplings) for group in groups
    ]
    exact = [boltzmann_log_probabilities(group) for group in groups]
    free = angles.clone(memory_format=torch.contiguous_format).requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=iterations, history_size=_HISTORY, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        found = [annealer.run(group, free) for group in clipped]
        losses = [_loss(*given) for given in zip(found, exact, scales, strict=True)]
        return torch.stack(losses).mean() + single_spin_loss(free, reach)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss() + _SLOPE_PENALTY * sum((beta - 1).square() for beta in inverse_temperatures(free))
        value.backward()
        return value

    optimizer.step(closure)
    with torch.no_grad():
        found, error = free.detach(), float(loss())
    try:
        _schedule(found)
    except ValueError:
        return angles, math.inf
    return (found, error) if math.isfinite(error) else (angles, math.inf)


def _mean_loss(groups: Sequence[Instances], schedule: Schedule, scales: Sequence[Tensor], reach: float) -> float:
    losses = [
        _loss(_annealed(group, schedule), boltzmann_log_probabilities(group), scale)
        for group, scale in zip(groups, scales, strict=True)
    ]
    return float(torch.stack(losses).mean() + single_spin_loss(schedule.angles(), reach))


def _loss(q: Tensor, log_p: Tensor, scale: Tensor) -> Tensor:
    """Return the deviations over those of the first start, weighted."""
    weights = torch.tensor((1.0, _DIVERGENCE_WEIGHT), dtype=torch.float64)
    return (weights * _deviations(q, log_p) / scale.clamp_min(_SMALLEST_ERROR)).sum()


def _deviations(q: Tensor, log_p: Tensor) -> Tensor:
    """Return the mean square error of the magnetizations and the mean KL divergence of distributions (N, 2^T): (2,)."""
    error = (magnetizations(q) - magnetizations(log_p.exp())).square().mean()
    divergence = (q * (q.clamp_min(_SMALLEST_PROBABILITY).log() - log_p)).sum(1).mean()
    return torch.stack((error, divergence))


def _annealed(group: Instances, schedule: Schedule) -> Tensor:
    return Annealer()(group, schedule)


def _exact(group: Instances) -> Tensor:
    return magnetizations(boltzmann_log_probabilities(group).exp())


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(max(value, _SMALLEST_ERROR)) for value in values) / len(values))


def _tell(progress: Progress | None, line: str) -> None:
    if progress is not None:
        progress(line)
