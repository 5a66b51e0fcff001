"""Mixed load whose system calls are recorded, and the state that is certain after each call.

    python -m tests.support.recorded_load PLACE CONTROL SETTINGS

PLACE is an empty folder for the record and the states; CONTROL is the control file of `disk_calls.py`, whose library is
preloaded; SETTINGS are the broker's, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kbroker.broker import Broker
from tests.support.cut_states import Position, positions
from tests.support.disk_calls import Control, DiskCalls
from tests.support.disk_states import read_record
from tests.support.folder_contents import settings_of
from tests.support.mixed_load import ACKED, UNCERTAIN, Expected, Load

ROOT = Path(__file__).resolve().parents[2]
DATA, RECORD, STATES = "data", "record", "states"


def record_load(place: Path, **settings: object) -> Recorded:
    """Run the load in a process whose system calls are recorded."""
    disk = DiskCalls(place, place / DATA)
    command = [sys.executable, "-m", "tests.support.recorded_load", str(place), disk.environment["DISK_CALLS"]]
    subprocess.run([*command, json.dumps(settings)], cwd=ROOT, env={**os.environ, **disk.environment}, check=True)
    return Recorded(place)


class Recorded:
    """Recorded load. Args: ``place``: the folder of the record."""

    def __init__(self, place: Path) -> None:
        self.calls = list(read_record(place / RECORD))
        self._root = str(place / DATA)
        self._states = [Expected.from_json(line) for line in (place / STATES).read_text().splitlines()]

    def __len__(self) -> int:
        return len(self.calls)

    def states(self) -> Iterator[Position]:
        """Return the position after each call, with the certain state as its facts."""
        return positions(self.calls, self._root, self._between(-1), self._between)

    def _between(self, number: int) -> Expected:
        """Return the state that is certain after a mark while the next step is in progress."""
        if number < 0:
            return Expected()
        made = self._states[number].copy()
        for state in self._states[number + 1 : number + 2]:
            for fact, values in state.facts.items():
                if values != made.facts.get(fact):
                    made.facts[fact] = [*made.facts.get(fact, [None, False]), *values]
            for log, (_, high) in state.starts.items():
                made.starts[log] = (made.starts.get(log, (0, 0))[0], high)
        for log, rows in self._states[-1].sent.items():
            sent = made.sent.setdefault(log, [])
            known = {one.value for one in sent if one.outcome == ACKED}
            sent[:] = [one for one in sent if one.value in known]
            sent += [one._replace(outcome=UNCERTAIN, offset=-1) for one in rows if one.value not in known]
        return made


def main() -> None:
    place, control, settings = Path(sys.argv[1]), Control(Path(sys.argv[2])), json.loads(sys.argv[3])
    (place / DATA).mkdir()
    control.set(root=place / DATA, record=place / RECORD)
    with Broker(settings_of(place / DATA, **settings)) as broker:
        load = Load(broker, is_recorded=True)
        load.set_up()
        for number in (1, 2, 3):
            load.round(number)
            if "log__flush__interval__ms" in settings:
                load.wait_for_flushes()
        load.close()
    assert load.failing_steps() == {}
    (place / STATES).write_text("\n".join(state.to_json() for state in load.states))


if __name__ == "__main__":
    main()
