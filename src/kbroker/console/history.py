"""The last ten minutes of a broker, second by second: its traffic, and the clients that quotas throttled.

A thread samples once a second while the console is in use, and ends some minutes after the last request for a page.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.loggers import get_logger
from kbroker.common.threads import new_thread

if TYPE_CHECKING:
    from kbroker.observe.broker_parts import BrokerParts
    from kbroker.quota.verdict import Verdict

logger = get_logger(__name__)

LOOK_EVERY_S = 1.0
SECONDS = 600
IN_USE_MS = 300_000  # sampling continues for this long after a request
PAUSE_MS = 30_000  # a longer time between two samples has no rate: the console was not in use
SETTLED_MS = 200  # maximum delay before a verdict enters the ring
BIN_S = 10  # length of a bin in the map of throttles
MAX_ENTITIES = 500  # maximum number of counters in that map; further counters are added up
OTHERS = "others"


class Totals(NamedTuple):
    """Counters since the broker's start, at ``time_ms`` since 1970.

    ``produce_ms``: total time of all Produces, from the last byte of the request to that of the response.
    """

    time_ms: int
    bytes_in: float
    bytes_out: float
    produce: float
    fetch: float
    other: float
    throttled: float
    refused: float
    produce_ms: float
    connections: int


class Rates(Totals):
    """Rates per second between two samples. ``produce_ms``: average, NaN without any; ``connections``: number of open
    connections at the second sample.
    """


class Throttled(NamedTuple):
    """Counter of a quota that throttled clients. ``is_shadow``: the quota is a shadow and delayed nothing."""

    quota_type: str
    user: str
    client_id: str
    address: str
    is_shadow: bool


class Bin(NamedTuple):
    """Sums over ten seconds."""

    verdicts: int
    delay_ms: int
    refused: int


class Sampler(ABC):
    """A thread that takes samples while pages need them.

    Args: ``clock``; ``name`` of the thread; ``first_s``, ``every_s``: time before the first sample, and between two;
    ``failure``: line of the log when a sample fails.
    Threads: any; ``look_once`` from one at a time. Lock: ``_lock``, also for the samples.
    """

    def __init__(self, clock: BaseClock, name: str, first_s: float, every_s: float, failure: str) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._name, self._first_s, self._every_s, self._failure = name, first_s, every_s, failure
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def look_once(self) -> None:
        """Take a sample."""

    @abstractmethod
    def _is_in_use(self) -> bool:
        """Return whether pages still need samples; under the lock."""

    def _begin(self) -> None:
        """Start the thread unless it runs; under the lock."""
        if self._thread is None and not self._stopping.is_set():
            thread = new_thread(self._name, self._run)
            thread.start()  # may fail; the next page tries again
            self._thread = thread

    def stop(self) -> None:
        """Stop sampling, and wait for a sample in progress. Idempotent."""
        self._stopping.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._stopping.wait(wait_s):
            try:
                self.look_once()
            except Exception:
                if self._stopping.wait(LOOK_EVERY_S):  # the broker was about to stop
                    return
                logger.exception(self._failure)
            with self._lock:
                if not self._is_in_use():
                    self._thread = None
                    return
            wait_s = self._every_s


class History(Sampler):
    """Counters and verdicts of the last ten minutes.

    Args: ``look`` returns the current counters, ``verdicts`` the latest verdicts; ``clock``; ``others``: called with
    each sample's time (ms since 1970), for histories of other things.
    Threads: any; ``look_once`` from one at a time.
    """

    def __init__(
        self,
        look: Callable[[], Totals],
        verdicts: Callable[[], Sequence[Verdict]],
        clock: BaseClock,
        others: Sequence[Callable[[int], None]] = (),
    ) -> None:
        super().__init__(clock, "console-history", 0.0, LOOK_EVERY_S, "the console cannot read the broker's state")
        self._look = look
        self._others = others
        self._verdicts = verdicts
        self._totals: Totals | None = None
        self._rates: deque[Rates] = deque(maxlen=SECONDS)
        self._bins: dict[Throttled, dict[int, Bin]] = {}
        self._judged_ms = -1  # verdicts up to here are in the bins
        self._missed_until_ms = -1  # verdicts before it may have left the ring unread
        self._used_ms = clock.now_ms()

    def use(self) -> None:
        """Continue sampling for some minutes, after a request for a page."""
        with self._lock:
            self._used_ms = self._clock.now_ms()
            self._begin()

    def _is_in_use(self) -> bool:
        return self._clock.now_ms() - self._used_ms <= IN_USE_MS

    # ------------------------------------------------------------ looking

    def look_once(self) -> None:
        """Take a sample."""
        found, verdicts = self._look(), self._verdicts()
        with self._lock:
            before, self._totals = self._totals, found
            if before is not None and 0 < found.time_ms - before.time_ms <= PAUSE_MS:
                self._rates.append(_rates(before, found))
            self._judge(verdicts, found.time_ms)
        for other in self._others:
            other(found.time_ms)

    def _judge(self, verdicts: Sequence[Verdict], now_ms: int) -> None:
        """Count each verdict once: those since the last sample, up to a time for which all have arrived."""
        until_ms = now_ms - SETTLED_MS
        new = [one for one in verdicts if self._judged_ms < one.time_ms <= until_ms]
        if len(new) == len(verdicts) >= 1024 and self._judged_ms >= 0:
            self._missed_until_ms = new[0].time_ms
        for one in new:
            self._add(one)
        self._judged_ms = max(self._judged_ms, until_ms)
        oldest = (now_ms // 1000 - SECONDS) // BIN_S
        for who, bins in list(self._bins.items()):
            for number in [number for number in bins if number < oldest]:
                del bins[number]
            if not bins:
                del self._bins[who]

    def _add(self, one: Verdict) -> None:
        address = one.address if one.quota_type == "ConnectionRate" else ""
        who = Throttled(one.quota_type, one.user, one.client_tag, address, one.is_shadow)
        if who not in self._bins and len(self._bins) >= MAX_ENTITIES:
            who = Throttled(one.quota_type, OTHERS, OTHERS, "", who.is_shadow)
        bins = self._bins.setdefault(who, {})
        number = one.time_ms // 1000 // BIN_S
        verdicts, delay_ms, refused = bins.get(number, (0, 0, 0))
        delay_ms += one.delay_served_ms  # for a shadow: the delay it would have caused
        bins[number] = Bin(verdicts + 1, delay_ms, refused + one.refused)

    # ------------------------------------------------------------ values for pages

    @property
    def latest(self) -> Rates | None:
        """The rates of the last sample; None before the second sample, and after a pause."""
        oldest_ms = self._clock.epoch_ms() - PAUSE_MS
        with self._lock:
            return self._rates[-1] if self._rates and self._rates[-1].time_ms >= oldest_ms else None

    def rates(self, since_ms: int = 0) -> list[Rates]:
        """Return the rates of samples after a time, the oldest first."""
        with self._lock:
            return [one for one in self._rates if one.time_ms > since_ms]

    def throttled(self) -> dict[Throttled, dict[int, Bin]]:
        """Return the bins of each throttled client, by number (seconds since 1970 divided by ``BIN_S``)."""
        with self._lock:
            return {who: dict(bins) for who, bins in self._bins.items()}

    @property
    def missed_until_ms(self) -> int:
        """Verdicts before this time may be missing, because at least 1024 came within a second; -1: none."""
        with self._lock:
            return self._missed_until_ms


def _rates(before: Totals, after: Totals) -> Rates:
    seconds = (after.time_ms - before.time_ms) / 1000

    names = ("bytes_in", "bytes_out", "produce", "fetch", "other", "throttled", "refused")
    grown = (max(0, getattr(after, name) - getattr(before, name)) / seconds for name in names)
    produced = after.produce - before.produce
    produce_ms = (after.produce_ms - before.produce_ms) / produced if produced > 0 else math.nan
    return Rates._make((after.time_ms, *grown, produce_ms, after.connections))


def broker_totals(parts: BrokerParts) -> Totals:
    """Return the counters of a running broker; takes the leaf locks of its counters, one after the other."""
    counters = [processor.counters() for processor in parts.server.processors]
    by_api = {"Produce": 0, "Fetch": 0}
    other, produce_ms = 0, 0.0
    for table in parts.server.request_metrics:
        for slot, figures in table.snapshot().items():
            name = parts.api_names.get(slot)
            if name in by_api:
                by_api[name] += figures["count"]
                produce_ms += figures["times"]["TotalTimeMs"][0] if name == "Produce" else 0
            elif name is not None:
                other += figures["count"]
    totals = parts.ctx.quotas.verdict_totals().values()
    return Totals(
        parts.ctx.clock.epoch_ms(),
        _sum(counters, "bytes_received"),
        _sum(counters, "bytes_sent"),
        by_api["Produce"],
        by_api["Fetch"],
        other,
        sum(delayed for delayed, _ in totals),
        sum(refused for _, refused in totals),
        produce_ms,
        _sum(counters, "connections_created") - _sum(counters, "connections_closed"),
    )


def _sum(counters: Iterable[dict[str, int]], name: str) -> int:
    return sum(one[name] for one in counters)
