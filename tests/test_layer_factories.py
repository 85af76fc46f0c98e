"""Layer factories are plain data in a checkpoint, and build the same layer again."""

import sys
from functools import partial

import pytest
import torch

from hybrid_attention import DQALayer, ExactLayer, LinearSchedule, TunedSchedule
from lightning_modules.layer_factories import to_factory, to_plain


def test_a_class_is_its_public_name():
    assert to_plain(ExactLayer) == {"class_path": "hybrid_attention.ExactLayer", "init_args": {}}


def test_no_layer_stays_none():
    assert to_plain(None) is None


def test_a_partial_keeps_its_arguments_and_dataclasses_in_them():
    plain = to_plain(partial(DQALayer, device="lightning.qubit", schedule=LinearSchedule(steps=5, tau=7.0, order=2)))
    assert plain == {
        "class_path": "hybrid_attention.DQALayer",
        "init_args": {
            "device": "lightning.qubit",
            "schedule": {
                "class_path": "hybrid_attention.LinearSchedule",
                "init_args": {"steps": 5, "tau": 7.0, "gamma": 1.0, "order": 2},
            },
        },
    }


def test_plain_data_builds_the_same_layer_and_is_its_own_plain_form():
    plain = to_plain(partial(DQALayer, schedule=LinearSchedule(steps=5, tau=7.0), clip=False))
    layer = to_factory(plain)(3, 2)
    assert isinstance(layer, DQALayer)
    assert (layer.num_spins, layer.num_heads, layer.clip) == (3, 2, False)
    assert layer.schedule == LinearSchedule(steps=5, tau=7.0)
    assert to_plain(plain) == plain


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda spins, heads: ExactLayer(spins, heads), "cannot be written to a checkpoint: give a layer class"),
        (partial(ExactLayer, 4), "cannot be written to a checkpoint: give a layer class"),
        (torch.nn.Linear, "cannot be written to a checkpoint: give a layer class"),
        (ExactLayer(4), "cannot be written to a checkpoint: give a layer class"),
        (partial(DQALayer, schedule=object()), "argument schedule=.* cannot be written to a checkpoint"),
        (partial(DQALayer, device_options={"seed": torch.zeros(1)}), "cannot be written to a checkpoint"),
        ({"init_args": {}}, "a dict needs class_path"),
        ({"class_path": "hybrid_attention.ExactLayer", "device": "default.qubit"}, "and nothing else"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused(factory, message):
    with pytest.raises(ValueError, match=message):
        to_plain(factory)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"class_path": "os.system", "init_args": {}}, "'os.system' is not an Ising layer"),
        (
            {"class_path": "hybrid_attention.DQALayer", "init_args": {"schedule": {"class_path": "os.getcwd"}}},
            "'os.getcwd' is not a dataclass",
        ),
        ({"class_path": "hybrid_attention.DQALayer", "init_args": {"schedules": 3}}, "unexpected keyword argument"),
    ],
)
def test_nothing_but_layers_and_dataclasses_is_called(plain, message):
    with pytest.raises(ValueError, match=message):
        to_factory(plain)


@pytest.mark.parametrize("path", ["hybrid_attention.NoLayer", "no_package.Layer", "Layer"])
def test_a_class_that_does_not_exist_is_named(path):
    with pytest.raises(ValueError, match=f"There is no class '{path}'"):
        to_factory({"class_path": path})


def test_a_checkpoint_keeps_the_schedule_it_names_and_takes_the_default_where_it_names_none():
    linear = {"class_path": "hybrid_attention.LinearSchedule", "init_args": {"steps": 8, "tau": 12.0}}
    named = to_factory({"class_path": "hybrid_attention.DQALayer", "init_args": {"schedule": linear}})(3, 1)
    bare = to_factory({"class_path": "hybrid_attention.DQALayer", "init_args": {}})(3, 1)
    assert named.schedule == LinearSchedule(8, 12.0)
    assert bare.schedule == TunedSchedule(8)
    assert "schedule=LinearSchedule(steps=8, tau=12.0" in repr(named)
    assert "schedule=TunedSchedule(steps=8)" in repr(bare)
    bare.load_state_dict(named.state_dict())


def test_a_missing_package_of_a_layer_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dimod", None)
    with pytest.raises(ValueError, match=r"dimod is not installed: pip install 'hybrid-attention\[dwave\]'"):
        to_factory({"class_path": "hybrid_attention.DimodLayer"})(3, 1)
