"""A two-layer encoder with multi-head Boltzmann attention in place of softmax attention: one line is swapped."""

import torch
from torch import nn

from hybrid_attention import BoltzmannAttention, ExactLayer


class EncoderLayer(nn.Module):
    """A post-norm encoder layer."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        # before: self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.attention = BoltzmannAttention(width, ExactLayer(num_spins=length, num_heads=heads), causal=False)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        """Map (B, T, width) to the same shape; padding is bool (B, T), True where x is padding."""
        x = self.norms[0](x + self.attention(x, key_padding_mask=padding))
        return self.norms[1](x + self.feed_forward(x))


def main() -> None:
    """Train the encoder for a few steps to copy the first position to the last one."""
    torch.manual_seed(0)
    layers = nn.ModuleList(EncoderLayer(width=16, heads=4, length=8) for _ in range(2))
    optimizer = torch.optim.Adam(layers.parameters(), lr=3e-3)
    for step in range(41):
        x = torch.randn(32, 8, 16)
        y = x
        for layer in layers:
            y = layer(y)
        loss = (y[:, -1] - x[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    print(f"largest |J|: {layers[0].attention.layer.coupling_matrix().abs().max().item():.3f} nats")


if __name__ == "__main__":
    main()
