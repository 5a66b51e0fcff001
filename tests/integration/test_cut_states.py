"""Power cut at every call of a recorded load: a broker starts on each state that the file system may leave.

`test_power_cut.py` cuts real file systems after each acknowledgement; here the order of the calls, the written sectors
and the names on the disk vary as far as POSIX allows.
"""

import random
import shutil
from pathlib import Path

import pytest

from kbroker.broker import Broker, BrokerStartError
from kbroker.log.tools.verify import verify
from tests.support.disk_states import cuts
from tests.support.folder_contents import Keeps, captured, differences, settings_of
from tests.support.recorded_load import record_load

SAMPLE = 3  # calls per test
MODES: dict[str, dict[str, object]] = {
    "each record": {"log__flush__interval__messages": 1},
    "interval": {"log__flush__interval__ms": 1},
    "default": {},
}
# : Lines about a partition that has lost records before others.
DAMAGED = ("is damaged and takes no appends", "no batch has the offsets")

pytestmark = pytest.mark.slow


def check(folder: Path, settings: dict[str, object], keeps: Keeps, expected: object) -> list[str]:
    """Start a broker on the folder; return the differences from the guaranteed state, and tracebacks.

    A segment that was rolled and not yet synced may have lost its end while the next one exists: without a flush of
    each record, a partition may lack records before others, and the log must name the partition.
    """
    with captured() as lines, Broker(settings_of(folder, **settings)) as broker:
        found = differences(broker, expected, keeps=keeps)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("mode", list(MODES))
def test_each_state_after_a_power_cut(tmp_path: Path, mode: str, soak: bool) -> None:
    """With a flush of each record, no acknowledged record is lost; otherwise at most the records after the last flush.
    Metadata and deletions of records are never lost.
    """
    settings = MODES[mode]
    recorded = record_load(tmp_path, **settings)
    assert len(recorded) > 700
    numbers = [number for number, call in enumerate(recorded.calls) if call.name != "mark"]
    chosen = set(numbers if soak else random.Random(28).sample(numbers, SAMPLE))
    folder = tmp_path / "cut"
    states, wrong = 0, list[str]()
    for number, disk, expected in recorded.states():
        for cut in cuts(number) if number in chosen else ():
            shutil.rmtree(folder, ignore_errors=True)
            disk.write(folder, cut)
            states += 1
            found = check(folder, settings, Keeps(mode == "each record", expected.flushed), expected)
            wrong += [f"call {number}, {cut.name}: {one}" for one in found]
    print(f"{states} states of {len(recorded)} calls")
    assert states == len(cuts(0)) * len(chosen)
    assert wrong == []


def test_a_sync_left_out_is_found(tmp_path: Path) -> None:
    """Without the syncs of the metadata log, a start finds partitions without metadata: the model detects a missing
    sync.
    """
    settings = MODES["each record"]
    recorded = record_load(tmp_path, **settings)
    unsynced = f"metadata-0/{0:020}.log"
    recorded.calls[:] = [call for call in recorded.calls if call.name != "sync" or not call.path.endswith(unsynced)]
    *_, (number, disk, expected) = recorded.states()
    (nothing,) = (cut for cut in cuts(number) if cut.name == "nothing is kept")
    disk.write(tmp_path / "cut", nothing)
    with pytest.raises(BrokerStartError, match="__cluster_metadata-0 is missing, but"):
        check(tmp_path / "cut", settings, Keeps(True, {}), expected)
