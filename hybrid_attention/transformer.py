"""A decoder-only transformer around any attention module."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_EMBEDDING_SPREAD = 0.02


class Block(nn.Module):
    """One pre-norm block: attention, then optionally a feed-forward network, each added to its input.

    Args:
        embed_dim: width.
        attention: maps (B, T, embed_dim) to the same shape.
        feed_forward: whether the feed-forward network (4 x embed_dim wide, GELU) follows.
    """

    def __init__(self, embed_dim: int, attention: nn.Module, feed_forward: bool = True) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.attention = attention
        self.feed_forward: nn.Module | None = None
        if feed_forward:
            self.feed_forward = nn.Sequential(
                nn.LayerNorm(embed_dim),
                nn.Linear(embed_dim, 4 * embed_dim),
                nn.GELU(),
                nn.Linear(4 * embed_dim, embed_dim),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, embed_dim) to (B, T, embed_dim)."""
        x = x + self.attention(self.attention_norm(x))
        return x if self.feed_forward is None else x + self.feed_forward(x)


class DecoderOnlyTransformer(nn.Module):
    """Token and learned position embeddings, small at the start, pre-norm blocks, a norm and a linear head.

    Args:
        vocab_size: number of token ids.
        num_outputs: number of logits at every position.
        context_length: the longest sequence T.
        embed_dim: width.
        attention: called once for every block, returns its attention module.
        num_blocks: number of blocks.
        feed_forward: whether the blocks have a feed-forward network.

    Raises:
        ValueError: if a size is not positive.

    Cost: the attention's plus O(B T embed_dim^2) for every block. Source: arXiv 2606.12478, the model of the
    experiments (one block).
    """

    def __init__(
        self,
        vocab_size: int,
        num_outputs: int,
        context_length: int,
        embed_dim: int,
        attention: Callable[[], nn.Module],
        num_blocks: int = 1,
        feed_forward: bool = True,
    ) -> None:
        super().__init__()
        sizes = {
            "vocab_size": vocab_size,
            "num_outputs": num_outputs,
            "context_length": context_length,
            "embed_dim": embed_dim,
            "num_blocks": num_blocks,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name}={size} was given: give 1 or more.")
        self.context_length = context_length
        self.tokens = nn.Embedding(vocab_size, embed_dim)
        self.positions = nn.Embedding(context_length, embed_dim)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=_EMBEDDING_SPREAD)
        self.blocks = nn.ModuleList(Block(embed_dim, attention(), feed_forward) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, T, num_outputs) for token ids (B, T), int64, T <= context_length.

        Raises:
            ValueError: if the sequence is longer than the context or not (B, T).
        """
        if tokens.dim() != 2 or tokens.shape[1] > self.context_length:
            raise ValueError(
                f"The tokens have shape {tuple(tokens.shape)}: give (B, T) with T up to the model's context_length "
                f"of {self.context_length}."
            )
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
