"""Power cut at every call of a recorded load: a broker starts on each state that the file system may leave.

`test_power_cut.py` cuts real file systems after each acknowledgement; here the order of the calls, the written sectors
and the names on the disk vary as far as POSIX allows.
"""

import random
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kbroker.broker import Broker, BrokerStartError
from kbroker.log.tools.verify import verify
from tests.support.cut_states import Checked, Part, check_in_parts, check_states
from tests.support.disk_states import Call, cuts
from tests.support.folder_contents import Keeps, captured, differences, settings_of
from tests.support.mixed_load import Expected
from tests.support.recorded_load import Recorded, record_load

SAMPLE = 3  # calls per test, in addition to two of a compaction
MODES: dict[str, dict[str, object]] = {
    "each record": {"log__flush__interval__messages": 1},
    "interval": {"log__flush__interval__ms": 1},
    "default": {},
}
#: Texts of log lines about a partition that has lost records before others.
DAMAGED = ("is damaged and takes no appends", "no batch has the offsets")

pytestmark = pytest.mark.slow


def check(folder: Path, settings: dict[str, object], keeps: Keeps, expected: Expected) -> list[str]:
    """Start a broker on the folder; return the differences from the guaranteed state, and tracebacks.

    A segment that was rolled and not yet synced may have lost its end while the next one exists: without a flush of
    each record, a partition may lack records before others, and the log must name the partition.
    """
    try:
        with captured() as lines, Broker(settings_of(folder, **settings)) as broker:
            found = differences(broker, expected, keeps=keeps)
    except BrokerStartError as error:
        return [f"the start is refused: {error}"]
    damaged = {line.split()[1].rstrip(":") for line in lines.lines if any(text in line for text in DAMAGED)}
    if not keeps.records:
        damaged.add("compacted-0")  # a compacted log may have gaps
        found = [one for one in found if one.split(":")[0] not in damaged]
        found += [f"{name}: verify is silent" for name in damaged - {"compacted-0"} if not is_named(folder, name)]
    return found + lines.traces


def is_named(folder: Path, partition: str) -> bool:
    """Return whether `kbroker log verify` names damage of a partition."""
    return any(
        partition in one.path.parts for log_dir in (folder / "a", folder / "b") for one in verify(log_dir) if one.path
    )


def check_chosen(recorded: Recorded, mode: str, chosen: Container[int]) -> Checked:
    """Check the states after the chosen calls of a recorded load."""

    def check_one(folder: Path, expected: Expected) -> list[str]:
        return check(folder, MODES[mode], Keeps(mode == "each record", expected.flushed), expected)

    return check_states((one for one in recorded.states() if one.number in chosen), check_one)


def check_part(place: Path, mode: str, part: Part) -> Checked:
    """Check the states after every call of a part of the load that is recorded at a place."""
    return check_chosen(Recorded(place), mode, part)


@pytest.mark.parametrize("mode", list(MODES))
def test_each_state_after_a_power_cut(tmp_path: Path, mode: str, soak: bool) -> None:
    """With a flush of each record, no acknowledged record is lost; otherwise at most the records after the last flush.
    Metadata and deletions of records are never lost.
    """
    recorded = record_load(tmp_path, **MODES[mode])
    assert len(recorded) > 700
    if soak:
        states, different, wrong = check_in_parts(check_part, tmp_path, mode)
    else:
        chosen = set(random.Random(28).sample(range(len(recorded)), SAMPLE))
        swap = next(number for number, call in enumerate(recorded.calls) if call.other.endswith(".log.swap"))
        chosen |= {swap, swap + 1}  # the compacted segment counts, and the folder is synced
        states, different, wrong = check_chosen(recorded, mode, chosen)
    print(f"{states} states, {different} of them different, of {len(recorded)} calls")
    assert not wrong, "\n".join(wrong)
    assert states == len(cuts(0)) * (len(recorded) if soak else len(chosen))


def without_metadata_syncs(calls: Sequence[Call]) -> tuple[list[Call], list[int]]:
    """Return the calls without the syncs of the metadata log, and the last call."""
    left = [call for call in calls if call.name != "sync" or not call.path.endswith(f"metadata-0/{0:020}.log")]
    return left, [len(left) - 1]


def without_syncs_after_renames(calls: Sequence[Call]) -> tuple[list[Call], list[int]]:
    """Return the calls without the syncs of a folder after a rename in it, and the marks of deleted records."""
    left = [
        call
        for before, call in pairwise([calls[0], *calls])
        if call.name != "sync" or before.name != "rename" or Path(before.other).parent != Path(call.path)
    ]
    marks = [
        number
        for number, call in enumerate(left)
        if call.name == "mark" and left[number - 1].other.endswith("/log-start-offset-checkpoint")
    ]
    return left, marks[:2]


def acknowledged_before_syncs(calls: Sequence[Call]) -> tuple[list[Call], list[int]]:
    """Return the calls with each mark that follows a sync before it, and marks of acknowledged records."""
    moved = list(calls)
    for number in range(1, len(moved)):
        before, call = moved[number - 1 : number + 1]
        if call.name == "mark" and before.name == "sync":
            moved[number - 1 : number + 1] = call, before
    marks = [
        number
        for number, (call, after) in enumerate(pairwise(moved))
        if call.name == "mark" and after.name == "sync" and "/exact-" in after.path
    ]
    return moved, marks[:2]


@pytest.mark.parametrize(
    ("defect", "found"),
    [
        (without_metadata_syncs, "__cluster_metadata-0 is missing, but"),
        (without_syncs_after_renames, "plain-0: expected a start of 1 to 1, found 0"),
        (acknowledged_before_syncs, "is lost, the log has"),
    ],
)
def test_a_defect_is_found(
    tmp_path: Path, defect: Callable[[Sequence[Call]], tuple[list[Call], list[int]]], found: str
) -> None:
    """The record of a broker without a sync, or with one after the acknowledgement, fails the check."""
    mode = "each record"
    recorded = record_load(tmp_path, **MODES[mode])
    recorded.calls, chosen = defect(recorded.calls)
    lines = check_chosen(recorded, mode, chosen).wrong
    assert any(found in line for line in lines), lines
