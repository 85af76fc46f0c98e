"""A layer of one's own: mean-field marginals, used in Python and, by its import path, from YAML.

From the root of the repository:

    PYTHONPATH=examples hybrid-attention fit --config configs/brackets.yaml --config examples/own_layer.yaml
"""

import pytorch_lightning as pl
import torch
from torch import Tensor

from datamodules import BracketDataModule
from hybrid_attention import IsingLayer
from lightning_modules import BracketMatcher


class MeanFieldLayer(IsingLayer):
    """Marginals of the naive mean-field approximation, m_j = tanh(h_j + sum_k J_jk m_k), by damped iteration.

    Args:
        num_spins: as for IsingLayer.
        num_heads: as for IsingLayer.
        iterations: number of sweeps.
    """

    def __init__(self, num_spins: int, num_heads: int = 1, iterations: int = 10) -> None:
        super().__init__(num_spins, num_heads)
        self.iterations = iterations

    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return p (batch, H, ..., T); a removed spin has p = 0 and m = 0, so that it reaches no other."""
        if present is not None:
            fields = fields.masked_fill(~present, 0)
        length = fields.shape[-1]
        J = self.coupling_matrix(length).to(fields.dtype)
        J = J.view(self.num_heads, *(1,) * (fields.dim() - 3), length, length)
        m = torch.zeros_like(fields)
        for _ in range(self.iterations):
            total = fields + (J @ m.unsqueeze(-1)).squeeze(-1)
            m = (m + total.tanh()) / 2
            if present is not None:
                m = m.masked_fill(~present, 0)
        p = torch.sigmoid(2 * (fields + (J @ m.unsqueeze(-1)).squeeze(-1)))
        return p if present is None else p.masked_fill(~present, 0)


def main() -> None:
    """Train a model with the layer."""
    pl.seed_everything(0)
    data = BracketDataModule(context_length=8, num_types=3, num_train=640, num_val=64, num_test=64)
    model = BracketMatcher(context_length=8, num_types=3, layer=MeanFieldLayer)
    trainer = pl.Trainer(max_steps=20, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(model, data)
    trainer.test(model, data)


if __name__ == "__main__":
    main()
