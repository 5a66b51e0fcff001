"""New topics with many partitions while other requests change topics."""

import threading
from collections.abc import Callable

import pytest

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import OFFSETS_TOPIC
from kbroker.metadata.topic_growth import ADDED_AT_ONCE
from kbroker.metadata.topic_rules import NewTopic
from kbroker.metadata.topics import CREATED_AT_ONCE
from kbroker.testing.waiting import wait_until
from tests.support.errors import raising
from tests.support.meanwhile import Meanwhile
from tests.support.metadata import store_configs
from tests.support.server import Bench

COUNT = 4 * ADDED_AT_ONCE
TOPIC = ConfigResourceType.TOPIC


def create(bench: Bench, name: str = "t", count: int = COUNT) -> Errors:
    try:
        bench.ctx.topics.create(NewTopic(name, count))
    except KafkaError as error:
        return error.error
    return Errors.NONE


def of_topic(bench: Bench, name: str = "t") -> list[int]:
    return sorted(index for topic, index in bench.logs.open if topic == name)


def served(bench: Bench, name: str = "t") -> int:
    """Return the number of served partitions, after a check that each has its open log."""
    view = bench.ctx.topics.get(name)
    if view is None:
        return 0
    assert view.partitions == tuple(bench.logs.open[name, index] for index in range(len(view.partitions)))
    assert len(view.registrations) == len(view.partitions)
    return len(view.partitions)


@pytest.fixture
def topics(bench: Bench) -> Bench:
    """A topic other, with one partition."""
    bench.ctx.topics.create(NewTopic("other", 1))
    return bench


def test_changes_of_other_topics_do_not_wait(topics: Bench) -> None:
    """Configs and a new topic are in force before the next run of partitions."""
    seen: list[object] = []

    def change(name: str) -> None:
        store_configs(topics.ctx.controller, TOPIC, name, {"retention.ms": "5000"})
        view = topics.ctx.topics.get(name)
        seen.append(None if view is None else view.configs.get("retention.ms"))

    meanwhile = Meanwhile(
        topics, {1: lambda: change("other"), 2: lambda: change("t"), 3: lambda: create(topics, "new", 1)}
    )
    assert create(topics) is Errors.NONE
    meanwhile.join()
    assert seen == ["5000", None]
    opened = list(topics.logs.open)
    assert opened[opened.index(("new", 0)) + 1 :] == [("t", index) for index in meanwhile.runs[-1]]
    assert [len(run) for run in meanwhile.runs] == [ADDED_AT_ONCE] * 4
    assert meanwhile.configs == [604_800_000, 604_800_000, 5000, 5000]
    assert {log.configs["retention.ms"] for (name, _), log in topics.logs.open.items() if name == "t"} == {5000}
    assert served(topics) == COUNT


