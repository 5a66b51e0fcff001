"""The transactional ids of each partition of ``__transaction_state``, and the writing of their moves.

A transactional id of unknown state is not served: a producer that is not known to be fenced could write twice, and an
open transaction would never end.
Source: ``TransactionStateManager``, ``TransactionLog``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TRANSACTION_STATE_TOPIC
from kbroker.coordinator.internal_topic import InternalTopic, KeyValue, UnreadableError, parts, report_strangers
from kbroker.coordinator.partition_replay import PartitionReplay
from kbroker.coordinator.runtime import CoordinatorShard
from kbroker.coordinator.transaction import transaction_records
from kbroker.coordinator.transaction.transaction_metadata import Move, TransactionMetadata, TransactionState

logger = get_logger(__name__)


class StatePartition(CoordinatorShard):
    """The transactional ids of a partition.

    ``open_ids``: those with an open transaction, which may time out. ``epoch`` is the coordinator epoch of markers.
    Threads: ``lock`` guards everything; records are appended under it, and it is released while a disk is awaited. No
    thread holds the locks of two partitions.
    """

    def __init__(self, topic: InternalTopic, index: int, epoch: int, clock: BaseClock) -> None:
        super().__init__(topic, index, epoch, clock)
        self.transactions: dict[str, TransactionMetadata] = {}
        self.open_ids: set[str] = set()

    def retire(self) -> None:
        """Stop serving the ids; a move in progress gets NOT_COORDINATOR."""
        super().retire()
        self.open_ids = set()

    def completed(self, metadata: TransactionMetadata) -> None:
        """Update ``open_ids`` after a completed move; the caller holds the lock."""
        if metadata.state is TransactionState.ONGOING:
            self.open_ids.add(metadata.transactional_id)
        else:
            self.open_ids.discard(metadata.transactional_id)

    # ------------------------------------------------------------ writing

    def append_move(self, metadata: TransactionMetadata, move: Move) -> None:
        """Write a pending move and complete it; the caller holds the lock, released while a disk is awaited.

        Raises: KafkaError with the code for the client; the id stays as it was (unless a wait for the disk failed:
        then the log takes no more appends, and the next start decides).
        """
        try:
            key = transaction_records.encode_key(metadata.transactional_id)
            self._write([(key, transaction_records.encode_value(move))])
            self.check()
        except ProtocolError as error:
            metadata.cancel()
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error
        except BaseException:
            metadata.cancel()
            raise
        metadata.complete(move)
        self.completed(metadata)

    def append_tombstones(self, expired: Sequence[TransactionMetadata]) -> int:
        """Remove ids whose move to Dead is pending; the caller holds the lock, as for ``append_move``.

        Each append has one batch, which fits into a segment; the first append that fails ends the removal.

        Returns: the number of removed ids, all unless an append failed; the others stay.
        """
        by_key = {transaction_records.encode_key(one.transactional_id): one for one in expired}
        removed = 0
        try:
            for part in parts(self.log, [(key, None) for key in by_key]):
                self._write(part)
                for key, _ in part:
                    del self.transactions[by_key.pop(key).transactional_id]
                removed += len(part)
        except KafkaError as error:
            logger.warning("cannot expire %d transactional ids: %s", len(by_key), error)
        finally:
            for one in by_key.values():
                one.cancel()
        return removed

    def _write(self, records: Sequence[KeyValue]) -> None:
        written = self.append(records)
        if written.flush_offset > 0:
            self.lock.release()
            try:
                written.await_disk()
            finally:
                self.lock.acquire()

    # ------------------------------------------------------------ loading

    def replay(self, replay: PartitionReplay, index_of: Callable[[str], int]) -> None:
        """Restore the ids of replayed records. Raises: UnreadableError for a state that is malformed."""
        topic = f"{TRANSACTION_STATE_TOPIC}-{self.index}"
        strangers: set[str] = set()
        for raw_key, (_, raw_value) in replay.values.items():
            try:
                name = transaction_records.decode_key(raw_key)
            except ProtocolError as error:
                logger.error("%s: skipped a record with a malformed key: %s", topic, error)
                continue
            if name is None:
                logger.warning("%s: skipped a record of a newer kind", topic)
            elif raw_value is None:
                continue
            elif index_of(name) != self.index:
                strangers.add(name)
            else:
                self.transactions[name] = _decode(name, raw_value)
                self.completed(self.transactions[name])
        report_strangers(TRANSACTION_STATE_TOPIC, self.index, "transactional ids", strangers)


def _decode(name: str, raw_value: bytes) -> TransactionMetadata:
    try:
        return transaction_records.decode_value(name, raw_value)
    except ProtocolError as error:
        reason = f"the state of transactional id {name!r} is malformed: {error}"
        raise UnreadableError(reason, "stop the broker, install the release that wrote this record") from error
