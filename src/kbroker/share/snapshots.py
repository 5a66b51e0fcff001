"""Facts of a share partition for the X-ray and the metrics: its records in flight and their locks."""

from __future__ import annotations

from typing import Any

from kbroker.share.in_flight import RecordState
from kbroker.share.share_partition import SharePartition


def facts_of(share: SharePartition, now_ms: int) -> dict[str, Any]:
    """Return offsets, records by state, members with locks, and the time until the first lock expires, as JSON values.

    Args: ``now_ms``: the time of the clock that the locks use.
    """
    counts = dict.fromkeys(RecordState, 0)
    acquired: dict[str, int] = {}
    due_ms: list[int] = []
    with share.lock:
        window = share.window
        for batch in window.batches:
            for run in batch.runs:
                size = run.last_offset - run.first_offset + 1
                counts[run.state] += size
                if run.state is RecordState.ACQUIRED:
                    acquired[run.member_id] = acquired.get(run.member_id, 0) + size
                    if run.lock is not None:
                        due_ms.append(run.lock.due_ms)
        facts = {
            "start_offset": window.start_offset,
            "end_offset": window.end_offset,
            "in_flight": window.record_count,
            "batches": len(window.batches),
        }
    return {
        "group": share.key.group_id,
        "topic": share.key.topic,
        "partition": share.key.partition,
        "state": share.state.value,
        **facts,
        "max_in_flight": share.configs.max_record_locks,
        "available": counts[RecordState.AVAILABLE],
        "acquired": counts[RecordState.ACQUIRED],
        "members": len(acquired),
        "next_lock_expires_ms": max(0, min(due_ms) - now_ms) if due_ms else None,
    }
