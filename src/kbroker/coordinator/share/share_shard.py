"""The share partitions of one partition of ``__share_group_state``: their state, its records, and its replay.

Source: ``ShareCoordinatorShard``, ``ShareCoordinatorOffsetsManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import SHARE_STATE_TOPIC
from kbroker.coordinator.internal_topic import (
    NOTHING_WRITTEN,
    InternalTopic,
    KeyValue,
    TransactionalProducer,
    UnreadableError,
    Written,
    report_strangers,
)
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.coordinator.runtime import CoordinatorShard
from kbroker.coordinator.share import share_records
from kbroker.coordinator.share.persister import UNINITIALIZED_OFFSET, ShareState, StateBatch, StateChange
from kbroker.coordinator.share.share_records import (
    SNAPSHOT,
    UPDATE,
    SharePartitionKey,
    SharePartitionState,
    ShareUpdate,
    initial_state,
)
from kbroker.coordinator.share.state_batches import combine

logger = get_logger(__name__)

NO_EPOCH = -1  # in a request: the epoch is not checked


class Stored:
    """A share partition. ``leader_epoch`` and ``state_epoch``: the highest so far; requests with lower ones are fenced.

    ``update_count``: updates since the latest snapshot, whose offset is ``snapshot_offset``.
    """

    __slots__ = ("leader_epoch", "snapshot_offset", "state", "state_epoch", "update_count")

    def __init__(self, state: SharePartitionState, offset: int) -> None:
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.state_epoch = state.state_epoch
        self.snapshot_offset = offset
        self.update_count = 0

    def replace(self, state: SharePartitionState, offset: int, updates_per_snapshot: int) -> None:
        """Replace the state by that of a snapshot; the epochs never decrease."""
        self.state = state
        self.leader_epoch = max(self.leader_epoch, state.leader_epoch)
        self.state_epoch = max(self.state_epoch, state.state_epoch)
        self.snapshot_offset = offset
        if self.update_count >= updates_per_snapshot:
            self.update_count = 0

    def update(self, update: ShareUpdate) -> None:
        """Apply an update."""
        self.state = self.state.updated(update)
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        self.update_count += 1


class ShareReplay(PartitionReplay):
    """Replay of the records of share partitions, in the order of their offsets: an update needs those before it."""

    def __init__(self, updates_per_snapshot: int) -> None:
        super().__init__()
        self.stored: dict[SharePartitionKey, Stored] = {}
        self._updates_per_snapshot = updates_per_snapshot

    def put(self, key: bytes, record_offset: int, value: bytes | None) -> None:
        """Apply a record. Raises: UnreadableError for a malformed value."""
        try:
            found = share_records.decode_key(key)
        except ProtocolError as error:
            logger.error("%s: skipped a record with a malformed key: %s", SHARE_STATE_TOPIC, error)
            return
        if found is None:
            logger.warning("%s: skipped a record of a newer kind", SHARE_STATE_TOPIC)
            return
        kind, name = found
        if value is None:
            self.stored.pop(name, None)
            return
        try:
            present = self.stored.get(name)
            if kind == SNAPSHOT:
                state = share_records.decode_snapshot(value)
                if present is None:
                    self.stored[name] = Stored(state, record_offset)
                else:
                    present.replace(state, record_offset, self._updates_per_snapshot)
            elif present is not None:  # otherwise its snapshot was deleted: the share partition is deleted
                present.update(share_records.decode_update(value))
        except ProtocolError as error:
            reason = f"the state of share partition {name.text} is malformed: {error}"
            raise UnreadableError(reason, "stop the broker, install the release that wrote this record") from error


class ShareShard(CoordinatorShard):
    """Share partitions whose state is in one partition of ``__share_group_state``.

    Args: ``updates_per_snapshot``: number of updates after which a snapshot is written; ``exists`` returns whether
    the topic of a share partition has that partition.
    Threads: ``lock`` guards everything; records are appended under it.
    """

    def __init__(
        self,
        topic: InternalTopic,
        index: int,
        epoch: int,
        clock: BaseClock,
        updates_per_snapshot: int,
        exists: Callable[[SharePartitionKey], bool],
    ) -> None:
        super().__init__(topic, index, epoch, clock)
        self.stored: dict[SharePartitionKey, Stored] = {}
        self._updates_per_snapshot = updates_per_snapshot
        self._exists = exists
        self._latest = NOTHING_WRITTEN  # for a request whose change is already made, but may not be on disk yet

    def append(self, records: Sequence[KeyValue], producer: TransactionalProducer | None = None) -> Written:
        """Append records: see ``CoordinatorShard``."""
        self._latest = super().append(records, producer)
        return self._latest

    def restore(self, replay: ShareReplay, index_of: Callable[[str], int]) -> None:
        """Take over the replayed share partitions."""
        self.stored = {key: one for key, one in replay.stored.items() if index_of(key.text) == self.index}
        strangers = {key.text for key in replay.stored if key not in self.stored}
        report_strangers(SHARE_STATE_TOPIC, self.index, "share partitions", strangers)

    # ------------------------------------------------------------ requests

    def read(self, key: SharePartitionKey, leader_epoch: int) -> tuple[ShareState, Written]:
        """Return the state and the latest write; a new leader epoch is stored. Raises: KafkaError."""
        with self.lock:
            self.check()
            found = self._found(key, "Read")
            _check_leader_epoch(found, leader_epoch)
            self._check_exists(key)
            state = found.state
            written = self._latest
            if leader_epoch not in (NO_EPOCH, found.leader_epoch):
                written = self._write(key, found, leader_epoch, state.start_offset, state.delivery_complete_count, ())
            return _share_state(state, with_batches=True), written

    def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the state without its batches; if there is none, the state of an uninitialized share partition."""
        with self.lock:
            self.check()
            self._check_exists(key)
            found = self.stored.get(key)
            return ShareState() if found is None else _share_state(found.state, with_batches=False)

    def write(self, key: SharePartitionKey, change: StateChange) -> Written:
        """Change the state of a share partition. Raises: KafkaError; the state is then unchanged."""
        with self.lock:
            self.check()
            found = self._found(key, "Write")
            _check_leader_epoch(found, change.leader_epoch)
            _check_state_epoch(found, change.state_epoch)
            self._check_exists(key)
            return self._write(key, found, found.state.leader_epoch, *change[2:])

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Written:
        """Create or replace the state. Raises: KafkaError; the state is then unchanged."""
        with self.lock:
            self.check()
            found = self.stored.get(key)
            snapshot_epoch = 0
            if found is not None:
                _check_state_epoch(found, state_epoch)
                snapshot_epoch = found.state.snapshot_epoch + 1
            self._check_exists(key)
            now_ms = self._clock.wall_ms()
            return self._snapshots({key: initial_state(state_epoch, start_offset, snapshot_epoch, now_ms)})

    def delete(self, key: SharePartitionKey) -> Written:
        """Delete a share partition; no effect if it is unknown. Raises: KafkaError."""
        with self.lock:
            self.check()
            self._check_exists(key)
            return self._delete([key])

    def delete_topics(self) -> Written:
        """Delete the share partitions of topics that no longer exist. Raises: KafkaError."""
        with self.lock:
            self.check()
            return self._delete([key for key in self.stored if not self._exists(key)])

    def _delete(self, keys: Sequence[SharePartitionKey]) -> Written:
        known = [key for key in keys if key in self.stored]
        if not known:
            return self._latest
        written = self.append([(share_records.encode_key(SNAPSHOT, key), None) for key in known])
        for key in known:
            del self.stored[key]
        return written

    # ------------------------------------------------------------ periodic work

    def snapshot_idle(self, interval_ms: int) -> Written:
        """Write snapshots of share partitions without one in the interval; the records before them can be deleted.

        Writes nothing if this method wrote the latest snapshot of each share partition. Raises: KafkaError.
        """
        with self.lock:
            self.check()
            if all(one.state.create_ms != one.state.write_ms for one in self.stored.values()):
                return NOTHING_WRITTEN
            now_ms = self._clock.wall_ms()
            states = {
                key: one.state._replace(snapshot_epoch=one.state.snapshot_epoch + 1, write_ms=now_ms)
                for key, one in self.stored.items()
                if not 0 <= now_ms - one.state.write_ms < interval_ms  # or the clock was set back
            }
            return self._snapshots(states) if states else NOTHING_WRITTEN

    def prune(self) -> bool:
        """Delete the records before the oldest snapshot that is in use; return whether the log's start moved."""
        with self.lock:
            self.check()
            log = self.log
            offset: int = min((one.snapshot_offset for one in self.stored.values()), default=log.log_end_offset)
            start = log.log_start_offset
            return offset > start and bool(log.delete_records(min(offset, log.high_watermark)) > start)

    # ------------------------------------------------------------ writing

    def _found(self, key: SharePartitionKey, word: str) -> Stored:
        found = self.stored.get(key)
        if found is None:
            text = f"{word} operation on uninitialized share partition not allowed."
            raise KafkaError(Errors.INVALID_REQUEST, text)
        return found

    def _check_exists(self, key: SharePartitionKey) -> None:
        if not self._exists(key):
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION)

    def _write(
        self,
        key: SharePartitionKey,
        found: Stored,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Written:
        """Append an update, or a snapshot if there have been enough updates, and apply it."""
        state = found.state
        if found.update_count < self._updates_per_snapshot:
            update = ShareUpdate(
                state.snapshot_epoch,
                leader_epoch,
                start_offset,
                delivery_complete_count,
                combine(batches, start_offset),
            )
            written = self.append([(share_records.encode_key(UPDATE, key), share_records.encode_update(update))])
            found.update(update)
            return written
        start = state.start_offset if start_offset == UNINITIALIZED_OFFSET else start_offset
        now_ms = self._clock.wall_ms()
        snapshot = SharePartitionState(
            state.snapshot_epoch + 1,
            state.state_epoch,
            leader_epoch,
            start,
            delivery_complete_count,
            now_ms,
            now_ms,
            combine((*state.batches, *batches), start),
        )
        return self._snapshots({key: snapshot})

    def _snapshots(self, states: dict[SharePartitionKey, SharePartitionState]) -> Written:
        records: list[KeyValue] = [
            (share_records.encode_key(SNAPSHOT, key), share_records.encode_snapshot(state))
            for key, state in states.items()
        ]
        written = self.append(records)
        for offset, (key, state) in enumerate(states.items(), written.base_offset):
            found = self.stored.get(key)
            if found is None:
                self.stored[key] = Stored(state, offset)
            else:
                found.replace(state, offset, self._updates_per_snapshot)
        return written


def _check_leader_epoch(found: Stored, leader_epoch: int) -> None:
    if leader_epoch != NO_EPOCH and found.leader_epoch > leader_epoch:
        raise KafkaError(Errors.FENCED_LEADER_EPOCH)


def _check_state_epoch(found: Stored, state_epoch: int) -> None:
    if state_epoch != NO_EPOCH and found.state_epoch > state_epoch:
        raise KafkaError(Errors.FENCED_STATE_EPOCH)


def _share_state(state: SharePartitionState, *, with_batches: bool) -> ShareState:
    return ShareState(
        state_epoch=state.state_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        leader_epoch=state.leader_epoch,
        batches=state.batches if with_batches else (),
    )
