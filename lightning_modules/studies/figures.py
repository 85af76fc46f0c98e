"""The panels of a report, each a small SVG picture that stands in a page of any width."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_modules.studies.seed_statistics import Interval, mean_interval

# colors and lines that stay apart for the color-blind and in gray
_COLORS = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#B8A400")
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

_MOST_LABELS = 24

Curve = Sequence[tuple[int, float]]


class Panels:
    """Draws panels in which every kind of attention keeps its color and line.

    Args:
        kinds: of attention, in the order of the study.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self._style = {
            kind: {"color": _COLORS[place % len(_COLORS)], "linestyle": _LINES[place % len(_LINES)]}
            for place, kind in enumerate(kinds)
        }

    def curves(self, title: str, label: str, curves: dict[str, list[Curve]]) -> str:
        """Return learning curves: for each kind the mean over its runs, with a band from the lowest to the highest."""

        def draw(axes: Any) -> None:
            for kind, runs in curves.items():
                steps = sorted(set.intersection(*({step for step, _ in run} for run in runs)))
                values = np.array([[dict(run)[step] for step in steps] for run in runs])
                axes.plot(steps, values.mean(0), label=kind, linewidth=1.6, **self._style[kind])
                axes.fill_between(
                    steps, values.min(0), values.max(0), color=self._style[kind]["color"], alpha=0.12, linewidth=0
                )
            axes.set(xlabel="training steps", ylabel=label)
            _legend(axes)

        return _panel(title, draw)

    def by_distance(self, title: str, matrices: dict[str, np.ndarray]) -> str:
        """Return the mean coupling against the distance |j - k|, with its interval over runs.

        Args:
            title: of the panel.
            matrices: for each kind (runs, T, T), in nats.
        """

        def draw(axes: Any) -> None:
            axes.axhline(0, color="#888888", linewidth=0.8)
            for kind, runs in matrices.items():
                found = coupling_by_distance(runs)
                distances = list(range(1, len(found) + 1))
                axes.plot(distances, [x.mean for x in found], label=kind, marker=".", **self._style[kind])
                if len(runs) > 1:
                    color = self._style[kind]["color"]
                    axes.fill_between(
                        distances, [x.low for x in found], [x.high for x in found], color=color, alpha=0.15, linewidth=0
                    )
            axes.set(xlabel="distance |j - k|", ylabel="mean coupling (nats)")
            axes.xaxis.get_major_locator().set_params(integer=True)
            _legend(axes)

        return _panel(title, draw)

    def differences(self, title: str, label: str, found: dict[str, list[tuple[str, Interval]]]) -> str:
        """Return differences with their intervals, one row for each place and one mark for each kind.

        Args:
            title: of the panel.
            label: of the difference, with its unit.
            found: for each kind (place, interval of the shown difference).
        """
        places = list(dict.fromkeys(place for rows in found.values() for place, _ in rows))
        step = 0.8 / max(len(found), 1)

        def draw(axes: Any) -> None:
            axes.axvline(0, color="#888888", linewidth=0.8)
            for number, (kind, rows) in enumerate(found.items()):
                heights = [places.index(place) + step * (number - (len(found) - 1) / 2) for place, _ in rows]
                means = [interval.mean for _, interval in rows]
                ends = [[x.mean - x.low for _, x in rows], [x.high - x.mean for _, x in rows]]
                axes.errorbar(
                    means, heights, xerr=ends, fmt="o", markersize=3.5, color=self._style[kind]["color"], label=kind
                )
            axes.set_yticks(range(len(places)), [place.replace(", ", "\n") for place in places])
            axes.invert_yaxis()
            axes.set(xlabel=label)
            axes.figure.legend(frameon=False, loc="outside lower center", ncols=2)

        return _panel(title, draw, (4.0, 1.3 + 0.14 * len(found) * (len(places) + 1)))


def heat_map(title: str, matrix: np.ndarray) -> str:
    """Return couplings (T, T) in nats as colors, blue where they favor agreement, the diagonal left blank."""
    shown = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    limit = float(np.nanmax(np.abs(shown), initial=1e-6))

    def draw(axes: Any) -> None:
        image = axes.imshow(shown, cmap="RdBu", vmin=-limit, vmax=limit, interpolation="none")
        axes.set(xlabel="position k", ylabel="position j")
        _whole(axes)
        axes.figure.colorbar(image, ax=axes, shrink=0.85, format="%.2g")

    return _panel(title, draw, (2.5, 2.2))


def attention_map(title: str, weights: np.ndarray, symbols: Sequence[str]) -> str:
    """Return attention weights (T, T) as shades: each row is a query, each column a key; symbols name the positions."""
    labels = [symbol if symbol.isprintable() and not symbol.isspace() else repr(symbol)[1:-1] for symbol in symbols]

    def draw(axes: Any) -> None:
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, interpolation="none")
        shown = len(labels) <= _MOST_LABELS
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(len(labels)) if shown else [], labels if shown else [], fontsize=7)
        axes.tick_params(length=0, pad=2)

    return _panel(title, draw, (1.75, 1.95))


def coupling_by_distance(matrices: np.ndarray) -> list[Interval]:
    """Return the interval over runs of the mean coupling of all pairs at the distances 1 to T - 1.

    Args:
        matrices: (runs, T, T), symmetric.
    """
    size = matrices.shape[-1]
    return [
        mean_interval([float(np.diagonal(matrix, distance).mean()) for matrix in matrices])
        for distance in range(1, size)
    ]


def _panel(title: str, draw: Any, size: tuple[float, float] = (3.7, 2.8)) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _legend(axes: Any) -> None:
    axes.legend(frameon=False)
    axes.grid(alpha=0.25, linewidth=0.6)


def _whole(axes: Any) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
