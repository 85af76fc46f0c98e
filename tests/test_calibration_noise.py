"""The figure of errors under shots and noise measures what it says, once."""

from typing import NamedTuple

import pytest
import torch
from benchmark_scripts import load


@pytest.fixture(scope="module")
def script():
    return load("calibration_noise")


@pytest.fixture(scope="module")
def kept_rows():
    return load("kept_rows")


def test_a_common_factor_is_told_from_other_errors(script):
    exact = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rms, _, left, scaled, correlation = script.compare(0.8 * exact, exact)
    assert rms == pytest.approx(0.2 * float(exact.square().mean().sqrt()), abs=1e-6)
    assert (left, scaled, correlation) == pytest.approx((0.8, 0.0, 1.0), abs=1e-6)


def test_the_standard_error_is_the_spread_of_the_error_over_sets_of_models(script):
    errors = torch.randn(400, 100, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = torch.ones(100, 4, dtype=torch.float64) + torch.arange(4)
    found = torch.tensor([script.compare(exact + each, exact)[:2] for each in errors])
    assert float(found[:, 1].mean() / found[:, 0].std()) == pytest.approx(1.0, abs=0.15)


@pytest.mark.usefixtures("one_thread")
def test_shots_add_their_own_error_and_no_row_is_measured_twice(script, tmp_path, monkeypatch, capsys):
    path = tmp_path / "noise.csv"
    arguments = ["--spins", "3", "--models", "60", "--steps", "2", "4", "--shots", "50", "--noisy-models", "0"]
    script.main([*arguments, "--csv", str(path)])
    out = capsys.readouterr().out
    rows = script.read(path, script.Row)
    names = [(2, "linear"), (4, "linear"), (4, "tuned")]
    kinds = {(r.steps, r.schedule, r.field_spread, r.condition, r.shots): r for r in rows}
    assert len(rows) == len(kinds) == len(names) * len(script.SPREADS) * 2
    for h, _ in script.SPREADS:
        for name in names:
            exact, sampled = kinds[(*name, h, "exact", 0)], kinds[(*name, h, "shots", 50)]
            assert 0.002 < sampled.rms_error**2 - exact.rms_error**2 < 1 / 49
    gains = [line for line in out.splitlines() if ": gain " in line]
    first, second = kinds[4, "linear", 0.5, "exact", 0], kinds[4, "tuned", 0.5, "exact", 0]
    assert gains[0].startswith(
        f"P = 4, spreads 0.5, 0.2, exact: gain {first.rms_error / second.rms_error:.2f}, scaled "
    )
    assert len(gains) == 4
    monkeypatch.setattr(script, "measure", lambda *_: pytest.fail("a row was measured twice"))
    script.main([*arguments, "--csv", str(path)])
    assert [line for line in capsys.readouterr().out.splitlines() if ": gain " in line] == gains
    assert script.read(path, script.Row) == rows


def test_rows_of_another_script_are_not_taken_for_these(kept_rows, tmp_path):
    class Point(NamedTuple):
        x: int
        y: float

    class Other(NamedTuple):
        x: int

    path = tmp_path / "folder" / "rows.csv"
    assert kept_rows.read(path, Point) == []
    kept_rows.append(path, [Point(1, 0.5)])
    kept_rows.append(path, [Point(2, 1.5)])
    assert kept_rows.read(path, Point) == [Point(1, 0.5), Point(2, 1.5)]
    with pytest.raises(ValueError, match="has other columns than x: give another file"):
        kept_rows.read(path, Other)


@pytest.mark.plugins
@pytest.mark.usefixtures("one_thread")
def test_noise_shrinks_magnetizations_and_mitigation_gives_a_part_back(script, tmp_path):
    pytest.importorskip("qiskit_aer", reason="pip install 'hybrid-attention[qiskit]'")
    pytest.importorskip("matplotlib", reason="pip install 'hybrid-attention[plots]'")
    path, picture = tmp_path / "noise.csv", tmp_path / "noise.png"
    machine = ["--machine", "FakeManilaV2", "--noisy-models", "5"]
    sizes = ["--spins", "2", "--models", "5", "--steps", "4", "--shots", "100"]
    script.main([*sizes, *machine, "--csv", str(path), "--plot", str(picture)])
    left = {(r.condition, r.schedule, r.field_spread): r.left for r in script.read(path, script.Row)}
    for schedule in ("linear", "tuned"):
        for h, _ in script.SPREADS:
            noisy, mitigated, exact = (
                left[condition, schedule, h] for condition in ("FakeManilaV2", "FakeManilaV2 mitigated", "exact")
            )
            assert noisy < mitigated < exact
    assert picture.read_bytes().startswith(b"\x89PNG")
