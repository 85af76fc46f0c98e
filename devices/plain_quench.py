"""The quench in plain torch operations, which autograd differentiates any number of times."""

from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor


@lru_cache(maxsize=64)
def quarter_turns(num_wires: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return diag(1, i) on every wire: i^(number of ones) of each state, (2^T,), complex."""
    with torch.inference_mode(False):
        ones = sum((torch.arange(2**num_wires) >> wire) & 1 for wire in range(num_wires))
        return torch.tensor([1, 1j, -1, -1j], dtype=dtype)[torch.as_tensor(ones) % 4].to(device)


def plain_quench(fields: Tensor, couplings: Tensor, angles: Tensor, initial: Tensor | None = None) -> Tensor:
    """Return the states after `devices.DQA`, (batch, 2^T), one gate after the other.

    Args:
        fields: (batch or 1, T).
        couplings: (batch or 1, T (T - 1) / 2).
        angles: (P, 3).
        initial: (batch or 1, 2^T), complex; |0...0> without it.

    Cost: O(P T 2^T) for each row, in time and, for gradients, in memory.
    """
    num_wires = fields.shape[1]
    wires = torch.arange(num_wires - 1, -1, -1, device=fields.device)
    spins = (1 - 2 * ((torch.arange(2**num_wires, device=fields.device).unsqueeze(1) >> wires) & 1)).to(fields)
    pairs = list(combinations(range(num_wires), 2))
    products = torch.stack([spins[:, j] * spins[:, k] for j, k in pairs], 1) if pairs else spins[:, :0]
    field_energies, pair_energies = fields @ spins.T, couplings @ products.T
    angles = angles.to(fields)
    if initial is None:
        state = torch.full_like(spins[:, 0], 2 ** (-num_wires / 2)).to(fields.dtype.to_complex()).unsqueeze(0)
    else:
        hadamard = torch.tensor([[1, 1], [1, -1]], dtype=initial.dtype, device=initial.device) / 2**0.5
        state = _on_every_wire(hadamard, initial, num_wires)
    for field_angle, pair_angle, mixer_angle in angles:
        phases = field_angle * field_energies + pair_angle * pair_energies
        cos, sin = mixer_angle.cos(), mixer_angle.sin()
        mixer = torch.complex(torch.stack((cos, cos * 0, cos * 0, cos)), torch.stack((sin * 0, sin, sin, sin * 0)))
        state = _on_every_wire(mixer.view(2, 2), state * torch.complex(phases.cos(), phases.sin()), num_wires)
    return state


def _on_every_wire(gate: Tensor, state: Tensor, num_wires: int) -> Tensor:
    for wire in range(num_wires):
        state = (gate @ state.reshape(len(state) * 2**wire, 2, -1)).reshape(len(state), -1)
    return state
