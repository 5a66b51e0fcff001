"""Random requests of members of groups, and for their offsets, while the topics are created, grown and deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.histories import administration, consumer, offsets, share, streams, transactions
from tests.support.histories.draw import Draw
from tests.support.histories.steps import TOPICS, Reference, Step, named, topic_id

LABELS = {TOPICS[0]: "x", TOPICS[2]: "y"}  # of the topics that take the place of others
CHANGED: dict[Any, Any] = {name: named(label) for name, label in LABELS.items()} | {
    topic_id(name): administration.topic_id(label) for name, label in LABELS.items()
}
APPLIED_S = 0.3  # a broker applies a change of topics to its groups after its response


def of_changing_topics(request: Callable[[Draw], Step]) -> Callable[[Draw], Step]:
    """Return a kind of request that names the changing topics in place of others, without regular expressions.

    Kafka matches expressions ten seconds after the last match at the earliest.
    """

    def changed(draw: Draw) -> Step:
        step = request(draw)
        step.body.pop("SubscribedTopicRegex", None)
        return replace(step, body=_renamed(step.body))

    return changed


def _renamed(value: Any) -> Any:
    if isinstance(value, str | Reference):
        return CHANGED.get(value, value)
    if isinstance(value, dict):
        return {name: _renamed(each) for name, each in value.items()}
    return [_renamed(each) for each in value] if isinstance(value, list) else value


def create(draw: Draw) -> Step:
    row = {"Name": _name(draw), "NumPartitions": draw.one([1, 2, 3]), "ReplicationFactor": 1, "Configs": []}
    return _change("CreateTopics", 7, {"Topics": [row], "timeoutMs": 10_000})


def grow(draw: Draw) -> Step:
    row = {"Name": _name(draw), "Count": draw.one([2, 3, 4]), "Assignments": None}
    return _change("CreatePartitions", 3, {"Topics": [row], "TimeoutMs": 10_000})


def delete(draw: Draw) -> Step:
    return _change("DeleteTopics", 5, {"TopicNames": [_name(draw)], "TimeoutMs": 10_000})


def begin(draw: Draw) -> list[Step]:
    """Return steps that create topics."""
    return [create(draw) for _ in draw.rows(0, 1, 2, 3, 3)]


def _name(draw: Draw) -> Reference:
    return named(draw.one([*LABELS.values()]))


def _change(api: str, version: int, body: dict[str, Any]) -> Step:
    return Step(api, version, body, settles_s=APPLIED_S, settled=administration.is_there(*LABELS.values()))


consumer_heartbeat = of_changing_topics(consumer.heartbeat)
consumer_commit, consumer_fetch = of_changing_topics(consumer.commit), of_changing_topics(consumer.fetch)
share_heartbeat, share_describe = of_changing_topics(share.heartbeat), of_changing_topics(share.describe_offsets)
share_alter, share_delete = of_changing_topics(share.alter_offsets), of_changing_topics(share.delete_offsets)
streams_heartbeat = of_changing_topics(streams.heartbeat)
streams_commit, streams_fetch = of_changing_topics(streams.commit), of_changing_topics(streams.fetch)
commit, fetch, delete_offsets = map(of_changing_topics, (offsets.commit, offsets.fetch, offsets.delete))
commit_in_transaction = of_changing_topics(transactions.commit_offsets)
