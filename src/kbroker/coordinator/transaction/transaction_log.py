"""``__transaction_state``: what each of its partitions says of its transactional ids, loaded and dropped per partition.

A partition that cannot be read to its end serves no transactional ids: a producer that is not known to be fenced could
write twice, and an open transaction would never end.
Source: ``TransactionStateManager``, ``TransactionLog``.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topics import TRANSACTION_STATE_TOPIC
from kbroker.coordinator import internal_topic
from kbroker.coordinator.internal_topic import (
    READ_BYTES,
    InternalTopic,
    KeyValue,
    UnreadableError,
    Written,
    partition_of,
)
from kbroker.coordinator.partition_epochs import PartitionEpochs
from kbroker.coordinator.transaction import transaction_records
from kbroker.coordinator.transaction.transaction_metadata import Move, TransactionMetadata, TransactionState

logger = get_logger(__name__)


LOAD_TIME_WINDOW_MS = 60_000  # two samples of 30 seconds, as Kafka keeps them


class LoadTimes(NamedTuple):
    """How long partitions took to load within the last minute, in milliseconds; NaN where none was."""

    average_ms: float
    max_ms: float


class StatePartition:
    """The transactional ids of one partition of ``__transaction_state``.

    ``open_ids``: those with an open transaction, which may time out. ``is_active`` ends with the partition's unload.
    Threads: everything is guarded by ``lock``, the records are appended under it, no disk is waited for under it. No
    thread holds the locks of two partitions.
    """

    __slots__ = ("coordinator_epoch", "index", "is_active", "lock", "log", "open_ids", "transactions")

    def __init__(
        self, index: int, log: Any, coordinator_epoch: int, transactions: dict[str, TransactionMetadata]
    ) -> None:
        self.index = index
        self.log = log
        self.coordinator_epoch = coordinator_epoch
        self.transactions = transactions
        self.open_ids = {name for name, metadata in transactions.items() if metadata.state is TransactionState.ONGOING}
        self.is_active = True
        self.lock = threading.Lock()

    def check(self) -> None:
        """Raises: KafkaError NOT_COORDINATOR once the partition is unloaded."""
        if not self.is_active:
            raise KafkaError(Errors.NOT_COORDINATOR, f"{TRANSACTION_STATE_TOPIC}-{self.index} is not served any more")

    def completed(self, metadata: TransactionMetadata) -> None:
        """A move of this id is complete."""
        if metadata.state is TransactionState.ONGOING:
            self.open_ids.add(metadata.transactional_id)
        else:
            self.open_ids.discard(metadata.transactional_id)


class TransactionLog:
    """Finds, reads and writes the state of transactional ids.

    Args: ``read_bytes``: that are read at once.
    Threads: any. The table of partitions is swapped whole under ``_lock``, which is taken before no other.
    """

    def __init__(self, topic: InternalTopic, clock: BaseClock, read_bytes: int = READ_BYTES) -> None:
        self._topic = topic
        self._read_bytes = read_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()  # one load at a time; taken before _lock
        self._count = 0  # partitions by which ids are hashed: those that there were when they were loaded
        self._partitions: Mapping[int, StatePartition] = {}
        self._loading: frozenset[int] = frozenset()
        self._epochs = PartitionEpochs()  # under _lock
        self._unreadable: Mapping[int, str] = {}
        self._loads: deque[tuple[int, int]] = deque(maxlen=1000)  # when each ended, and what it took

    @property
    def partitions(self) -> Sequence[StatePartition]:
        """The partitions that are served."""
        return list(self._partitions.values())

    @property
    def unreadable(self) -> Mapping[int, str]:
        """Partitions whose ids are not known, with the reason."""
        return self._unreadable

    @property
    def is_loading(self) -> bool:
        """Whether some partition is being read."""
        return bool(self._loading)

    @property
    def load_times(self) -> LoadTimes:
        """How long loading took lately."""
        since_ms = self._clock.now_ms() - LOAD_TIME_WINDOW_MS
        with self._lock:
            took = [took_ms for ended_ms, took_ms in self._loads if ended_ms >= since_ms]
        return LoadTimes(sum(took) / len(took), max(took)) if took else LoadTimes(math.nan, math.nan)

    def prepare(self) -> bool:
        """Create the topic if it does not exist, and serve its partitions.

        Returns: whether they were served before. Raises: KafkaError for the client.
        """
        if self._count:
            return True
        internal_topic.prepare(self._topic)
        self.load_all()
        return False

    def index_of(self, transactional_id: str) -> int:
        """The partition of an id; 0 until the topic exists."""
        return partition_of(transactional_id, self._count or 1)

    def find(self, transactional_id: str) -> StatePartition:
        """The partition that an id belongs to.

        Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR.
        """
        index = self.index_of(transactional_id)
        partition = self._partitions.get(index)
        if partition is not None:
            return partition
        if index in self._loading:
            raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS)
        raise KafkaError(Errors.NOT_COORDINATOR, self._unreadable.get(index))

    # ------------------------------------------------------------ writing

    def append_move(self, partition: StatePartition, metadata: TransactionMetadata, move: Move) -> None:
        """Write a pending move and complete it; the caller holds the partition's lock, released while a disk is
        waited for.

        Raises: KafkaError with the code for the client; the id stays as it was (unless a wait for the disk failed:
        then the log takes no more appends, and the next start decides).
        """
        try:
            key = transaction_records.encode_key(metadata.transactional_id)
            self._append(partition, [(key, transaction_records.encode_value(move))])
            partition.check()
        except ProtocolError as error:
            metadata.cancel()
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error
        except BaseException:
            metadata.cancel()
            raise
        metadata.complete(move)
        partition.completed(metadata)

    def append_tombstones(self, partition: StatePartition, expired: Sequence[TransactionMetadata]) -> None:
        """Forget ids whose move to Dead is pending; the caller holds the partition's lock, as in ``append_move``.

        Raises: KafkaError; the ids stay.
        """
        try:
            self._append(partition, [(transaction_records.encode_key(one.transactional_id), None) for one in expired])
        except BaseException:
            for one in expired:
                one.cancel()
            raise
        for one in expired:
            del partition.transactions[one.transactional_id]

    def _append(self, partition: StatePartition, records: Sequence[KeyValue]) -> None:
        partition.check()
        written = internal_topic.append(partition.log, records, self._clock.wall_ms())
        if written.flush_offset > 0:
            self._await_disk(partition, written)

    @staticmethod
    def _await_disk(partition: StatePartition, written: Written) -> None:
        partition.lock.release()
        try:
            written.await_disk()
        finally:
            partition.lock.acquire()

    # ------------------------------------------------------------ loading

    def load_all(self) -> None:
        """Serve all partitions that are not served yet; the ids are hashed by the number of partitions there is now.

        Ids from when the topic had fewer partitions move to where they belong now.
        """
        with self._load_lock:
            count = self._topic.partition_count
            if not self._count:
                with self._lock:
                    self._count = count
            moved: list[TransactionMetadata] = []
            for index in range(self._count):
                if index not in self._partitions and index not in self._unreadable:
                    leader_epoch = _leader_epoch(self._topic.partition(index))
                    with self._lock:
                        is_ours = self._epochs.begin_load(index, leader_epoch)
                    if is_ours:
                        moved += self._load(index, leader_epoch)
            for metadata in moved:
                self._take_over(metadata)

    def load(self, index: int, leader_epoch: int) -> None:
        """Read one partition and serve it; one that cannot be read to its end is not served, and an error says so.

        Args: ``leader_epoch``: from which on this broker leads it; nothing happens if a newer order was given before or
        is given meanwhile.
        """
        with self._lock:
            if not self._epochs.begin_load(index, leader_epoch):
                logger.info("%s-%d: ignored a late load of epoch %d", TRANSACTION_STATE_TOPIC, index, leader_epoch)
                return
        with self._load_lock:
            if not self._count:
                with self._lock:
                    self._count = self._topic.partition_count
            partition = self._partitions.get(index)
            if partition is None:
                self._load(index, leader_epoch)
            else:
                with partition.lock:
                    partition.coordinator_epoch = max(partition.coordinator_epoch, leader_epoch)

    def unload(self, index: int, leader_epoch: int | None) -> None:
        """Forget what a partition says; requests under way get NOT_COORDINATOR, a load under way is of no effect.

        Args: ``leader_epoch``: from which on another broker leads it; None: the topic was deleted. Nothing happens if
        a newer order was given before. Idempotent.
        """
        with self._lock:
            if not self._epochs.begin_unload(index, leader_epoch):
                logger.info("%s-%d: ignored a late unload of epoch %s", TRANSACTION_STATE_TOPIC, index, leader_epoch)
                return
            self._loading -= {index}
            partition = self._partitions.get(index)
            self._partitions = {key: value for key, value in self._partitions.items() if key != index}
            self._unreadable = {key: value for key, value in self._unreadable.items() if key != index}
        if partition is not None:
            with partition.lock:
                partition.is_active = False
                partition.open_ids.clear()

    def unload_all(self) -> None:
        """Forget everything: the topic was deleted, or the broker stops."""
        with self._load_lock:
            for index in (*self._partitions, *self._unreadable):
                self.unload(index, None)
            with self._lock:
                self._epochs.clear()
                self._count = 0

    def _load(self, index: int, leader_epoch: int) -> list[TransactionMetadata]:
        """Read a partition and serve it, unless it is another broker's by then; return the ids that belong to another
        partition by now.
        """
        with self._lock:
            if not self._epochs.is_served(index, leader_epoch):
                return []
            self._loading |= {index}
            self._unreadable = {key: value for key, value in self._unreadable.items() if key != index}
        log = self._topic.partition(index)
        started_ms = self._clock.now_ms()
        partition = None
        reason = ""
        moved: list[TransactionMetadata] = []
        try:
            found = dict(_remembered(index, log, self._read_bytes))
            moved = [one for name, one in found.items() if self.index_of(name) != index]
            for one in moved:
                del found[one.transactional_id]
            partition = StatePartition(index, log, leader_epoch, found)
        except UnreadableError as error:
            reason = internal_topic.report_unreadable(
                self._topic, TRANSACTION_STATE_TOPIC, index, "transactional ids", error
            )
        finally:
            ended_ms = self._clock.now_ms()
            with self._lock:
                is_ours = self._epochs.is_served(index, leader_epoch)
                if is_ours:
                    self._loading -= {index}
                if is_ours and partition is not None:
                    self._partitions = {**self._partitions, index: partition}
                elif is_ours and reason:
                    self._unreadable = {**self._unreadable, index: reason}
                self._loads.append((ended_ms, ended_ms - started_ms))
        return moved if is_ours else []

    def _take_over(self, metadata: TransactionMetadata) -> None:
        home = self._partitions.get(self.index_of(metadata.transactional_id))
        if home is None:
            return
        with home.lock:
            present = home.transactions.get(metadata.transactional_id)
            if present is None or present.last_update_ms < metadata.last_update_ms:
                home.transactions[metadata.transactional_id] = metadata
                home.completed(metadata)


def _leader_epoch(log: Any) -> int:
    return 0 if log is None else max(0, int(log.leader_epoch))


def _remembered(index: int, log: Any, read_bytes: int) -> Iterator[tuple[str, TransactionMetadata]]:
    """The ids of a partition that are not deleted. Raises: UnreadableError."""
    for raw_key, raw_value in internal_topic.last_values(log, read_bytes).items():
        try:
            name = transaction_records.decode_key(raw_key)
        except ProtocolError as error:
            logger.error("%s-%d: skipped a record with a malformed key: %s", TRANSACTION_STATE_TOPIC, index, error)
            continue
        if name is None:
            logger.warning("%s-%d: skipped a record of a newer kind", TRANSACTION_STATE_TOPIC, index)
        elif raw_value is not None:
            try:
                yield name, transaction_records.decode_value(name, raw_value)
            except ProtocolError as error:
                what = f"the state of transactional id {name!r} is malformed: {error}"
                raise UnreadableError(what, "stop the broker, install the release that wrote this record") from error
