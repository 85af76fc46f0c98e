"""References for the quench: explicit matrices on the whole state space, in float64, wire 0 leftmost."""

import functools
import itertools

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import expm

X = np.array([[0, 1], [1, 0]], dtype=complex)
Z = np.diag([1, -1]).astype(complex)
HADAMARD = (X + Z) / np.sqrt(2)


def on_wires(matrix, wires, num_spins):
    """The matrix on each of the wires, the identity elsewhere."""
    return functools.reduce(np.kron, [matrix if j in wires else np.eye(2) for j in range(num_spins)])


def hamiltonian_terms(h, J):
    """The three sums sum_j h_j Z_j, sum_{j<k} J_jk Z_j Z_k and sum_j X_j; J is (pairs,), row by row."""
    T = len(h)
    nothing = np.zeros((2**T, 2**T), dtype=complex)
    field = sum((h[j] * on_wires(Z, [j], T) for j in range(T)), nothing)
    pairs = itertools.combinations(range(T), 2)
    pair = sum((J[i] * on_wires(Z, jk, T) for i, jk in enumerate(pairs)), nothing)
    mixer = sum((on_wires(X, [j], T) for j in range(T)), nothing)
    return field, pair, mixer


def plus_state(num_spins):
    return np.full(2**num_spins, 2 ** (-num_spins / 2), dtype=complex)


def trotter_state(h, J, angles, initial=None):
    """exp(i c X) exp(i b ZZ) exp(i a Z) for each row (a, b, c) of angles, after Hadamards on initial or |0...0>."""
    field, pair, mixer = hamiltonian_terms(h, J)
    psi = plus_state(len(h)) if initial is None else on_wires(HADAMARD, range(len(h)), len(h)) @ initial
    for a, b, c in np.asarray(angles):
        psi = expm(1j * c * mixer) @ expm(1j * b * pair) @ expm(1j * a * field) @ psi
    return psi


def continuous_state(h, J, tau, gamma):
    """Integrate i dpsi/dt = H(t) psi for the linear schedule A = gamma (1 - t/tau), B = t/tau."""
    field, pair, mixer = hamiltonian_terms(h, J)

    def rate(t, psi):
        s = t / tau
        return 1j * (gamma * (1 - s) * (mixer @ psi) + s * ((field + pair) @ psi))

    run = solve_ivp(rate, (0, tau), plus_state(len(h)), method="DOP853", rtol=1e-12, atol=1e-12)
    return run.y[:, -1]


def magnetizations(psi, num_spins):
    """<Z_j> of each wire."""
    return np.array([np.vdot(psi, on_wires(Z, [j], num_spins) @ psi).real for j in range(num_spins)])


def boltzmann_magnetizations(h, J):
    """<s_j> of P(s) ~ exp(h.s + sum J s s) by enumeration: h (..., T), J (..., pairs) -> (..., T)."""
    T = h.shape[-1]
    s = np.array(list(itertools.product((1.0, -1.0), repeat=T)))
    j, k = np.triu_indices(T, 1)
    exponent = h @ s.T + J @ (s[:, j] * s[:, k]).T
    weight = np.exp(exponent - exponent.max(-1, keepdims=True))
    return weight @ s / weight.sum(-1, keepdims=True)
