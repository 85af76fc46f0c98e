"""The layer that takes its samples from any dimod sampler: simulated annealing, or a quantum annealer."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybrid_attention.coupling_shapes import CouplingShape
from hybrid_attention.covariance import sample_weight_standard_errors, standard_errors
from hybrid_attention.sampling_layer import Draw, SamplingLayer, mixed_seed

_ANNEALER = "dwave.samplers.SimulatedAnnealingSampler"
_SWEEPS = 100


class DimodLayer(SamplingLayer):
    """Marginals from a dimod sampler, one problem for each query, with covariances of the samples as gradients.

    dimod minimizes sum_j h_j s_j + sum_{j<k} J_jk s_j s_k, so the problem of a query has -h / beta and -J / beta, over
    its present spins alone: a sampler at the inverse temperature beta then samples the Boltzmann distribution at 1.

    The default is simulated annealing of dwave-samplers at a constant inverse temperature, 100 Gibbs sweeps from
    random spins for each read: reads are independent, and Boltzmann distributed but for what is left of the start. An
    annealing schedule that ends at beta does not sample at beta where chains freeze on the way, and the sampler's own
    default schedule, made for optimization, ends far colder.

    For a D-Wave machine, install dwave-system, give it your token with `dwave config create`, and take
    sampler=["dwave.system.EmbeddingComposite", "dwave.system.DWaveSampler"] with sample_options={"auto_scale": False}.
    Its beta is not known before: find it by comparing the marginals with those of ExactLayer on a few spins, as it
    differs between machines, annealing times and chain strengths. DWaveCliqueSampler does not fit: it scales every
    problem by a factor of its own, so that there is no beta for all.

    Marginals that no read has at +1 are 0. After a forward pass, `standard_error` and `weight_standard_error` are those
    of independent reads, as DQALayer's are.

    Args:
        num_spins: as for IsingLayer.
        num_heads: as for IsingLayer.
        sampler: the import path of a subclass of dimod.Sampler; a list of them, composites before what they wrap; or a
            sampler that is made, which a checkpoint cannot hold.
        sampler_options: arguments of its constructor, in a list of the last one's.
        sample_options: arguments of its `sample` besides num_reads and seed; by default those described above for
            simulated annealing and none for others.
        num_reads: samples for each query, 2 or more.
        beta: the inverse temperature at which the sampler samples what it is given, positive.
        h_range: (lowest, highest) field that the sampler takes; its properties' h_range, if any, without it. Fields
            beyond are clipped, which warns once and is counted in the metrics; gradients are those of a field that was
            not.
        j_range: likewise for couplings.
        seed: of the samples, as SamplingLayer says, if the sampler takes seeds.
        coupling_shape: as for IsingLayer; pairs that are not coupled are not in the problem.

    Raises:
        ValueError: as for SamplingLayer, and if the numbers are not as above, dimod or the sampler's package is not
            installed, or the sampler cannot be made.
        RuntimeError: in a forward pass, if the sampler fails or returns another number of reads than it was asked for.

    Cost: a call of the sampler for each query, a fraction of a millisecond beside its own time; num_reads T bytes of
    memory for each query.
    Source: dimod, https://docs.dwavequantum.com, for the sign convention and the interface.
    """

    def __init__(
        self,
        num_spins: int,
        num_heads: int = 1,
        sampler: Any = _ANNEALER,
        sampler_options: dict[str, Any] | None = None,
        sample_options: dict[str, Any] | None = None,
        num_reads: int = 1000,
        beta: float = 1.0,
        h_range: Sequence[float] | None = None,
        j_range: Sequence[float] | None = None,
        seed: int = 0,
        coupling_shape: CouplingShape | None = None,
    ) -> None:
        super().__init__(num_spins, num_heads, seed, coupling_shape)
        numbers = type(num_reads) is int and isinstance(beta, int | float)
        if not numbers or num_reads < 2 or not 0 < beta < float("inf"):
            raise ValueError(
                f"num_reads={num_reads!r} and beta={beta!r} were given: take a whole number of 2 or more, and a "
                "positive inverse temperature."
            )
        self.sampler = _make(sampler, dict(sampler_options or {}))
        self.num_reads = num_reads
        self.beta = beta
        if sample_options is None:
            sample_options = _constant_temperature(beta) if sampler == _ANNEALER else {}
        self.sample_options = dict(sample_options)
        self.h_range = _range(h_range, self.sampler.properties, "h_range")
        self.j_range = _range(j_range, self.sampler.properties, "j_range")
        self._clipped: dict[str, Tensor] = {}
        self._warned = False

    def draw(self, fields: Tensor, couplings: Tensor, present: Tensor | None, seed: int, with_spins: bool) -> Draw:
        """Submit all problems, and then read them."""
        h, J = -fields.double() / self.beta, -couplings.double() / self.beta
        here = torch.ones_like(fields, dtype=torch.bool) if present is None else present
        h, J = self._clip(h, J, here)
        problems = [
            (head, row, here[head, row].nonzero().squeeze(1).cpu().numpy())
            for head in range(h.shape[0])
            for row in range(h.shape[1])
        ]
        numbers, pairs = h.cpu().numpy(), J.cpu().numpy()
        pending = [
            self._submit(numbers[head, row, spins], pairs[head][np.ix_(spins, spins)], mixed_seed(seed, head, row))
            for head, row, spins in problems
            if len(spins)
        ]
        read = iter(pending)
        samples = np.zeros((*h.shape, self.num_reads), dtype=np.int8)
        for head, row, spins in problems:
            if len(spins):
                samples[head, row, spins] = self._read(next(read), len(spins))
        drawn = torch.from_numpy(samples).to(fields.device).permute(0, 2, 3, 1)
        p = (drawn > 0).sum(2, dtype=fields.dtype).mT / self.num_reads
        of_weights = sample_weight_standard_errors(drawn)
        return Draw(p, standard_errors(p, self.num_reads), of_weights, drawn if with_spins else None)

    def metrics(self) -> dict[str, Tensor]:
        """Return standard_error, and with ranges clipped_fields and clipped_couplings, the shares beyond them."""
        return {**super().metrics(), **self._clipped}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the last forward pass."""
        return {**super().__getstate__(), "_clipped": {}}

    def _clip(self, h: Tensor, J: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
        self._clipped = {}
        if self.h_range is not None:
            clipped = h.clamp(*self.h_range)
            self._clipped["clipped_fields"] = ((clipped != h) & here).sum() / here.sum().clamp_min(1)
            h = clipped
        if self.j_range is not None:
            clipped = J.clamp(*self.j_range)
            size = J.shape[-1]
            self._clipped["clipped_couplings"] = (clipped != J).sum() / max(1, len(J) * size * (size - 1))
            J = clipped
        if not self._warned and any(share > 0 for share in self._clipped.values()):
            self._warned = True
            shares = " and ".join(f"{float(share):.2%} of the {name[8:]}" for name, share in self._clipped.items())
            warnings.warn(
                f"A DimodLayer clipped {shares} to the range of its sampler, which samples another distribution then: "
                "keep them smaller, or take a sampler at a larger beta.",
                stacklevel=2,
            )
        return h, J

    def _submit(self, h: np.ndarray, J: np.ndarray, seed: int) -> Any:
        import dimod

        first, second = np.triu_indices(len(h), 1)
        coupled = J[first, second] != 0
        first, second = first[coupled], second[coupled]
        problem = dimod.BinaryQuadraticModel.from_numpy_vectors(h, (first, second, J[first, second]), 0.0, dimod.SPIN)
        seeded = {"seed": seed} if "seed" in (self.sampler.parameters or {}) else {}
        try:
            return self.sampler.sample(problem, num_reads=self.num_reads, **{**seeded, **self.sample_options})
        except Exception as error:
            raise RuntimeError(
                f"The sampler {type(self.sampler).__name__} failed on {len(h)} spins with {self.sample_options} "
                f"({error}): give sample_options that it has."
            ) from error

    def _read(self, found: Any, size: int) -> np.ndarray:
        """Return the reads of a sample set in the order of the spins: (size, num_reads)."""
        places = [found.variables.index(spin) for spin in range(size)]
        reads = np.repeat(found.record.sample[:, places], found.record.num_occurrences, axis=0)
        if len(reads) != self.num_reads:
            raise RuntimeError(
                f"The sampler {type(self.sampler).__name__} returned {len(reads)} reads where num_reads="
                f"{self.num_reads}: take a sampler that returns as many as it is asked for."
            )
        return reads.T


def _constant_temperature(beta: float) -> dict[str, Any]:
    return {
        "beta_range": [beta, beta],
        "num_sweeps": _SWEEPS,
        "proposal_acceptance_criteria": "Gibbs",
    }


def _make(sampler: Any, options: dict[str, Any]) -> Any:
    """Return the sampler that an import path names, or the one that was given."""
    try:
        import dimod
    except ImportError as error:
        raise ValueError("dimod is not installed: pip install 'hybrid-attention[dwave]'.") from error
    if isinstance(sampler, dimod.Sampler) and not options:
        return sampler
    paths = [sampler] if isinstance(sampler, str) else sampler
    if not isinstance(paths, Sequence) or not paths or not all(isinstance(path, str) for path in paths):
        raise ValueError(
            f"sampler={sampler!r} and sampler_options={options} were given: take the import path of a subclass of "
            "dimod.Sampler with its options, a list of paths, or a sampler without options."
        )
    kinds = [_imported(path) for path in paths]
    for path, kind in zip(paths, kinds, strict=True):
        if not (inspect.isclass(kind) and issubclass(kind, dimod.Sampler)):
            raise ValueError(f"The sampler {path!r} is none: take the import path of a subclass of dimod.Sampler.")
    try:
        made = kinds[-1](**options)
        for kind in reversed(kinds[:-1]):
            made = kind(made)
    except Exception as error:
        raise ValueError(f"The sampler {sampler!r} cannot be made with {options} ({error}).") from error
    return made


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"There is no sampler {path!r} here ({error}): give the import path of a class, and install its package, "
            "such as pip install 'hybrid-attention[dwave]' for dwave.samplers."
        ) from error


def _range(given: Sequence[float] | None, properties: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Return the range that was given, or that of the sampler or of the one that it is composed of."""
    found = given
    while found is None and properties:
        found, properties = properties.get(name), properties.get("child_properties", {})
    if found is None:
        return None
    try:
        low, high = (float(end) for end in found)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not low < high or not low <= 0 <= high:
        raise ValueError(f"{name}={found!r} was given: take (lowest, highest), on both sides of 0.")
    return low, high
