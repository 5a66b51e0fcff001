"""Client metrics subscriptions: their clients, and the metrics and interval of a client that several of them match.

Source: ``ClientMetricsConfigs``, ``ClientMetricsInstanceMetadata``, ``ClientMetricsManager.createClientInstance``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from kbroker._core.codec.crc32c import crc32c
from kbroker.common.configs.config_resources import CLIENT_METRICS_TABLE, match_parts
from kbroker.common.java._string_hash import string_hash
from kbroker.common.java.java_hash import hash_map_order, hash_order, uuid_hash
from kbroker.common.java.linear_pattern import LinearPattern, PatternError
from kbroker.common.loggers import get_logger

logger = get_logger(__name__)

ALL_METRICS = "*"
_RESERVED = frozenset({UUID(int=0), UUID(int=1)})  # Kafka's Uuid.RESERVED

#: Properties of a client by the names that ``match`` has for them; None: the client has not sent it.
ClientFacts = Mapping[str, str | None]


class Subscription(NamedTuple):
    """One client metrics subscription. ``match``: tests of the texts of a client's properties, by property name."""

    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Callable[[str], bool]]

    def matches(self, client: ClientFacts) -> bool:
        """Return whether every pattern matches; without patterns each client matches."""
        return all((text := client.get(name)) is not None and test(text) for name, test in self.match.items())


class Requested(NamedTuple):
    """Metrics that a client pushes, in the order of Kafka's response, and its push interval."""

    metrics: list[str]
    interval_ms: int

    def subscription_id(self, client_instance_id: UUID) -> int:
        """Return the id of this set of metrics for a client, a signed int of 32 bits."""
        text = f"[{', '.join(self.metrics)}]{self.interval_ms}"
        value = crc32c(text.encode(errors="replace")) ^ uuid_hash(client_instance_id)
        return value - (1 << 32) if value & 0x80000000 else value


def subscription_of(name: str, configs: Mapping[str, str]) -> Subscription:
    """Return the subscription of stored configs, which were validated when they were set."""
    values = {
        key: row.parse(configs[key]) if key in configs else row.default for key, row in CLIENT_METRICS_TABLE.items()
    }
    match, metrics, interval_ms = values["match"], values["metrics"], values["interval.ms"]
    assert isinstance(match, tuple)
    assert isinstance(metrics, tuple)
    assert isinstance(interval_ms, int)
    patterns = dict(match_parts(str(word)) for word in match)  # of two with the same name, Kafka uses the last one
    return Subscription(name, metrics, interval_ms, {key: _tester(name, text) for key, text in patterns.items()})


def requested_metrics(subscriptions: Iterable[Subscription], client: ClientFacts) -> Requested:
    """Return the metrics and interval of a client by all subscriptions that match it."""
    interval_ms = CLIENT_METRICS_TABLE["interval.ms"].default
    assert isinstance(interval_ms, int)
    metrics: dict[str, None] = {}
    by_name = {one.name: one for one in subscriptions}
    for name in hash_map_order(by_name):
        one = by_name[name]
        if one.matches(client):
            metrics.update(dict.fromkeys(hash_order(dict.fromkeys(one.metrics), string_hash, is_presized=True)))
            interval_ms = min(interval_ms, one.interval_ms)
    return Requested([ALL_METRICS] if ALL_METRICS in metrics else hash_map_order(metrics), interval_ms)


def is_reserved(client_instance_id: UUID) -> bool:
    """Return whether no client can have this id."""
    return client_instance_id in _RESERVED


def _tester(subscription: str, pattern: str) -> Callable[[str], bool]:
    """Return the test for a whole text.

    The test takes linear time if the pattern permits it, because clients choose the texts.
    """
    try:
        linear = LinearPattern(pattern)
    except PatternError:
        return _backtracking_tester(subscription, pattern)

    def test(text: str) -> bool:
        linear.steps = 0  # the limit is for one text
        try:
            return linear.matches(text)
        except PatternError as error:
            logger.warning("client metrics subscription %s does not match a client: %s", subscription, error)
            return False

    return test


def _backtracking_tester(subscription: str, pattern: str) -> Callable[[str], bool]:
    """Return the test of a pattern with look-around or back-references."""
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        logger.warning("client metrics subscription %s matches no client: pattern %r: %s", subscription, pattern, error)
        return lambda text: False
    return lambda text: compiled.fullmatch(text) is not None
