"""Boltzmann attention: Ising marginals as attention weights, exactly or from a quantum circuit."""

from hybrid_attention.attention import BoltzmannAttention, SoftmaxAttention
from hybrid_attention.exact import ExactLayer, exact_marginals
from hybrid_attention.ising import energy
from hybrid_attention.layers import FieldsOnlyLayer, IsingLayer
from hybrid_attention.transformer import DecoderOnlyTransformer

__all__ = [
    "BoltzmannAttention",
    "DecoderOnlyTransformer",
    "ExactLayer",
    "FieldsOnlyLayer",
    "IsingLayer",
    "SoftmaxAttention",
    "energy",
    "exact_marginals",
]
