"""Next-character prediction."""

from torch import Tensor
from torchmetrics.text import Perplexity

from datamodules.bracket_words import NOT_SCORED
from lightning_modules.layer_factories import LayerFactory
from lightning_modules.sequence_module import SequenceModule, per_stage


class CharLanguageModel(SequenceModule):
    """Predict the next character at every position; logs loss (nats), accuracy and perplexity.

    Args:
        vocabulary: the characters in the order of their token ids, as the datamodule gives them.
        context_length, embed_dim, ...: as for SequenceModule. Attention is causal.

    Raises:
        ValueError: if the vocabulary is empty or repeats a character; and as SequenceModule.

    Source: arXiv 2606.12478, the experiments on Tiny Shakespeare.
    """

    def __init__(
        self,
        vocabulary: str,
        context_length: int,
        embed_dim: int = 32,
        num_heads: int = 1,
        num_blocks: int = 1,
        feed_forward: bool = True,
        layer: LayerFactory | None = None,
        use_fields: bool = True,
        position_bias: bool = False,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
        coupling_learning_rate_factor: float = 0.3,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if not vocabulary or len(set(vocabulary)) != len(vocabulary):
            raise ValueError(f"vocabulary={vocabulary!r} was given: give each character once, at least one.")
        size = len(vocabulary)
        super().__init__(size, size, causal=True, hyper_parameters=given)
        self.perplexity = per_stage(Perplexity(ignore_index=NOT_SCORED))

    def _log_metrics(self, logits: Tensor, targets: Tensor, stage: str) -> None:
        super()._log_metrics(logits, targets, stage)
        self.log_metric("perplexity", self.perplexity, stage, logits, targets)