def test_an_error_while_a_topic_is_put_in_force(topics: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the error the topic no longer counts as being opened."""
    monkeypatch.setattr(topics.ctx.topics, "_note_isr", raising(RuntimeError("no service")))
    with pytest.raises(RuntimeError, match="no service"):
        create(topics)
    assert not topics.ctx.topics._opening.names


def test_configs_that_are_changed_back_meanwhile(topics: Bench) -> None:
    """No log keeps the configs that were in force while it was made: those of the topic, and of the broker."""

    def change(retention_ms: str, bytes_: int) -> None:
        with topics.ctx.topics.lock:  # once, so that both are in force before the next run
            store_configs(topics.ctx.controller, TOPIC, "t", {"retention.ms": retention_ms})
            topics.ctx.config.set_dynamic({"log.segment.bytes": str(bytes_)}, {})
            topics.ctx.topics.refresh_configs()

    meanwhile = Meanwhile(topics, {1: lambda: change("5000", 1 << 21), 2: lambda: change("604800000", 1 << 30)})
    assert create(topics) is Errors.NONE
    meanwhile.join()
    assert meanwhile.configs == [604_800_000, 5000, 604_800_000, 604_800_000]
    logs = [log for (name, _), log in topics.logs.open.items() if name == "t"]
    assert {(log.configs["retention.ms"], log.configs["segment.bytes"]) for log in logs} == {(604_800_000, 1 << 30)}


def test_a_topic_that_is_deleted_meanwhile(topics: Bench) -> None:
    """The topic was created and deleted: no log of it is left."""
    meanwhile = Meanwhile(topics, {2: lambda: topics.ctx.topics.delete("t")})
    assert create(topics) is Errors.NONE
    meanwhile.join()
    assert len(meanwhile.runs) == 2
    assert (served(topics), of_topic(topics), served(topics, "other")) == (0, [], 1)


@pytest.mark.parametrize("last", [1, 3])
def test_a_topic_that_is_recreated_meanwhile(topics: Bench, last: int) -> None:
    """The new topic keeps all its logs, none of which is the deleted topic's."""

    def recreate() -> None:
        topics.ctx.topics.delete("t")
        assert create(topics) is Errors.NONE

    meanwhile = Meanwhile(topics, {last: recreate})
    assert create(topics) is Errors.NONE
    meanwhile.join()
    view = topics.ctx.topics.get("t")
    assert view is not None
    assert served(topics) == COUNT
    assert of_topic(topics) == list(range(COUNT))
    assert {log.topic_id for log in view.partitions} == {view.topic_id}


def test_a_topic_that_grows_meanwhile(topics: Bench) -> None:
    meanwhile = Meanwhile(topics, {2: lambda: topics.ctx.topics.add_partitions("t", COUNT + 3)})
    assert create(topics) is Errors.NONE
    meanwhile.join()
    assert served(topics) == COUNT + 3


def test_another_request_for_the_topic(topics: Bench) -> None:
    """Another request for the topic neither waits for the logs nor occupies a thread; the topic is not in force."""
    errors: list[Errors] = []
    meanwhile = Meanwhile(topics, {2: lambda: errors.append(create(topics))})
    make = topics.logs.create_partitions

    def note(topic: str, indexes: range, *rest: object) -> object:
        if len(meanwhile.runs) == 3:  # before the last run
            wait_until(lambda: len(errors) == 1)
        return make(topic, indexes, *rest)  # type: ignore[arg-type]

    topics.logs.create_partitions = note  # type: ignore[method-assign, assignment]
    assert create(topics) is Errors.NONE
    meanwhile.join()
    assert errors == [Errors.TOPIC_ALREADY_EXISTS]
    assert served(topics) == COUNT


def test_automatic_creation_of_the_topic(topics: Bench) -> None:
    """Metadata requests, which clients repeat, do not even wait for a run to end."""
    errors: list[int] = []
    make = topics.logs.create_partitions

    def ask() -> None:
        response = topics.ask("Metadata", 8, {"Topics": [{"Name": "t"}], "AllowAutoTopicCreation": True})
        errors.append(response["Topics"][0]["ErrorCode"])

    def note(topic: str, indexes: range, *rest: object) -> object:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        return make(topic, indexes, *rest)  # type: ignore[arg-type]

    topics.logs.create_partitions = note  # type: ignore[method-assign, assignment]
    assert create(topics) is Errors.NONE
    assert errors == [Errors.UNKNOWN_TOPIC_OR_PARTITION] * 4
    assert served(topics) == COUNT


@pytest.mark.parametrize("fails", ["disk", "sync"])
def test_a_disk_that_fails_late(topics: Bench, fails: str) -> None:
    """No log and no metadata of the topic is left, and it can be created once the disk is repaired."""
    if fails == "disk":
        topics.logs.fail_at = ("t", COUNT - 1)
    topics.logs.fail_sync = fails == "sync"
    assert create(topics) is Errors.KAFKA_STORAGE_ERROR
    assert (of_topic(topics), served(topics)) == ([], 0)
    assert "t" not in topics.ctx.controller.image.topics
    topics.logs.fail_at, topics.logs.fail_sync = None, False
    assert create(topics) is Errors.NONE
    assert served(topics) == COUNT


def test_added_partitions_without_logs(topics: Bench) -> None:
    """If the last step of a creation fails, the topic fails: it does not remain stored without being served."""

    def grow() -> None:
        with topics.ctx.topics.lock:  # all of it before the next run
            topics.ctx.topics.add_partitions("a", 2)
            del topics.logs.open["a", 1]
            topics.logs.fail_at = ("a", 1)

    meanwhile = Meanwhile(topics, {2: grow})
    first, second = topics.ctx.topics.create_all([NewTopic("a", 1), NewTopic("t", COUNT)])
    meanwhile.join()
    assert isinstance(first, KafkaError)
    assert first.error is Errors.KAFKA_STORAGE_ERROR
    assert not isinstance(second, KafkaError)
    assert (of_topic(topics, "a"), served(topics, "a"), served(topics)) == ([], 0, COUNT)
    assert "a" not in topics.ctx.controller.image.topics


def test_many_topics_of_one_request(topics: Bench) -> None:
    """Topics are stored by the hundreds; one that fails does not affect the others, whose names must differ."""
    batches: list[int] = []
    change = topics.ctx.controller.change

    def count(plan: Callable[..., object], **settings: object) -> None:
        batches.append(len(topics.ctx.topics.all()))
        change(plan, **settings)  # type: ignore[arg-type]

    topics.ctx.controller.change = count  # type: ignore[method-assign]
    topics.logs.fail_at = ("m1", 0)
    wanted = [NewTopic(f"m{number}", 1) for number in range(CREATED_AT_ONCE + 2)] + [NewTopic("m0", 1)]
    made = topics.ctx.topics.create_all(wanted)
    errors = {number: one.error for number, one in enumerate(made) if isinstance(one, KafkaError)}
    assert errors == {1: Errors.KAFKA_STORAGE_ERROR, len(wanted) - 1: Errors.TOPIC_ALREADY_EXISTS}
    assert batches == [1, CREATED_AT_ONCE, CREATED_AT_ONCE]
    assert sorted(view.name for view in topics.ctx.topics.all()) == sorted(
        {"other", *(one.name for number, one in enumerate(wanted) if number != 1)}
    )


def test_topics_without_logs_to_make_are_left_out_of_a_run(topics: Bench) -> None:
    """A complete topic waits for the others, and a failed topic is not retried."""
    tried: list[tuple[str, int]] = []
    make = topics.logs.create_partitions

    def note(topic: str, indexes: range, *rest: object) -> object:
        tried.append((topic, len(indexes)))
        return make(topic, indexes, *rest)  # type: ignore[arg-type]

    topics.logs.create_partitions = note  # type: ignore[method-assign, assignment]
    topics.logs.fail_at = ("bad", 0)
    topics.ctx.topics.create_all([NewTopic("bad", 1), NewTopic("good", 1), NewTopic("t", COUNT)])
    runs = [ADDED_AT_ONCE - 2, ADDED_AT_ONCE, ADDED_AT_ONCE, ADDED_AT_ONCE, 2]
    assert tried == [("bad", 1), ("good", 1), *(("t", count) for count in runs)]


def test_an_internal_topic_is_opened_at_once(topics: Bench) -> None:
    """Coordinators use its logs as soon as it is stored."""
    runs: list[int] = []
    make = topics.logs.create_partitions

    def note(topic: str, indexes: range, *rest: object) -> object:
        runs.append(len(indexes))
        return make(topic, indexes, *rest)  # type: ignore[arg-type]

    topics.logs.create_partitions = note  # type: ignore[method-assign, assignment]
    assert create(topics, OFFSETS_TOPIC) is Errors.NONE
    assert runs == [COUNT]
