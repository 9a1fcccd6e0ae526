"""Learning curves as pictures: the interquartile mean over seeds with the 25-75 % band, a panel per algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from slipstream.stats.intervals import Interval, iqm

Curve = Sequence[tuple[int, float]]  # steps, mean return of an evaluation
COLOURS = {"ours": "#1f5fa8", "sb3": "#d9782d"}
LABELS = {"ours": "Slipstream", "sb3": "Stable-Baselines3"}


@dataclass(frozen=True)
class Panel:
    """The curves of one algorithm: per side, one of each seed."""

    title: str
    sides: Mapping[str, Sequence[Curve]]
    target: float | None = None


def draw(path: Path, title: str, scale: str, panels: Sequence[Panel], baseline: float | None = None) -> None:
    """One picture of a world; `scale` says what the vertical axis is."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(1.2 + 3.6 * len(panels), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for ax, panel in zip(axes[0], panels, strict=True):
        _draw_panel(ax, panel, baseline)
    axes[0][0].set_ylabel("\n".join(wrap(scale, 36)), fontsize="small")
    handles = {label: handle for ax in axes[0] for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize="small"
    )
    figure.suptitle(title, fontsize="medium", fontweight="bold")
    figure.savefig(path, dpi=110, metadata={"Software": None})  # the same curves give the same file
    plt.close(figure)


def draw_profile(path: Path, thresholds: Sequence[float], sides: Mapping[str, Sequence[Interval]], scale: str) -> None:
    """Share of runs above each threshold with its interval: the higher and the further right, the better."""
    figure, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    for side, profile in sides.items():
        shares, low, high = np.array(profile).T
        ax.fill_between(thresholds, low, high, color=COLOURS[side], alpha=0.18, linewidth=0)
        ax.plot(thresholds, shares, color=COLOURS[side], linewidth=1.8, label=LABELS[side])
    ax.set_xlabel("\n".join(wrap(scale, 60)), fontsize="small")
    ax.set_ylabel("share of runs above", fontsize="small")
    ax.legend(frameon=False, fontsize="small")
    _plain(ax)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _draw_panel(ax: Axes, panel: Panel, baseline: float | None) -> None:
    for side, curves in panel.sides.items():
        length = min(len(curve) for curve in curves)
        steps = np.array([point[0] for point in curves[0][:length]]) / 1000
        values = np.array([[point[1] for point in curve[:length]] for curve in curves])
        low, high = np.quantile(values, [0.25, 0.75], axis=0)
        ax.fill_between(steps, low, high, color=COLOURS[side], alpha=0.18, linewidth=0)
        ax.plot(steps, [iqm(column) for column in values.T], color=COLOURS[side], linewidth=1.8, label=LABELS[side])
    if panel.target is not None:
        ax.axhline(panel.target, color="#3a8a3a", linewidth=1, linestyle=":", label="target")
    if baseline is not None:
        ax.axhline(baseline, color="#777777", linewidth=1, linestyle="--", label="random")
    ax.set_title(panel.title, fontsize="small")
    ax.set_xlabel("steps of the world (thousands)", fontsize="small")
    _plain(ax)


def _plain(ax: Axes) -> None:
    """A light grid, no frame."""
    ax.tick_params(labelsize="small")
    ax.grid(color="#e4e4e4", linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
