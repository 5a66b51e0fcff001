"""Control batches that end a transaction, as a coordinator writes them."""

from __future__ import annotations

import struct

from kbroker.protocol.compression import CompressionType
from kbroker.protocol.control_types import ABORT, COMMIT
from kbroker.protocol.records import RecordBatchBuilder


def build_control_batch(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
) -> bytes:
    """Return the batch that ends a transaction on one partition: a single commit or abort marker."""
    builder = RecordBatchBuilder(
        CompressionType.NONE,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
    key = struct.pack(">hh", 0, COMMIT if commit else ABORT)
    builder.append(key, struct.pack(">hi", 0, coordinator_epoch), timestamp_ms)
    return builder.build()
