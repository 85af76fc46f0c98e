"""DimodLayer: signs, beta, ranges, present spins and counts, with samplers of dimod and with simulated annealing."""

import warnings

import pytest
import torch
from conftest import draw_fields, gradients
from oracle import causal_mask, draw, largest_difference

from hybrid_attention import DimodLayer, ExactLayer
from lightning_modules.layer_factories import to_factory, to_plain

pytestmark = pytest.mark.plugins
dimod = pytest.importorskip("dimod", reason="pip install 'hybrid-attention[dwave]'")

ANNEALER = "dwave.samplers.SimulatedAnnealingSampler"


class BoltzmannSampler(dimod.Sampler):
    """Independent samples at an inverse temperature, from all energies, equal samples counted together."""

    def __init__(self, beta=1.0, fewer=0, **properties):
        self.beta, self.fewer, self.seen, self._properties = beta, fewer, [], properties

    @property
    def parameters(self):
        return {"num_reads": [], "seed": []}

    @property
    def properties(self):
        return self._properties

    def sample(self, bqm, num_reads=1, seed=None):
        self.seen.append(bqm)
        found = dimod.ExactSolver().sample(bqm)
        energies = torch.from_numpy(found.record.energy.copy())
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial((-self.beta * energies).softmax(0), num_reads - self.fewer, True, generator=generator)
        states, counts = drawn.unique(return_counts=True)
        samples = found.record.sample[states.numpy()]
        order = list(reversed(range(len(found.variables))))
        labels = [found.variables[place] for place in order]
        return dimod.SampleSet.from_samples(
            (samples[:, order], labels), "SPIN", found.record.energy[states], num_occurrences=counts.numpy()
        )


def build(sampler, num_spins=4, heads=1, spread=0.4, **settings):
    layer, exact = DimodLayer(num_spins, heads, sampler, **settings).double(), ExactLayer(num_spins, heads).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, spread=spread))
    exact.load_state_dict(layer.state_dict())
    return layer, exact


@pytest.mark.parametrize("beta", [1.0, 3.0])
@pytest.mark.parametrize("present", [None, causal_mask(4)], ids=["all", "causal"])
def test_a_sampler_at_beta_gives_the_exact_marginals_and_gradients(beta, present):
    layer, exact = build(BoltzmannSampler(beta), heads=2, num_reads=20000, beta=beta)
    fields = draw_fields(1, 2, 4, 4)
    ours, theirs = gradients(layer, fields, present), gradients(exact, fields, present)
    assert ((ours[0] - theirs[0]).abs() <= 5 * layer.standard_error + 1e-15).all()
    assert layer.standard_error.max() < 0.004
    assert largest_difference(ours[1], theirs[1]) < 0.08
    assert largest_difference(ours[2], theirs[2]) < 0.2


def test_the_problem_has_minus_the_fields_and_couplings_over_beta_on_present_spins_alone():
    sampler = BoltzmannSampler(2.0)
    layer, _ = build(sampler, num_spins=3, beta=2.0)
    fields = draw_fields(1, 1, 3)
    layer(fields, torch.tensor([True, False, True]))
    (problem,) = sampler.seen
    assert problem.num_variables == 2
    J = layer.coupling_matrix()[0].detach()
    assert [problem.linear[0], problem.linear[1]] == pytest.approx((-fields[0, 0, [0, 2]] / 2).tolist())
    assert problem.quadratic[0, 1] == pytest.approx(float(-J[0, 2] / 2))


def test_simulated_annealing_at_a_constant_temperature_gives_the_exact_marginals():
    layer, exact = build(ANNEALER, num_spins=6, spread=0.3, num_reads=4000)
    fields = draw_fields(4, 1, 6)
    assert ((layer(fields) - exact(fields)).abs() <= 5 * layer.standard_error).all()


def test_the_annealers_own_schedule_is_far_too_cold():
    layer, exact = build(ANNEALER, num_spins=6, spread=0.3, num_reads=1000, sample_options={})
    fields = draw_fields(4, 1, 6)
    assert (layer(fields) - exact(fields)).abs().max() > 0.1


def test_weight_standard_errors_are_the_spread_of_repeated_estimates():
    layer, _ = build(BoltzmannSampler(), num_spins=3, num_reads=200)
    fields, found = draw_fields(1, 1, 3), []
    for _ in range(200):
        p = layer(fields).detach()
        found.append(torch.stack((p, p / p.sum(-1, keepdim=True), layer.standard_error, layer.weight_standard_error)))
    p, weights, *errors = torch.stack(found).unbind(1)
    for values, error in zip((p, weights), errors, strict=True):
        assert ((error.square().mean(0) / values.var(0)) - 1).abs().max() < 0.5


