"""The quantum layer as a torch module: its state, copies, gradient modes, configuration, and errors."""

import copy
import io
import pickle

import jsonargparse
import pennylane as qml
import pytest
import torch
from test_dqa import SCHEDULE, build, draw_fields, gradients, on_every_device

from hybrid_attention import DQALayer, ExactLayer, IsingLayer, LinearSchedule, TunedSchedule

run_before = pytest.mark.parametrize("ran", [False, True], ids=["fresh", "after a run"])


@on_every_device
@run_before
def test_state_dict_holds_the_couplings_alone(name, ran):
    layer = build(3, name=name)
    if ran:
        layer(draw_fields(2, 1, 3))
        layer(draw_fields(2, 1, 2))
    assert set(layer.state_dict()) == set(dict(layer.named_parameters())) == {"couplings"}
    assert list(layer.children()) == list(layer.buffers()) == []


def test_couplings_start_at_zero_and_load_into_another_kind_of_layer():
    fresh = DQALayer(4, 2)
    assert fresh.couplings.shape == (2, 6)
    assert (fresh.couplings == 0).all()
    other = ExactLayer(4, 2)
    other.load_state_dict(build(4, 2).float().state_dict())
    fresh.load_state_dict(other.state_dict())
    assert torch.equal(fresh.couplings, other.couplings)


@on_every_device
@run_before
@pytest.mark.parametrize("length", [2, 3])
def test_load_state_dict_with_assign_takes_effect(name, ran, length):
    layer, other, fields = build(3, name=name), build(3, name=name, seed=5), draw_fields(2, 1, length)
    if ran:
        layer(fields)
    layer.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    assert torch.equal(layer(fields), other(fields))
    assert gradients(layer, fields)[1].abs().sum() > 0


@on_every_device
@run_before
@pytest.mark.parametrize("length", [2, 3])
def test_functional_call_takes_effect_and_leaves_the_layer_as_it_was(name, ran, length):
    layer, other, fields = build(3, name=name), build(3, name=name, seed=5), draw_fields(2, 1, length)
    before = layer(fields) if ran else None
    given = other.couplings.detach().clone().requires_grad_()
    p = torch.func.functional_call(layer, {"couplings": given}, (fields,))
    assert torch.equal(p, other(fields))
    p.square().sum().backward()
    assert given.grad.abs().sum() > 0
    assert layer.couplings.grad is None
    assert before is None or torch.equal(layer(fields), before)


def copies(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return {
        "deepcopy": copy.deepcopy(layer),
        "pickle": pickle.loads(pickle.dumps(layer)),
        "torch.save": torch.load(buffer, weights_only=False),
    }


@on_every_device
@run_before
def test_copies_work_and_share_nothing(name, ran):
    layer, fields = build(3, 2, name), draw_fields(2, 2, 2, 3)
    if ran:
        layer(fields).sum().backward()
        layer(fields[..., :2])
    p = layer(fields)
    for made in copies(layer).values():
        assert torch.equal(made(fields), p)
        with torch.no_grad():
            made.couplings.add_(1.0)
        assert not torch.equal(made(fields), p)
        assert torch.equal(layer(fields), p)


@on_every_device
def test_no_gradient_work_under_no_grad(name, monkeypatch):
    layer, fields = build(3, name=name), draw_fields(2, 1, 3)
    p = layer(fields)
    device = layer._circuits.device
    for method in ("compute_derivatives", "execute_and_compute_derivatives", "compute_vjp", "execute_and_compute_vjp"):
        monkeypatch.setattr(type(device), method, lambda *args, **kwargs: pytest.fail("a derivative was computed"))
    with torch.no_grad():
        silent = layer(fields)
    assert torch.equal(silent, p)
    assert not silent.requires_grad
    layer.couplings.requires_grad_(False)
    assert torch.equal(layer(fields.detach()), p)


@on_every_device
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("length", [2, 3])
def test_training_works_after_a_first_run_without_gradients(name, mode, length):
    """Tensors made under inference_mode may not be saved for backward: none may be kept."""
    layer, untouched, fields = build(3, name=name), build(3, name=name), draw_fields(2, 1, length)
    present = torch.ones(length, dtype=torch.bool)
    with mode():
        p = layer(fields, present)
    assert torch.equal(p, layer(fields, present))
    for ours, theirs in zip(gradients(layer, fields, present), gradients(untouched, fields, present), strict=True):
        assert torch.equal(ours, theirs)


def test_no_graph_is_kept_after_a_run():
    layer = build(3)
    layer(draw_fields(2, 1, 2))
    assert [circuit.qnode_weights for circuit in layer._circuits.made.values()] == [{}]


@on_every_device
def test_gradients_of_fields_or_couplings_alone(name):
    layer, fields = build(2, name=name), draw_fields(2, 1, 2)
    both = gradients(layer, fields)
    p = layer(fields.detach())
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    assert torch.equal(torch.autograd.grad((weights * p).sum(), layer.couplings)[0], both[1])
    layer.couplings.requires_grad_(False)
    p = layer(fields)
    assert torch.equal(torch.autograd.grad((weights * p).sum(), fields)[0], both[0])


def test_one_execution_for_a_layer_call():
    layer = build(3, 2)
    layer(draw_fields(4, 2, 3, 3))
    with qml.Tracker(layer._circuits.device) as tracker:
        layer(draw_fields(4, 2, 3, 3))
    assert tracker.totals["batches"] == tracker.totals["simulations"] == 1


def test_circuits_stay_out_of_compiled_graphs():
    layer, fields = build(3), draw_fields(2, 1, 3)
    assert torch.equal(torch.compile(layer, backend="eager")(fields), layer(fields))


def test_a_few_steps_of_training_lower_the_loss():
    layer = build(3, spread=0.0)
    fields = draw_fields(8, 1, 3).detach()
    target = build(3, seed=9)(fields).detach()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = (layer(fields) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ([], 8),
        (["--layer.schedule=LinearSchedule", "--layer.schedule.steps=5", "--layer.schedule.tau=4"], 5),
    ],
)
def test_the_command_line_builds_the_layer(arguments, steps):
    parser = jsonargparse.ArgumentParser()
    parser.add_subclass_arguments(IsingLayer, "layer")
    config = parser.parse_args(["--layer=hybrid_attention.DQALayer", "--layer.num_spins=3", *arguments])
    layer = parser.instantiate(config).layer
    assert isinstance(layer, DQALayer)
    assert layer.schedule.steps == steps
    again = parser.instantiate(parser.parse_string(parser.dump(config))).layer
    assert again.schedule == layer.schedule


