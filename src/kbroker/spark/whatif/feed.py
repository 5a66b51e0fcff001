"""Replay of the rows of a request log in this process: the delays that a set of quotas would have caused.

It is an open loop: the clients of the log do not react. A delayed client would have sent less afterwards; here it
sends all that the log records, so there are too many delays rather than too few. Counters begin cold, as after the
start of a broker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kbroker.spark.whatif._replay import Counters
from kbroker.spark.whatif.quota_set import Judge, QuotaSet, Tags
from kbroker.spark.whatif.read import Array, Client, Events, Held, Log, clients_of

OPEN_LOOP = "open loop: clients do not react to these delays, as real ones would"
#: Fetch last: the subtracted bytes depend on the other delays too, and nothing depends on Fetch.
ORDER = ("Request", "Produce", "ControllerMutation", "Fetch")


@dataclass(frozen=True)
class Windows:
    """Settings of the broker: quota.window.num, quota.window.size.seconds, and the same of the controller's quota."""

    samples: int = 11
    seconds: int = 1
    controller_samples: int = 11
    controller_seconds: int = 1

    def counters(self, *, expires: bool = True) -> Counters:
        """Return cold counters with these windows. Args: `expires`: whether idle counters become cold."""
        return Counters(
            samples=self.samples,
            window_ms=self.seconds * 1000,
            controller_samples=self.controller_samples,
            controller_window_ms=self.controller_seconds * 1000,
            expires=expires,
        )


@dataclass
class Delays:
    """The values of one type of quota, and the delay of each."""

    quota_type: str
    events: Events
    delay_ms: Array


@dataclass
class Outcome:
    """Result of the replay of a table. `served_ms`: by row, the throttle time that the client would have received."""

    log: Log
    client: Array  # index in `clients` of each row
    clients: list[Client]
    judges: dict[str, list[Judge]]  # judge of each of `clients`, by quota type
    delays: list[Delays]
    served_ms: Array


class Replay:
    """Counters under a set of quotas, which keep their state from one table to the next.

    Threads: one at a time.
    """

    def __init__(self, quotas: QuotaSet, windows: Windows | None = None) -> None:
        self.quotas = quotas
        self.counters = (windows or Windows()).counters()
        self._numbers: dict[Tags, int] = {}
        self._held = {kind: Held() for kind in quotas.types}
        self._judges: dict[str, dict[Client, Judge]] = {kind: {} for kind in quotas.types}

    def feed(self, table: pa.Table, until_ms: int | None = None) -> Outcome:
        """Replay the rows of a table in order of time, and return their delays.

        Args: `until_ms`: time at which the next table begins; values that are counted from then on wait for it.
        """
        log = Log(table)
        client, clients = clients_of(log.table)
        judges = {kind: [self._judge(kind, names) for names in clients] for kind in self.quotas.types}
        served = np.zeros(log.table.num_rows, np.int32)
        delays = []
        for quota_type in ORDER:
            if quota_type not in judges:
                continue
            by_row = np.array([self._number(judge) for judge in judges[quota_type]], np.int32)[client]
            events = log.events(quota_type, by_row)
            events, counter = self._held[quota_type].with_held(events, by_row[events.row], until_ms)
            delay = np.zeros(len(events), np.int32)
            self.counters.run(counter, events.time_ms, events.value, events.action, events.row, delay, served)
            delays.append(Delays(quota_type, events, delay))
        return Outcome(log, client, clients, judges, delays, served)

    def _judge(self, kind: str, client: Client) -> Judge:
        """Return the counter of a client's values; the quotas are searched once for each client."""
        known = self._judges[kind]
        found = known.get(client)
        if found is None:
            found = known[client] = self.quotas.judge(kind, *client)
        return found

    def _number(self, judge: Judge) -> int:
        """Return the number of a counter, a new one if necessary; -1 without a limit, since counting has no effect."""
        if judge.limit is None:
            return -1
        number = self._numbers.get(judge.tags)
        if number is None:
            number = self._numbers[judge.tags] = self.counters.add(judge.tags.quota_type, judge.limit)
        return number
