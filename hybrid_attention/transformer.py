"""A decoder-only transformer around any attention module."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from hybrid_attention.attention import KeysAndValues

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
        return self._fed_forward(x + self.attention(self.attention_norm(x)))

    def extend(self, x: Tensor, past: KeysAndValues | None, newest_only: bool) -> tuple[Tensor, KeysAndValues]:
        """Map new positions (B, n, embed_dim) that follow others, as `extend` of the attention does."""
        attention: Any = self.attention
        attended, known = attention.extend(self.attention_norm(x), past, newest_only)
        return self._fed_forward(x[:, -attended.shape[1] :] + attended), known

    def _fed_forward(self, x: Tensor) -> Tensor:
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
            TypeError: if the tokens are no integers.
            ValueError: if the sequence is longer than the context or not (B, T), or a token is not in the vocabulary.
        """
        x = self._embed(tokens, 0)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def extend(self, tokens: Tensor, past: list[KeysAndValues] | None = None) -> tuple[Tensor, list[KeysAndValues]]:
        """Return the logits at the last position, and what the next call takes as `past`.

        Args:
            tokens: (B, n), int64, n new tokens, 1 or more, after the m of earlier calls; m + n <= context_length.
            past: keys and values of every block at these m positions.

        Returns:
            (B, num_outputs), as `forward` on all m + n tokens gives in its last position; and keys and values.

        Raises:
            ValueError: if m + n is larger than the context or the tokens are not (B, n), or attention is not causal.

        Cost: the last block attends from the newest position alone, and the ones before it from the n new ones.
        """
        x = self._embed(tokens, 0 if past is None else past[0][0].shape[2])
        known = []
        blocks = cast(list[Block], list(self.blocks))
        for number, block in enumerate(blocks):
            before = None if past is None else past[number]
            x, here = block.extend(x, before, newest_only=number == len(blocks) - 1)
            known.append(here)
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits, known

    def _embed(self, tokens: Tensor, start: int) -> Tensor:
        """Return embeddings (B, T, embed_dim) of tokens whose first one is at the position `start`."""
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"The tokens are {tokens.dtype}: give int64 token ids.")
        if tokens.dim() != 2 or start + tokens.shape[1] > self.context_length:
            after = f" after {start} others" if start else ""
            raise ValueError(
                f"The tokens have shape {tuple(tokens.shape)}{after}: give (B, T) with T up to the model's "
                f"context_length of {self.context_length}."
            )
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        try:
            embedded: Tensor = self.tokens(tokens) + self.positions(places)
        except IndexError:  # on a CPU; on a GPU the kernel asserts
            raise ValueError(
                f"The tokens run from {int(tokens.min())} to {int(tokens.max())}: give ids from 0 to "
                f"{self.tokens.num_embeddings - 1}."
            ) from None
        return embedded
