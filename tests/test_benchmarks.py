"""The benchmarks run, and what they compare the layers and devices with computes the same numbers."""

import math
from pathlib import Path

import pytest
import torch
from benchmark_scripts import load

from hybrid_attention import ExactLayer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def exact_layer():
    return load("exact_layer")


@pytest.fixture(scope="module")
def dqa_devices():
    return load("dqa_devices")


@pytest.fixture(scope="module")
def long_sequences():
    return load("long_sequences")


@pytest.fixture(scope="module")
def gpu_check():
    return load("gpu_check")


@pytest.fixture(scope="module")
def covariance_bias():
    return load("covariance_bias")


@pytest.fixture(scope="module")
def shots_training():
    return load("shots_training")


@pytest.mark.parametrize("num_spins", [1, 2, 5, 9])
def test_plain_enumeration_agrees_with_the_exact_layer(exact_layer, num_spins):
    torch.manual_seed(num_spins)
    present = torch.ones(num_spins, num_spins, dtype=torch.bool).tril()
    fields = torch.randn(3, 1, num_spins, num_spins)
    layer, full, prefix = ExactLayer(num_spins), exact_layer.FullTable(num_spins), exact_layer.PrefixTables(num_spins)
    couplings = torch.randn(1, num_spins * (num_spins - 1) // 2)
    first, second = torch.triu_indices(num_spins, num_spins, 1)
    with torch.no_grad():
        layer.couplings.copy_(couplings)
        full.couplings.copy_(couplings[0])
        prefix.couplings[first, second] = couplings[0]
    expected = layer(fields, present)
    torch.testing.assert_close(full(fields, present), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(prefix(fields, present), expected, rtol=0, atol=1e-5)


def test_the_exact_layer_benchmark_runs(exact_layer, capsys):
    exact_layer.measure(3, batch=2, rounds=1)
    exact_layer.training_step(rounds=1, num_spins=3, embed_dim=4, batch=2)
    out = capsys.readouterr().out
    assert out.startswith("  3 | ")
    assert "training step, T = 3, embed_dim 4, batch 2" in out


@pytest.mark.usefixtures("one_thread")
def test_the_device_benchmark_prints_a_table_and_the_aims(dqa_devices, capsys):
    dqa_devices.main(["--sizes", "2,8,3", "3,9,2", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert "1 thread(s), 1 round(s)" in lines[0]
    rows = [[cell.split() for cell in line.split("|")] for line in lines if line.count("|") == 5][1:]
    names = ["hybrid.statevector", "default.qubit", "lightning.qubit"]
    assert [row[:2] for row in rows] == [[list(size), [name]] for size in ("283", "392") for name in names]
    for row in rows:
        assert row[2] == row[0][2:]  # all circuits of the batch ran, so none is scaled
        assert all(float(cell[0]) > 0 for cell in row[3:5])
        assert (row[5] == ["-"]) == (row[1] == ["lightning.qubit"])
        assert (len(row[5]) == 2) == (row[1] == ["hybrid.statevector"])
    assert lines[-6].startswith(
        "training step of configs/brackets.yaml, T = 8, embed_dim 8, batch 64, TunedSchedule(steps=8)"
    )
    aims = lines[-5:]
    assert all(line.startswith("aim: ") for line in aims)
    assert [line.endswith("not measured") for line in aims] == [True] * 4 + [False]
    assert aims[-1].endswith((": met", ": not met"))


def test_slow_devices_run_fewer_circuits_and_are_scaled(dqa_devices, capsys, monkeypatch):
    monkeypatch.setattr(dqa_devices, "_MOST_SECONDS", 1e-6)
    found, floor = dqa_devices.measure((2, 8, 6), ["default.qubit", "lightning.qubit"], rounds=1)
    assert floor is None
    assert [row.circuits for row in found.values()] == [6, 1, 1]
    rows = capsys.readouterr().out.splitlines()
    assert [row.count("*") for row in rows] == [0, 4, 3]


def test_devices_that_take_much_memory_run_fewer_circuits(dqa_devices, monkeypatch):
    monkeypatch.setattr(dqa_devices, "_MOST_BYTES", 1)
    found, _ = dqa_devices.measure((2, 8, 6), ["default.qubit"], rounds=1)
    assert found["default.qubit"].circuits == 1


def test_wrong_marginals_are_no_measurement(dqa_devices, monkeypatch):
    monkeypatch.setattr(dqa_devices, "_AGREEMENT", -1.0)
    with pytest.raises(RuntimeError, match="differ by"):
        dqa_devices.measure((2, 8, 1), ["default.qubit"], rounds=1)


def test_the_floor_is_worked_out_from_its_parts(dqa_devices, capsys):
    floor = dqa_devices.Floor((16, 16, 64), copy_seconds=0.01, rate=1e10, width=4096)
    # 16 steps, forward and twice backward, 4 groups: for each real number 16 multiplications and 16 additions.
    assert floor.mixer_flops == 16 * 3 * 4 * (64 * 2**16 * 2) * 32
    assert floor.seconds == pytest.approx(floor.mixer_flops / 1e10 + 16 * 3.5 * 0.01)
    floor.show(2 * floor.seconds)
    assert capsys.readouterr().out.endswith("2.00 x floor\n")


def test_the_floor_is_measured_beside_the_device(dqa_devices, capsys):
    found, floor = dqa_devices.measure((5, 8, 3), [], rounds=1, with_floor=True)
    assert set(found) == {"hybrid.statevector"}
    assert floor.copy_seconds > 0
    assert floor.rate > 0
    assert f"{found['hybrid.statevector'].both * 3 / floor.seconds:.2f} x floor" in capsys.readouterr().out


def test_aims_are_judged_by_the_numbers(dqa_devices, capsys):
    def row(both, peak=None):
        return dqa_devices.Measured(both, both, peak, 64)

    floor = dqa_devices.Floor((16, 16, 64), copy_seconds=0.01, rate=1e10, width=4096)
    state = 64 * 2**16 * 8
    results = {
        (8, 10, 512): (
            {"hybrid.statevector": row(1.0), "default.qubit": row(61.0), "lightning.qubit": row(199.0)},
            None,
        ),
        (16, 16, 64): ({"hybrid.statevector": row(3 * floor.seconds / 64, 3 * state)}, floor),
    }
    dqa_devices.show_aims(results, 8.5)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit("; measured ")[1] for line in lines] == [
        "61.00x: met",
        "199.00x: not met",
        "3.00x: not met",
        "3.00 state copies: met",
        "8.50x: not met",
    ]


@pytest.mark.parametrize("text", ["8,10", "8,x,2", "0,1,1"])
def test_a_size_that_is_none_is_refused(dqa_devices, text, capsys):
    with pytest.raises(SystemExit):
        dqa_devices.main(["--sizes", text])
    assert "is not wires,steps,batch" in capsys.readouterr().err


def test_the_gpu_check_says_that_there_is_no_gpu(gpu_check, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [gpu_check.NO_GPU]


@pytest.mark.parametrize("name", ["quench", "QNode", "DQALayer", "ExactLayer"])
def test_the_checks_of_the_gpu_pass_on_the_cpu(gpu_check, name):
    differences = list(gpu_check.CHECKS[name](CPU))
    assert len(differences) >= 8
    for label, difference, tolerance in differences:
        assert difference <= tolerance, label


def test_failing_checks_are_counted_and_do_not_stop_the_others(gpu_check, capsys, monkeypatch):
    def fails(device):
        yield "wrong", 1.0, 1e-10
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(gpu_check, "CHECKS", {"a": fails, "b": lambda device: iter([("right", 0.0, 1e-10)])})
    assert not gpu_check.run_checks(CPU)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split() for line in lines[:3]] == [["FAILED", "wrong"], ["FAILED", "a"], ["ok", "right"]]
    assert "two lines" in lines[1]


def test_differences_are_large_for_what_is_not_comparable(gpu_check):
    x = torch.tensor([1.0, 200.0])
    assert gpu_check.distance(x + torch.tensor([0.0, 1.0]), x, CPU) == pytest.approx(1 / 200)
    assert gpu_check.distance(x / 0, x, CPU) == math.inf
    assert gpu_check.distance(x[:1], x, CPU) == math.inf
    assert gpu_check.distance(x, x, torch.device("cuda")) == math.inf


def test_devices_that_cannot_be_made_are_named_with_the_reason(gpu_check, capsys):
    assert gpu_check.usable(["default.qubit", "no.such"], CPU) == ["default.qubit"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("no.such is left out: ValueError: There is no device 'no.such'")


@pytest.mark.usefixtures("one_thread")
def test_the_covariance_benchmark_prints_a_row_for_each_size_spread_and_schedule(covariance_bias, capsys, monkeypatch):
    monkeypatch.setattr(covariance_bias, "SHOTS", (64, 256, 1024, 4096))
    covariance_bias.main(["--spins", "2", "3", "--instances", "5"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.count("|") == 3][2:]
    assert len(rows) == 2 * len(covariance_bias.SPREADS) * len(covariance_bias.SCHEDULES)
    for row in rows:
        for cell in row.split("|")[1:]:
            _, cosine_h, _, cosine_J = map(float, cell.split())
            assert min(cosine_h, cosine_J) > 0.9
    assert float(lines[-1].rpartition(" ")[2]) == pytest.approx(-0.5, abs=0.1)


def test_the_gradients_that_the_covariance_benchmark_compares_are_those_of_finite_differences(covariance_bias):
    """Central differences of the marginals of the circuit and of enumeration, for all fields and couplings at once."""
    instances, schedule = covariance_bias.draw_instances(3, 3, (0.5, 0.2)), covariance_bias.SCHEDULES[0]
    layer = covariance_bias.DQALayer(3, 3, schedule=schedule, clip=False).double()
    matrices = torch.zeros(3, 3, 3, dtype=torch.float64)

    def circuit(fields, couplings):
        with torch.no_grad():
            layer.couplings.copy_(couplings)
            return layer(fields[None])[0]

    def boltzmann(fields, couplings):
        matrices[:, (0, 0, 1), (1, 2, 2)] = couplings
        return covariance_bias.exact_marginals(fields, matrices)

    found = {
        circuit: covariance_bias.circuit_gradients(instances, schedule, "backprop"),
        boltzmann: covariance_bias.boltzmann_gradients(instances),
    }
    for marginals, gradients in found.items():
        for place, gradient in enumerate(gradients):
            for column in range(3):
                values = []
                for step in (1e-5, -1e-5):
                    moved = [instances.fields.clone(), instances.couplings.clone()]
                    moved[place][:, column] += step
                    values.append((instances.weights * marginals(*moved)).sum(-1))
                difference = (values[0] - values[1]) / 2e-5
                assert (gradient[:, column] - difference).abs().max() < 1e-8


def test_two_gradients_are_compared_by_size_and_direction(covariance_bias):
    ours, theirs = torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    found = covariance_bias.compare(ours, theirs)
    assert (found.difference, found.cosine) == pytest.approx((4 / 5, 3 / 5))
    assert covariance_bias.slope([1, 10, 100], [3.0, 0.3, 0.03]) == pytest.approx(-1)


@pytest.mark.usefixtures("one_thread")
def test_the_training_benchmark_runs_each_method_once_and_writes_its_curves(
    shots_training, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    small = [f"--data.init_args.num_{split}=16" for split in ("train", "val", "test")]
    arguments = ["--seeds", "1", "2", "--steps", "2", "--shots", "20", "--csv", "curves.csv", *small]
    shots_training.main(arguments)
    out = capsys.readouterr().out
    rows = [line.split(",") for line in Path("curves.csv").read_text().splitlines()]
    assert rows[0] == ["method", "seed", "step", "val_accuracy", "val_loss"]
    methods = ("exact", "DQA", "shots")
    expected = [[method, seed, step] for method in methods for seed in ("1", "2") for step in ("1", "2")]
    assert [row[:3] for row in rows[1:]] == expected
    assert all(0 <= float(row[3]) <= 1 and 0 < float(row[4]) < 10 for row in rows[1:])
    assert "shots=20, gradient='covariance'" in out
    assert "shots=None, gradient='backprop'" in out
    table = out.splitlines()[-3:]
    assert [line.split()[0] for line in table] == list(methods)
    monkeypatch.setattr(shots_training, "train", lambda *_: pytest.fail("a run was repeated"))
    shots_training.main(arguments)
    assert capsys.readouterr().out.splitlines() == table


def test_runs_of_other_settings_are_not_taken_for_these(shots_training):
    settings = [(1500, 1000, []), (100, 1000, []), (1500, 100, []), (1500, 1000, ["--model.init_args.embed_dim=4"])]
    assert len({shots_training.folder_name(*each) for each in settings}) == len(settings)


def test_the_table_of_the_training_benchmark_has_means_and_spreads(shots_training):
    runs = [shots_training.Run("exact", seed, [(9, 0.8, loss)], 0.9 + loss) for seed, loss in ((1, 0.0), (2, 0.02))]
    assert shots_training.table(runs) == [
        "exact  test accuracy 91.00 +- 1.41 % (90.00, 92.00), validation loss 0.01000 +- 0.01414"
    ]


@pytest.mark.plugins
@pytest.mark.usefixtures("one_thread")
def test_the_pictures_are_png_files(covariance_bias, shots_training, tmp_path, monkeypatch):
    """matplotlib comes with the extra plots, and with cirq."""
    pytest.importorskip("matplotlib", reason="pip install 'hybrid-attention[plots]'")
    monkeypatch.setattr(covariance_bias, "SHOTS", (64, 256))
    covariance_bias.main(["--spins", "2", "--instances", "3", "--plot", str(tmp_path / "bias.png")])
    curves = [(50, 0.5, 1.0), (100, 0.9, 0.1)]
    runs = [shots_training.Run(method, seed, curves, 0.9) for method in ("exact", "DQA", "shots") for seed in (1, 2)]
    shots_training.plot(tmp_path / "training.png", runs, 1000)
    for name in ("bias.png", "training.png"):
        content = (tmp_path / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert 10_000 < len(content) < 150_000


def test_the_calibration_measures_all_schedules_and_judges_the_aims(capsys, one_thread):
    load("calibration").main(["--steps", "4", "--spins", "3", "4", "--models", "12"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 2 * 4
    assert [line.split()[4] for line in lines[1:5]] == ["linear", "smooth", "paused", "tuned"]
    assert all(float(line.split()[-5]) > 0.9 for line in lines[1:])


def test_aims_of_the_calibration_are_judged_by_the_numbers(capsys):
    calibration = load("calibration")

    def row(error):
        return calibration.Calibration(8, 1, None, error, 0.0, 0.5, 0.99, 0.1, 0.1, (1.0, 1.0), (1.0, 1.0))

    spreads = (0.5, 0.2)
    results = {("linear", 16, 8, spreads): row(0.03), ("tuned", 4, 8, spreads): row(0.02)}
    results |= {("linear", 8, 8, spreads): row(0.04), ("tuned", 8, 8, spreads): row(0.01)}
    results |= {("linear", 8, 12, spreads): row(0.09), ("tuned", 8, 12, spreads): row(0.06)}
    calibration.show_aims(results)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(": ", 2)[1:] for line in lines] == [
        ["0.99, aim 0.994 or more", "not met"],
        ["4, aim 3 or more", "met"],
        ["1.5, aim 1 or more", "met"],
        ["0.375, aim 0.667 or more", "not met"],
    ]


@pytest.mark.usefixtures("one_thread")
def test_the_benchmark_of_long_sequences_prints_a_row_for_each_length_and_the_aims(long_sequences, capsys):
    long_sequences.main(["--lengths", "4", "8", "--ranges", "1", "2", "--rows", "3", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    names = [name.strip() for name in next(line for line in lines if line.startswith("    T |")).split("|")[1:]]
    assert names[:3] == ["w = 1", "w = 2", "softmax"]
    rows = [line.split("|") for line in lines if line.split("|")[0].strip() in ("4", "8")]
    assert [len(row) for row in rows] == [1 + len(names)] * 2
    for row in rows:
        assert all(float(number) > 0 for cell in row[1:] for number in cell.split()[::2])
    aims = [line for line in lines if "aim 1.1 or less" in line]
    assert [line.split(":")[0] for line in aims] == ["w = 1", "w = 2"]
    assert lines[-1].startswith("training step, causal, T = 64, embed_dim 32, batch 64: softmax")


def test_exponents_are_slopes_of_logarithms_and_judged(long_sequences, capsys):
    assert long_sequences.exponent([2, 4, 8], [3.0, 12.0, 48.0]) == pytest.approx(2)
    linear, steep = {2: (1.0, 1.0), 4: (2.0, 1.5)}, {2: (1.0, 1.0), 4: (2.3, 2.0)}
    results = {length: {"w = 1": linear[length], "softmax": steep[length]} for length in (2, 4)}
    assert long_sequences.show_exponents(results)
    assert capsys.readouterr().out.splitlines()[0].endswith("memory as T^0.58; aim 1.1 or less: met")
    assert not long_sequences.show_exponents({length: {"w = 1": steep[length]} for length in (2, 4)})
    assert capsys.readouterr().out.endswith("aim 1.1 or less: not met\n")


def test_wrong_marginals_of_long_sequences_are_no_measurement(long_sequences, monkeypatch):
    monkeypatch.setattr(long_sequences, "_AGREEMENT", -1.0)
    with pytest.raises(RuntimeError, match="T = 4: w = 2 and enumeration differ by"):
        long_sequences.measure(4, [2], rows=5, rounds=1)


@pytest.mark.plugins
def test_torch_struct_has_the_same_marginals_and_gradients(long_sequences):
    pytest.importorskip("torch_struct", reason="pip install 'hybrid-attention[benchmarks]'")
    layer = long_sequences.layer_of(7, 1).double()
    chain = long_sequences.StructuredChain(layer.couplings.detach().clone())
    found = []
    for module in (layer, chain):
        fields = torch.linspace(-2, 2, 21, dtype=torch.float64).view(1, 1, 3, 7).requires_grad_()
        p = module(fields, None)
        found.append((p, *torch.autograd.grad((p * fields.detach()).sum(), (fields, module.couplings))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("one_thread")
def test_the_approximations_are_compared_on_the_same_models(capsys):
    load("approximations").main(["--models", "20", "--spins", "4", "--rounds", "1"])
    header, *lines = capsys.readouterr().out.splitlines()
    place = header.index("layer ")
    found = {(line.split()[0], line[place : place + 22].strip()): line[place + 22 :].split() for line in lines}
    assert len(found) == len(lines)
    for spread in ("weak", "medium", "strong"):
        errors = {label: [float(x) for x in row[:2]] for (name, label), row in found.items() if name == spread}
        assert errors.pop("exact") == [0, 0]
        assert all(max(values) > 0 for values in errors.values())
        assert all(values[0] > values[1] for values in errors.values())
        assert errors["Gibbs, 10000 samples"][0] < errors["Gibbs, 100 samples"][0]
    weak = {label: float(row[0]) for (name, label), row in found.items() if name == "weak"}
    assert weak["TAP"] < weak["mean field"] < weak["without couplings"]
