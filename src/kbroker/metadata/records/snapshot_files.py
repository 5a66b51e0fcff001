"""Snapshots of the metadata log: ``*.checkpoint`` files in the form of Kafka (KIP-630).

A snapshot is a sequence of batches between a header and a footer. The offsets inside count from 0. The file
``bootstrap.checkpoint`` has the same form. Source: ``RecordsSnapshotWriter``, ``BatchFileWriter``, ``Snapshots``.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.log.checkpoints import write_atomically
from kbroker.metadata.records.batches import build_control, build_records, read_batches
from kbroker.metadata.records.control_records import SnapshotFooter, SnapshotHeader
from kbroker.metadata.records.metadata_record import TRANSACTION_RECORDS, UnknownRecordError
from kbroker.protocol._records import corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kbroker.metadata.records.batches import MetadataBatch
    from kbroker.metadata.records.control_records import ControlRecord
    from kbroker.metadata.records.metadata_record import MetadataRecord

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
SUFFIX, PARTIAL_SUFFIX = ".checkpoint", ".part"
BATCH_RECORDS = 1024  # a reader holds one batch in memory

_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class SnapshotId(NamedTuple):
    """The end offset of the log that a snapshot contains, and the epoch of the last record before it."""

    end_offset: int
    epoch: int


def snapshot_name(end_offset: int, epoch: int) -> str:
    """Return the name of the file of a snapshot."""
    return f"{end_offset:020d}-{epoch:010d}{SUFFIX}"


def snapshot_id(name: str) -> SnapshotId | None:
    """Return the id of the snapshot in the file `name`, None for another file."""
    match = _NAME.fullmatch(name)
    return match and SnapshotId(int(match[1]), int(match[2]))


def read_snapshot(path: Path) -> Iterator[MetadataBatch]:
    """Yield the batches of a snapshot, those of its header and of its footer included.

    Raises: OSError. ProtocolError: damage, or no header or footer. UnknownRecordError: a record that is not supported.
    The messages contain the path.
    """
    try:
        first, last = True, None
        for last in read_batches(path.read_bytes()):
            if first and not (last.control and isinstance(last.control[0], SnapshotHeader)):
                raise corrupt("the first record is not the header of a snapshot")
            first = False
            for record in last.records:
                if record.name in TRANSACTION_RECORDS:
                    raise corrupt(f"expected records of an image, found {record.name}", last.base_offset)
            yield last
        if last is None or not (last.control and isinstance(last.control[-1], SnapshotFooter)):
            raise corrupt("the last record is not the footer of a snapshot: the file is incomplete")
    except ProtocolError as error:
        raise corrupt(f"{path}: {error.message}") from None
    except UnknownRecordError as error:
        raise UnknownRecordError(f"{path}: {error}") from None


def write_snapshot(
    path: Path,
    records: Iterable[MetadataRecord],
    timestamp_ms: int,
    *,
    last_contained_log_timestamp_ms: int = 0,
    control: Sequence[ControlRecord] = (),
) -> None:
    """Write a snapshot so that a crash leaves no file, or all of it.

    The epoch of its batches is that in the file name, 0 for another name such as that of the bootstrap file.

    Args:
        path: the file, which is replaced if it exists.
        records: records of the image.
        timestamp_ms: time of every record.
        last_contained_log_timestamp_ms: time of the last log record that the snapshot contains.
        control: records after the header, in its batch: KRaftVersion and Voters with kraft.version 1.

    Raises: OSError. UnknownRecordError, ProtocolError: as encode_record.
    """
    found = snapshot_id(path.name)
    epoch = found.epoch if found else 0
    header = (SnapshotHeader(last_contained_log_timestamp_ms), *control)
    write_atomically(path, _batches(header, iter(records), epoch, timestamp_ms), PARTIAL_SUFFIX)


def _batches(
    header: Sequence[ControlRecord], records: Iterator[MetadataRecord], epoch: int, timestamp_ms: int
) -> Iterator[bytes]:
    yield build_control(header, 0, epoch, timestamp_ms)
    offset = len(header)
    while batch := list(islice(records, BATCH_RECORDS)):
        yield build_records(batch, offset, epoch, timestamp_ms)
        offset += len(batch)
    yield build_control([SnapshotFooter()], offset, epoch, timestamp_ms)
