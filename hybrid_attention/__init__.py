"""Boltzmann attention: Ising marginals as attention weights, exactly or from a quantum circuit."""

from hybrid_attention.attention import BoltzmannAttention, SoftmaxAttention
from hybrid_attention.attention_record import AttentionRecord, record_attention
from hybrid_attention.correlations import exact_correlations
from hybrid_attention.coupling_shapes import (
    BandedCouplings,
    CouplingShape,
    FreeCouplings,
    ToeplitzCouplings,
    convert_couplings,
)
from hybrid_attention.dimod_layer import DimodLayer
from hybrid_attention.dqa import DQALayer
from hybrid_attention.exact import ExactLayer, exact_marginals
from hybrid_attention.free_schedule import FreeSchedule
from hybrid_attention.gibbs import GibbsLayer
from hybrid_attention.ising import energy
from hybrid_attention.layers import FieldsOnlyLayer, IsingLayer
from hybrid_attention.mean_field import MeanFieldLayer
from hybrid_attention.ramps import PausedSchedule, SmoothSchedule
from hybrid_attention.schedules import LinearSchedule, Schedule
from hybrid_attention.transfer_matrix import TransferMatrixLayer
from hybrid_attention.transformer import DecoderOnlyTransformer
from hybrid_attention.tuned_schedule import TunedSchedule

__all__ = [
    "AttentionRecord",
    "BandedCouplings",
    "BoltzmannAttention",
    "CouplingShape",
    "DQALayer",
    "DecoderOnlyTransformer",
    "DimodLayer",
    "ExactLayer",
    "FieldsOnlyLayer",
    "FreeCouplings",
    "FreeSchedule",
    "GibbsLayer",
    "IsingLayer",
    "LinearSchedule",
    "MeanFieldLayer",
    "PausedSchedule",
    "Schedule",
    "SmoothSchedule",
    "SoftmaxAttention",
    "ToeplitzCouplings",
    "TransferMatrixLayer",
    "TunedSchedule",
    "convert_couplings",
    "energy",
    "exact_correlations",
    "exact_marginals",
    "record_attention",
]
