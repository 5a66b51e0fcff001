"""Check that an existing topic has the request log's data and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.protocol.records import iter_batches

LARGEST_BATCH_BYTES = 8 * 1024 * 1024  # enough for one record with the longest names; usually a quarter of a megabyte


def holds_other_records(logs: Sequence[Any]) -> bool:
    """Return whether the last record of any partition is not a request log's, in JSON or Arrow.

    Args: ``logs``: the PartitionLog of each partition, or None. Empty partitions are accepted: an operator may create
    the topic before the first start.
    Threads: any.
    """
    return any(log is not None and _ends_with_another(log) for log in logs)


def _ends_with_another(log: Any) -> bool:
    if log.log_end_offset == log.log_start_offset:
        return False
    data = log.read(log.log_end_offset - 1, LARGEST_BATCH_BYTES).records
    records = [record for batch in iter_batches(data) for record in batch.records()] if data else []
    if not records:
        return False  # retention or truncation removed it
    _, _, key, value, headers = records[-1]
    if key is None:
        return ("format", b"arrow") not in list(headers)
    return b"\0" not in key or value is None or not value.startswith(b'{"version":')
