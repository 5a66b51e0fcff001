"""Tests of the topic registry over fake logs."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resource import ConfigChange, ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import invalid_name_reason
from kbroker.log.unhosted_logs import Logs
from kbroker.metadata.configs.resource_configs import broker_configs
from kbroker.metadata.controller import Plan
from kbroker.metadata.topic_rules import NewTopic, TopicNames
from kbroker.metadata.topics import TopicRegistry, TopicView
from tests.support.errors import error_of, raising
from tests.support.metadata import MemoryController, StoredTopic, check_same_change, following, store_configs, together
from tests.support.server import Bench, FakeLog, FakeLogs, make_bench

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


LEGAL = ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"]
ILLEGAL = ["", ".", "..", "a b", "x" * 250, "a/b", "ümlaut", "a\n", "a:b", "\udcff"]


@pytest.mark.parametrize("name", [*LEGAL, *ILLEGAL])
def test_legal_names(name: str) -> None:
    """A name is legal or not as in Kafka; some of the refused names cannot be names of folders."""
    assert (invalid_name_reason(name) is None) is (name in LEGAL)


@pytest.mark.parametrize(
    ("name", "names", "other"),
    [("a_b", ["a.b"], "a.b"), ("a.b", ["x", "a_b"], "a_b"), ("a.b", ["ab"], None), ("ab", ["a.b"], None)],
)
def test_names_that_collide(name: str, names: list[str], other: str | None) -> None:
    """Two topics may not differ by dots and underscores only."""
    assert TopicNames(names).colliding(name) == other


def test_a_new_topic_is_open_remembered_and_published(bench: Bench) -> None:
    """When create returns, the topic is stored, open, and published to handlers and native handlers."""
    created = bench.ctx.topics.create(NewTopic("t", 2, configs={"retention.ms": "5"}))
    view = bench.ctx.topics.get("t")
    assert view is bench.ctx.topics.get_by_id(created.topic_id)
    assert list(view.partitions) == [bench.logs.open["t", 0], bench.logs.open["t", 1]]
    assert view.partitions[0].configs["retention.ms"] == 5
    assert bench.published[-1] == [view]
    assert bench.stored == [StoredTopic("t", created.topic_id, 2, {"retention.ms": "5"})]


def test_validate_only_changes_nothing(bench: Bench) -> None:
    """A validated topic is not created, although the result has an id."""
    assert bench.ctx.topics.create(NewTopic("t", 2), validate_only=True).topic_id.int
    assert (bench.ctx.topics.get("t"), bench.logs.open, bench.published, bench.stored) == (None, {}, [], [])


def test_topics_come_back_with_their_ids() -> None:
    """Ids and partitions survive a restart (quirk 6: they must)."""
    controller, config = MemoryController(), BrokerConfig()
    first = following(
        controller, TopicRegistry(config, controller, cast(Logs, FakeLogs()), lambda views: None, VirtualClock())
    )
    first.create(NewTopic("b", 2))
    first.create(NewTopic("a", 1))
    published: list[Sequence[TopicView]] = []
    second = TopicRegistry(config, controller, cast(Logs, FakeLogs()), published.append, VirtualClock())
    second.load()
    known = [(view.name, view.topic_id, len(view.partitions)) for view in first.all()]
    assert [(view.name, view.topic_id, len(view.partitions)) for view in second.all()] == known
    assert len(published) == 1


def test_a_recreated_topic_has_another_id(bench: Bench) -> None:
    """A client with the old id must not write to the new topic (quirk 6)."""
    first = bench.ctx.topics.create(NewTopic("t")).topic_id
    assert bench.ctx.topics.delete("t") == first
    assert bench.logs.open == {}
    assert bench.published[-1] == []
    assert bench.ctx.topics.get_by_id(first) is None
    assert bench.ctx.topics.create(NewTopic("t")).topic_id != first


def test_many_topics_are_deleted_together(bench: Bench) -> None:
    """Each hundred topics are deleted with one sync and published once: one by one, 5,000 would take minutes."""
    topics = bench.ctx.topics
    made = {one.name: one.topic_id for one in (bench.create(f"t{number}") for number in range(150))}
    deleted: list[str] = []
    charged: list[int] = []
    topics.on_deleted.append(deleted.append)
    before = len(bench.published)

    def charge(partitions: int) -> None:
        charged.append(partitions)
        if len(charged) > 120:
            raise KafkaError(Errors.THROTTLING_QUOTA_EXCEEDED)

    names = ["none", *made, "t0"]
    results = topics.delete_all(names, charge)
    assert [result.error for result in (results[0], results[-1])] == [Errors.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert results[1:121] == list(made.values())[:120]
    assert {result.error for result in results[121:-1]} == {Errors.THROTTLING_QUOTA_EXCEEDED}
    assert len(bench.published) == before + 2
    assert deleted == list(made)[:120]
    assert [view.name for view in topics.all()] == sorted(list(made)[120:])
    assert {topic for topic, _ in bench.logs.open} == set(list(made)[120:])
    assert {one.name for one in bench.stored} == set(list(made)[120:])


def test_a_failing_disk_leaves_no_half_topic(bench: Bench) -> None:
    """If the third folder cannot be created, no part of the topic is left, and the error has the reason."""
    bench.logs.fail_at = ("t", 2)
    with pytest.raises(KafkaError, match="No space left") as caught:
        bench.ctx.topics.create(NewTopic("t", 3))
    assert caught.value.error == Errors.KAFKA_STORAGE_ERROR
    assert (bench.ctx.topics.get("t"), bench.stored, bench.logs.open) == (None, [], {})


def test_growing_keeps_the_partitions_there_are(bench: Bench) -> None:
    """Existing partitions keep their open logs, and the new number is stored."""
    bench.ctx.topics.create(NewTopic("t", 1))
    old = bench.ctx.topics.get("t").partitions[0]
    bench.ctx.topics.add_partitions("t", 3)
    view = bench.ctx.topics.get("t")
    assert (len(view.partitions), view.partitions[0] is old) == (3, True)
    assert bench.stored[0].partitions == 3
    assert bench.published[-1] == [view]


def test_a_topic_with_an_offline_partition_grows() -> None:
    """The new partitions are served, and the offline one stays as it is."""
    controller = MemoryController()
    restarted(controller, FakeLogs())[1].create(NewTopic("t", 2))
    logs = FakeLogs()
    logs.fail_at = ("t", 0)
    _, topics = restarted(controller, logs)
    topics.add_partitions("t", 3)
    assert topics.get("t").partitions == (None, logs.open["t", 1], logs.open["t", 2])


def test_a_topic_that_cannot_grow_stays_as_it_was(bench: Bench) -> None:
    """A failure while growing changes neither the view nor the metadata."""
    bench.ctx.topics.create(NewTopic("t", 1))
    bench.logs.fail_at = ("t", 2)
    with pytest.raises(KafkaError):
        bench.ctx.topics.add_partitions("t", 3)
    assert len(bench.ctx.topics.get("t").partitions) == bench.stored[0].partitions == 1
    assert list(bench.logs.open) == [("t", 0)]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("bad name", 0, 0, configs={"x": None}), Errors.INVALID_TOPIC_EXCEPTION),
        (NewTopic("there", 0, 0, configs={"x": None}), Errors.TOPIC_ALREADY_EXISTS),
        (NewTopic("a_b", 0, 0, configs={"x": None}), Errors.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t", 0, 0, configs={"retention.ms": "x"}), Errors.INVALID_CONFIG),
        (NewTopic("t", 0, 0), Errors.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 0, 2), Errors.INVALID_PARTITIONS),
        (NewTopic("t", 1, 2), Errors.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, -1, [(0, [1])]), Errors.INVALID_REQUEST),
        (NewTopic("t", -1, -1, [(0, [1]), (0, [1])]), Errors.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, [(0, [1]), (1, [2])]), Errors.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_the_first_failing_check_decides_the_error(bench: Bench, topic: NewTopic, error: Errors) -> None:
    """The order of the checks is Kafka's: name, existence, collision, configs, then numbers and assignments."""
    bench.ctx.topics.create(NewTopic("there"))
    bench.ctx.topics.create(NewTopic("a.b"))
    assert error_of(bench.ctx.topics.create, topic) == error