@pytest.mark.parametrize("as_property", [False, True])
def test_what_is_beyond_the_range_is_clipped_counted_and_warned_of_once(as_property):
    ranges = {"h_range": [-1, 1], "j_range": [-0.5, 0.5]}
    sampler = BoltzmannSampler(1.0, **(ranges if as_property else {}))
    layer, _ = build(sampler, num_spins=2, spread=0.0, **({} if as_property else ranges))
    torch.nn.init.constant_(layer.couplings, 2.0)
    fields = torch.tensor([[[3.0, 0.5]]], dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"clipped 50.00% of the fields and 100.00% of the couplings"):
        layer(fields)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(fields)
    assert layer.metrics()["clipped_fields"] == 0.5
    assert layer.metrics()["clipped_couplings"] == 1
    assert list(sampler.seen[0].linear.values()) == [-1, -0.5]
    assert list(sampler.seen[0].quadratic.values()) == [-0.5]


def test_the_same_seed_gives_the_same_samples():
    fields = draw_fields(2, 1, 4)
    first, second, other = (build(ANNEALER, num_reads=50, seed=seed)[0] for seed in (0, 0, 1))
    p = first(fields)
    assert torch.equal(p, second(fields))
    assert not torch.equal(p, other(fields))
    assert not torch.equal(p, first(fields))


def test_a_sampler_by_its_path_is_plain_data_and_an_object_is_not():
    from functools import partial

    plain = to_plain(partial(DimodLayer, sampler="dimod.RandomSampler", num_reads=10))
    assert isinstance(to_factory(plain)(3, 1).sampler, dimod.RandomSampler)
    with pytest.raises(ValueError, match="cannot be written to a checkpoint"):
        to_plain(partial(DimodLayer, sampler=BoltzmannSampler()))


class Around(dimod.ComposedSampler):
    """A composite, whose properties are those of its child one step below."""

    def __init__(self, child):
        self.child_sampler = child

    @property
    def children(self):
        return [self.child_sampler]

    @property
    def parameters(self):
        return self.child.parameters

    @property
    def properties(self):
        return {"child_properties": self.child.properties}

    def sample(self, bqm, **parameters):
        return self.child.sample(bqm, **parameters)


def test_composites_are_made_around_what_follows_in_the_list_and_keep_its_ranges():
    here = "test_dimod"
    paths = [f"{here}.{name}" for name in ("Around", "Around", "BoltzmannSampler")]
    options = {"beta": 2.0, "h_range": [-1.0, 1.0]}
    settings = {"sampler": paths, "sampler_options": options, "num_reads": 20000, "beta": 2.0}
    layer = to_factory(to_plain({"class_path": "hybrid_attention.DimodLayer", "init_args": settings}))(3, 1).double()
    alone = DimodLayer(3, sampler=f"{here}.BoltzmannSampler", sampler_options=options, num_reads=20000, beta=2.0)
    assert layer.h_range == (-1.0, 1.0)
    fields = draw_fields(1, 1, 3)
    assert torch.equal(layer(fields), alone.double()(fields))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "os.getcwd"}, r"'os.getcwd' is none: take the import path of a subclass of dimod\.Sampler"),
        ({"sampler": "dwave.nothing.Sampler"}, r"There is no sampler 'dwave\.nothing\.Sampler'"),
        ({"sampler": BoltzmannSampler(), "sampler_options": {"a": 1}}, "or a sampler without options"),
        ({"sampler_options": {"a": 1}}, "cannot be made with"),
        ({"num_reads": 1}, "num_reads=1 and beta=1.0 were given"),
        ({"beta": 0.0}, "beta=0.0 were given"),
        ({"h_range": [1, -1]}, r"h_range=\[1, -1\] was given"),
        ({"h_range": [1]}, r"h_range=\[1\] was given: take \(lowest, highest\)"),
        ({"h_range": 3.0}, r"h_range=3.0 was given"),
        ({"j_range": [0.5, 1]}, "on both sides of 0"),
        ({"beta": "1"}, "beta='1' were given"),
        ({"sampler": []}, r"sampler=\[\] and sampler_options"),
        ({"sampler": ["dimod.ExactSolver", "dimod.ExactSolver"]}, "cannot be made with"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        DimodLayer(3, **settings)


def test_a_sampler_that_fails_or_returns_fewer_reads_is_named():
    with pytest.raises(RuntimeError, match="BoltzmannSampler returned 999 reads where num_reads=1000"):
        DimodLayer(3, sampler=BoltzmannSampler(fewer=1))(torch.zeros(1, 1, 3))
    with pytest.raises(RuntimeError, match=r"failed on 3 spins .* give sample_options that it has"):
        DimodLayer(3, sample_options={"beta_range": "cold"})(torch.zeros(1, 1, 3))
