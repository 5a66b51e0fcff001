"""Order and versions of a snapshot's records, and metadata versions that cannot represent an image."""

from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.image_errors import UnwritableMetadataError
from kbroker.metadata.image.partition_registration import MIGRATING, UNASSIGNED
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.records.metadata_record import MetadataRecord, decode_record, encode_record
from tests.support.metadata_images import (
    Row,
    acl,
    after,
    broker,
    config,
    controller,
    credential,
    feature,
    partition,
    producer_ids,
    quota,
    token,
    topic,
    uid,
)

#: Records in the reverse of the order of a snapshot.
ROWS: Sequence[Row] = (
    token(), credential("alice", 2), acl(1), producer_ids(1000), quota("request_percentage", 10.0),
    config(2, "a", "x", "1"), config(4, "", "y", ""),
    topic("a", 1), partition(1, 0, Directories=[uid(5), UNASSIGNED], EligibleLeaderReplicas=[1], LastKnownElr=[2]),
    partition(1, 1, LeaderRecoveryState=1, Replicas=[], Isr=[]), topic("b", 2),
    controller(3), broker(1, LogDirs=[uid(5)], CordonedLogDirs=[]),
    feature("eligible.leader.replicas.version", 1), feature("group.version", 1), feature("metadata.version", 30),
)  # fmt: skip
IMAGE = after(*ROWS)


def restored(image: MetadataImage, level: int) -> tuple[MetadataImage, list[MetadataRecord]]:
    """Return the image that a snapshot restores at the same offset, and the snapshot's records."""
    records = [decode_record(encode_record(record)) for record in records_of(image, level)]
    return image_of(records)._replace(offset=image.offset, epoch=image.epoch), records


def test_a_snapshot_restores_its_image() -> None:
    """Records are in Kafka's order: metadata.version, the other features, then one subject after another."""
    image, records = restored(IMAGE, 30)
    assert image == IMAGE
    assert [(record.name.removesuffix("Record"), record.version) for record in records] == [
        ("FeatureLevel", 0), ("FeatureLevel", 0), ("FeatureLevel", 0), ("RegisterBroker", 4), ("RegisterController", 0),
        ("Topic", 0), ("Partition", 2), ("Partition", 2), ("Topic", 0), ("Config", 0), ("Config", 0),
        ("ClientQuota", 0), ("ProducerIds", 0), ("AccessControlEntry", 0), ("UserScramCredential", 0),
        ("DelegationToken", 0),
    ]  # fmt: skip
    assert records[0].body == {"Name": "metadata.version", "FeatureLevel": 30}
    assert records[-4].body["NextProducerId"] == 1000
    assert (records[-4].body["BrokerId"], records[-4].body["BrokerEpoch"]) == (-1, -1)


def test_the_image_of_an_empty_log_has_a_level_alone() -> None:
    image, records = restored(EMPTY_IMAGE, 25)
    assert [record.body for record in records] == [{"Name": "metadata.version", "FeatureLevel": 25}]
    assert image == EMPTY_IMAGE._replace(features={"metadata.version": 25})


@pytest.mark.parametrize(("level", "versions"), [(7, (1, 0)), (8, (2, 0)), (17, (3, 1)), (23, (3, 2)), (30, (4, 2))])
def test_records_have_the_versions_of_the_level(level: int, versions: tuple[int, int]) -> None:
    """Like Kafka, kbroker writes directories of replicas from level 17 on; a lower level restores all as MIGRATING."""
    rows = (feature("metadata.version", level), broker(1, Fenced=False), topic("a", 1), partition(1))
    before = after(*rows)
    image, records = restored(before, level)
    assert image == before
    assert (records[1].version, records[3].version) == versions
    assert records[3].body["Directories"] == ([] if level < 17 else [MIGRATING, MIGRATING])


def test_eligible_leader_replicas_need_their_feature() -> None:
    """A snapshot has no eligible leader replicas while their feature is disabled."""
    image, _ = restored(after(*ROWS, feature("eligible.leader.replicas.version", 0)), 30)
    first = IMAGE.topics["a"].partitions[0]
    assert (first.elr, first.last_known_elr) == ((1,), (2,))
    assert image.topics["a"].partitions == (first._replace(elr=(), last_known_elr=()), IMAGE.topics["a"].partitions[1])


@pytest.mark.parametrize(
    ("first_level", "loss", "row"),
    [
        (8, "brokers that migrate from ZooKeeper", broker(1, IsMigratingZkBroker=True)),
        (11, "SCRAM credentials", credential("alice", 1)),
        (14, "delegation tokens", token()),
        (15, "registrations of controllers", controller(3)),
        (17, "online log directories of brokers", broker(1, LogDirs=[uid(5)])),
        (17, "log directories of replicas", partition(1, Directories=[uid(5), UNASSIGNED])),
        (30, "cordoned log directories of brokers", broker(1, CordonedLogDirs=[])),
    ],
)
def test_a_level_that_cannot_represent_the_image_is_refused(first_level: int, loss: str, row: Row) -> None:
    image = after(topic("a", 1), row)
    message = f"metadata.version {first_level - 1} cannot represent {loss}: expected a higher metadata.version"
    with pytest.raises(UnwritableMetadataError, match=message):
        list(records_of(image, first_level - 1))
    at_level: Any = restored(image, first_level)[0]
    assert at_level == image._replace(features={"metadata.version": first_level})
