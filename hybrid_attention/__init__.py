"""Boltzmann attention: Ising marginals as attention weights, exactly or from a quantum circuit."""
