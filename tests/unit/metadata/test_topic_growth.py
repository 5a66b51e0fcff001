"""Topics that get many partitions while other requests change topics."""

import threading
from typing import Any

import pytest

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.topic_growth import ADDED_AT_ONCE
from kbroker.metadata.topic_rules import NewTopic
from tests.support.meanwhile import Meanwhile
from tests.support.metadata import store_configs
from tests.support.server import Bench, FakeLog

COUNT = 4 * ADDED_AT_ONCE
TOPIC = ConfigResourceType.TOPIC


def grow(bench: Bench) -> Errors:
    try:
        bench.ctx.topics.add_partitions("t", COUNT)
    except KafkaError as error:
        return error.error
    return Errors.NONE


def of_topic(bench: Bench, name: str) -> list[int]:
    return sorted(index for topic, index in bench.logs.open if topic == name)


@pytest.fixture
def topics(bench: Bench) -> Bench:
    """Two topics: t, with one partition, and other."""
    bench.ctx.topics.create_all([NewTopic("t", 1), NewTopic("other", 1)])
    return bench


def test_changes_of_other_topics_do_not_wait(topics: Bench) -> None:
    """A config change is in force before the next run of partitions, even for the growing topic."""
    seen: list[str | None] = []

    def change(name: str) -> None:
        store_configs(topics.ctx.controller, TOPIC, name, {"retention.ms": "5000"})
        view = topics.ctx.topics.get(name)
        assert view is not None
        seen.append(view.configs.get("retention.ms"))

    meanwhile = Meanwhile(topics, {1: lambda: change("other"), 2: lambda: change("t")})
    assert grow(topics) is Errors.NONE
    meanwhile.join()
    assert seen == ["5000", "5000"]
    assert [len(run) for run in meanwhile.runs] == [ADDED_AT_ONCE] * 3 + [ADDED_AT_ONCE - 1]
    assert meanwhile.configs[1:] == [604_800_000, 5000, 5000]
    assert {log.configs["retention.ms"] for (name, _), log in topics.logs.open.items() if name == "t"} == {5000}
    view = topics.ctx.topics.get("t")
    assert view is not None
    assert view.partitions == tuple(topics.logs.open["t", index] for index in range(COUNT))


def test_a_topic_that_is_deleted_meanwhile(topics: Bench) -> None:
    """The request fails, and no log of the topic is left."""
    meanwhile = Meanwhile(topics, {2: lambda: topics.ctx.topics.delete("t")})
    assert grow(topics) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    meanwhile.join()
    assert len(meanwhile.runs) == 2
    assert (topics.ctx.topics.get("t"), of_topic(topics, "t"), of_topic(topics, "other")) == (None, [], [0])


@pytest.mark.parametrize("last", [1, 4])
def test_a_topic_that_is_recreated_meanwhile(topics: Bench, last: int) -> None:
    """The request fails, and the new topic keeps all its logs, none of which is the deleted topic's."""

    def recreate() -> None:
        with topics.ctx.topics.lock:  # the request finds the new topic before it fails
            topics.ctx.topics.delete("t")
            topics.ctx.topics.create(NewTopic("t", COUNT))

    old = topics.ctx.topics.get("t")
    meanwhile = Meanwhile(topics, {last: recreate})
    assert grow(topics) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    meanwhile.join()
    new = topics.ctx.topics.get("t")
    assert old is not None
    assert new is not None
    assert of_topic(topics, "t") == list(range(COUNT))
    assert {log.topic_id for log in new.partitions} == {new.topic_id} != {old.topic_id}


def test_a_disk_that_fails_late(topics: Bench) -> None:
    """The logs of all runs are removed, and the topic can grow once the disk is repaired."""
    topics.logs.fail_at = ("t", COUNT - 1)
    assert grow(topics) is Errors.KAFKA_STORAGE_ERROR
    assert of_topic(topics, "t") == [0]
    topics.logs.fail_at = None
    assert grow(topics) is Errors.NONE
    assert of_topic(topics, "t") == list(range(COUNT))


def test_a_topic_grows_once_at_a_time(topics: Bench) -> None:
    """A second request for the topic is checked after the first, like a later request."""
    results: list[Errors] = []
    second = threading.Thread(target=lambda: results.append(grow(topics)))
    create = topics.logs.create_partitions

    def begin(*args: Any) -> list[FakeLog]:
        if not second.ident:
            second.start()
        return create(*args)

    topics.logs.create_partitions = begin  # type: ignore[assignment, method-assign]
    assert grow(topics) is Errors.NONE
    second.join(10)
    assert results == [Errors.INVALID_PARTITIONS]
    assert of_topic(topics, "t") == list(range(COUNT))
