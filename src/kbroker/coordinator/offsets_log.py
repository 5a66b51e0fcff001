"""``__consumer_offsets``: writing the records of groups, and loading them at a start.

As in Kafka, a partition that cannot be read to its end serves no groups: a client that got "no committed offset" would
start elsewhere, and records written after the damage would not be read at the next start.
Source: ``CoordinatorLoaderImpl``, ``CoordinatorRuntime``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.coordinator import group_records, internal_topic
from kbroker.coordinator.group_records import CommittedOffset, GroupKey, OffsetKey, StoredGroup
from kbroker.coordinator.internal_topic import (
    InternalTopic,
    KeyValue,
    UnreadableError,
    Written,
    last_values,
    partition_of,
)

logger = get_logger(__name__)

Remembered = tuple[OffsetKey, CommittedOffset] | tuple[GroupKey, StoredGroup]


class OffsetsLog:
    """Writes and reads the records of groups.

    Threads: any. The order of one group's records is that of the calls, so the caller holds the group's lock.
    """

    def __init__(self, topic: InternalTopic, clock: BaseClock) -> None:
        self._topic = topic
        self._clock = clock
        self._unreadable: Mapping[int, str] = {}  # partition and reason; swapped whole, under the lock
        self._loaded_count = 0  # partitions at the start
        self._lock = threading.Lock()

    @property
    def unreadable(self) -> Mapping[int, str]:
        """Partitions whose groups are not known, with the reason."""
        return self._unreadable

    @property
    def partition_count(self) -> int:
        """Partitions of the topic, 0 while it does not exist."""
        return self._topic.partition_count

    def check(self, group_id: str) -> None:
        """Raises: KafkaError NOT_COORDINATOR if the group's partition could not be read."""
        if self._unreadable:  # also of the partition it had at the start: the topic may have grown since
            reason = self._unreadable.get(partition_of(group_id, self._topic.partition_count or 1))
            reason = reason or self._unreadable.get(partition_of(group_id, self._loaded_count or 1))
            if reason is not None:
                raise KafkaError(Errors.NOT_COORDINATOR, reason)

    def forget_damage(self) -> None:
        """The topic was deleted: a new one starts undamaged."""
        with self._lock:
            self._unreadable = {}

    def prepare(self) -> None:
        """Create the topic if it does not exist. Raises: KafkaError with the coordinator's code for the client."""
        internal_topic.prepare(self._topic)

    def append(self, group_id: str, records: Sequence[KeyValue]) -> Written:
        """Append key and value (None: a tombstone); call ``await_disk`` of the result before acknowledging.

        Raises: KafkaError with the coordinator's code for the client; then nothing was written.
        """
        self.check(group_id)
        if not self._topic.partition_count:
            self.prepare()
        log = self._topic.partition(partition_of(group_id, self._topic.partition_count or 1))
        if log is None:
            raise KafkaError(Errors.NOT_COORDINATOR, "the partition of __consumer_offsets is offline")
        return internal_topic.append(log, records, self._clock.wall_ms())

    def replay(self) -> Iterator[Remembered]:
        """Yield the last record of each offset and group of the partitions that can be read to their end.

        The groups of the others are not served: an error is logged, and ``unreadable`` lists the partitions.
        """
        count = self._loaded_count = self._topic.partition_count
        homes: dict[str, int] = {}
        moved: dict[OffsetKey | GroupKey, Remembered] = {}
        for index in range(count):
            try:
                remembered = _remembered(index, last_values(self._topic.partition(index)))
            except UnreadableError as error:
                self._fence(index, error)
                continue
            for one in remembered:
                group_id = one[0].group_id
                home = homes.get(group_id)
                if home is None:
                    home = homes[group_id] = partition_of(group_id, count)
                if home == index:
                    yield one
                elif one[0] not in moved or _time_of(moved[one[0]]) <= _time_of(one):
                    moved[one[0]] = one
        yield from self._not_written_again(moved, homes)

    def _not_written_again(
        self, moved: Mapping[OffsetKey | GroupKey, Remembered], homes: Mapping[str, int]
    ) -> Iterator[Remembered]:
        """Yield records from when the topic had fewer partitions, unless their key was written again since."""
        for index in {homes[key.group_id] for key in moved}:
            if index in self._unreadable:
                continue
            try:
                since = last_values(self._topic.partition(index))
            except UnreadableError as error:
                self._fence(index, error)
                continue
            yield from (one for key, one in moved.items() if homes[key.group_id] == index and _raw(key) not in since)

    def _fence(self, index: int, error: UnreadableError) -> None:
        with self._lock:
            self._unreadable = {**self._unreadable, index: f"__consumer_offsets-{index} cannot be read: {error}"}
        folder = self._topic.folder(index)
        logger.error(
            "__consumer_offsets-%d in %s cannot be read: %s. Its groups are not served (NOT_COORDINATOR) and nothing "
            "is written to it; %s, then start it again",
            index,
            folder,
            error,
            error.way_out or f"stop the broker and run: kbroker log verify --repair {folder}",
        )


def _remembered(index: int, values: Mapping[bytes, bytes | None]) -> list[Remembered]:
    """Decode what is not deleted. Raises: UnreadableError for an offset: its consumer would start elsewhere."""
    found: list[Remembered] = []
    for raw_key, raw_value in values.items():
        if raw_value is None:
            continue
        key = None
        try:
            key = group_records.decode_key(raw_key)
            if isinstance(key, OffsetKey):
                found.append((key, group_records.decode_offset(raw_value)))
            elif isinstance(key, GroupKey):
                found.append((key, group_records.decode_group(raw_value)))
        except ProtocolError as error:
            if isinstance(key, OffsetKey):
                what = f"the offset of group {key.group_id} for {key.topic}-{key.partition} is malformed: {error}"
                raise UnreadableError(what, "stop the broker, install the release that wrote this record") from error
            # no coordinator writes such a key; members of an unknown group join again
            logger.error("__consumer_offsets-%d: skipped a record that cannot be decoded: %s", index, error)
    return found


def _raw(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, OffsetKey):
        return group_records.offset_key(key.group_id, key.topic, key.partition)
    return group_records.group_key(key.group_id)


def _time_of(one: Remembered) -> int:
    value = one[1]
    return value.state_timestamp_ms if isinstance(value, StoredGroup) else value.commit_timestamp_ms
