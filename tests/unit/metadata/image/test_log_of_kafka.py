"""Tests with a metadata log of Apache Kafka 4.3.1 (see ``tests/support/kafka/record_metadata_log.py``)."""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.metadata.image.delta import image_of
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.records.batches import MetadataBatch, read_batches
from kbroker.metadata.records.metadata_record import MetadataRecord, decode_record, encode_record
from kbroker.metadata.records.snapshot_files import snapshot_id

FOLDER = Path(__file__).parents[3] / "support" / "kafka" / "metadata_log"
SNAPSHOTS = sorted(path.name for path in FOLDER.glob("*.checkpoint.gz"))
DESCRIBED: dict[str, Any] = json.loads((FOLDER / "described.json").read_text(encoding="utf-8"))
ALL = 1 << 62


def batches(name: str) -> Iterator[MetadataBatch]:
    return read_batches(gzip.decompress((FOLDER / name).read_bytes()))


def records(found: Iterable[MetadataBatch]) -> Iterator[MetadataRecord]:
    """Yield the records without the markers of the only transaction, which is complete."""
    for batch in found:
        yield from (record for record in batch.records if not record.name.endswith("TransactionRecord"))


def replayed(found: Iterable[MetadataRecord], offset: int, epoch: int) -> MetadataImage:
    return image_of(found)._replace(offset=offset, epoch=epoch)


def after_log(end_offset: int = ALL) -> MetadataImage:
    """Return the image after the batches below an end offset."""
    found = [batch for batch in batches("00000000000000000000.log.gz") if batch.last_offset < end_offset]
    return replayed(records(found), found[-1].last_offset, found[-1].leader_epoch)


def sorted_rows(record: MetadataRecord) -> MetadataRecord:
    """Return a copy of a record with listeners and features sorted by name; Kafka writes them in hash map order."""
    rows: dict[str, Any] = {
        key: sorted(record.body[key], key=lambda row: row["Name"])
        for key in ("EndPoints", "Features")
        if key in record.body
    }
    return record._replace(body={**record.body, **rows})


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_image_is_that_of_each_snapshot_of_kafka(name: str) -> None:
    """The image equals each snapshot of Kafka at the same offset. Records within a subject may differ in order."""
    found = snapshot_id(name.removesuffix(".gz"))
    assert found is not None
    image = after_log(found.end_offset)
    theirs = list(records(batches(name)))
    assert replayed(theirs, found.end_offset - 1, found.epoch) == image
    ours = [decode_record(encode_record(record)) for record in records_of(image, 30)]
    assert sorted(map(repr, map(sorted_rows, ours))) == sorted(map(repr, map(sorted_rows, theirs)))
    assert subjects(ours) == subjects(theirs)


def subjects(found: Iterable[MetadataRecord]) -> list[str]:
    """Return the record types in the order of their first records."""
    return list(dict.fromkeys(record.name for record in found))


def test_the_log_has_a_record_of_almost_every_type() -> None:
    """The recorded log covers almost every record type, so that the comparison with the snapshots is meaningful."""
    names = {record.name for batch in batches("00000000000000000000.log.gz") for record in batch.records}
    assert len(names) == 20
    assert {"ClearElrRecord", "RemoveTopicRecord", "BrokerRegistrationChangeRecord", "ProducerIdsRecord"} <= names
    changes = [
        record.body
        for record in records(batches("00000000000000000000.log.gz"))
        if record.name == "PartitionChangeRecord"
    ]
    for field in ("Isr", "Replicas", "EligibleLeaderReplicas", "Directories"):
        assert any(body[field] is not None for body in changes), field


def test_topics_are_those_that_kafka_describes() -> None:
    image = after_log()
    found = {
        topic["Name"]: [
            (row["LeaderId"], row["LeaderEpoch"], row["ReplicaNodes"], row["IsrNodes"], row["EligibleLeaderReplicas"])
            for row in topic["Partitions"]
        ]
        for topic in DESCRIBED["topics"]
    }
    assert found == {
        name: [
            (row.leader, row.leader_epoch, list(row.replicas), list(row.isr), list(row.elr)) for row in topic.partitions
        ]
        for name, topic in image.topics.items()
    }
    assert {topic["Name"]: topic["TopicId"] for topic in DESCRIBED["topics"]} == {
        name: str(topic.topic_id) for name, topic in image.topics.items()
    }
    assert any(row[-1] for row in found["plain"])


def test_configs_quotas_and_features_are_those_that_kafka_describes() -> None:
    image = after_log()
    assert sorted(map(tuple, DESCRIBED["configs"])) == sorted(
        (kind, name, key, value) for (kind, name), values in image.configs.items() for key, value in values.items()
    )
    quotas = [
        (
            [(part["EntityType"], part["EntityName"]) for part in row["Entity"]],
            {value["Key"]: value["Value"] for value in row["Values"]},
        )
        for row in DESCRIBED["quotas"]
    ]
    ours = [(list(entity.parts_by_type), dict(values)) for entity, values in image.client_quotas.items()]
    assert sorted(quotas, key=repr) == sorted(ours, key=repr)
    finalized = {row["Name"]: row["MaxVersionLevel"] for row in DESCRIBED["features"]}
    finalized.pop("kraft.version", None)
    assert finalized == image.features


def test_rules_users_and_tokens_are_those_that_kafka_describes() -> None:
    image = after_log()
    assert sorted(
        (
            row["ResourceType"],
            row["ResourceName"],
            row["PatternType"],
            *(acl[key] for key in ("Principal", "Host", "Operation", "PermissionType")),
        )
        for row in DESCRIBED["acls"]
        for acl in row["Acls"]
    ) == sorted(map(tuple, image.acls.values()))
    mechanisms = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
    assert {
        (row["User"], one["Mechanism"], one["Iterations"])
        for row in DESCRIBED["users"]
        for one in row["CredentialInfos"]
    } == {
        (user, mechanisms[mechanism], credential.iterations)
        for (user, mechanism), credential in image.scram_credentials.items()
    }
    assert {
        row["TokenId"]: (
            (row["PrincipalType"], row["PrincipalName"]),
            (row["TokenRequesterPrincipalType"], row["TokenRequesterPrincipalName"]),
            tuple((one["PrincipalType"], one["PrincipalName"]) for one in row["Renewers"]),
            row["IssueTimestamp"], row["MaxTimestamp"], row["ExpiryTimestamp"],
        )
        for row in DESCRIBED["tokens"]
    } == {token_id: token[1:] for token_id, token in image.delegation_tokens.items()}  # fmt: skip