def test_defaults_come_from_the_broker() -> None:
    """A partition count of -1 selects num.partitions, and topic configs default to the broker's."""
    bench = make_bench(num_partitions=4, log_retention_ms=7)
    bench.ctx.topics.create(NewTopic("t"))
    assert [log.configs["retention.ms"] for log in bench.ctx.topics.get("t").partitions] == [7] * 4


def test_compaction_lags_are_compared_with_the_brokers() -> None:
    """Only a topic that sets a config is checked, as in Kafka."""
    bench = make_bench(log_cleaner_min_compaction_lag_ms="10", log_cleaner_max_compaction_lag_ms="5")
    topics = bench.ctx.topics
    topics.create(NewTopic("a"))
    assert error_of(topics.create, NewTopic("b", configs={"retention.ms": "5"})) is Errors.INVALID_CONFIG
    topics.create(NewTopic("c", configs={"max.compaction.lag.ms": "10"}))


def test_auto_creation_of_the_offsets_topic(bench: Bench) -> None:
    """An auto-created offsets topic is internal and has 50 partitions, as in Kafka."""
    bench.ctx.topics.auto_create(["__consumer_offsets", "bad name"])
    (view,) = bench.ctx.topics.all()
    assert (view.is_internal, len(view.partitions)) == (True, 50)


