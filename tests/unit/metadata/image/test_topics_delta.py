"""Topics of an image: creation, changes of partitions with their epochs, deletion, and contradictory records."""

from typing import Any

import pytest

from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, TopicImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.image.partition_registration import MIGRATING, UNASSIGNED, PartitionRegistration
from tests.support.metadata_images import Row, after, change, config, delta_of, partition, removal, topic, uid

REGISTRATION = PartitionRegistration((1, 2), (MIGRATING, MIGRATING), (1, 2), (), (), 1, 0, 0, 0)
TWO = (topic("a", 1), partition(1), partition(1, 1), topic("b", 2), partition(2))


def test_topics_are_found_by_name_and_by_id() -> None:
    image = after(*TWO)
    assert dict(image.topics) == {
        "a": TopicImage("a", uid(1), (REGISTRATION, REGISTRATION)),
        "b": TopicImage("b", uid(2), (REGISTRATION,)),
    }
    assert {topic.topic_id: topic for topic in image.topics.values()} == image.topics_by_id
    assert (image.offset, image.epoch) == (4, 1)
    assert image.topics["a"].partitions[1] is image.topics["b"].partitions[0]  # equal states are one object


def test_every_field_of_a_partition_is_read() -> None:
    fields: dict[str, Any] = {
        "Replicas": [3, 1], "Isr": [1], "RemovingReplicas": [4], "AddingReplicas": [5], "Leader": -1,
        "LeaderRecoveryState": 1, "LeaderEpoch": 7, "PartitionEpoch": 9, "Directories": [uid(5), UNASSIGNED],
        "EligibleLeaderReplicas": [3], "LastKnownElr": [2],
    }  # fmt: skip
    (found,) = after(topic("a", 1), partition(1, **fields)).topics["a"].partitions
    assert found == PartitionRegistration((3, 1), (uid(5), UNASSIGNED), (1,), (4,), (5,), -1, 1, 7, 9, (3,), (2,))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"Isr": [1]}, {"isr": (1,)}),
        ({"Isr": []}, {"isr": ()}),
        ({"Leader": 2}, {"leader": 2, "leader_epoch": 1}),
        ({"Leader": 1}, {"leader": 1, "leader_epoch": 1}),  # the same leader again, in a new epoch
        ({"Leader": -1}, {"leader": -1, "leader_epoch": 1}),
        ({"LeaderRecoveryState": 1}, {"leader_recovery_state": 1}),
        ({"RemovingReplicas": [2], "AddingReplicas": [3]}, {"removing_replicas": (2,), "adding_replicas": (3,)}),
        ({"Replicas": [1, 2, 3]}, {"replicas": (1, 2, 3), "directories": (MIGRATING,) * 3}),
        ({"Directories": [uid(5), uid(6)]}, {"directories": (uid(5), uid(6))}),
        ({"EligibleLeaderReplicas": [2], "LastKnownElr": [1]}, {"elr": (2,), "last_known_elr": (1,)}),
    ],
)
def test_a_change_replaces_only_its_fields(fields: dict[str, object], expected: dict[str, object]) -> None:
    """The partition epoch increases with each record, and the leader epoch with each record that names a leader."""
    image = after(topic("a", 1), partition(1), partition(1, 1))
    changed = delta_of(image, change(1, 1, **fields))
    new = changed.apply(5, 2)
    assert new.topics["a"].partitions == (REGISTRATION, REGISTRATION._replace(partition_epoch=1, **expected))  # type: ignore[arg-type]
    assert (changed.topics.created, changed.topics.changed) == ({}, {uid(1): new.topics["a"]})
    assert image.topics["a"].partitions == (REGISTRATION, REGISTRATION)


def test_changes_in_one_delta_follow_one_another() -> None:
    rows = (*TWO, change(1, Leader=2), change(1, Isr=[2]), change(1, Leader=1))
    expected = REGISTRATION._replace(isr=(2,), leader_epoch=2, partition_epoch=3)
    assert after(*rows).topics["a"].partitions == (expected, REGISTRATION)


def test_partitions_are_added_in_any_order_of_their_records() -> None:
    image = after(topic("a", 1), partition(1))
    rows = (partition(1, 2, Leader=2), partition(1, 1))
    assert after(*rows, image=image).topics["a"].partitions == (
        REGISTRATION,
        REGISTRATION,
        REGISTRATION._replace(leader=2),
    )
    with pytest.raises(
        MetadataReplayError, match="topic a: expected partition 1 before partition 2, found no Partition"
    ):
        after(partition(1, 2), image=image)


def test_a_deleted_topic_is_gone_with_its_configs() -> None:
    image = after(*TWO, config(2, "a", "x", "1"), config(4, "a", "x", "2"))
    delta = delta_of(image, removal(1))
    new = delta.apply(9, 1)
    assert set(new.topics) == {"b"}
    assert set(new.topics_by_id) == {uid(2)}
    assert new.configs == {(4, "a"): {"x": "2"}}
    assert delta.topics.deleted == {uid(1): image.topics["a"]}
    assert (delta.topics.created, delta.topics.changed) == ({}, {})
    assert delta.changed_configs == {(2, "a")}


def test_a_topic_that_comes_and_goes_in_one_delta_leaves_no_trace() -> None:
    """The config of such a topic is removed too, unlike in Kafka: an image must not depend on the bounds of deltas."""
    image = after(*TWO)
    delta = delta_of(image, topic("c", 3), config(2, "c", "x", "1"), partition(3), removal(3))
    new = delta.apply(9, 1)
    assert (new.topics, new.topics_by_id, new.configs) == (image.topics, image.topics_by_id, {})
    assert new.topics is image.topics
    assert (delta.topics.created, delta.topics.deleted, delta.changed_configs) == ({}, {}, set())


