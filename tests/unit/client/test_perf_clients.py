"""Clients whose throughput and latency are measured."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.perf_clients import LibrdkafkaConsumer


def test_the_time_of_each_rebalance_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which the consumer had its partitions is not time of a rebalance, as in Kafka's tool."""
    subscribed: dict[str, Any] = {}
    consumer = SimpleNamespace(subscribe=lambda topics, **callbacks: subscribed.update(callbacks))
    module = SimpleNamespace(Consumer=lambda config: consumer, TopicPartition=None, KafkaException=ValueError)
    monkeypatch.setitem(sys.modules, "confluent_kafka", module)
    clock = VirtualClock(0)
    measured = LibrdkafkaConsumer({}, "t", clock)
    clock.advance_ms(3000)
    subscribed["on_assign"](consumer, [])
    clock.advance_ms(60_000)
    subscribed["on_revoke"](consumer, [])
    clock.advance_ms(2000)
    subscribed["on_assign"](consumer, [])
    assert measured.join_s == 5.0
