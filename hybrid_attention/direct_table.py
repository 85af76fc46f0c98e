"""Exact marginals of a few spins from one table of all their states.

With the weights w[s] = A[s_a] B[s_b] W[s_b, s_a] of all 2^T states (see meet_in_the_middle.py for A, B and W),

    Z = sum w      p = N w / Z      dL/dh_k = 2 E[d n_k]      dL/dJ_kl = sum E[d s_k s_l]      d(n) = g . n - g . p

A row costs O(2^T T) multiplications and O(2^T) memory, but half of the tensor operations of meeting in the middle,
which at few spins take most of the time.
"""

from typing import NamedTuple

from torch import Tensor

from hybrid_attention.row_tables import each_group, field_factors, inverse_partition
from hybrid_attention.state_tables import counted_occupations


class DirectTable(NamedTuple):
    """The weights of the states of rows that share couplings in groups."""

    weights: Tensor  # w, (groups, 2^T, rows)
    inverse: Tensor  # 1 / Z, (groups, 1, rows), and 0 in rows that were found to underflow

    @staticmethod
    def row_entries(size: int) -> int:
        """Return how many entries the tables of a row take."""
        return int(2**size)

    @staticmethod
    def solve(costs: Tensor, pairs: Tensor, careful: bool) -> tuple["DirectTable", Tensor]:
        """Return the table, and Z and Z p_j (G, T + 1, M), from the costs of spins (G, T, 2, M) and W (G, 2^b, 2^a)."""
        size, states = costs.shape[1], pairs.shape[2]
        factors = field_factors(costs)
        products = factors[:, states:].unsqueeze(2) * factors[:, :states].unsqueeze(1)
        weights = products.mul_(pairs.unsqueeze(3)).flatten(1, 2)
        sums = each_group(counted_occupations(size, costs.dtype, costs.device), weights)
        return DirectTable(weights, inverse_partition(sums[:, :1], careful)), sums

    def gradient(self, pairs: Tensor, slopes: Tensor, with_pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Return dL/dh (G, T, M), and with pairs E[d] of the states, summed over rows (G, 2^b, 2^a).

        `slopes` are -g . p / Z and g / Z (G, T + 1, M).
        """
        n = counted_occupations(slopes.shape[1] - 1, slopes.dtype, slopes.device)
        deviation = each_group(n.T, slopes).mul_(self.weights)
        expectation = deviation.sum(2).view(pairs.shape) if with_pairs else None
        return each_group(n[1:], deviation).mul_(2), expectation
