"""The layer of mean field and TAP magnetizations, which takes dense couplings at any length."""

import warnings
from typing import Any

import torch
from torch import Tensor

from hybrid_attention.coupling_shapes import CouplingShape
from hybrid_attention.layers import IsingLayer, check_finite, check_finite_couplings
from hybrid_attention.mean_field_equations import Convergence, mean_field_marginals


class MeanFieldLayer(IsingLayer):
    """Marginals by naive mean field or TAP: each spin sees the mean of the others, p_j = sigmoid(2 x_j) with

        x_j = h_j + sum_k J_jk m_k [ - m_j sum_k J_jk^2 (1 - m_k^2) with TAP ]        m_j = tanh(x_j)

    A damped fixed-point iteration x <- x + a (its right side - x) starts at x = h, the solution without
    couplings. With a = 1 / (1 + max_j sum_k |J_jk|) each step lowers the variational free energy, so the iteration does
    not oscillate whatever the couplings are; TAP adds 1.5 J_jk^2 to |J_jk| there, for its own free energy. After 10,
    20, 40, ... steps come Newton steps in the rows where they halve what is left: where solutions appear, damped steps
    alone take thousands. A row is done when no x_j would change by more than tolerance (1 + |h_j| + sum_k |J_jk|), and
    rows that are not done after max_iterations warn once for each layer and are counted in the metrics.

    Where couplings are strong there are several solutions: the one found is that which the start leads to, it
    can jump to another as fields and couplings change, and neither is the Boltzmann distribution's. At
    h = 0 it is m = 0, the mean over all of them by symmetry. Gradients are those of the solution found, by implicit
    differentiation (conjugate gradients on the linearized equations), and stay finite where it has none; of rows that
    are not done they are approximate. They are refused a second derivative.

    Args:
        num_spins: as for IsingLayer.
        num_heads: as for IsingLayer.
        tap: add the reaction term of Thouless, Anderson and Palmer, which is closer where couplings are weak.
        max_iterations: steps of the iteration, 1 or more.
        tolerance: positive; 8 times the rounding of the dtype without it.
        coupling_shape: as for IsingLayer.

    Raises:
        ValueError: as for IsingLayer, and if max_iterations or tolerance is not positive.

    Cost: O(T^2) for each query and step, with TAP twice as much, some tens of steps; O(T) memory for each
    query, forward and backward.
    Source: D. J. Thouless, P. W. Anderson and R. G. Palmer, Phil. Mag. 35, 593 (1977). That the free energy falls:
    H. Lu, R. M. Freund and Y. Nesterov, SIAM J. Optim. 28, 333 (2018), mirror descent on relatively smooth functions.
    """

    def __init__(
        self,
        num_spins: int,
        num_heads: int = 1,
        tap: bool = False,
        max_iterations: int = 1000,
        tolerance: float | None = None,
        coupling_shape: CouplingShape | None = None,
    ) -> None:
        super().__init__(num_spins, num_heads, coupling_shape)
        positive = tolerance is None or (isinstance(tolerance, int | float) and 0 < tolerance < float("inf"))
        if type(max_iterations) is not int or max_iterations < 1 or not positive:
            raise ValueError(
                f"max_iterations={max_iterations!r} and tolerance={tolerance!r} were given: take a whole number of 1 "
                "or more, and a positive number or None."
            )
        self.tap = tap
        self.max_iterations = max_iterations
        self.tolerance = tolerance
        self._convergence: Convergence | None = None
        self._warned = False

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return sigmoid(2 x), (batch, H, ..., T)."""
        check_finite(fields, present)
        assert self.couplings is not None
        check_finite_couplings(self.couplings)
        self._convergence = None
        if fields.numel() == 0:
            return fields * 1
        heads_first = fields.transpose(0, 1)
        rows, here = heads_first.reshape(self.num_heads, -1, fields.shape[-1]), None
        if present is not None:
            here = present.expand(fields.shape).transpose(0, 1).reshape(rows.shape)
            rows = rows.masked_fill(~here, 0)
        tolerance = 8 * torch.finfo(fields.dtype).eps if self.tolerance is None else self.tolerance
        couplings = self.coupling_matrix(fields.shape[-1]).to(fields.dtype)
        p, self._convergence = mean_field_marginals(rows, couplings, here, self.tap, self.max_iterations, tolerance)
        self._warn()
        return p.view(heads_first.shape).transpose(0, 1)

    def metrics(self) -> dict[str, Tensor]:
        """Return numbers of the last forward pass.

        iterations is the mean over queries, residual the largest change that another undamped step would make, in nats,
        and unconverged the share of queries that were not done after max_iterations.
        """
        return {} if self._convergence is None else self._convergence.metrics()

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return f"{super().extra_repr()}, tap={self.tap}, max_iterations={self.max_iterations}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the last forward pass."""
        return {**self.__dict__, "_convergence": None}

    def _warn(self) -> None:
        assert self._convergence is not None
        if self._warned or self._convergence.all_done:
            return
        self._warned = True
        share = float(self._convergence.metrics()["unconverged"])
        warnings.warn(
            f"{share:.2%} of the queries of a MeanFieldLayer did not converge in {self.max_iterations} iterations: "
            "raise max_iterations or tolerance, or take weaker couplings.",
            stacklevel=2,
        )
