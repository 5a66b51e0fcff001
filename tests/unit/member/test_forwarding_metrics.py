"""Metrics of forwarded requests, under Kafka's names."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.member.client import Client
from kbroker.member.controller_channel import Outcome
from kbroker.member.forwarding import ForwardingManager
from kbroker.observe.member_metrics import FORWARDING, ROWS
from kbroker.observe.metric_table import families
from tests.support.member import FakeChannel

PREFIX = "kafka_forwarding_manager_"


def test_times_in_percentiles() -> None:
    """A request that timed out before it was sent has no remote time."""
    channel, clock = FakeChannel(), VirtualClock()
    manager = ForwardingManager(cast("Any", channel), clock)
    source = cast("Any", SimpleNamespace(forwarding=manager))
    rows = [row for row in ROWS if row.group == FORWARDING]

    def values() -> dict[str, float]:
        found = {one.prometheus_name: list(one.collect()) for one in families(rows, source)}
        return {name.removeprefix(PREFIX): cast("float", series[0][1]) for name, series in found.items()}

    def forward(outcome: Outcome) -> None:
        manager.forward(b"request", Client("User:alice", "10.0.0.1"), lambda response: None)
        assert values()["queue_length"] == 1
        channel.sent.pop()[2](outcome)

    response = {"ErrorCode": 0, "ResponseData": b""}
    for number in range(1000):
        forward(Outcome(response, 0, None, 10 * number, 5 * number))
    assert values() == {
        "queue_length": 0,
        "queue_time_ms_p99": pytest.approx(9900, abs=70),  # a bin is 60 ms wide
        "queue_time_ms_p999": pytest.approx(9990, abs=70),
        "remote_time_ms_p99": pytest.approx(4950, abs=70),
        "remote_time_ms_p999": pytest.approx(4995, abs=70),
    }
    clock.advance_ms(120_000)
    forward(Outcome({}, 0, KafkaError(Errors.REQUEST_TIMED_OUT), 60_000))
    found = values()
    assert found["queue_time_ms_p99"] == pytest.approx(60_000, abs=70)
    assert found["remote_time_ms_p99"] != found["remote_time_ms_p99"], "expected NaN"
