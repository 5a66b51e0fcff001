"""Common parts of the coordinators: partition of a key, appends, and replay of a partition."""

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.coordinator import internal_topic
from kbroker.coordinator.internal_topic import BATCH_BYTES, UnreadableError, partition_of, read_to_end
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.log._partition_log import PartitionLog
from kbroker.protocol.records import iter_batches
from tests.support.errors import error_of
from tests.support.log_files import memory_log


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
