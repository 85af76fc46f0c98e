"""Fields bent smoothly into the range where a quench's single-spin response still grows with them."""

from torch import Tensor

_POWER = 8
_FAR_BEYOND = 1e3


def clip_fields(fields: Tensor, limit: float) -> Tensor:
    """Return h (1 + (h / limit)^8)^(-1/8): h where it is small, +-limit where it is large, with finite gradients.

    Args:
        fields: any shape, in nats.
        limit: the largest |h| that is returned, in nats; h up to half of it changes by less than 0.1 %.
    """
    fields = fields.clamp(-_FAR_BEYOND * limit, _FAR_BEYOND * limit)
    return fields * (1 + (fields / limit) ** _POWER) ** (-1 / _POWER)
