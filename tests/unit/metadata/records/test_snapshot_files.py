"""Tests of snapshot files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.common.errors import ProtocolError
from kbroker.metadata.records.batches import build_control, build_records
from kbroker.metadata.records.control_records import KRaftVersion, SnapshotFooter, SnapshotHeader
from kbroker.metadata.records.metadata_record import MetadataRecord, UnknownRecordError, metadata_record
from kbroker.metadata.records.snapshot_files import (
    BATCH_RECORDS,
    BOOTSTRAP_CHECKPOINT,
    SnapshotId,
    read_snapshot,
    snapshot_id,
    snapshot_name,
    write_snapshot,
)

NO_OP = metadata_record("NoOpRecord", {})


def test_the_name_has_the_offset_and_the_epoch() -> None:
    assert snapshot_name(100, 7) == "00000000000000000100-0000000007.checkpoint"
    assert snapshot_id(snapshot_name(2**62, 2**31 - 1)) == SnapshotId(2**62, 2**31 - 1)
    for other in (BOOTSTRAP_CHECKPOINT, snapshot_name(100, 7) + ".part", "00000000000000000100.checkpoint"):
        assert snapshot_id(other) is None


def test_a_snapshot_is_read_as_written(tmp_path: Path) -> None:
    """The records are in batches of bounded size between the header and the footer, at offsets from 0 on."""
    path = tmp_path / snapshot_name(5000, 7)
    path.write_bytes(b"older")
    records = [metadata_record("FeatureLevelRecord", {"Name": str(i), "FeatureLevel": 1}) for i in range(2500)]
    write_snapshot(path, iter(records), 1000, last_contained_log_timestamp_ms=900, control=[KRaftVersion(1)])
    batches = list(read_snapshot(path))
    assert [record for batch in batches for record in batch.records] == records
    assert batches[0].control == [SnapshotHeader(900), KRaftVersion(1)]
    assert batches[-1].control == [SnapshotFooter()]
    assert [(b.base_offset, b.last_offset) for b in batches] == [
        (0, 1), (2, 2 + BATCH_RECORDS - 1), (1026, 2049), (2050, 2501), (2502, 2502),
    ]  # fmt: skip
    assert {(batch.leader_epoch, batch.timestamp_ms) for batch in batches} == {(7, 1000)}
    assert list(tmp_path.iterdir()) == [path]


def test_the_bootstrap_file_has_epoch_0(tmp_path: Path) -> None:
    path = tmp_path / BOOTSTRAP_CHECKPOINT
    write_snapshot(path, [NO_OP], 1000)
    assert [(batch.leader_epoch, list(batch.control)) for batch in read_snapshot(path)] == [
        (0, [SnapshotHeader(0)]),
        (0, []),
        (0, [SnapshotFooter()]),
    ]


def test_a_record_that_cannot_be_written_leaves_the_older_file(tmp_path: Path) -> None:
    """A failure after the first batches leaves no other file."""
    path = tmp_path / snapshot_name(1, 1)
    path.write_bytes(b"older")

    def records() -> Iterator[MetadataRecord]:
        yield from [NO_OP] * 2000
        yield MetadataRecord("NothingRecord", 0, {})

    with pytest.raises(UnknownRecordError, match="NothingRecord"):
        write_snapshot(path, records(), 1000)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_an_incomplete_snapshot_is_an_error_with_its_path(tmp_path: Path) -> None:
    """Snapshots without a header or a footer, truncated snapshots, and empty files are errors."""
    path = tmp_path / snapshot_name(1, 1)
    header, footer = build_control([SnapshotHeader()], 0, 1, 0), build_control([SnapshotFooter()], 2, 1, 0)
    body = build_records([NO_OP], 1, 1, 0)
    for data, message in [
        (b"", "the last record is not the footer of a snapshot: the file is incomplete"),
        (header + body, "the last record is not the footer of a snapshot: the file is incomplete"),
        (body + footer, "the first record is not the header of a snapshot"),
        (header + body + footer[:-1], r"the batch at byte \d+ is cut after"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ProtocolError, match=rf"{path.name}: {message}"):
            list(read_snapshot(path))
    path.write_bytes(header + body + footer)
    assert len(list(read_snapshot(path))) == 3
