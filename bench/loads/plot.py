"""Draw the results of run.py: python bench/loads/plot.py RESULTS.json OUT_WITHOUT_SUFFIX  (writes .png and .svg)

Needs matplotlib (the `bench` extra), but not kbroker.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OURS, PEERS = "#1f6f8b", "#b8c4cc"


def servers(rows: list[dict[str, Any]]) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Return requests per second and CPU microseconds of each round, by load and by server."""
    loads: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for row in rows:
        if row["unit"] != "req/s" or not row["ours"]:
            continue
        of = loads.setdefault(row["name"], {})
        rate, cpu = of.setdefault("kbroker", ([], []))
        rate += row["ours"]
        cpu += row["ours_cpu_us"]
        of[row["peer_name"]] = (row["peer"], row["peer_cpu_us"])
    return loads


def bars(axes: Any, figures: dict[str, list[float]], text: str, less_is_better: bool = False) -> None:
    """Draw medians as bars with the range of the rounds; kbroker has another colour, and the best is on top."""
    medians = {name: statistics.median(values) for name, values in figures.items() if values}
    names = sorted(medians, key=lambda name: medians[name], reverse=less_is_better)
    low = [medians[n] - min(figures[n]) for n in names]
    high = [max(figures[n]) - medians[n] for n in names]
    colours = [OURS if n == "kbroker" else PEERS for n in names]
    axes.barh(names, [medians[n] for n in names], xerr=[low, high], color=colours, ecolor="#555555", capsize=2)
    most = max(max(figures[n]) for n in names)
    for place, name in enumerate(names):
        axes.text(max(figures[name]) + most * 0.02, place, text.format(medians[name]), va="center", fontsize=8)
    axes.set_xlim(0, most * 1.22)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    out = Path(sys.argv[2])
    loads = servers(document["rows"])
    if not loads:
        raise SystemExit("no load of requests in these results")
    figure, grid = plt.subplots(
        len(loads), 2, figsize=(10, 0.7 + 1.9 * len(loads)), squeeze=False, layout="constrained"
    )
    for (left, right), (name, of) in zip(grid, loads.items(), strict=True):
        bars(left, {server: rate for server, (rate, _) in of.items()}, "{:,.0f}")
        bars(right, {server: cpu for server, (_, cpu) in of.items()}, "{:,.1f}", True)
        left.set_title(f"{name}: requests per second", fontsize=9, loc="left")
        right.set_title("CPU microseconds of the server per request (less is better)", fontsize=9, loc="left")
    facts = document["machine"]
    figure.suptitle(
        f"kbroker {facts['kbroker']} beside its peers: {facts['cpu']}, {facts['cores']} cores, {facts['date']}",
        fontsize=10,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(out.with_suffix(suffix), dpi=130, metadata={"Date": None} if suffix == ".svg" else None)


if __name__ == "__main__":
    main()
