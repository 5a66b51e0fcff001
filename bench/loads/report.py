"""Results of a run of the loads: rows with all figures, facts of the machine, Markdown, JSON, comparison."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kbroker


@dataclass
class Row:
    """Line of the table: figures of this broker and of the peer, a pair for each round, with their ratio or a limit."""

    name: str
    unit: str
    goal: str = "-"
    ours: list[float] = field(default_factory=list)
    peer_name: str = ""
    peer: list[float] = field(default_factory=list)
    is_reached: Callable[["Row"], bool] | None = None
    note: str = ""
    ours_cpu_us: list[float] = field(default_factory=list)
    peer_cpu_us: list[float] = field(default_factory=list)
    has_failed: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @property
    def ratio(self) -> float | None:
        """Median of the pairs' ratios, because other load of the machine affects both parts of a pair."""
        if not self.peer:
            return None
        return statistics.median(mine / other for mine, other in zip(self.ours, self.peer, strict=True))

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.peer_name.split(" ")[0]

    def markdown(self) -> str:
        if not self.ours:
            return f"| {self.name} | - | {self.peer_name or '-'} | - | - | {self.goal} | not run: {self.note} |"
        peer = f"{self.peer_name} {shown(statistics.median(self.peer))}" if self.peer else "-"
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else "-"
        reached = "" if self.is_reached is None else "reached" if self.is_reached(self) else "**missed**"
        cpu = " / ".join(f"{statistics.median(c):.1f}" if c else "-" for c in (self.ours_cpu_us, self.peer_cpu_us))
        cpu = cpu if self.ours_cpu_us else "-"
        return (
            f"| {self.name} | {shown(self.median)} {self.unit} | {peer} | {ratio} | {cpu} | {self.goal} | {reached} |"
        )

    def as_json(self) -> dict[str, Any]:
        names = ("name", "unit", "goal", "ours", "peer_name", "peer", "note", "ours_cpu_us", "peer_cpu_us", "ratio")
        reached = self.is_reached(self) if self.ours and self.is_reached is not None else None
        return {**{name: getattr(self, name) for name in names}, "reached": reached}


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def at_least(bound: float) -> Callable[[Row], bool]:
    return lambda row: row.ratio is not None and row.ratio >= bound


def at_most_of_peer(bound: float) -> Callable[[Row], bool]:
    return lambda row: row.ratio is not None and row.ratio <= bound


def at_most(bound: float) -> Callable[[Row], bool]:
    return lambda row: row.median <= bound


def machine() -> dict[str, Any]:
    """Return facts of the machine that figures depend on."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kbroker": kbroker.__version__,
        "load_average": round(os.getloadavg()[0], 2),
    }
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        facts["cpu"] = models[0] if models else facts["cpu"]
    if meminfo.exists():
        facts["memory_gib"] = round(int(meminfo.read_text().split()[1]) / (1 << 20), 1)
    return facts


def table(rows: Sequence[Row], facts: dict[str, Any], rounds: int) -> str:
    """Return the facts and rows as Markdown."""
    memory = f", {facts['memory_gib']} GiB" if "memory_gib" in facts else ""
    lines = [
        f"{facts['date']}: {facts['cpu']}, {facts['cores']} cores{memory}, {facts['system']}, {facts['python']}, "
        f"kbroker {facts['kbroker']}; load average {facts['load_average']} before. Medians of {rounds} pairs; "
        "CPU is microseconds per request, kbroker / peer.",
        "",
        "| measure | kbroker | peer | ratio | CPU | to reach | |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(row.markdown() for row in rows)])


def save(path: Path, rows: Sequence[Row], facts: dict[str, Any], plan: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": facts, "plan": plan, "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def comparison(rows: Sequence[Row], saved: dict[str, Any]) -> str:
    """Return a comparison with a saved run: ratios to a peer, else figures; noise is the spread of the saved rounds."""
    before = {(r["name"], r["peer_name"].split(" ")[0]): r for r in saved["rows"] if r["ours"]}
    lines = ["| measure | peer | then | now | change | |", "|---|---|---|---|---|---|"]
    for row in rows:
        old = before.get(row.key)
        if old is None or not row.ours:
            continue
        then, now = pair_figures(old["ours"], old["peer"]), pair_figures(row.ours, row.peer)
        low, high = min(then), max(then)
        a, b = statistics.median(then), statistics.median(now)
        verdict = "within the noise" if low <= b <= high else "above" if b > high else "below"
        what = f"{row.peer_name} (ratio)" if row.peer else row.unit
        lines.append(f"| {row.name} | {what} | {shown(a)} | {shown(b)} | {(b / a - 1) * 100:+.1f} % | {verdict} |")
    return "\n".join(lines)


def pair_figures(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, peer, strict=True)] if peer else list(ours)
