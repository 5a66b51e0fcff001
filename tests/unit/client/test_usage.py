"""Usage of a cluster between two looks."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client import usage
from kbroker.client.groups import CLASSIC, CommittedOffset, ListedGroup
from kbroker.client.usage import _rate
from kbroker.common.errors import Errors, KafkaError


@pytest.mark.parametrize(
    ("now", "then", "interval_s", "rate"),
    [(30, 10, 2.0, 10.0), (5, 10, 2.0, 0.0), (30, None, 2.0, None), (30, 10, None, None), (30, 10, 0.0, None)],
)
def test_the_growth_per_second(now: int, then: int | None, interval_s: float | None, rate: float | None) -> None:
    """A value that was reset has not grown; without an earlier value, or time between them, the growth is unknown."""
    assert _rate(now, then, interval_s) == rate


def test_the_times_of_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is that from start to start, unknown at the first look; a look of 40 ms took 40 ms."""
    clock = VirtualClock()
    clock.advance_ms(60_000)
    for part in ("_look_at_topics", "_look_at_groups"):
        monkeypatch.setattr(usage.UsageWatch, part, lambda *_: None)
    monkeypatch.setattr(usage.UsageWatch, "_look_at_clients", lambda *_: clock.advance_ms(40))
    watch = usage.UsageWatch(lambda: Any, Any, clock)  # type: ignore[arg-type,return-value]
    first = watch.look()
    clock.advance_ms(2460)
    second = watch.look()
    assert [(one.interval_s, one.took_ms) for one in (first, second)] == [(None, 40.0), (2.5, 40.0)]


def test_a_group_that_is_made_again_has_no_earlier_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The growth of a lag is dropped with its group, not shown for a later group of that name before its turn."""
    names: list[str] = []
    groups = SimpleNamespace(
        list_groups=lambda: [ListedGroup(name, "consumer", "Empty", CLASSIC) for name in names],
        committed=lambda name: {("t", 0): CommittedOffset(4, -1, "")},
    )
    monkeypatch.setattr(usage, "Groups", lambda cluster: groups)
    monkeypatch.setattr(usage, "GROUPS_A_LOOK", 1)
    clock = VirtualClock()
    watch = usage.UsageWatch(Any, Any, clock)  # type: ignore[arg-type]

    def looked(end: int, *listed: str) -> list[tuple[str, int | None, float | None]]:
        clock.advance_ms(1000)
        names[:], watch._ends = listed, {("t", 0): end}
        found = usage.Usage(0, 0.0, None)
        watch._look_at_groups(Any, found)  # type: ignore[arg-type]
        return [(one.group, one.lag, one.lag_per_s) for one in found.groups]

    assert looked(10, "a") == [("a", 6, None)]
    assert looked(13, "a") == [("a", 9, 3.0)]
    assert looked(13, "b") == [("b", 9, None)]
    assert looked(13, "b", "a") == [("b", 9, 0.0), ("a", None, None)]


def test_a_group_that_the_user_may_not_read_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers list groups whose offsets they do not show to the user; the others are measured."""

    def committed(name: str) -> dict[tuple[str, int], CommittedOffset]:
        if name == "secret":
            raise KafkaError(Errors.GROUP_AUTHORIZATION_FAILED, name)
        return {("t", 0): CommittedOffset(4, -1, "")}

    listed = [ListedGroup(name, "consumer", "Stable", CLASSIC) for name in ("mine", "secret")]
    groups = SimpleNamespace(list_groups=lambda: listed, committed=committed)
    monkeypatch.setattr(usage, "Groups", lambda cluster: groups)
    watch = usage.UsageWatch(Any, Any, VirtualClock())  # type: ignore[arg-type]
    watch._ends = {("t", 0): 10}
    found = usage.Usage(0, 0.0, None)
    watch._look_at_groups(Any, found)  # type: ignore[arg-type]
    assert [(one.group, one.state, one.lag) for one in found.groups] == [
        ("mine", "Stable", 6),
        ("secret", "Stable", None),
    ]
