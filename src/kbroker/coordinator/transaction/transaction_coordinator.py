"""The transaction coordinator: the requests of the transaction APIs, time-outs and expiry.

Locks: ``StatePartition.lock`` of a transactional id's partition, under which its records are appended; then the
lock of ``MarkerSender``. No thread waits for a disk under these locks: a pending move keeps others out.
Source: ``TransactionCoordinator``, ``TransactionStateManager``, KIP-98, KIP-360, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.limited_log import RepeatedFailures
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TRANSACTION_STATE_TOPIC, TopicPartition
from kbroker.coordinator.internal_topic import READ_BYTES, InternalTopic
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.coordinator.runtime import CoordinatorRuntime
from kbroker.coordinator.transaction import ending
from kbroker.coordinator.transaction.marker_sender import Completion, Markers, MarkerSender, QueueSizes
from kbroker.coordinator.transaction.transaction_log import StatePartition
from kbroker.coordinator.transaction.transaction_metadata import (
    BY_LABEL,
    EXHAUSTED_EPOCH,
    IDLE,
    MAX_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TV_2,
    UNLIMITED_TIMEOUT_MS,
    TransactionMetadata,
    TransactionState,
)
from kbroker.log.scheduler import Scheduler

logger = get_logger(__name__)

_S = TransactionState


class TransactionSettings(NamedTuple):
    """Kafka's settings of transactions, in milliseconds and bytes."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    expiration_interval_ms: int = 3_600_000
    two_phase_commit: bool = False
    load_buffer_bytes: int = READ_BYTES


