"""Bracket matching: where was the bracket opened that closes here?"""

from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

from datamodules.bracket_words import NOT_SCORED, nearest_open_bracket
from lightning_modules.layer_factories import LayerFactory
from lightning_modules.sequence_module import SequenceModule


class BracketMatcher(SequenceModule):
    """Predict, at every closing bracket, the position of the bracket that it closes; logs loss (nats) and accuracy.

    Testing also logs test_accuracy_nearest_open, what guessing the nearest opening bracket would score.

    Args:
        num_types: kinds of brackets; kind t opens with token 2t and closes with 2t + 1.
        context_length: length of the words, which is also the number of classes.
        causal: whether a position sees earlier brackets only.
        embed_dim, ...: as for SequenceModule.

    Raises:
        ValueError: as SequenceModule, and if num_types is not positive.

    Source: arXiv 2606.12478, the experiments on bracket matching.
    """

    def __init__(
        self,
        context_length: int,
        num_types: int = 1,
        causal: bool = True,
        embed_dim: int = 8,
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
        if num_types < 1:
            raise ValueError(f"num_types={num_types} was given: give 1 or more.")
        super().__init__(2 * num_types, context_length, causal=causal, hyper_parameters=given)
        self.nearest_open_accuracy = MulticlassAccuracy(
            context_length, average="micro", ignore_index=NOT_SCORED, validate_args=False
        )

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the loss, the metrics and the baseline of the test split."""
        super().test_step(batch, batch_idx)
        tokens, targets = batch
        self.nearest_open_accuracy.update(nearest_open_bracket(tokens), targets)
        self.log("test_accuracy_nearest_open", self.nearest_open_accuracy)
