"""The layer that samples by Gibbs sampling, and the sweeps of its Markov chains."""

from collections.abc import Iterator

import torch
from torch import Tensor

from hybrid_attention.coupling_shapes import CouplingShape
from hybrid_attention.sampling_layer import Draw, SamplingLayer

_ENTRIES_AT_ONCE = 2**19


class GibbsLayer(SamplingLayer):
    """Marginals by Gibbs sampling: a classical sampler beside DQALayer, with gradients by the same covariances.

    Every query runs `num_chains` Markov chains, which start at independent spins of P(s_j = +1) = sigmoid(2 h_j), the
    distribution without couplings. A sweep draws each spin anew from its distribution given all others,
    P(s_j = +1 | s) = sigmoid(2 (h_j + sum_k J_jk s_k)); spins that are not coupled with each other are drawn at
    once. Where couplings have a range w, w + 1 groups of spins make up a sweep, else it takes one spin after the other.

    The marginals are means of these conditional probabilities rather than of the spins (Rao-Blackwell): their errors
    are smaller, and they stay above 0 where fields are strongly negative. The gradients are covariances of the spins.

    Samples of one chain are correlated. So the standard errors, of marginals and of attention weights, come from the
    spread between the means of the chains, which are independent; they are uncertain by 1 / sqrt(2 (num_chains - 1)) of
    themselves, and there are none for a single chain. They do not include what is left of the start after `burn_in`
    sweeps, nor states that no chain has reached: with strong couplings, chains that stay in one of several
    groups of states give wrong marginals and too small errors, and fewer and longer chains are better.

    Args:
        num_spins: as for IsingLayer.
        num_heads: as for IsingLayer.
        num_samples: samples of each query that are kept, of all chains together, a multiple of num_chains, 2 or more.
        burn_in: sweeps of each chain before its first sample, 0 or more.
        num_chains: independent chains of each query, 1 or more.
        seed: of the samples, as SamplingLayer says.
        coupling_shape: as for IsingLayer; a range w makes w + 1 groups.

    Raises:
        ValueError: as for SamplingLayer, and if the numbers are not as above.

    Cost: T (num_samples + num_chains burn_in) draws of a spin for each query, each O(T); with gradients, num_samples T
    bytes of memory for each query until the backward pass, and without them none that grows with num_samples.
    Source: S. Geman and D. Geman, IEEE Trans. Pattern Anal. Mach. Intell. 6, 721 (1984); A. E. Gelfand and
    A. F. M. Smith, J. Am. Stat. Assoc. 85, 398 (1990), for means of conditional probabilities.
    """

    def __init__(
        self,
        num_spins: int,
        num_heads: int = 1,
        num_samples: int = 1000,
        burn_in: int = 20,
        num_chains: int = 20,
        seed: int = 0,
        coupling_shape: CouplingShape | None = None,
    ) -> None:
        super().__init__(num_spins, num_heads, seed, coupling_shape)
        whole = all(type(number) is int for number in (num_samples, burn_in, num_chains))
        if not whole or num_chains < 1 or num_samples < 2 or num_samples % num_chains or burn_in < 0:
            raise ValueError(
                f"num_samples={num_samples!r}, burn_in={burn_in!r} and num_chains={num_chains!r} were given: "
                "take whole numbers, at least 1 chain, a multiple of it and at least 2 for the samples, and 0 or more "
                "sweeps of burn-in."
            )
        self.num_samples = num_samples
        self.burn_in = burn_in
        self.num_chains = num_chains

    def draw(self, fields: Tensor, couplings: Tensor, present: Tensor | None, seed: int, with_spins: bool) -> Draw:
        """Run the chains of some rows after the other."""
        generator = torch.Generator(fields.device).manual_seed(seed)
        heads, rows, size = fields.shape
        groups = independent_groups(couplings)
        at_once = max(1, _ENTRIES_AT_ONCE // (heads * size * self.num_chains))
        means = []
        kept = None
        if with_spins:
            shape = (heads, size, self.num_samples, rows)
            kept = torch.empty(shape, dtype=torch.int8, device=fields.device)
        for start in range(0, rows, at_once):
            part = slice(start, start + at_once)
            here = None if present is None else present[:, part].to(fields.dtype).mT.unsqueeze(2)
            chains = self._chains(fields[:, part].mT.unsqueeze(2), couplings, here, groups, generator)
            total = None
            for number, (spins, conditional) in enumerate(chains):
                if number < self.burn_in:
                    continue
                total = conditional.clone() if total is None else total.add_(conditional)
                if kept is not None:
                    place = (number - self.burn_in) * self.num_chains
                    kept[:, :, place : place + self.num_chains, part] = spins.to(torch.int8)
            assert total is not None
            means.append(total.div_(self.num_samples // self.num_chains))
        of_chains = torch.cat(means, dim=-1)
        p = of_chains.mean(2).mT
        if self.num_chains == 1:
            return Draw(p, None, None, kept)
        mean = p.mT.unsqueeze(2)
        total = mean.sum(1, keepdim=True)
        squares = (of_chains - mean).square().sum(2).mT
        ratios = of_chains - torch.where(total > 0, mean / total, 0) * of_chains.sum(1, keepdim=True)
        of_weights = torch.where(total > 0, ratios / total, 0).square().sum(2).mT
        degrees = self.num_chains * (self.num_chains - 1)
        return Draw(p, (squares / degrees).sqrt(), (of_weights / degrees).sqrt(), kept)

    def _chains(
        self,
        fields: Tensor,
        couplings: Tensor,
        present: Tensor | None,
        groups: list[Tensor],
        generator: torch.Generator,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the spins and the conditional probabilities that they were drawn with after each sweep.

        fields and present (H, T, 1, R), couplings (H, T, T); yields (H, T, num_chains, R), which the next sweep
        changes.
        """
        heads, size, _, rows = fields.shape
        shape = (heads, size, self.num_chains, rows)
        start = torch.rand(shape, generator=generator, device=fields.device)
        spins = torch.where(start < torch.sigmoid(2 * fields), 1.0, -1.0).to(fields.dtype)
        if present is not None:
            spins *= present
        flat = spins.view(heads, size, -1)
        conditional = torch.zeros_like(spins)
        parts = [
            (
                group,
                couplings[:, group].contiguous(),
                fields[:, group],
                None if present is None else present[:, group],
            )
            for group in groups
        ]
        for _ in range(self.burn_in + self.num_samples // self.num_chains):
            for group, rows_of_couplings, of_group, here in parts:
                local = (rows_of_couplings @ flat).view(heads, len(group), *shape[2:]) + of_group
                p = local.mul_(2).sigmoid_()
                drawn = torch.rand(p.shape, generator=generator, device=p.device).lt(p).to(p.dtype).mul_(2).sub_(1)
                if here is not None:
                    drawn *= here
                    p = p * here
                spins[:, group] = drawn
                conditional[:, group] = p
            yield spins, conditional


def independent_groups(couplings: Tensor) -> list[Tensor]:
    """Return the spins in groups within which no two are coupled: int64, each spin in one group.

    With w the largest distance of two coupled spins these are the w + 1 classes of j modulo w + 1, and so single spins
    where the first and the last are coupled.

    Args:
        couplings: (H, T, T), in nats.
    """
    size = couplings.shape[-1]
    first, second = (couplings != 0).any(0).nonzero(as_tuple=True)
    count = int((second - first).max()) + 1 if len(first) else 1
    places = torch.arange(size, device=couplings.device)
    return [places[start::count] for start in range(min(count, size))]
