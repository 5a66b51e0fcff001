"""Table of kbroker's abilities: each probe is run with kbroker, and its result compared with the documentation.

`python bench/loads/abilities.py` runs the same probes with the other servers of the table.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.loads.abilities import HEAD, PROBES, Running, judged
from bench.loads.contenders import kbroker
from bench.loads.probes.place import Place, Probe
from bench.loads.probes.robustness import COSTS
from tests.support.need import lack

ROOT = Path(__file__).resolve().parents[2]
FIGURE = re.compile(r" \(.*\)$")  # a measured figure after the result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with contextlib.ExitStack() as stack:
        yield Running(kbroker(), stack)


def cell(page: str, row: str) -> str:
    """Return kbroker's cell of a row."""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith(f"| {row} |"):
            return FIGURE.sub("", line.split("|")[2].strip())
    raise AssertionError(f"{page} has no row '{row}'")


@pytest.mark.parametrize("probe", [*PROBES, *COSTS], ids=lambda probe: probe.name)
def test_ability(running: Running, probe: Probe) -> None:
    """kbroker's column has the result of each probe; a figure, which differs between runs, needs only to be present."""
    server, was_ended = running.responding()
    assert not was_ended, "the preceding probe has ended the broker"
    result = judged(probe, Place(running.contender, server))
    if result.cell == "-":
        lack(result.reason)
    for page in ("docs/compatibility.md", *(["README.md"] if probe.short else [])):
        said = cell(page, probe.name)
        if probe.figure:
            assert re.fullmatch(r"[\d,]+ (ms|MiB)", said), page
            assert re.fullmatch(r"[\d,]+ (ms|MiB)", result.cell), result
        else:
            assert FIGURE.sub("", result.cell) == said, f"{page}: {result}"


def test_the_same_rows() -> None:
    """The README has the short rows, and the documentation page all rows, in the order of the program."""
    for page, probes in (("docs/compatibility.md", [*PROBES, *COSTS]), ("README.md", [*PROBES, *COSTS])):
        wanted = [p.name for p in probes if p.short or page != "README.md"]
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith(f"{HEAD} kbroker |"))
        assert [line.split("|")[1].strip() for line in lines[start + 2 : start + 2 + len(wanted)]] == wanted, page
        assert not lines[start + 2 + len(wanted)].startswith("|"), f"{page} has more rows than the program"
