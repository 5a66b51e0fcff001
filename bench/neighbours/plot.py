"""Draw the results of mutations.py: python bench/neighbours/plot.py RESULTS.json OUT_WITHOUT_SUFFIX  (.png and .svg)

Needs matplotlib (the `bench` extra), but not kbroker.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"off": "#b8c4cc", "on": "#1f6f8b"}
TITLES = {
    "create": "{topics:,} topics of 4 partitions, 10 requests of 50 a second",
    "delete": "all {topics:,} deleted in one request",
}


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    out = Path(sys.argv[2])
    figure, grid = plt.subplots(2, 2, figsize=(10, 6), sharex="col", layout="constrained")
    for column, (kind, title) in enumerate(TITLES.items()):
        above, below = grid[0][column], grid[1][column]
        for quota, colour in COLOURS.items():
            run = document["runs"][f"{kind} {quota}"]
            name = "no quota" if run["rate"] is None else f"{run['rate']:g} partitions a second"
            label = f"{name}: {run['drain_s']:.0f} s"
            above.plot([0, *(at for at, _ in run["progress"])], [0, *(n for _, n in run["progress"])],
                       color=colour, label=label, drawstyle="steps-post")  # fmt: skip
            below.plot(*zip(*run["latencies"], strict=True), ".", markersize=2, color=colour, rasterized=True,
                       label=f"{name}: p99 {run['p99_ms']:.1f} ms")  # fmt: skip
        above.set_title(title.format(**document), fontsize=9, loc="left")
        above.set_ylabel("partitions done", fontsize=8)
        below.set_ylabel("another client's Produce, ms", fontsize=8)
        below.set_yscale("log")
        below.set_xlabel("seconds", fontsize=8)
        for axes in (above, below):
            axes.legend(fontsize=7, frameon=False, markerscale=4)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    text = f"KIP-599's experiments with and without controller_mutation_rate, {document['cores']} cores"
    figure.suptitle(text, fontsize=10)
    for suffix in (".png", ".svg"):
        figure.savefig(out.with_suffix(suffix), dpi=130, metadata={"Date": None} if suffix == ".svg" else None)


if __name__ == "__main__":
    main()
