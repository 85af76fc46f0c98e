"""Input that no layer can use is refused by every layer, in one sentence, before any work."""

import math

import pytest
import torch
from conftest import LAYERS, WITH_COUPLINGS, build_layer, draw_fields, every_layer, marked
from oracle import causal_mask

from hybrid_attention import BandedCouplings, ExactLayer, FieldsOnlyLayer, TransferMatrixLayer

with_couplings = pytest.mark.parametrize("kind", marked(WITH_COUPLINGS))


@every_layer
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_present_field_that_is_not_finite_is_an_error(kind, value):
    fields = draw_fields(2, 1, 3, 3)
    fields[1, 0, 2, 2] = value
    for present in (None, causal_mask(3)):
        with pytest.raises(ValueError, match=r"NaN or infinite.*`present` removes a spin"):
            build_layer(kind, 3)(fields, present)


@every_layer
@pytest.mark.parametrize(
    ("fields", "present", "error", "words"),
    [
        (torch.zeros(2, 2, 3, dtype=torch.int64), None, TypeError, "int64: give a floating-point tensor"),
        (torch.zeros(2, 2, 3), torch.ones(3), TypeError, "float32: give a bool tensor"),
        (torch.zeros(2, 2, 3), torch.ones(3, dtype=torch.int64), TypeError, "int64: give a bool tensor"),
        (torch.zeros(2, 3), None, ValueError, r"\(2, 3\): give \(batch, 2, \.\.\., num_spins\)"),
        (torch.zeros(2, 1, 3), None, ValueError, r"with 2 head\(s\) in the second dimension"),
        (torch.zeros(2, 2, 5), None, ValueError, "hold 5 spins, the layer has 4"),
        (torch.zeros(2, 2, 3), torch.ones(4, dtype=torch.bool), ValueError, "does not broadcast"),
        (torch.zeros(2, 2, 3), torch.ones(5, 2, 2, 3, dtype=torch.bool), ValueError, "does not broadcast"),
        (torch.zeros(1, 2, 3), torch.ones(4, 2, 3, dtype=torch.bool), ValueError, "does not broadcast"),
    ],
)
def test_input_that_does_not_fit_is_named(kind, fields, present, error, words):
    with pytest.raises(error, match=words):
        LAYERS[kind](4, 2)(fields, present)


@every_layer
@pytest.mark.parametrize("sizes", [(-1, 1), (3, 0), (3, -2)])
def test_sizes_that_make_no_layer_are_refused(kind, sizes):
    with pytest.raises(ValueError, match=f"num_spins={sizes[0]} and num_heads={sizes[1]}"):
        LAYERS[kind](*sizes)


def test_too_many_spins_name_the_memory_and_what_to_use():
    with pytest.raises(ValueError, match=r"25 spins would take about 2 GB.*MeanFieldLayer or GibbsLayer"):
        ExactLayer(25)
    with pytest.raises(ValueError, match=r"TransferMatrixLayer, which is exact for couplings of this range"):
        ExactLayer(25, coupling_shape=BandedCouplings(4))
    assert TransferMatrixLayer(25, coupling_shape=BandedCouplings(4))(torch.zeros(1, 1, 25)).shape == (1, 1, 25)
    assert FieldsOnlyLayer(1000)(torch.zeros(1, 1, 1000)).shape == (1, 1, 1000)


@with_couplings
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_couplings_that_are_not_finite_are_refused(kind, value):
    layer = build_layer(kind, 3)
    with torch.no_grad():
        layer.couplings[0, 1] = value
    with pytest.raises(ValueError, match="couplings hold NaN or infinite values"):
        layer(draw_fields(2, 1, 4, 3))


@every_layer
def test_a_negative_number_of_spins_is_refused(kind):
    with pytest.raises(ValueError, match="the layer has 0 to 3"):
        build_layer(kind, 3).coupling_matrix(-1)
