"""Tables, plots and JSON of what was simulated."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from simulation.measure import Figures

COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("ttft p50", "ttft_p50_s", 1, "9.2f"),
    ("p90", "ttft_p90_s", 1, "9.2f"),
    ("p99", "ttft_p99_s", 1, "9.2f"),
    ("itl p50", "itl_p50_s", 1e3, "8.1f"),
    ("p90", "itl_p90_s", 1e3, "7.1f"),
    ("p99", "itl_p99_s", 1e3, "7.1f"),
    ("hit %", "hit_rate", 100, "6.1f"),
    ("good/s", "goodput_per_s", 1, "8.2f"),
    ("imbal", "imbalance", 1, "6.2f"),
    ("alone %", "local_share", 100, "8.1f"),
    ("regret", "regret_mean_s", 1, "8.2f"),
)
PANELS = (
    ("time to first token, p90 (s)", "ttft_p90_s", 1.0),
    ("time to first token, p50 (s)", "ttft_p50_s", 1.0),
    ("inter-token time, p99 (ms)", "itl_p99_s", 1e3),
    ("hit rate (% of tokens)", "hit_rate", 100.0),
    ("goodput (requests/s within SLO)", "goodput_per_s", 1.0),
    ("mean regret per choice (s)", "regret_mean_s", 1.0),
)
LOGARITHMIC = {"ttft_p90_s", "ttft_p50_s", "itl_p99_s", "regret_mean_s"}


def table(figures: Sequence[Figures]) -> str:
    """One block per level; times to first token and regret in s, between tokens in ms."""
    lines = []
    for level in dict.fromkeys(one.level for one in figures):
        rows = [one for one in figures if one.level == level]
        speed, offered = rows[0].speed, rows[0].offered_per_s
        lines.append(f"{level}: speed {speed:.2f}, {offered:.2f} requests/s offered")
        head = "".join(f"{title:>{_width(spec)}}" for title, _, _, spec in COLUMNS)
        lines.append(f"{'policy':<22}{head}")
        lines += [f"{row.policy:<22}{_cells(row)}" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _cells(row: Figures) -> str:
    cells = []
    for _, name, scale, spec in COLUMNS:
        value = getattr(row, name)
        cells.append(f"{'-':>{_width(spec)}}" if value is None else f"{value * scale:{spec}}")
    return "".join(cells)


def _width(spec: str) -> int:
    return int(spec.partition(".")[0])


def write_json(path: Path, about: Mapping[str, Any], figures: Sequence[Figures]) -> None:
    """What was run, and all figures, rounded to what they mean."""
    rows = [
        {
            name: float(f"{value:.5g}") if isinstance(value, float) else value
            for name, value in dataclasses.asdict(one).items()
        }
        for one in figures
    ]
    path.write_text(json.dumps({**about, "figures": rows}, indent=1) + "\n")


def plot(path: Path, title: str, figures: Sequence[Figures]) -> None:
    """Six panels over the levels, one line per policy; PNG."""
    matplotlib.use("Agg")
    levels = list(dict.fromkeys(one.level for one in figures))
    policies = list(dict.fromkeys(one.policy for one in figures))
    drawing, axes = pyplot.subplots(2, 3, figsize=(13, 6.5))
    for axis, (label, name, scale) in zip(axes.flat, PANELS, strict=True):
        for number, policy in enumerate(policies):
            values = {
                one.level: getattr(one, name)
                for one in figures
                if one.policy == policy and getattr(one, name) is not None
            }
            shown = [level for level in levels if level in values]
            is_ours = policy == "cost"
            axis.plot(
                [levels.index(level) for level in shown],
                [scale * values[level] for level in shown],
                label=policy,
                marker="o",
                markersize=3,
                linewidth=2.5 if is_ours else 1.0,
                color="black" if is_ours else f"C{number}",
                linestyle="--" if policy == "oracle" else "-",
            )
        axis.set_title(label, fontsize=9)
        axis.set_xticks(range(len(levels)), levels, fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(alpha=0.3)
        if name in LOGARITHMIC:
            axis.set_yscale("log")
    axes.flat[0].legend(fontsize=7)
    drawing.suptitle(title, fontsize=10)
    drawing.tight_layout()
    drawing.savefig(path, dpi=70)
    pyplot.close(drawing)
