"""History of the last ten minutes: rates between two samples, and verdicts that count once."""

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.console.connections import Identity
from kbroker.console.history import BIN_S, MAX_ENTITIES, OTHERS, SECONDS, SETTLED_MS, History, Throttled, Totals
from kbroker.console.requests import Query
from kbroker.console.site import Local, Parts, Site
from kbroker.console.views.throttles import SHADES, throttles
from kbroker.quota.verdict import Verdict
from tests.support.errors import raising
from tests.support.fixtures import fixture_of

T0 = 1_700_000_000_000
SECOND = 1000


def verdict(time_ms: int, client: str = "c", delay: int = 10, kind: str = "Produce", refused: bool = False) -> Verdict:
    return Verdict(
        time_ms, "User:u", client, "10.0.0.1", "conn", 0, kind, "u", client, 1, 2.0, 1.0, 1000, delay, delay, refused
    )


class Rig:
    def __init__(self) -> None:
        self.clock = VirtualClock(T0)
        self.totals = Totals(T0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0)
        self.verdicts: list[Verdict] = []
        self.history = History(lambda: self.totals, lambda: self.verdicts, self.clock)

    def look(self, at_ms: int, **counters: Any) -> None:
        self.totals = self.totals._replace(time_ms=at_ms, **counters)
        self.history.look_once()


rig = fixture_of(Rig)


def test_rates_are_of_the_time_that_passed(rig: Rig) -> None:
    rig.look(T0)
    assert rig.history.latest is None
    rig.look(T0 + 2 * SECOND, bytes_in=4000, produce=10, produce_ms=25.0, connections=3)
    found = rig.history.latest
    assert found is not None
    assert (found.bytes_in, found.produce, found.produce_ms, found.connections) == (2000.0, 5.0, 2.5, 3)
    rig.look(T0 + 3 * SECOND)
    assert rig.history.latest is not None
    assert math.isnan(rig.history.latest.produce_ms)
    assert [one.time_ms for one in rig.history.rates(T0 + 2 * SECOND)] == [T0 + 3 * SECOND]


def test_a_pause_has_no_rate(rig: Rig) -> None:
    """The first page after a pause shows neither old rates nor the average of the pause as the current ones."""
    rig.look(T0)
    rig.look(T0 + SECOND, bytes_in=1000)
    rig.clock.advance_ms(3600 * SECOND)
    assert rig.history.latest is None
    rig.look(T0 + 3600 * SECOND, bytes_in=2000)
    assert rig.history.latest is None
    rig.look(T0 + 3601 * SECOND, bytes_in=2500)
    assert [one.bytes_in for one in rig.history.rates()] == [1000.0, 500.0]


def test_ten_minutes_are_kept(rig: Rig) -> None:
    for second in range(SECONDS + 50):
        rig.look(T0 + second * SECOND)
    assert len(rig.history.rates()) == SECONDS


def test_a_counter_that_begins_again_is_not_negative(rig: Rig) -> None:
    rig.look(T0, bytes_in=100)
    rig.look(T0 + SECOND, bytes_in=5)
    assert rig.history.rates()[-1].bytes_in == 0


def test_each_verdict_is_counted_once(rig: Rig) -> None:
    """A verdict of the current moment is counted by a later sample, even if the ring shows it many times."""
    rig.verdicts = [verdict(T0 - 5), verdict(T0), verdict(T0 + 1, refused=True)]
    rig.look(T0 + 1)
    rig.look(T0 + 1 + SETTLED_MS)
    rig.verdicts.append(verdict(T0 + SETTLED_MS, delay=7))
    for second in range(1, 5):
        rig.look(T0 + second * SECOND)
    ((who, bins),) = rig.history.throttled().items()
    assert who == Throttled("Produce", "u", "c", "", False)
    assert sum(one.verdicts for one in bins.values()) == 4
    assert sum(one.delay_ms for one in bins.values()) == 37
    assert sum(one.refused for one in bins.values()) == 1
    assert set(bins) <= {T0 // SECOND // BIN_S + n for n in (-1, 0, 1)}


def test_what_is_counted_is_the_delay_that_was_served(rig: Rig) -> None:
    """The delay after the cap counts, and for a shadow quota the delay that it would have caused."""
    capped = verdict(T0, kind="Request")._replace(delay_asked_ms=535_000, delay_served_ms=1000)
    rig.verdicts = [capped, capped._replace(is_shadow=True)]
    rig.look(T0 + SECOND)
    found = rig.history.throttled()
    assert sorted(bin.delay_ms for bins in found.values() for bin in bins.values()) == [1000, 1000]


def test_a_shadow_does_not_make_what_is_enforced_pale(rig: Rig) -> None:
    """Shadows have their own scale, since no client waits for them and their delays are far longer."""
    rig.verdicts = [verdict(T0, delay=1000), verdict(T0, delay=10**9)._replace(is_shadow=True)]
    rig.look(T0 + SECOND)
    broker = SimpleNamespace(clock=SimpleNamespace(epoch_ms=lambda: T0 + SECOND), verdicts=rig.verdicts)
    parts = Parts(None, broker.clock, None, Local(broker, rig.history, None), "", False, T0, None)  # type: ignore[arg-type]
    values = throttles(Site(parts, Identity("User:ANONYMOUS", "127.0.0.1"), None), Query({})).values  # type: ignore[arg-type]
    assert [(row.is_shadow, [cell.shade for cell in row.cells]) for row in values["part"].rows] == [
        (False, [SHADES]),
        (True, [SHADES]),
    ]
    assert values["scales"] == [(False, "1.0 s"), (True, "11 d 13 h")]


def test_old_bins_are_forgotten(rig: Rig) -> None:
    rig.verdicts = [verdict(T0)]
    rig.look(T0 + SECOND)
    rig.verdicts = []
    rig.look(T0 + (SECONDS + 2 * BIN_S) * SECOND)
    assert rig.history.throttled() == {}


def test_entities_are_bounded(rig: Rig) -> None:
    rig.verdicts = [verdict(T0, client=f"c{n}") for n in range(MAX_ENTITIES + 100)]
    rig.look(T0 + SECOND)
    found = rig.history.throttled()
    assert len(found) == MAX_ENTITIES + 1
    assert sum(one.verdicts for one in found[Throttled("Produce", OTHERS, OTHERS, "", False)].values()) == 100


def test_verdicts_that_have_left_the_ring_are_not_hidden(rig: Rig) -> None:
    rig.verdicts = [verdict(T0) for _ in range(1024)]
    rig.look(T0 + SECOND)
    assert rig.history.missed_until_ms == -1, "the first sample has no earlier verdicts to compare"
    rig.verdicts = [verdict(T0 + SECOND + 5) for _ in range(1024)]
    rig.look(T0 + 2 * SECOND)
    assert rig.history.missed_until_ms == T0 + SECOND + 5


def test_a_thread_that_cannot_start(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page tries again, and a stop has nothing to wait for."""
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start"):
                rig.history.use()
    rig.history.stop()


def test_its_thread_ends_when_asked_to(rig: Rig) -> None:
    rig.history.use()
    rig.history.stop()
    rig.history.use()
    rig.history.stop()
