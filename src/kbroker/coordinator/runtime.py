"""Runtime of a coordinator: loads, serves and unloads the partitions of its internal topic as their leaders change.

The runtime does not depend on the format of the coordinator's records. The state of one partition is a
``CoordinatorShard``; the coordinator builds it from the replayed records and writes through it. A partition that cannot
be read to its end is not served: a client would take missing state for state that never existed, and records written
after the damage would be lost to the next load.

Source: ``CoordinatorRuntime``, ``CoordinatorLoaderImpl``, ``TransactionStateManager``.
"""

from __future__ import annotations

import enum
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator import internal_topic
from kbroker.coordinator.internal_topic import (
    READ_BYTES,
    InternalTopic,
    KeyValue,
    TransactionalProducer,
    UnreadableError,
    Written,
    partition_of,
)
from kbroker.coordinator.partition_replay import PartitionReplay

logger = get_logger(__name__)

LOAD_TIME_WINDOW_MS = 60_000  # two samples of 30 seconds, as in Kafka


class CoordinatorShard:
    """State of one partition of an internal topic. Base class; a coordinator adds its own state.

    ``epoch``: the leader epoch by which this broker serves the partition. ``is_active``: True until the unload.
    Threads: any. A subclass states which of its state ``lock`` guards.
    """

    def __init__(self, topic: InternalTopic, index: int, epoch: int, clock: BaseClock) -> None:
        self.index = index
        self.epoch = epoch
        self.is_active = True
        self.lock = threading.Lock()
        self._topic = topic
        self._clock = clock

    @property
    def log(self) -> Any:
        """The log of the partition. Raises: KafkaError NOT_COORDINATOR if it is offline."""
        log = self._topic.partition(self.index)
        if log is None:
            raise KafkaError(Errors.NOT_COORDINATOR, f"partition {self.index} is offline")
        return log

    def check(self) -> None:
        """Check that the partition is active. Raises: KafkaError NOT_COORDINATOR once it is unloaded."""
        if not self.is_active:
            raise KafkaError(Errors.NOT_COORDINATOR, f"partition {self.index} is no longer served")

    def append(self, records: Sequence[KeyValue], producer: TransactionalProducer | None = None) -> Written:
        """Append keys and values (None: a tombstone); call ``await_disk`` of the result before acknowledging them.

        The caller holds the lock of the changed object, so that its records are in the order of its changes.

        Args: ``producer``: the records belong to its transaction.
        Raises: KafkaError with the coordinator's code for the client; then nothing was written.
        """
        self.check()
        return internal_topic.append(self.log, records, self._clock.wall_ms(), producer)

    def retire(self) -> None:
        """End the shard: when this returns, nothing more is appended through it. Idempotent.

        The caller holds no lock except the runtime's load lock.
        """
        with self.lock:
            self.is_active = False


Shard = TypeVar("Shard", bound=CoordinatorShard)


class Coordinator(Protocol[Shard]):
    """The part of a coordinator that its runtime calls, under the runtime's load lock."""

    def build(self, index: int, epoch: int, replay: PartitionReplay) -> Shard:
        """Return the state of a partition, from its replayed records. Raises: UnreadableError."""

    def resume(self, shard: Shard) -> None:
        """Start the timers of a partition that has just become active, and complete its prepared operations."""


class PartitionState(enum.Enum):
    """States of a partition, after Kafka's ``CoordinatorState``."""

    LOADING = enum.auto()
    ACTIVE = enum.auto()
    FAILED = enum.auto()  # it cannot be read to its end
    CLOSED = enum.auto()  # another broker leads it


class _Partition(NamedTuple):
    """Latest known state of a partition. ``shard``: if it is active; ``reason``: why it is not served otherwise."""

    epoch: int
    state: PartitionState
    shard: Any = None
    reason: str = ""


class PartitionCounts(NamedTuple):
    """Numbers of partitions that are served, are being loaded, and could not be read."""

    active: int
    loading: int
    failed: int


class LoadTimes(NamedTuple):
    """Durations of the loads of the last minute, in milliseconds; NaN without loads."""

    average_ms: float
    max_ms: float


