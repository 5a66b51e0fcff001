"""Committed offsets of topics whose deletion could not be stored at once."""

import errno
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.coordinator.group_records import CommittedOffset
from kbroker.log.deletion_note import DeletionNote
from kbroker.testing import VirtualBroker

RETRY_MS = 30_000


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    return {"log.dirs": str(tmp_path), "offsets.topic.num.partitions": 1}


def offsets_of(broker: VirtualBroker) -> dict[str, int]:
    found = broker.context.groups.offsets.fetch("g").committed
    return {topic: one.offset for (topic, _), one in found.items()}


def fill(broker: VirtualBroker, *names: str) -> Any:
    """Commit an offset of each topic, which is created; return the log with the offsets."""
    for name in names:
        broker.create_topic(name)
    groups, now_ms = broker.context.groups, broker.clock.wall_ms()
    groups.runtime.prepare()
    rows = {(name, 0): CommittedOffset(7, -1, "", now_ms, -1, topic_id(broker, name)) for name in names}
    groups.offsets.commit("g", "", None, -1, rows)
    return broker.context.topics.partition("__consumer_offsets", 0)


def topic_id(broker: VirtualBroker, name: str) -> UUID:
    view = broker.context.topics.get(name)
    assert view is not None
    return view.topic_id


def test_offsets_of_a_topic_that_is_deleted_on_a_full_disk(settings: dict[str, object], tmp_path: Path) -> None:
    """They are deleted once the disk has space again, also if a topic of that name was created and consumed since."""
    with VirtualBroker(settings) as broker:
        log = fill(broker, "gone", "kept", "new")
        log._inject_fault(write_errno=errno.ENOSPC)
        for name in ("gone", "new"):
            broker.context.topics.delete(name)
        broker.advance_ms(RETRY_MS)
        assert offsets_of(broker) == {"gone": 7, "kept": 7, "new": 7}
        assert len(DeletionNote(tmp_path).read()) == 2
        log._inject_fault()
        fill(broker, "new")
        broker.advance_ms(RETRY_MS)
        assert offsets_of(broker) == {"kept": 7, "new": 7}
        assert DeletionNote(tmp_path).read() == frozenset()


def test_offsets_of_a_topic_that_was_deleted_before_a_restart(settings: dict[str, object], tmp_path: Path) -> None:
    """The next start deletes those that the deletion of their topic could not delete, and no others."""
    with VirtualBroker(settings) as broker:
        fill(broker, "gone", "kept")._inject_fault(write_errno=errno.ENOSPC)
        broker.context.topics.delete("gone")
        assert offsets_of(broker) == {"gone": 7, "kept": 7}
    with VirtualBroker(settings) as broker:
        broker.advance_ms(0)
        assert offsets_of(broker) == {"kept": 7}
        assert DeletionNote(tmp_path).read() == frozenset()
    with VirtualBroker(settings) as broker:
        broker.advance_ms(0)
        assert offsets_of(broker) == {"kept": 7}


def test_a_topic_that_was_not_deleted_keeps_its_offsets(settings: dict[str, object]) -> None:
    """An id in the note is that of a deletion which may have failed: only topics without metadata were deleted."""
    with VirtualBroker(settings) as broker:
        fill(broker, "kept")
        broker.context.topics.deletions.add([topic_id(broker, "kept")])
        broker.advance_ms(RETRY_MS)
        assert offsets_of(broker) == {"kept": 7}
    with VirtualBroker(settings) as broker:
        broker.advance_ms(RETRY_MS)
        assert offsets_of(broker) == {"kept": 7}
