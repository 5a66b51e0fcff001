"""The bytes of an Apache Kafka metadata log are read, and written again without a difference."""

from pathlib import Path

import pytest

from kbroker.metadata.records.batches import MetadataBatch, build_control, build_records, read_batches
from kbroker.metadata.records.control_records import KRaftVersion, LeaderChange, SnapshotHeader, Voters
from kbroker.metadata.records.metadata_record import RECORD_TYPES, metadata_record
from kbroker.metadata.records.snapshot_files import read_snapshot, write_snapshot
from tests.support.kafka_metadata_log import BOOTSTRAP, FILES, FIRST, LOG, SNAPSHOTS, kafka_metadata_log

KAFKA = kafka_metadata_log()


def built(batch: MetadataBatch) -> bytes:
    if batch.control:
        return build_control(batch.control, batch.base_offset, batch.leader_epoch, batch.timestamp_ms)
    return build_records(batch.records, batch.base_offset, batch.leader_epoch, batch.timestamp_ms)


@pytest.mark.parametrize("name", FILES)
def test_every_batch_is_built_byte_for_byte(name: str) -> None:
    assert b"".join(map(built, read_batches(KAFKA[name]))) == KAFKA[name]


def test_the_log_has_all_records_that_kafka_writes() -> None:
    """Only the types of older versions and of a failed transaction are missing."""
    found = {record.name for batch in read_batches(KAFKA[LOG]) for record in batch.records}
    assert set(RECORD_TYPES.values()) - found == {
        "FenceBrokerRecord", "UnfenceBrokerRecord", "ZkMigrationStateRecord", "AbortTransactionRecord",
    }  # fmt: skip


def test_each_record_has_the_version_of_the_level() -> None:
    """The log has metadata.version 30, the default level."""
    for batch in read_batches(KAFKA[LOG]):
        for record in batch.records:
            assert metadata_record(record.name, record.body) == record


def test_control_records_of_the_log() -> None:
    """An epoch begins with its leader record; the first epoch also has kraft.version and the voters."""
    control = [batch.control for batch in read_batches(KAFKA[LOG]) if batch.control]
    first, second = control
    assert [type(record) for record in first] == [LeaderChange, KRaftVersion, Voters]
    assert list(second) == [LeaderChange(1, (1,), (1,))]
    voters = first[2]
    assert isinstance(voters, Voters)
    (voter,) = voters.voters
    assert (voter.id, voter.endpoints) == (1, (("CONTROLLER", "127.0.0.1", 23093),))


def test_snapshots_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    """Snapshot files equal Kafka's except for the batch timestamps, which Kafka takes for each batch."""
    for name in (FIRST, *SNAPSHOTS, BOOTSTRAP):
        path = tmp_path / name
        path.write_bytes(KAFKA[name])
        batches = list(read_snapshot(path))
        header, *control = batches[0].control
        assert isinstance(header, SnapshotHeader)
        records = [record for batch in batches for record in batch.records]
        last_ms = header.last_contained_log_timestamp_ms
        write_snapshot(path, records, 1000, last_contained_log_timestamp_ms=last_ms, control=control)
        assert path.read_bytes() == b"".join(built(batch._replace(timestamp_ms=1000)) for batch in batches)
