"""Attention modules: marginals of an Ising layer as weights, and softmax for comparison."""

import math
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from hybrid_attention.ising import num_pairs, pair_index
from hybrid_attention.layers import IsingLayer

_SMALLEST_SUM = 1e-30

KeysAndValues = tuple[Tensor, Tensor]


class _Attention(nn.Module):
    """What every attention module shares: projections, masks, and the shape of input and output.

    Linear maps have no bias, so a query with nothing to attend to returns exactly zero.
    """

    def __init__(self, embed_dim: int, num_heads: int, causal: bool) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"embed_dim={embed_dim} does not split into {num_heads} head(s): give a positive multiple of the "
                "number of heads."
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.causal = causal
        self.query_key_value = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.output = nn.Linear(embed_dim, embed_dim, bias=False)

    @overload
    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: Literal[False] = False
    ) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None, need_weights: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(self, x: Tensor, *, need_weights: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from every position to the positions that are present.

        Args:
            x: (B, T, embed_dim), floating point.
            key_padding_mask: bool (B, T), True where a position is padding: it is removed as a key, whatever
                its value, as in torch.nn.MultiheadAttention.
            need_weights: also return the attention weights.

        Returns:
            (B, T, embed_dim), and with need_weights the weights (B, H, T, T): rows are queries and sum to 1, or
            to 0 where nothing is present.

        Raises:
            TypeError: if x is not floating point or the mask is not bool.
            ValueError: if the shapes do not fit.
        """
        self._check(x, key_padding_mask)
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0)
        query, key, value = self._project(x)
        attended, weights = self._attend(query, key, value, self._present(x, key_padding_mask), need_weights)
        out = self._merge(attended)
        return out if weights is None else (out, weights)

    def extend(
        self, x: Tensor, past: KeysAndValues | None = None, newest_only: bool = False
    ) -> tuple[Tensor, KeysAndValues]:
        """Attend from positions that follow those whose keys and values are known, as `forward` on all of them would.

        Args:
            x: (B, n, embed_dim), floating point, the n new positions, 1 or more.
            past: keys and values (B, H, m, d_head) of the m positions before, as an earlier call returned them.
            newest_only: attend from the last position alone; the others only give keys and values.

        Returns:
            (B, n, embed_dim), or (B, 1, embed_dim) with newest_only; and the keys and values of all m + n positions.

        Raises:
            TypeError: if x is not floating point.
            ValueError: if the shape does not fit, or the attention is not causal: earlier outputs would change.

        Cost: n queries, or 1 with newest_only, over m + n keys.
        """
        self._check(x, None)
        if not self.causal or not x.shape[1]:
            raise ValueError(
                f"An input of {x.shape[1]} position(s) was given to attention with causal={self.causal}: extend takes "
                "1 or more, and causal attention, whose earlier outputs stay as they are."
            )
        query, key, value = self._project(x)
        if past is not None:
            key, value = (torch.cat((before, new), dim=2) for before, new in zip(past, (key, value), strict=True))
        query = query[:, :, -1:] if newest_only else query
        rows, length = query.shape[2], key.shape[2]
        present = None
        if rows > 1:
            present = torch.ones(rows, length, dtype=torch.bool, device=x.device).tril(length - rows)
        attended, _ = self._attend(query, key, value, present, need_weights=False)
        return self._merge(attended), (key, value)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, H, T, d_head)."""
        batch, length, _ = x.shape
        projected = self.query_key_value(x).view(batch, length, 3, self.num_heads, self.embed_dim // self.num_heads)
        # no views: where torch.compile cuts its graph here, torch 2.13 misreads their shapes from its cache
        query, key, value = (part.contiguous() for part in projected.permute(2, 0, 3, 1, 4))
        return query, key, value

    def _merge(self, attended: Tensor) -> Tensor:
        """Return the output (B, T, embed_dim) of what the heads attended to, (B, H, T, d_head)."""
        out: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return out

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, present: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError

    def _present(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        """Return which keys each query sees, broadcastable to (B, H, T, T), or None where it sees them all."""
        length = x.shape[1]
        present = None
        if self.causal:
            present = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        if key_padding_mask is not None:
            keys = ~key_padding_mask[:, None, None, :]
            present = keys if present is None else present & keys
        return present

    def _check(self, x: Tensor, key_padding_mask: Tensor | None) -> None:
        if not x.is_floating_point():
            raise TypeError(f"The input is {x.dtype}: give a floating-point tensor (B, T, {self.embed_dim}).")
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise ValueError(f"The input has shape {tuple(x.shape)}: give (B, T, {self.embed_dim}).")
        if key_padding_mask is None:
            return
        if key_padding_mask.dtype != torch.bool:
            raise TypeError(
                f"key_padding_mask is {key_padding_mask.dtype}: give a bool tensor, True at padding; queries, keys and "
                "values all come from the one input x."
            )
        if key_padding_mask.shape != x.shape[:2]:
            raise ValueError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}: give {tuple(x.shape[:2])}, one entry "
                "for every position."
            )

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, causal={self.causal}"


class BoltzmannAttention(_Attention):
    """Attention whose weights are the marginals of an Ising model over the keys, one model for every query.

    With fields h_ij = q_i . k_j / sqrt(d_head) the layer gives p_ij = P_i(s_j = +1), and the output is
    sum_j a_ij v_j with a_ij = p_ij / max(sum_j p_ij, 1e-30).

    Args:
        embed_dim: width of the input, a multiple of the layer's number of heads.
        layer: the Ising layer, which also sets the number of heads and the longest context.
        causal: query i sees the keys 0..i only; the others are removed from its Ising model.
        use_fields: False sets every field to 0 (the ablation `couplings_only`). Without fields, flipping all
            spins leaves the energy unchanged, so every marginal is 1/2 and no coupling can learn.

    Raises:
        TypeError: if layer is not an Ising layer.
        ValueError: if embed_dim is not a multiple of the number of heads.

    Cost: the layer's, for B x H x T queries. Source: arXiv 2606.12478, Boltzmann attention.
    """

    def __init__(self, embed_dim: int, layer: IsingLayer, causal: bool = True, use_fields: bool = True) -> None:
        if not isinstance(layer, IsingLayer):
            raise TypeError(f"layer={layer!r} was given: give a layer, such as ExactLayer(num_spins=8).")
        super().__init__(embed_dim, layer.num_heads, causal)
        self.layer = layer
        self.use_fields = use_fields

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, present: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
        fields = scores if scores.dtype == torch.float64 else scores.float()
        p = self.layer(fields if self.use_fields else torch.zeros_like(fields), present)
        weights = (p / p.sum(-1, keepdim=True).clamp_min(_SMALLEST_SUM)).to(value.dtype)
        return weights @ value, weights if need_weights else None

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return f"{super().extra_repr()}, use_fields={self.use_fields}"


class SoftmaxAttention(_Attention):
    """Scaled dot-product attention with the same projections and masks, for comparison.

    Args:
        embed_dim, num_heads, causal: as for BoltzmannAttention.
        biased_positions: a learned bias is added to the score of every pair of different positions among this many, the
            same in both directions and zero at the start: `position_bias` (H, T (T - 1) / 2), as many parameters as
            couplings have. No bias by default.

    Raises:
        ValueError: if embed_dim is not a multiple of the number of heads, or a sequence with biases is longer than
            biased_positions.

    Cost: O(B H T^2 d_head). Source: arXiv 1706.03762, equation 1.
    """

    def __init__(self, embed_dim: int, num_heads: int = 1, causal: bool = True, biased_positions: int = 0) -> None:
        super().__init__(embed_dim, num_heads, causal)
        if biased_positions < 0:
            raise ValueError(f"biased_positions={biased_positions} was given: give 0 or more.")
        self.biased_positions = biased_positions
        self.position_bias: nn.Parameter | None
        if biased_positions:
            self.position_bias = nn.Parameter(torch.zeros(num_heads, num_pairs(biased_positions)))
        else:
            self.register_parameter("position_bias", None)

    def bias_matrix(self) -> Tensor:
        """Return the biases of all pairs: (H, T, T), symmetric, zero diagonal, in nats."""
        size = self.biased_positions
        if self.position_bias is None:
            return self.output.weight.new_zeros(self.num_heads, size, size)
        first, second = pair_index(size, self.position_bias.device)
        places = (first * size + second).expand(self.num_heads, -1)
        upper = self.position_bias.new_zeros(self.num_heads, size * size).scatter(1, places, self.position_bias)
        return upper.view(self.num_heads, size, size) + upper.view(self.num_heads, size, size).mT

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, present: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.position_bias is None and not need_weights:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask=present), None
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
        if self.position_bias is not None:
            scores = scores + self._bias_of_last(*scores.shape[-2:])
        if present is None:
            weights = scores.softmax(-1)
        else:
            weights = scores.masked_fill(~present, -math.inf).softmax(-1)
            weights = weights.masked_fill(~present.any(-1, keepdim=True), 0)
        return weights @ value, weights if need_weights else None

    def _bias_of_last(self, num_queries: int, num_keys: int) -> Tensor:
        """Return the biases of the last queries of a sequence of `num_keys` positions: (H, num_queries, num_keys)."""
        if num_keys > self.biased_positions:
            raise ValueError(
                f"The input has {num_keys} positions, and the attention has biases for {self.biased_positions}: "
                "shorten the input or set a larger biased_positions."
            )
        return self.bias_matrix()[:, num_keys - num_queries : num_keys, :num_keys]

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return super().extra_repr() + (f", biased_positions={self.biased_positions}" if self.biased_positions else "")
