"""The offsets of all groups: committed, committed in transactions, fetched, deleted and expired.

Lock order: groups' locks (several: by group id), then ``OpenTransactions.lock``, then the append lock. Records are
appended under the group's lock, so that they are in the order of what happened; no disk is waited for under it.
Source: ``OffsetMetadataManager``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup, GroupState
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.offset_commits import check_commit, check_fetch
from kbroker.coordinator.consumer_group.topics_image import TopicsImage
from kbroker.coordinator.group_map import Group, GroupMap
from kbroker.coordinator.group_offsets import Place
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.group_sensors import GroupSensors
from kbroker.coordinator.internal_topic import KeyValue, TransactionalProducer
from kbroker.coordinator.offsets_log import OffsetsLog, Unserved
from kbroker.coordinator.open_transactions import OpenTransactions

logger = get_logger(__name__)

# the sender of markers knows the log's errors, not the coordinator's: it tries again later
_RETRIED_MARKERS = frozenset(
    {Errors.COORDINATOR_NOT_AVAILABLE, Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.NOT_COORDINATOR}
)


class FetchedOffsets(NamedTuple):
    """Committed offsets, and the places whose offset a transaction is about to change."""

    committed: dict[Place, CommittedOffset]
    unstable: frozenset[Place]


class OffsetMetadataManager:
    """The offsets of the groups in a map.

    Args: ``touch`` extends the session of a member that commits, under its group's lock; ``tombstones``: of all records
    of a consumer group but its offsets.
    Threads: any.
    """

    def __init__(
        self,
        clock: BaseClock,
        log: OffsetsLog,
        groups: GroupMap,
        touch: Callable[[ClassicGroup, str], None],
        retention_ms: int,
        image: TopicsImage,
        tombstones: Callable[[ConsumerGroup], list[KeyValue]],
        sensors: GroupSensors,
    ) -> None:
        self._clock = clock
        self._image = image
        self._tombstones = tombstones
        self._log = log
        self._groups = groups
        self._touch = touch
        self._retention_ms = retention_ms
        self._sensors = sensors
        self._lock = threading.Lock()  # of the map only; a leaf
        self._transactions: dict[int, OpenTransactions] = {}  # by partition

    # ------------------------------------------------------------ commits

    def commit(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        offsets: Mapping[Place, CommittedOffset],
        api_version: int,
    ) -> None:
        """Commit offsets; when this returns they are in the log, and on disk if the topic's settings require it.

        Raises: KafkaError, and nothing was committed (a failed wait for the disk excepted): GROUP_ID_NOT_FOUND for a
        member of a group that does not exist.
        """
        written = None
        with self._groups.locked(group_id, create=generation_id < 0) as group:
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND)
            self._check_commit(
                group, member_id, group_instance_id, generation_id, offsets, api_version, is_transactional=False
            )
            if offsets:
                written = self._log.append(group_id, _records(group_id, offsets))
                group.offsets.commit(offsets, written.base_offset)
                self._sensors.offset_commits.record(len(offsets))
                _note_use(group)
            if member_id and isinstance(group, ClassicGroup):
                self._touch(group, member_id)
        if written is not None:
            written.await_disk()

    def commit_transactional(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        producer: TransactionalProducer,
        offsets: Mapping[Place, CommittedOffset],
        api_version: int,
    ) -> None:
        """Write offsets that count when the producer's transaction commits.

        When this returns they are in the log, and on disk if the topic's settings require it. The caller has verified
        that the group's partition belongs to the transaction.

        Raises: KafkaError, and nothing was written (a failed wait for the disk excepted): INVALID_GROUP_ID,
        ILLEGAL_GENERATION (for a member of a group that does not exist too), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE.
        """
        if not group_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        with self._groups.locked(group_id, create=generation_id < 0) as group:
            if group is None:
                raise KafkaError(Errors.ILLEGAL_GENERATION)
            self._check_commit(
                group, member_id, group_instance_id, generation_id, offsets, api_version, is_transactional=True
            )
            if not offsets:
                return
            records = _records(group_id, offsets)
            if not self._log.partition_count:
                self._log.prepare()
            transactions = self._open_transactions(self._log.partition_for(group_id))
            with transactions.lock:
                written = self._log.append(group_id, records, producer)
                transactions.add(producer.producer_id, group_id)
                group.offsets.commit_pending(producer.producer_id, offsets, written.base_offset)
            self._sensors.offset_commits.record(len(offsets))
            _note_use(group)
        written.await_disk()

    def _check_commit(
        self,
        group: Group,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        places: Iterable[Place],
        api_version: int,
        *,
        is_transactional: bool,
    ) -> None:
        """Refuse a commit that is not from a member, or from one of another time. Raises: KafkaError."""
        if isinstance(group, ConsumerGroup):
            check_commit(
                group,
                self._image,
                member_id,
                group_instance_id,
                generation_id,
                places,
                api_version=api_version,
                is_transactional=is_transactional,
            )
            return
        judge = _transactional_commit_error if is_transactional else _commit_error
        error = judge(group, member_id, group_instance_id, generation_id)
        if error is not Errors.NONE:
            raise KafkaError(error)

    def complete_transaction(
        self,
        index: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> Errors:
        """Append the end marker to a partition of the offsets topic, and commit or drop the pending offsets.

        Returns: NONE, or the log's error; NOT_LEADER_OR_FOLLOWER if the partition is not served now: try again later.
        """
        if not 0 <= index < self._log.partition_count:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        try:
            transactions = self._open_transactions(index)
            while True:
                with transactions.lock:
                    group_ids = transactions.group_ids(producer_id)
                with self._all_locked(group_ids) as groups, transactions.lock:
                    if transactions.group_ids(producer_id) != group_ids:
                        continue  # a commit came between the two locks: its group's lock is needed too
                    written = self._log.append_end_marker(
                        index, producer_id, producer_epoch, coordinator_epoch, commit, transaction_version
                    )
                    transactions.end(producer_id)
                    for group in groups:
                        group.offsets.complete(producer_id, commit)
                break
            written.await_disk()
        except KafkaError as error:
            return Errors.NOT_LEADER_OR_FOLLOWER if error.error in _RETRIED_MARKERS else error.error
        return Errors.NONE

    @contextmanager
    def _all_locked(self, group_ids: Sequence[str]) -> Iterator[list[Group]]:
        """Those of the groups that exist, under their locks. Raises: KafkaError as ``GroupMap.locked``."""
        with ExitStack() as locks:
            found = [locks.enter_context(self._groups.locked(group_id)) for group_id in group_ids]
            yield [group for group in found if group is not None]

    # ------------------------------------------------------------ partitions

    def _open_transactions(self, index: int) -> OpenTransactions:
        with self._lock:
            found = self._transactions.get(index)
            if found is None:
                found = self._transactions[index] = OpenTransactions()
            return found

    def open_producers(self, index: int) -> list[int]:
        """The producers whose transactions have pending offsets in a partition."""
        transactions = self._open_transactions(index)
        with transactions.lock:
            return transactions.producer_ids

    def load_transactions(self, loaded: Mapping[int, Mapping[int, Iterable[str]]]) -> None:
        """Take over open transactions from the log: by partition, then producer id, the groups."""
        for index, groups_of in loaded.items():
            transactions = self._open_transactions(index)
            with transactions.lock:
                for producer_id, group_ids in groups_of.items():
                    for group_id in group_ids:
                        transactions.add(producer_id, group_id)

    def refuse(self, index: int, why: Unserved) -> None:
        """Serve a partition no longer: when this returns, no marker and no transactional commit is being appended."""
        transactions = self._open_transactions(index)
        with transactions.lock:
            self._log.refuse(index, why)

    def unload_transactions(self, index: int) -> None:
        """Forget the open transactions of a partition that is not served any more."""
        transactions = self._open_transactions(index)
        with transactions.lock:
            groups_of = transactions.clear()
        for producer_id, group_ids in groups_of.items():
            for group_id in group_ids:  # those that are left belong to other partitions: the topic has grown
                with suppress(KafkaError), self._groups.locked(group_id) as group:
                    if group is not None:
                        group.offsets.complete(producer_id, commit=False)

    def unload_all_transactions(self) -> None:
        """The topic was deleted."""
        with self._lock:
            self._transactions.clear()

    # ------------------------------------------------------------ fetch

    def fetch(
        self,
        group_id: str,
        places: Iterable[Place] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> FetchedOffsets:
        """Committed offsets of these partitions, of all when None; those without one are left out.

        Args: ``require_stable``: places with a pending offset are in ``unstable`` instead; for None only those that
        have a committed one too. ``member_id``, ``member_epoch``: a member of a consumer group that asks for itself.
        Raises: KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION.
        """
        with self._groups.locked(group_id) as group:
            if group is None:
                return FetchedOffsets({}, frozenset())
            if isinstance(group, ConsumerGroup):
                check_fetch(group, member_id, member_epoch)
            offsets = group.offsets
            committed = offsets.committed
            wanted = list(committed) if places is None else list(places)
            if require_stable and offsets.has_pending:
                unstable = frozenset(place for place in wanted if offsets.is_pending(place))
            else:
                unstable = frozenset()
            found = {place: committed[place] for place in wanted if place in committed and place not in unstable}
            return FetchedOffsets(found, unstable)

    # ------------------------------------------------------------ deletion

    def delete(self, group_id: str, places: Iterable[Place]) -> dict[Place, Errors]:
        """Delete offsets, pending ones too, except of topics that a member is subscribed to.

        Raises: KafkaError INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        if not group_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        with self._groups.locked(group_id) as group:
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND)
            if isinstance(group, ClassicGroup) and not group.is_empty and not group.is_consumer_group:
                raise KafkaError(Errors.NON_EMPTY_GROUP)
            subscribed = Errors.GROUP_SUBSCRIBED_TO_TOPIC
            results = {place: subscribed if group.is_subscribed(place[0]) else Errors.NONE for place in places}
            count = self._forget(group, [place for place, error in results.items() if error is Errors.NONE])
            self._sensors.offset_deletions.record(count)
            return results

    def delete_topic(self, group_id: str, topic: str) -> None:
        """Delete a group's offsets of a topic. Raises: KafkaError."""
        with self._groups.locked(group_id) as group:
            if group is not None:
                self._forget(group, [place for place in group.offsets.places if place[0] == topic])

    def _forget(self, group: Group, places: Iterable[Place]) -> int:
        """Delete those of the offsets that there are; return how many."""
        known = set(group.offsets.places)
        present = [place for place in places if place in known]
        if present:
            self._log.append(group.group_id, _tombstones(group.group_id, present))
            group.offsets.forget(present)
        return len(present)

    def bury(self, group: Group) -> None:
        """Write tombstones for a group without members and its offsets, pending ones too, and forget it.

        Raises: KafkaError, and the group is as it was.
        """
        tombstones = _tombstones(group.group_id, group.offsets.places)
        if isinstance(group, ConsumerGroup):
            tombstones += self._tombstones(group)
        elif group.is_stored:
            tombstones.append((group_records.group_key(group.group_id), None))
        if tombstones:
            self._log.append(group.group_id, tombstones)
        self._groups.drop(group, Errors.UNKNOWN_MEMBER_ID)

    def expire(self) -> int:
        """Remove offsets unused for the retention time, and groups without any; return the number of offsets.

        An offset that an open transaction is about to change stays, and so does its group.
        """
        count = 0
        for group_id in self._groups.ids():
            if self._groups.is_closed:
                break
            try:
                count += self._expire_group(group_id)
            except KafkaError as error:
                logger.warning("group %s: cannot expire offsets: %s", group_id, error)
        if count:
            logger.info("%d committed offsets expired", count)
        return count

    def _expire_group(self, group_id: str) -> int:
        with self._groups.locked(group_id) as group:
            if group is None:
                return 0
            expired = _expired(group, self._clock.wall_ms(), self._retention_ms)
            self._sensors.offset_expirations.record(self._forget(group, expired))
            awaits_join = isinstance(group, ClassicGroup) and group.pending_joins
            if group.is_empty and not group.offsets and not awaits_join:
                self.bury(group)
            return len(expired)