class CoordinatorRuntime(Generic[Shard]):
    """The partitions of one internal topic that this broker serves.

    A key belongs to the partition that its hash names. The number of partitions is therefore fixed: it is read when
    the topic is loaded, and CreatePartitions refuses internal topics.

    Each order (load, unload) carries the partition's leader epoch, and the newest order counts: a load that was
    requested before the leadership moved does not undo the unload that followed. An epoch has one leader.

    Args: ``name`` of the topic; ``noun``: the things that it stores, in the plural, for messages; ``read_bytes``: size
    of one read while loading; ``new_replay``: returns the replay of a partition.
    Threads: any. ``_lock`` guards the table of partitions, which is swapped whole and read without it; no other lock
    is taken under it. ``_load_lock`` serializes loads and retirements; the coordinator's locks are taken under it.
    """

    def __init__(
        self,
        topic: InternalTopic,
        name: str,
        noun: str,
        coordinator: Coordinator[Shard],
        clock: BaseClock,
        read_bytes: int = READ_BYTES,
        new_replay: Callable[[], PartitionReplay] = PartitionReplay,
    ) -> None:
        self._topic = topic
        self._name = name
        self._noun = noun
        self._coordinator = coordinator
        self._clock = clock
        self._read_bytes = read_bytes
        self._new_replay = new_replay
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        self._count = 0
        self._partitions: Mapping[int, _Partition] = {}
        self._retired: deque[Shard] = deque()
        self._loads: deque[tuple[int, int]] = deque(maxlen=1000)  # end of each load and its duration
        self._is_closed = False

    # ------------------------------------------------------------ look-ups

    @property
    def is_closed(self) -> bool:
        """True if the coordinator has stopped."""
        return self._is_closed

    @property
    def exists(self) -> bool:
        """True if the internal topic exists; loads a topic that was created elsewhere."""
        if self._count:
            return True
        if self._topic.partition_count:
            self.load_all()
        return self._count > 0

    @property
    def shards(self) -> list[Shard]:
        """The active partitions."""
        return [one.shard for one in self._partitions.values() if one.state is PartitionState.ACTIVE]

    @property
    def counts(self) -> PartitionCounts:
        """Numbers of partitions by state."""
        states = [one.state for one in self._partitions.values()]
        active, loading, failed = PartitionState.ACTIVE, PartitionState.LOADING, PartitionState.FAILED
        return PartitionCounts(states.count(active), states.count(loading), states.count(failed))

    @property
    def load_times(self) -> LoadTimes:
        """Durations of the latest loads, in milliseconds; NaN without any."""
        since_ms = self._clock.now_ms() - LOAD_TIME_WINDOW_MS
        with self._lock:
            took = [took_ms for ended_ms, took_ms in self._loads if ended_ms >= since_ms]
        return LoadTimes(sum(took) / len(took), max(took)) if took else LoadTimes(math.nan, math.nan)

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._name

    def is_leader(self, key: str) -> bool:
        """Return whether this node leads the partition of a key."""
        return self.exists and self._topic.led_epoch(self.index_of(key)) is not None

    def index_of(self, key: str) -> int:
        """Return the partition of a key; 0 until the topic exists."""
        return partition_of(key, self._count or 1)

    def find(self, key: str) -> Shard:
        """Return the shard of a key.

        Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR; COORDINATOR_NOT_AVAILABLE once closed.
        """
        return self.at(self.index_of(key) if self._count or self.exists else 0)

    def at(self, index: int) -> Shard:
        """Return the shard of a partition. Raises: KafkaError as ``find``."""
        self.check_open()
        found = self._partitions.get(index) if self._count or self.exists else None
        if found is None:
            raise KafkaError(Errors.NOT_COORDINATOR, f"{self._name}-{index} is not served by this node")
        if found.state is not PartitionState.ACTIVE:
            is_loading = found.state is PartitionState.LOADING
            error = Errors.COORDINATOR_LOAD_IN_PROGRESS if is_loading else Errors.NOT_COORDINATOR
            raise KafkaError(error, found.reason)
        shard: Shard = found.shard
        return shard

    def check_loaded(self) -> None:
        """Check that no partition is being loaded. Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS."""
        self.check_open()
        for one in self._partitions.values():
            if one.state is PartitionState.LOADING:
                raise KafkaError(Errors.COORDINATOR_LOAD_IN_PROGRESS, one.reason)

    def check_open(self) -> None:
        """Refuse requests once the coordinator is closed. Raises: KafkaError COORDINATOR_NOT_AVAILABLE."""
        if self._is_closed:
            raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)

    # ------------------------------------------------------------ loading

    def prepare(self) -> None:
        """Create the topic unless it exists, and serve it. That takes a while; hold no lock.

        Raises: KafkaError with the coordinator's code for the client.
        """
        self.check_open()
        if not self._count:
            self._topic.ensure()
            self.load_all()

    def load_all(self) -> None:
        """Serve each partition that this node leads."""
        with self._lock:  # over all of it: `topic_deleted` removes the orders of a topic that is deleted meanwhile
            self._count = self._topic.partition_count
            led = [(index, self._topic.led_epoch(index)) for index in range(self._count)]
            orders = [(index, self._begin_load(index, epoch)) for index, epoch in led if epoch is not None]
        for index, order in orders:
            self._load(index, order)

    def load(self, index: int, epoch: int) -> None:
        """Serve a partition: this broker leads it, or it was repaired. Does nothing if it is served already.

        Clients get COORDINATOR_LOAD_IN_PROGRESS until this returns.

        Args: ``epoch``: the leader epoch by which this broker leads it; a late order is ignored.
        """
        with self._lock:
            if not self._count:
                self._count = self._topic.partition_count
            order = self._begin_load(index, epoch)
        self._load(index, order)

    def _begin_load(self, index: int, epoch: int) -> _Partition | None:
        """Set a partition to LOADING and return it; None if it is served (its epoch is then set) or the epoch is old.

        The caller holds ``_lock``.
        """
        now = self._partitions.get(index)
        if now is not None:
            if epoch < now.epoch or (epoch == now.epoch and now.state is PartitionState.CLOSED):
                logger.info("%s-%d: ignored a late load of epoch %d", self._name, index, epoch)
                return None
            if now.state is PartitionState.ACTIVE:
                now.shard.epoch = epoch
                self._put(index, now._replace(epoch=epoch))
                return None
        order = _Partition(epoch, PartitionState.LOADING, reason=f"{self._name}-{index} is being loaded")
        self._put(index, order)
        return order

    def _load(self, index: int, order: _Partition | None) -> None:
        if order is None:
            return
        with self._load_lock:
            self._retire()
            if self._partitions.get(index) is not order:  # a newer order has replaced it
                return
            started_ms = self._clock.now_ms()
            found = self._read(index, order.epoch)
            with self._lock:
                ended_ms = self._clock.now_ms()
                self._loads.append((ended_ms, ended_ms - started_ms))
                if self._partitions.get(index) is not order:
                    return
                self._put(index, found)
            if found.shard is not None:
                self._coordinator.resume(found.shard)

    def _read(self, index: int, epoch: int) -> _Partition:
        try:
            replay = self._new_replay().read(self._topic.partition(index), self._read_bytes)
            shard = self._coordinator.build(index, epoch, replay)
        except UnreadableError as error:
            reason = internal_topic.report_unreadable(self._topic, self._name, index, self._noun, error)
            return _Partition(epoch, PartitionState.FAILED, reason=reason)
        except Exception as error:
            logger.exception("%s-%d cannot be loaded", self._name, index)
            reason = f"{self._name}-{index} cannot be loaded: {type(error).__name__}: {error}"
            return _Partition(epoch, PartitionState.FAILED, reason=reason)
        return _Partition(epoch, PartitionState.ACTIVE, shard)

    # ------------------------------------------------------------ unloading

    def unload(self, index: int, epoch: int) -> None:
        """Stop serving a partition: another broker leads it. A load in progress has no effect.

        Later requests get NOT_COORDINATOR at once; when this returns, nothing more is appended to the log.

        Args: ``epoch``: the leader epoch by which the other broker leads it; a late order is ignored.
        """
        with self._lock:
            now = self._partitions.get(index)
            if now is not None and epoch <= now.epoch:
                logger.info("%s-%d: ignored a late unload of epoch %d", self._name, index, epoch)
                return
            reason = f"{self._name}-{index} was unloaded"
            self._put(index, _Partition(epoch, PartitionState.CLOSED, reason=reason))
            if now is not None and now.shard is not None:
                self._retired.append(now.shard)
        self._retire_now()
        logger.info("unloaded %s-%d", self._name, index)

    def topic_deleted(self) -> None:
        """Remove all partitions and their epochs: a new topic of this name begins at epoch 0."""
        with self._lock:
            self._retired.extend(self.shards)
            self._partitions, self._count = {}, 0
        self._retire_now()

    def close(self) -> None:
        """Refuse all requests from now on with COORDINATOR_NOT_AVAILABLE. Idempotent."""
        self._is_closed = True

    def _retire_now(self) -> None:
        if self._retired:
            with self._load_lock:
                self._retire()

    def _retire(self) -> None:
        """Retire unloaded shards; the caller holds ``_load_lock``.

        Each load begins with this call, so that no partition is read while its previous shard still writes.
        """
        while self._retired:
            self._retired[0].retire()  # removed only afterwards, so that other threads wait for its end
            self._retired.popleft()

    def _put(self, index: int, partition: _Partition) -> None:
        self._partitions = {**self._partitions, index: partition}