def test_default_schedule():
    assert DQALayer(2).schedule == TunedSchedule(8)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "default.qbit"}, "Did you mean 'default.qubit'"),
        ({"device_options": {"flavor": "sweet"}}, "flavor='sweet'"),
        ({"device_options": {"wires": 9}}, "hold wires"),
        ({"device_options": {"shots": 100}}, "hold shots"),
        ({"gradient": "adj"}, '"auto", "backprop", "adjoint", "parameter-shift", "covariance"'),
        ({"shots": 1}, "shots=1"),
        ({"device_options": {"api_key": "x"}}, "api_key, which checkpoints and logs would save"),
        ({"shots": 0}, "shots=0"),
        ({"shots": 2.5}, "shots=2.5"),
        ({"shots": "10"}, "shots='10'"),
        ({"shots": True}, "shots=True"),
        ({"max_circuits": "3"}, "max_circuits='3'"),
        ({"max_circuits": float("nan")}, "max_circuits=nan"),
        ({"shots": 100, "gradient": "backprop"}, 'take "covariance"'),
        ({"shots": 100, "gradient": "adjoint", "device": "lightning.qubit"}, 'take "covariance"'),
        ({"max_circuits": -1}, "max_circuits=-1"),
        ({"device": "lightning.qubit", "gradient": "backprop"}, "which offers adjoint"),
        ({"device": "reference.qubit"}, "offers neither"),
        ({"num_spins": -1}, "num_spins=-1"),
        ({"num_heads": 0}, "num_heads=0"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_construction(settings, words):
    with pytest.raises(ValueError, match=words):
        DQALayer(**{"num_spins": 2, "schedule": SCHEDULE, **settings})


@pytest.mark.parametrize("gradient", ["auto", "covariance", "parameter-shift"])
def test_a_device_that_only_samples_needs_shots(gradient, monkeypatch):
    monkeypatch.setattr("hybrid_attention.circuits.samples_only", lambda name: name == "default.qubit")
    with pytest.raises(ValueError, match="was given no shots"):
        DQALayer(2, device="default.qubit", gradient=gradient)
    assert DQALayer(2, device="default.qubit", shots=10).gradient == "covariance"


@pytest.mark.parametrize(
    ("name", "value"), [("schedule", LinearSchedule(2, 3.0)), ("shots", 100), ("device", "default.qubit")]
)
def test_settings_that_circuits_were_made_with_cannot_be_changed_unnoticed(name, value):
    layer = DQALayer(2, schedule=SCHEDULE)
    with pytest.raises(AttributeError, match=f"{name} of a DQALayer was set"):
        setattr(layer, name, value)
    assert getattr(layer, name) != value


def test_a_missing_package_is_named_at_construction(monkeypatch):
    monkeypatch.setattr(qml, "plugin_devices", {"default.qubit": qml.plugin_devices["default.qubit"]})
    monkeypatch.setattr(qml, "refresh_devices", lambda: None)
    with pytest.raises(ValueError, match=r"hybrid-attention\[gpu\]"):
        DQALayer(2, device="lightning.gpu")


@on_every_device
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_present_field_that_is_not_finite_is_an_error(name, value):
    with pytest.raises(ValueError, match="finite"):
        build(2, name=name)(torch.full((1, 1, 2), value))