def _records(group_id: str, offsets: Mapping[Place, CommittedOffset]) -> list[KeyValue]:
    """Raises: KafkaError for metadata that the configuration allows and the record format does not."""
    try:
        return [
            (group_records.offset_key(group_id, topic, partition), group_records.encode_offset(value))
            for (topic, partition), value in offsets.items()
        ]
    except ProtocolError as error:
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error


def _tombstones(group_id: str, places: Iterable[Place]) -> list[KeyValue]:
    return [(group_records.offset_key(group_id, topic, partition), None) for topic, partition in places]


def _commit_error(group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int) -> Errors:
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return Errors.NONE  # an administrator, or a consumer that does not use groups
    if generation_id < 0 and not member_id and group_instance_id is None:
        return Errors.UNKNOWN_MEMBER_ID
    error = group.member_error(member_id, group_instance_id)
    if error is not Errors.NONE:
        return error
    if generation_id != group.generation_id:
        return Errors.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return Errors.REBALANCE_IN_PROGRESS
    return Errors.NONE


def _transactional_commit_error(
    group: ClassicGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> Errors:
    """The group's state makes no difference, and a client before v3 names no member (``ClassicGroup``)."""
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return Errors.NONE
    if generation_id < 0 and not member_id and group_instance_id is None:
        return Errors.NONE
    error = group.member_error(member_id, group_instance_id)
    if error is Errors.NONE and generation_id != group.generation_id:
        return Errors.ILLEGAL_GENERATION
    return error


def _note_use(group: Group) -> None:
    if isinstance(group, ClassicGroup):
        group.is_known = True


def _expired(group: Group, now_ms: int, retention_ms: int) -> list[Place]:
    """Offsets whose time is over: of an empty group by when it became so, of topics no longer subscribed by commit."""
    base: Callable[[CommittedOffset], int]
    if isinstance(group, ConsumerGroup) or (group.state is GroupState.EMPTY and group.protocol_type is None):
        base = _commit_time
    elif group.state is GroupState.EMPTY:
        since_ms = group.state_timestamp_ms

        def base(value: CommittedOffset) -> int:
            return since_ms if since_ms >= 0 else value.commit_timestamp_ms
    elif group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
        base = _commit_time
    else:
        return []
    stable = isinstance(group, ConsumerGroup) or group.state is GroupState.STABLE
    expired = []
    for place, value in group.offsets.committed.items():
        if (stable and group.is_subscribed(place[0])) or group.offsets.is_pending(place):
            continue
        set_by_client = value.expire_timestamp_ms >= 0
        due_ms = value.expire_timestamp_ms if set_by_client else base(value) + retention_ms
        if now_ms >= due_ms:
            expired.append(place)
    return expired


def _commit_time(value: CommittedOffset) -> int:
    return value.commit_timestamp_ms
