"""Marginals of chains in the log domain, for rows whose weights span more than floating point does."""

import torch
from torch import Tensor

from hybrid_attention.state_tables import spins

_EXCLUDED = -1e30


def log_domain_marginals(fields: Tensor, couplings: Tensor, present: Tensor) -> Tensor:
    """Return p (R, T) by a sweep in each direction over the states of the last w spins, one spin at a time.

    Args:
        fields: (R, T), float64, in nats.
        couplings: (T, w), float64, J of spin t with spin t - d at [t, d - 1], in nats.
        present: bool (R, T); an absent spin is taken at +1 without field and couplings, and gets p = 0.

    Cost: O(R T 2^w) operations and, with gradients, as much memory. Source: the transfer matrix of the Ising chain.
    """
    length, reach = couplings.shape
    states = 2**reach
    earlier = spins(reach, fields.dtype, fields.device)
    shifted = torch.nn.functional.pad(present, (reach, 0))
    steps = []
    for t in range(length):
        both = shifted[:, t : t + reach].flip(1) & present[:, t : t + 1]
        up = fields[:, t : t + 1].masked_fill(~present[:, t : t + 1], 0) + (couplings[t] * both) @ earlier
        down = torch.where(present[:, t : t + 1], -up, _EXCLUDED)
        steps.append(torch.stack((up, down), dim=-1))
    message = fields.new_full((len(fields), states), _EXCLUDED)
    message[:, 0] = 0
    messages = []
    for step in steps:
        message = (message.unsqueeze(-1) + step).view(-1, 2, states).logsumexp(1)
        messages.append(message)
    later = torch.zeros_like(message)
    p = []
    for step, message in zip(reversed(steps), reversed(messages), strict=True):
        joint = (message + later).view(-1, states // 2, 2)
        p.append((joint[..., 0].logsumexp(1) - joint[..., 1].logsumexp(1)).sigmoid())
        following = later.view(-1, 1, states // 2, 2).expand(-1, 2, -1, -1).reshape(-1, states, 2)
        later = (following + step).logsumexp(-1)
    return torch.stack(p[::-1], dim=1).masked_fill(~present, 0)