class Producer(NamedTuple):
    """A producer id and its epoch; -1 and -1: none."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class DescribedTransaction(NamedTuple):
    """Description of a transactional id."""

    transactional_id: str
    state: TransactionState
    timeout_ms: int
    start_ms: int
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class ListedTransaction(NamedTuple):
    """Entry of a list of transactional ids."""

    transactional_id: str
    producer_id: int
    state: TransactionState


class _ProducerIdNeededError(Exception):
    """Signal that a move needs a new producer id, which is fetched without the lock."""


class TransactionCoordinator:
    """All transactional ids of the broker.

    Args: ``topic``: ``__transaction_state``; ``new_producer_id`` returns unused ids, and may wait for a disk;
    ``markers`` writes end markers; ``scheduler``: exclusive to retries and time-outs.
    Threads: any.
    """

    def __init__(
        self,
        clock: BaseClock,
        topic: InternalTopic,
        new_producer_id: Callable[[], int],
        markers: Markers,
        scheduler: Scheduler,
        settings: TransactionSettings | None = None,
    ) -> None:
        self._clock = clock
        self._topic = topic
        self._settings = TransactionSettings() if settings is None else settings
        self._new_producer_id = new_producer_id
        self._scheduler = scheduler
        self.runtime = CoordinatorRuntime(
            topic, TRANSACTION_STATE_TOPIC, "transactional ids", self, clock, self._settings.load_buffer_bytes
        )
        self._sender = MarkerSender(markers, clock, scheduler)
        # On a failing disk the abort of each open transaction fails repeatedly.
        self._failures = RepeatedFailures(clock)

    # ------------------------------------------------------------ start

    def start(self) -> None:
        """Load the transactional ids, complete prepared transactions, and schedule time-outs and expiry."""
        self.runtime.load_all()
        ids, open_count = self.counts()
        if ids:
            completing = sum(
                one.state in PREPARED for part in self.runtime.shards for one in part.transactions.values()
            )
            logger.info(
                "loaded %d transactional ids; %d transactions are open, %d are being completed",
                ids,
                open_count,
                completing,
            )
        for name, run, period_ms in (
            ("transaction-abort", self.abort_timed_out, self._settings.abort_interval_ms),
            ("transactional-id-expiration", self.expire_ids, self._settings.expiration_interval_ms),
        ):
            self._scheduler.schedule(name, run, delay_ms=period_ms, period_ms=period_ms)

    def build(self, index: int, epoch: int, replay: PartitionReplay) -> StatePartition:
        """Return the transactional ids of a partition: see ``Coordinator``."""
        partition = StatePartition(self._topic, index, epoch, self._clock)
        partition.replay(replay, self.runtime.index_of)
        return partition

    def resume(self, shard: StatePartition) -> None:
        """Complete the transactions that a partition has prepared: see ``Coordinator``."""
        self._sender.resume(shard)

    @property
    def queue_sizes(self) -> QueueSizes:
        """Numbers of markers and completions that wait for a retry."""
        return self._sender.queue_sizes

    def counts(self) -> tuple[int, int]:
        """Return the numbers of transactional ids and of open transactions."""
        partitions = self.runtime.shards
        return sum(len(one.transactions) for one in partitions), sum(len(one.open_ids) for one in partitions)

    # ------------------------------------------------------------ producers

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None = None,
        *,
        enable_two_phase_commit: bool = False,
        keep_prepared: bool = False,
    ) -> Producer:
        """Initialize a producer and return its id and epoch: fence the previous one, and abort its open transaction.

        Args: ``expected``: producer id and epoch that the producer reports, None for a new one.
        Raises: KafkaError; CONCURRENT_TRANSACTIONS: retry later.
        """
        if not transactional_id:
            raise KafkaError(Errors.INVALID_REQUEST)
        if enable_two_phase_commit and not self._settings.two_phase_commit:
            raise KafkaError(Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if keep_prepared:
            raise KafkaError(Errors.UNSUPPORTED_VERSION)
        if enable_two_phase_commit:
            timeout_ms = UNLIMITED_TIMEOUT_MS
        elif not 0 < timeout_ms <= self._settings.max_timeout_ms:
            raise KafkaError(Errors.INVALID_TRANSACTION_TIMEOUT)

        named = None if expected is None else Producer(*expected)

        def begin(fresh: Callable[[], int]) -> Producer | Completion:
            return self._begin(transactional_id, timeout_ms, named, fresh)

        begun = self._with_producer_ids(begin)
        if isinstance(begun, Completion):
            self._sender.finish(begun)
            raise KafkaError(Errors.CONCURRENT_TRANSACTIONS, "the transaction left open is being aborted")
        return begun

    def _begin(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None, fresh: Callable[[], int]
    ) -> Producer | Completion:
        """Begin a producer and return it; for an open transaction write its abort, and return the completion.

        Raises: KafkaError.
        """
        now_ms = self._clock.wall_ms()
        with self._partition(transactional_id) as partition:
            metadata = partition.transactions.get(transactional_id)
            if metadata is None:
                metadata = TransactionMetadata(transactional_id, fresh(), timeout_ms=timeout_ms, now_ms=now_ms)
                partition.transactions[transactional_id] = metadata
            if metadata.pending is not None:
                raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)
            if expected is not None and not _may_be(metadata, expected):
                raise KafkaError(Errors.PRODUCER_FENCED)
            if metadata.state in PREPARED:
                raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)
            if metadata.state is _S.ONGOING:
                return self._abort_fenced(partition, metadata, now_ms)
            epoch = None if expected is None else expected.producer_epoch
            if metadata.needs_another_producer_id(epoch):
                move = metadata.prepare_producer_id_rotation(fresh(), timeout_ms, now_ms, epoch)
            else:
                move = metadata.prepare_increment_epoch(timeout_ms, epoch, now_ms)
            try:
                partition.append_move(metadata, move)
            finally:
                if metadata.producer_epoch == NO_PRODUCER_EPOCH:  # the id was never written: no state is left
                    partition.transactions.pop(transactional_id, None)
            return Producer(move.producer_id, move.producer_epoch)

    # ------------------------------------------------------------ partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        places: Collection[TopicPartition],
        client_version: int = TV_2,
    ) -> Mapping[TopicPartition, Errors]:
        """Add all partitions or none to the producer's transaction, and begin it if necessary; return their errors."""
        try:
            with self._known(transactional_id) as (partition, metadata):
                if metadata.pending is not None:
                    raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)
                _check_producer(metadata, producer_id, producer_epoch)
                if metadata.state is _S.ONGOING and metadata.partitions.issuperset(places):
                    return dict.fromkeys(places, Errors.NONE)
                move = metadata.prepare_add_partitions(places, self._clock.wall_ms(), client_version)
                partition.append_move(metadata, move)
        except KafkaError as failure:
            return dict.fromkeys(places, failure.error)
        return dict.fromkeys(places, Errors.NONE)

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, places: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Errors]:
        """Return NONE for partitions in the producer's transaction, else TRANSACTION_ABORTABLE or another error."""
        try:
            with self._known(transactional_id) as (_, metadata):
                _check_producer(metadata, producer_id, producer_epoch)
                present = metadata.partitions
        except KafkaError as failure:
            return dict.fromkeys(places, failure.error)
        return {place: Errors.NONE if place in present else Errors.TRANSACTION_ABORTABLE for place in places}

    # ------------------------------------------------------------ ends

    def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool, client_version: int = TV_2
    ) -> Producer:
        """Commit or abort a transaction.

        When this returns, the decision is in the log, and on disk if the topic's settings require it; its markers are
        written, except those that a partition refused, which are retried.

        Returns: with transaction.version 2 the next producer id and epoch, else -1 and -1. Raises: KafkaError.
        """

        def end(fresh: Callable[[], int]) -> Producer | Completion:
            with self._known(transactional_id) as (partition, metadata):
                now_ms = self._clock.wall_ms()
                move = ending.prepare_end(
                    metadata, producer_id, producer_epoch, client_version, now_ms, fresh, commit=commit
                )
                if move is None:
                    return Producer(metadata.producer_id, metadata.producer_epoch)
                partition.append_move(metadata, move)
                return Completion(partition, metadata, now_ms)

        ended = self._with_producer_ids(end)
        if isinstance(ended, Completion):
            producer = Producer(ended.move.producer_id, ended.move.producer_epoch)
            self._sender.finish(ended)
        else:
            producer = ended
        return producer if client_version >= TV_2 else NO_PRODUCER

    def _abort_fenced(self, partition: StatePartition, metadata: TransactionMetadata, now_ms: int) -> Completion:
        """Write the decision to abort an open transaction and to fence its producer; the caller holds the lock."""
        move = ending.prepare_fenced_abort(metadata, now_ms)
        partition.append_move(metadata, move)
        return Completion(partition, metadata, now_ms)

    def abort_timed_out(self) -> int:
        """Abort the transactions that have timed out, fencing their producers; return their number."""
        count = 0
        for partition in self.runtime.shards:
            now_ms = self._clock.wall_ms()
            with partition.lock:
                due = [name for name in partition.open_ids if _is_over(partition.transactions[name], now_ms)]
            for name in due:
                if self.runtime.is_closed:
                    return count
                count += self._abort_if_over(partition, name)
        self._failures.write_late()
        if count:
            logger.info("aborted %d transactions that timed out", count)
        return count

    def _abort_if_over(self, partition: StatePartition, transactional_id: str) -> bool:
        now_ms = self._clock.wall_ms()
        try:
            with partition.lock:
                metadata = partition.transactions.get(transactional_id)
                if not partition.is_active or metadata is None or not _is_over(metadata, now_ms):
                    return False
                completion = self._abort_fenced(partition, metadata, now_ms)
        except KafkaError as error:
            reason = str(error)
            self._failures.note(
                "abort",
                lambda times: logger.warning(
                    "could not abort transactions that timed out (times: %d, the last: %s): %s",
                    times,
                    transactional_id,
                    reason,
                ),
            )
            return False
        self._sender.finish(completion)
        return True

    def expire_ids(self) -> int:
        """Delete the ids unused for ``transactional.id.expiration.ms``; return their number."""
        count = 0
        for partition in self.runtime.shards:
            if self.runtime.is_closed:
                break
            until_ms = self._clock.wall_ms() - self._settings.id_expiration_ms
            with partition.lock:
                if not partition.is_active:
                    continue
                expired = [
                    one
                    for one in partition.transactions.values()
                    if one.pending is None and one.state in IDLE and one.last_update_ms <= until_ms
                ]
                if not expired:
                    continue
                for one in expired:
                    one.prepare_dead()
                count += partition.append_tombstones(expired)
        if count:
            logger.info("%d transactional ids expired", count)
        return count

    # ------------------------------------------------------------ administration

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Describe a transactional id.

        Raises: KafkaError INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND, and as ``_partition``.
        """
        if not transactional_id:
            raise KafkaError(Errors.INVALID_REQUEST)
        with self._partition(transactional_id) as partition:
            one = partition.transactions.get(transactional_id)
            if one is None or one.pending is _S.DEAD:
                raise KafkaError(Errors.TRANSACTIONAL_ID_NOT_FOUND)
            return DescribedTransaction(
                transactional_id,
                one.state,
                one.timeout_ms,
                one.start_ms,
                one.producer_id,
                one.producer_epoch,
                one.partitions,
            )

    def list_transactions(
        self,
        states: Collection[TransactionState] | None = None,
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        matches: Callable[[str], bool] | None = None,
    ) -> list[ListedTransaction]:
        """Return the ids that match all filters; None, no producer ids and -1 match every id.

        Args: ``duration_ms``: matches ids whose latest transaction began longer ago, and ids that have had none;
        ``matches``: by id, called without a lock.
        Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS.
        """
        self.runtime.check_loaded()
        found: list[ListedTransaction] = []
        for partition in self.runtime.shards:
            now_ms = self._clock.wall_ms()
            with partition.lock:
                found += [
                    ListedTransaction(one.transactional_id, one.producer_id, one.state)
                    for one in partition.transactions.values()
                    if (states is None or one.state in states)
                    and (not producer_ids or one.producer_id in producer_ids)
                    and (duration_ms < 0 or now_ms - one.start_ms > duration_ms)
                ]
        return found if matches is None else [one for one in found if matches(one.transactional_id)]

    # ------------------------------------------------------------ ids

    def _with_producer_ids(
        self, attempt: Callable[[Callable[[], int]], Producer | Completion]
    ) -> Producer | Completion:
        """Run ``attempt`` with a source of producer ids; if it needs an id, fetch it without a lock and run again."""
        spare: list[int] = []

        def fresh() -> int:
            if not spare:
                raise _ProducerIdNeededError
            return spare.pop()

        try:
            return attempt(fresh)
        except _ProducerIdNeededError:
            spare.append(self._new_producer_id())
            return attempt(fresh)

    @contextmanager
    def _partition(self, transactional_id: str) -> Iterator[StatePartition]:
        """Yield the id's partition under its lock. Raises: KafkaError if it is not served."""
        partition = self.runtime.find(transactional_id)
        with partition.lock:
            partition.check()
            yield partition

    @contextmanager
    def _known(self, transactional_id: str) -> Iterator[tuple[StatePartition, TransactionMetadata]]:
        """Yield the state of an existing id and its partition, under the partition's lock.

        Raises: KafkaError INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, and as ``_partition``.
        """
        if not transactional_id:
            raise KafkaError(Errors.INVALID_REQUEST)
        with self._partition(transactional_id) as partition:
            metadata = partition.transactions.get(transactional_id)
            if metadata is None:
                raise KafkaError(Errors.INVALID_PRODUCER_ID_MAPPING)
            yield partition, metadata