def test_a_topic_is_deleted_and_created_again_in_one_delta() -> None:
    image = after(*TWO, config(2, "a", "x", "1"), config(2, "a", "y", "1"))
    delta = delta_of(image, removal(1), topic("a", 3), partition(3, Leader=2), config(2, "a", "y", "3"))
    new = delta.apply(9, 1)
    again = TopicImage("a", uid(3), (REGISTRATION._replace(leader=2),))
    assert new.topics["a"] == new.topics_by_id[uid(3)] == again
    assert set(new.topics_by_id) == {uid(2), uid(3)}
    assert new.configs == {(2, "a"): {"y": "3"}}
    assert (delta.topics.created, delta.topics.deleted) == ({uid(3): again}, {uid(1): image.topics["a"]})
    assert delta.topics.changed == {}
    gone = after(removal(1), topic("a", 3), partition(3), removal(3), image=image)
    assert set(gone.topics) == {"b"}
    assert gone.configs == {}


def test_eligible_leader_replicas_are_cleared() -> None:
    """A record clears the replicas of one topic or of all topics and increases the partition epochs that it affects."""
    elr: dict[str, Any] = {"EligibleLeaderReplicas": [2], "LastKnownElr": [1]}
    image = after(topic("a", 1), partition(1, **elr), partition(1, 1), topic("b", 2), partition(2, LastKnownElr=[1]))
    cleared = REGISTRATION._replace(partition_epoch=1)
    one = delta_of(image, ("ClearElr", {"TopicName": "a"}))
    new = one.apply(9, 1)
    assert new.topics["a"].partitions == (cleared, REGISTRATION)
    assert new.topics["b"] is image.topics["b"]
    assert set(one.topics.changed) == {uid(1)}
    assert after(("ClearElr", {"TopicName": "b"}), image=image).topics["b"].partitions == (cleared,)
    rows = (topic("c", 3), partition(3, **elr), change(1, 1, EligibleLeaderReplicas=[1]), removal(2))
    every = after(*rows, ("ClearElr", {"TopicName": ""}), image=image)
    assert every.topics["a"].partitions == (cleared, cleared._replace(partition_epoch=2))
    assert every.topics["c"].partitions == (cleared,)
    assert set(every.topics) == {"a", "c"}
    unchanged = delta_of(after(*TWO), ("ClearElr", {"TopicName": ""}))
    unchanged.apply(9, 1)
    assert unchanged.topics.changed == {}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (topic("a", 3), f"TopicRecord: expected a new name, found a, the name of topic id {uid(1)}"),
        (topic("c", 1), f"TopicRecord of c: expected a new topic id, found {uid(1)} of another topic"),
        (partition(3), f"PartitionRecord: expected the id of an existing topic, found {uid(3)}"),
        (partition(1, -1), "PartitionRecord of a: expected partition 0 or above, found -1"),
        (partition(1, Directories=[uid(1)]), "expected a directory for each of 2 replicas, found 1"),
        (partition(1, LeaderRecoveryState=2), "expected leader recovery state 0 or 1, found 2"),
        (change(3), f"PartitionChangeRecord: expected the id of an existing topic, found {uid(3)}"),
        (change(1, 2), "PartitionChangeRecord of a: found partition 2, which no earlier PartitionRecord creates"),
        (change(1, -1), "PartitionChangeRecord of a: found partition -1, which no earlier"),
        (
            change(1, Directories=[uid(1)]),
            "partition 0 of topic id .*: expected a directory for each of 2 replicas, found 1",
        ),
        (
            change(1, LeaderRecoveryState=-2),
            "partition 0 of topic id .*: expected leader recovery state 0 or 1, found -2",
        ),
        (removal(3), f"RemoveTopicRecord: expected the id of an existing topic, found {uid(3)}"),
        (("ClearElr", {"TopicName": "c"}), "ClearElrRecord: expected an existing topic, found c"),
    ],
)
def test_a_contradiction_is_refused(row: Row, message: str) -> None:
    """A contradiction is refused whether the topics are in the image or in the delta."""
    with pytest.raises(MetadataReplayError, match=message):
        delta_of(after(*TWO), row)
    with pytest.raises(MetadataReplayError, match=message):
        delta_of(EMPTY_IMAGE, *TWO, row)


@pytest.mark.parametrize("row", [partition(1), change(1), removal(1), ("ClearElr", {"TopicName": "a"})])
def test_a_deleted_topic_accepts_no_record(row: Row) -> None:
    with pytest.raises(MetadataReplayError, match="expected"):
        delta_of(after(*TWO), removal(1), row)
    with pytest.raises(MetadataReplayError, match="expected"):
        delta_of(EMPTY_IMAGE, *TWO, removal(1), row)


def test_directories_that_do_not_fit_new_replicas_are_refused() -> None:
    image = after(topic("a", 1), partition(1, Directories=[uid(5), uid(6)]))
    with pytest.raises(MetadataReplayError, match="expected a directory for each of 3 replicas, found 2"):
        delta_of(image, change(1, Replicas=[1, 2, 3]))
    fields: dict[str, Any] = {"Replicas": [1, 2, 3], "Directories": [uid(5), uid(6), uid(7)]}
    assert after(change(1, **fields), image=image).topics["a"].partitions[0].directories == (uid(5), uid(6), uid(7))


def test_an_empty_delta_keeps_the_topics() -> None:
    image = after(*TWO)
    new = MetadataDelta(image).apply(7, 3)
    assert new == image._replace(offset=7, epoch=3)
    assert new.topics is image.topics
    assert new.topics_by_id is image.topics_by_id
