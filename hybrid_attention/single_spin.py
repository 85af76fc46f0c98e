"""How far a single spin's response to its field is from the Boltzmann distribution's."""

import torch
from torch import Tensor

from hybrid_attention.schedules import single_spin_response

_POINTS = 80
_SMALLEST_PROBABILITY = 1e-3
_SMALLEST_RISE = 1e-4
_RATIO_WEIGHT = 0.005
_FALL_WEIGHT = 3.0


def single_spin_loss(angles: Tensor, reach: float) -> Tensor:
    """Return how far <Z> of one spin without couplings is from tanh(h) where p of an ignored key counts.

    Over 80 fields that are even up to `reach`: 0.005 times the mean square of log((p + 0.001) / (p_exact + 0.001)) for
    the smaller probability p, which attention multiplies by, and 3 times the sum of what <Z> lacks of a rise of 1e-4
    from a field to the next.

    Args:
        angles: (P, 3), of fields that are not divided by any beta_h.
        reach: the largest |h|, in nats; 0 gives 0.

    Returns:
        A scalar, which autograd differentiates. Cost: O(P) for every field.
    """
    if reach == 0:
        return angles.new_zeros(())
    fields = torch.linspace(0, reach, _POINTS + 1, dtype=angles.dtype)[1:]
    response = single_spin_response(angles, fields)
    smaller, exact = (1 - response) / 2, torch.sigmoid(-2 * fields)
    ratios = ((smaller + _SMALLEST_PROBABILITY) / (exact + _SMALLEST_PROBABILITY)).log()
    lacking = (_SMALLEST_RISE - response.diff()).clamp_min(0)
    return _RATIO_WEIGHT * ratios.square().mean() + _FALL_WEIGHT * lacking.sum()