def states_of(labels: Collection[str]) -> tuple[set[TransactionState], list[str]]:
    """Return the states of these names, and the names that are not states, each once."""
    unknown = [name for name in dict.fromkeys(labels) if name not in BY_LABEL]
    return {BY_LABEL[label] for label in labels if label in BY_LABEL}, unknown


def _may_be(metadata: TransactionMetadata, expected: Producer) -> bool:
    """Return whether the producer of this id can have the reported producer id; its epoch is checked later.

    The previous producer id is accepted if its epochs were exhausted: the response with the new one may be lost.
    """
    return (
        metadata.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == metadata.producer_id
        or (expected.producer_id == metadata.prev_producer_id and expected.producer_epoch >= EXHAUSTED_EPOCH)
    )


def _check_producer(metadata: TransactionMetadata, producer_id: int, producer_epoch: int) -> None:
    """Check that a producer owns the id and its transaction is not ending. Raises: KafkaError."""
    if metadata.producer_id != producer_id:
        raise KafkaError(Errors.INVALID_PRODUCER_ID_MAPPING)
    if metadata.producer_epoch != producer_epoch or producer_epoch == MAX_EPOCH:  # no producer gets this epoch
        raise KafkaError(Errors.PRODUCER_FENCED)
    if metadata.state in PREPARED:
        raise KafkaError(Errors.CONCURRENT_TRANSACTIONS)


def _is_over(metadata: TransactionMetadata, now_ms: int) -> bool:
    due_ms = metadata.due_ms
    return due_ms is not None and due_ms < now_ms
