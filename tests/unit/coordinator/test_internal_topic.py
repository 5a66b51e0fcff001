"""Common parts of the coordinators: partition of a key, appends, and replay of a partition."""

import errno
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.coordinator import internal_topic
from kbroker.coordinator.internal_topic import (
    BATCH_BYTES,
    EndMarker,
    UnreadableError,
    append_end_marker,
    partition_of,
    read_to_end,
)
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.log._partition_log import PartitionLog
from kbroker.log.log_types import ReadInfo
from kbroker.protocol.records import iter_batches
from tests.support.errors import error_of
from tests.support.log_files import memory_log, open_log


def log(**config: object) -> PartitionLog:
    return memory_log("__internal", clock=VirtualClock(), config=config)


def test_the_partition_of_a_key_is_that_of_java() -> None:
    """The partition equals Java's Utils.abs of String.hashCode, for the minimum integer too."""
    assert partition_of("abc", 50) == 96354 % 50
    assert partition_of("", 50) == 0
    assert partition_of("polygenelubricants", 50) == 0  # the hash is -2**31, whose Utils.abs is 0


def test_the_last_value_of_a_key_counts() -> None:
    one = log()
    internal_topic.append(one, [(b"a", b"1"), (b"b", b"2")], 5)
    internal_topic.append(one, [(b"a", None)], 6)
    assert PartitionReplay().read(one).values == {b"a": (2, None), b"b": (1, b"2")}


def test_many_records_are_several_batches_of_one_append() -> None:
    """Records above the maximum batch size are written in order, as several batches of one append."""
    one = log()
    records = [(b"k%d" % number, bytes(BATCH_BYTES // 3)) for number in range(5)]
    internal_topic.append(one, records, 5)
    assert [batch.record_count for batch in iter_batches(one.read(0, 1 << 30).records)] == [2, 2, 1]
    assert list(PartitionReplay().read(one).values) == [key for key, _ in records]


def test_batches_come_in_order() -> None:
    one = log()
    for number in range(3):
        internal_topic.append(one, [(b"k", b"%d" % number)], 5)
    seen = []

    def take(data: bytes, offset: int) -> int:
        for batch in iter_batches(data):
            seen.append(batch.base_offset)
        return seen[-1] + 1

    read_to_end(one, take)
    assert seen == [0, 1, 2]


def test_what_cannot_be_read_is_said() -> None:
    """An offline partition, and a reader without progress, raise UnreadableError."""
    with pytest.raises(UnreadableError, match="offline"):
        PartitionReplay().read(None)
    one = log()
    internal_topic.append(one, [(b"k", b"v")], 5)
    with pytest.raises(UnreadableError, match="no batch can be read at offset 0"):
        read_to_end(one, lambda data, offset: offset)


def test_errors_of_the_log_become_the_coordinators() -> None:
    """A record that is too large, and a closed log, raise the coordinator's error without a write."""
    small = log(**{"max.message.bytes": 100})
    assert error_of(internal_topic.append, small, [(b"k", bytes(200))], 5) is Errors.UNKNOWN_SERVER_ERROR
    assert small.log_end_offset == 0
    small.close()
    assert error_of(internal_topic.append, small, [(b"k", b"v")], 5) is Errors.COORDINATOR_NOT_AVAILABLE
    assert error_of(append_end_marker, small, EndMarker(1, 0, 0, True, 1)) is Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("number", "text"), [(errno.ENOSPC, "No space left on device"), (0, "t-0 is closed")])
def test_a_flush_that_fails(tmp_path: Path, number: int, text: str) -> None:
    """With flush.messages=1 a failed flush, and a log that was closed before it, have the coordinator's error."""
    one = open_log(tmp_path / "__internal-0", config={"flush.messages": 1})
    written = internal_topic.append(one, [(b"k", b"v")], 5)
    if number:
        one._inject_fault(sync_errno=number)
    else:
        one.close(clean=False)
    with pytest.raises(KafkaError, match=f"NOT_COORDINATOR: cannot flush: .*{text}"):
        written.await_disk()


class Reading:
    """Log whose reads have a result of the test's choice."""

    damage: str | None = None
    log_start_offset, log_end_offset = 0, 5

    def __init__(self, result: ReadInfo | OSError) -> None:
        self.result = result

    def read(self, offset: int, max_bytes: int) -> ReadInfo:
        if isinstance(self.result, OSError):
            raise self.result
        return self.result


def test_reads_that_fail() -> None:
    """Damage, a broken disk and an error of the log raise UnreadableError; a compacted end has no records."""
    read: list[bytes] = []

    def take(data: bytes, offset: int) -> int:
        read.append(data)
        return 5

    for result, text in (
        (OSError(errno.EIO, "broken"), r"reading from offset 0 failed: \[Errno 5\] broken"),
        (ReadInfo(56, 5, 5, 0, b"", 0, []), "reading from offset 0 failed: KAFKA_STORAGE_ERROR"),
    ):
        with pytest.raises(UnreadableError, match=text):
            read_to_end(Reading(result), take)
    damaged = Reading(OSError())
    damaged.damage = "the batch at offset 3 is damaged"
    with pytest.raises(UnreadableError, match=damaged.damage):
        read_to_end(damaged, take)
    read_to_end(Reading(ReadInfo(0, 5, 5, 0, b"", 0, [])), take)
    assert read == []