def test_a_default_above_the_limit_of_a_request_creates_nothing() -> None:
    """First use creates at most 10,000 partitions, too, so a mistake in num.partitions does not occupy a thread."""
    bench = make_bench(num_partitions=2**31 - 1, offsets_topic_num_partitions=10_001)
    bench.ctx.topics.auto_create(["t"])
    bench.ctx.topics.auto_create(["__consumer_offsets"])
    assert bench.ctx.topics.all() == []
    assert error_of(bench.ctx.topics.create, NewTopic("t")) is Errors.POLICY_VIOLATION


def test_automatic_creations_that_fail_are_limited_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """The operator gets one line a minute about each reason, whatever topics clients use."""
    config, controller, clock = BrokerConfig({"num.partitions": 10_001}), MemoryController(), VirtualClock()
    topics = following(controller, TopicRegistry(config, controller, cast(Logs, FakeLogs()), lambda views: None, clock))
    for number in range(1000):
        topics.auto_create([f"t{number}", f"u{number}"])
    line = "POLICY_VIOLATION: Excessively large number of partitions per request."
    assert caplog.messages == [f"topic t0 is not created automatically: {line}"]
    clock.advance_ms(60_000)
    topics.auto_create(["late"])
    times = "2000 times since the last such line"
    assert caplog.messages[1:] == [f"topic late is not created automatically: {line} ({times})"]


def test_a_topic_that_another_request_has_created_is_no_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.ctx.topics.create(NewTopic("t"))
    bench.ctx.topics.auto_create(["t"])
    assert [line for line in caplog.messages if "automatically" in line] == []


def test_topics_of_one_request_are_published_together(bench: Bench) -> None:
    """New topics of a request are published once: each publication copies the table, so 2,000 would take 10 s."""
    bench.ctx.topics.auto_create([f"t{number}" for number in range(50)])
    assert [len(views) for views in bench.published] == [50]
    rows = [{"Name": f"u{number}", "NumPartitions": 1, "ReplicationFactor": 1} for number in range(50)]
    response = bench.ask("CreateTopics", 7, {"Topics": [*rows, {**rows[0], "Name": "t0"}]})
    assert [row["ErrorCode"] for row in response["Topics"]] == [0] * 50 + [36]
    assert [len(views) for views in bench.published] == [50, 100]
    assert len(bench.stored) == 100


