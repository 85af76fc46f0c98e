"""Figures of an inspected sequence: attention weights, spin correlations, couplings, energies."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hybrid_attention.spin_statistics import couplings_by_distance
from lightning_modules.inspection import BlockInspection
from lightning_modules.plotting import check_matplotlib

_PANEL = 4.2
_MOST_LABELS = 40


def attention_figures(blocks: list[BlockInspection], labels: Sequence[str]) -> dict[str, Any]:
    """Return matplotlib figures by name, one panel for each block and head.

    `attention`; and with Ising layers `correlations` of the last query, `couplings` as heat maps,
    `couplings_by_distance`, and `energies` of the last query's spins. Correlations and energies are left out where they
    cannot be told.

    Args:
        blocks: of a model, as inspect_sequence returns them.
        labels: of the T positions.

    Raises:
        ValueError: if matplotlib is not installed.
    """
    check_matplotlib()
    figures = {"attention": _heat_maps([block.weights for block in blocks], labels, "key", "query", signed=False)}
    spins = [block for block in blocks if block.couplings is not None]
    if not spins:
        return figures
    told = [block for block in spins if block.statistics is not None]
    correlations = [block.statistics.correlations[:, -1] for block in told if block.statistics is not None]
    couplings = [block.couplings for block in spins if block.couplings is not None]
    if told:
        figures["correlations"] = _heat_maps(correlations, labels, "position k", "position j", signed=True, limit=1.0)
    figures["couplings"] = _heat_maps(couplings, labels, "position k", "position j", signed=True)
    figures["couplings_by_distance"] = _distances(couplings)
    if told:
        figures["energies"] = _energies(told)
    titles = {
        "attention": "Attention weights",
        "correlations": "Correlations of spins, <s_j s_k>, of the last query",
        "couplings": "Couplings J_jk in nats",
        "couplings_by_distance": "Mean coupling by distance",
        "energies": "Energies of the last query's spins",
    }
    for name, figure in figures.items():
        figure.suptitle(titles[name])
    return figures


def _panels(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_PANEL * columns, 0.9 * _PANEL * rows + 0.5), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _heat_maps(
    maps: list[Tensor], labels: Sequence[str], across: str, down: str, signed: bool, limit: float | None = None
) -> Any:
    """Return a figure of (H, T, T) maps; all panels share a scale, around 0 where values are signed."""
    largest = limit or max(float(each.abs().max()) for each in maps) or 1.0
    colors = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest} if signed else {"cmap": "viridis", "vmin": 0.0}
    if not signed:
        colors["vmax"] = largest
    figure, panels = _panels(len(maps), len(maps[0]))
    for block, heads in enumerate(maps):
        for head, values in enumerate(heads):
            axes = panels[block, head]
            image = axes.imshow(values.numpy(), interpolation="nearest", **colors)
            axes.set(xlabel=across, ylabel=down)
            axes.set_title(f"block {block}, head {head}", fontsize="medium")
            if len(labels) <= _MOST_LABELS:
                places = range(len(labels))
                axes.set_xticks(places, labels)
                axes.set_yticks(places, labels)
    figure.colorbar(image, ax=panels.ravel().tolist(), shrink=0.8)
    return figure


def _distances(couplings: list[Tensor]) -> Any:
    figure, panels = _panels(1, len(couplings))
    for block, heads in enumerate(couplings):
        axes = panels[0, block]
        axes.axhline(0, color="gray", linewidth=1)
        for head, means in enumerate(couplings_by_distance(heads)):
            axes.plot(range(1, len(means) + 1), means.numpy(), marker="o", label=f"head {head}")
        axes.set(xlabel="distance |j - k|", ylabel="mean J (nats)")
        axes.set_title(f"block {block}", fontsize="medium")
        if len(heads) > 1:
            axes.legend(fontsize="small")
    return figure


def _energies(blocks: list[BlockInspection]) -> Any:
    heads = len(blocks[0].weights)
    figure, panels = _panels(len(blocks), heads)
    for block, each in enumerate(blocks):
        statistics = each.statistics
        assert statistics is not None
        for head in range(heads):
            axes, edges = panels[block, head], statistics.edges[head].numpy()
            if not statistics.of_layer[head].isnan().any():
                axes.stairs(statistics.of_layer[head].numpy(), edges, fill=True, alpha=0.5, label="layer")
            axes.stairs(statistics.of_boltzmann[head].numpy(), edges, color="black", label="Boltzmann")
            axes.stairs(statistics.of_states[head].numpy(), edges, color="gray", linestyle=":", label="all states")
            axes.set(xlabel="energy (nats)", ylabel="share")
            axes.set_title(f"block {block}, head {head}", fontsize="medium")
            axes.legend(fontsize="small")
    return figure