def test_topics_of_one_request_that_collide(bench: Bench) -> None:
    """Names of one request may collide, as in Kafka 4.3.1, which compares them with the topics before the request."""
    bench.ctx.topics.create(NewTopic("a.b"))
    first, second, third = bench.ctx.topics.create_all([NewTopic("c.d"), NewTopic("a_b"), NewTopic("c_d")])
    assert (first.num_partitions, third.num_partitions) == (1, 1)
    assert (second.error, str(second.message)) == (
        Errors.INVALID_TOPIC_EXCEPTION,
        "Topic 'a_b' collides with existing topic: a.b",
    )
    assert bench.ctx.topics.create_all([NewTopic("d"), NewTopic("d")], validate_only=True)[0].num_partitions == 1
    assert bench.ctx.topics.get("d") is None


def test_a_disk_that_fails_in_the_middle_of_a_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics before and after the failed one are created. An unexpected exception fails only its own topic."""
    bench.logs.fail_at = ("b", 0)
    made = bench.ctx.topics.create_all([NewTopic("a"), NewTopic("b"), NewTopic("c")])
    assert made[1].error == Errors.KAFKA_STORAGE_ERROR
    assert [view.name for view in bench.published[-1]] == ["a", "c"]
    assert [topic.name for topic in bench.stored] == ["a", "c"]
    topics = iter([NewTopic("d"), NewTopic("e")])
    create = bench.logs.create_partitions
    broken = raising(ZeroDivisionError)
    monkeypatch.setattr(
        bench.logs, "create_partitions", lambda name, *args: create(name, *args) if name == "d" else broken()
    )
    made = bench.ctx.topics.create_all(topics)
    assert (made[0].num_partitions, made[1].error) == (1, Errors.UNKNOWN_SERVER_ERROR)
    assert [view.name for view in bench.published[-1]] == ["a", "c", "d"]
    assert [topic.name for topic in bench.stored] == ["a", "c", "d"]


def test_topics_of_one_request_are_remembered_and_synced_together(bench: Bench) -> None:
    """All topics of a request share a batch and a sync; one of each per topic would take 14 s for 5,000 partitions."""
    rows = [{"Name": f"t{number}", "NumPartitions": 20, "ReplicationFactor": 1} for number in range(50)]
    response = bench.ask("CreateTopics", 7, {"Topics": rows})
    assert {row["ErrorCode"] for row in response["Topics"]} == {0}
    assert (len(bench.storage.appended), bench.storage.flushes, bench.logs.syncs, len(bench.logs.open)) == (
        1,
        1,
        1,
        1000,
    )
    bench.ctx.topics.add_partitions("t0", 40)
    assert (len(bench.storage.appended), bench.storage.flushes, len(bench.logs.open)) == (2, 2, 1020)


def test_topics_whose_folders_cannot_be_synced_are_not_there(bench: Bench) -> None:
    """Error 56 is returned for every topic, and none is left, because the topics may not be on the disk."""
    bench.logs.fail_sync = True
    made = bench.ctx.topics.create_all([NewTopic("a"), NewTopic("b", 0), NewTopic("c")])
    assert [one.error for one in made] == [
        Errors.KAFKA_STORAGE_ERROR,
        Errors.INVALID_PARTITIONS,
        Errors.KAFKA_STORAGE_ERROR,
    ]
    assert (bench.published, bench.stored, bench.logs.open) == ([], [], {})


def refuse_five(config: Mapping[str, object]) -> str:
    """Return the objection of a log to a value that passes the validation of configs."""
    return "five is too few" if 5 in (config["retention.bytes"], config["segment.ms"]) else ""


def test_what_no_log_takes_is_never_stored(bench: Bench) -> None:
    """A value that only the log refuses is refused for a topic, a new topic and the broker, and is never stored."""
    topics = bench.ctx.topics
    topics.create(NewTopic("t", configs={"retention.bytes": "6"}))
    bench.logs.refuse = refuse_five
    for validate_only in (True, False):
        with pytest.raises(KafkaError, match="INVALID_CONFIG: five is too few"):
            topics.create(NewTopic("new", configs={"retention.bytes": "5"}), validate_only)
        with pytest.raises(KafkaError, match="INVALID_CONFIG: five is too few"):
            bench.ctx.dynamic.replace(2, "t", [("retention.bytes", "5")], validate_only)
        for name in ("1", ""):
            with pytest.raises(KafkaError, match="INVALID_CONFIG: five is too few"):
                bench.ctx.dynamic.alter(4, name, [ConfigChange("log.retention.bytes", 0, "5")], validate_only)
    assert [(topic.name, topic.configs) for topic in bench.stored] == [("t", {"retention.bytes": "6"})]
    assert (bench.configs(BROKER, "1"), bench.configs(BROKER, "")) == ({}, {"min.insync.replicas": "1"})
    assert (list(bench.logs.open), bench.logs.open["t", 0].configs["retention.bytes"]) == ([("t", 0)], 6)


def test_what_could_not_be_put_in_force_is_taken_back(bench: Bench) -> None:
    """If a log or a part of the broker fails to follow, the former values are stored and in force again."""
    bench.ctx.topics.create(NewTopic("t", configs={"retention.ms": "6"}))
    update = bench.logs.update_configs

    def broken(configs: Mapping[str, Mapping[str, Any]]) -> None:
        if configs["t"]["retention.ms"] == 7:
            raise ZeroDivisionError
        update(configs)

    bench.logs.update_configs = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        bench.ctx.dynamic.replace(2, "t", [("retention.ms", "7")])
    assert bench.stored[0].configs == bench.ctx.topics.get("t").configs == {"retention.ms": "6"}

    seen = []

    def follow(changed: frozenset[str]) -> None:
        seen.append(bench.ctx.config.integer("message.max.bytes"))
        if seen[-1] == 99:
            raise ZeroDivisionError

    bench.ctx.on_broker_change(follow)
    with pytest.raises(ZeroDivisionError):
        bench.ctx.dynamic.alter(4, "1", [ConfigChange("message.max.bytes", 0, "99")])
    assert (seen, bench.configs(BROKER, "1")) == ([99, 1_048_588], {})
    assert bench.logs.open["t", 0].configs["max.message.bytes"] == 1_048_588


def test_a_config_that_another_request_has_stored_is_in_force(bench: Bench) -> None:
    """A second request for the same value, which stores nothing, returns once the value is in force."""
    bench.create("t")
    alter = bench.ctx.dynamic.alter
    check_same_change(bench.ctx.topics, lambda: alter(TOPIC, "t", [ConfigChange("retention.ms", 0, "7")]))
    check_same_change(bench.ctx, lambda: alter(BROKER, "1", [ConfigChange("log.retention.bytes", 0, "9")]))
    configs = bench.logs.open["t", 0].configs
    assert (configs["retention.ms"], configs["retention.bytes"]) == (7, 9)


def test_taking_a_config_back_leaves_those_of_others(bench: Bench) -> None:
    """Reverting a change that failed to take effect keeps another change of the same sync."""

    def follow(changed: frozenset[str]) -> None:
        if "message.max.bytes" in changed and bench.ctx.config.integer("message.max.bytes") == 99:
            raise ZeroDivisionError

    bench.ctx.on_broker_change(follow)
    alter = bench.ctx.dynamic.alter
    results = together(
        bench.ctx.controller,
        lambda: alter(4, "1", [ConfigChange("message.max.bytes", 0, "99")]),
        lambda: alter(4, "1", [ConfigChange("log.retention.ms", 0, "7")]),
    )
    assert [type(result) for result in results] == [ZeroDivisionError, type(None)]
    assert bench.configs(BROKER, "1") == {"log.retention.ms": "7"}
    assert bench.ctx.config.integer("message.max.bytes") == 1_048_588
    assert bench.ctx.config.integer("log.retention.ms") == 7


def restarted(controller: MemoryController, logs: FakeLogs) -> tuple[BrokerConfig, TopicRegistry]:
    """Return a loaded registry over the stored metadata, and its configuration."""
    config = BrokerConfig()
    config.set_dynamic(*broker_configs(controller.image, 1))
    controller.publishers.clear()
    registry = following(
        controller, TopicRegistry(config, controller, cast(Logs, logs), lambda views: None, VirtualClock())
    )
    registry.load()
    return config, registry


def test_a_deleted_config_brings_a_partition_back() -> None:
    """Deleting a stored config that the log refuses, of the topic or of the broker, opens the partitions."""
    controller = MemoryController()
    logs = FakeLogs()
    restarted(controller, logs)[1].create(NewTopic("t", 2))
    store_configs(controller, TOPIC, "t", {"retention.bytes": "5"})
    logs = FakeLogs()
    logs.refuse = refuse_five
    _, topics = restarted(controller, logs)
    assert topics.get("t").partitions == (None, None)
    store_configs(controller, TOPIC, "t", {"retention.bytes": None})
    assert topics.get("t").partitions == (logs.open["t", 0], logs.open["t", 1])

    store_configs(controller, BROKER, "", {"log.roll.ms": "5"})
    logs = FakeLogs()
    logs.refuse = refuse_five
    config, topics = restarted(controller, logs)
    assert topics.get("t").partitions == (None, None)
    made: list[str] = []
    create = logs.create_partitions

    def watched(name: str, *rest: Any, **options: Any) -> list[FakeLog]:
        made.append(name)
        return create(name, *rest, **options)

    logs.create_partitions = watched  # type: ignore[assignment, method-assign]
    topics.refresh_configs()
    assert made == []  # the config is the same, so that no second attempt is made
    config.set_dynamic({}, {})
    topics.refresh_configs()
    assert topics.get("t").partitions == (logs.open["t", 0], logs.open["t", 1])


def test_a_stored_config_that_is_no_longer_valid_counts_as_unset() -> None:
    """An invalid config that an earlier version stored gives the topic the default and can be replaced."""
    controller = MemoryController()
    restarted(controller, FakeLogs())[1].create(NewTopic("t"))
    store_configs(controller, TOPIC, "t", {"retention.ms": "\u00a05", "segment.ms": "6"})
    logs = FakeLogs()
    restarted(controller, logs)
    configs = logs.open["t", 0].configs
    assert (configs["retention.ms"], configs["segment.ms"]) == (604_800_000, 6)
    store_configs(controller, TOPIC, "t", {"retention.ms": None, "segment.ms": None})
    assert logs.open["t", 0].configs["segment.ms"] == 604_800_000


def test_a_failed_topic_that_another_client_deletes_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other failed topics of the request are removed."""
    create, controller = bench.logs.create_partitions, bench.ctx.controller
    change = controller.change
    is_deleted: list[bool] = []

    def fails(name: str, *args: Any) -> list[FakeLog]:
        if name.startswith("bad"):
            raise OSError(28, "No space left on device")
        return create(name, *args)

    def late(plan: Plan, **options: Any) -> None:
        if "bad1" in controller.image.topics and not is_deleted:  # before the removal of the failed topics
            is_deleted.append(True)
            bench.ctx.topics.delete("bad1")
        change(plan, **options)

    monkeypatch.setattr(bench.logs, "create_partitions", fails)
    monkeypatch.setattr(controller, "change", late)
    made = bench.ctx.topics.create_all([NewTopic("bad1"), NewTopic("bad2"), NewTopic("good")])
    assert [getattr(one, "error", None) for one in made] == [Errors.KAFKA_STORAGE_ERROR] * 2 + [None]
    assert is_deleted
    assert [topic.name for topic in bench.stored] == ["good"]


def test_a_topic_that_exists_is_open(bench: Bench) -> None:
    """A request that loses the race to create a topic returns once the topic can be used."""
    check_same_change(bench.ctx.topics, lambda: bench.ctx.topics.auto_create(["t"]))
    assert [view.name for view in bench.ctx.topics.all()] == ["t"]


def test_a_failed_topic_that_grows_before_it_is_published(bench: Bench) -> None:
    """The logs of partitions that are added to the failed topic are removed too."""
    bench.logs.fail_at = ("t", 0)
    topics = bench.ctx.topics
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.extend(topics.create_all([NewTopic("t", 1)])))
    with topics.lock:  # held while logs of another request are created
        thread.start()
        while "t" not in bench.ctx.image.topics:
            thread.join(0.001)
        topics.add_partitions("t", 3)
    thread.join()
    assert [one.error for one in made] == [Errors.KAFKA_STORAGE_ERROR]
    assert (bench.stored, bench.logs.open) == ([], {})
