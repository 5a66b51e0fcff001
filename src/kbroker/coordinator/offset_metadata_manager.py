"""The offsets of all groups: committed, committed in transactions, fetched, deleted and expired.

Lock order: groups' locks (several: by group id), then ``OpenTransactions.lock``, then the append lock. Records are
appended under the group's lock, so that they are in the order of its changes; no disk is awaited under it.
Source: ``OffsetMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import ClassicGroup, GroupState
from kbroker.coordinator.group_map import GroupMap
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.coordinator.group_sensors import GroupSensors
from kbroker.coordinator.group_shard import Group, GroupShard
from kbroker.coordinator.internal_topic import (
    NOTHING_WRITTEN,
    EndMarker,
    KeyValue,
    TransactionalProducer,
    Written,
    append_end_marker,
    error_for_client,
)
from kbroker.coordinator.modern_group.group import ModernGroup
from kbroker.coordinator.modern_group.topics_image import TopicsImage
from kbroker.coordinator.modern_groups import FIRST_WITH_MEMBER_EPOCH, Commit, ModernGroups

logger = get_logger(__name__)


class FetchedOffsets(NamedTuple):
    """Committed offsets, and the topic-partitions whose offset an open transaction is about to change."""

    committed: dict[TopicPartition, CommittedOffset]
    unstable: frozenset[TopicPartition]


class OffsetMetadataManager:
    """The offsets of the groups in a map.

    Args: ``touch`` extends the session of a member that commits, under its group's lock; ``kinds``: the groups of the
    newer protocols, by kind; ``image``: the topics.
    Threads: any.
    """

    def __init__(
        self,
        clock: BaseClock,
        groups: GroupMap,
        touch: Callable[[ClassicGroup, str], None],
        retention_ms: int,
        kinds: Mapping[str, ModernGroups[Any, Any]],
        sensors: GroupSensors,
        image: TopicsImage,
    ) -> None:
        self._image = image
        self._clock = clock
        self._kinds = kinds
        self._groups = groups
        self._touch = touch
        self._retention_ms = retention_ms
        self._sensors = sensors

    # ------------------------------------------------------------ commits

    def commit(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        api_version: int = 9,
    ) -> None:
        """Commit offsets; when this returns they are in the log, and on disk if the topic's settings require it.

        Raises: KafkaError; then nothing was committed (unless a wait for the disk failed): GROUP_ID_NOT_FOUND, before
        version 9 ILLEGAL_GENERATION, for a member of a group that does not exist.
        """
        written = NOTHING_WRITTEN
        with self._groups.locked(group_id, create=generation_id < 0) as group:
            if group is None:
                is_known = api_version >= FIRST_WITH_MEMBER_EPOCH
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND if is_known else Errors.ILLEGAL_GENERATION)
            commit = Commit(member_id, group_instance_id, generation_id, offsets, api_version, is_transactional=False)
            self._check_commit(group, commit)
            if offsets:
                written = group.shard.append(_records(group_id, offsets))
                group.offsets.commit(offsets, written.base_offset)
                self._sensors.offset_commits.record(len(offsets))
                _note_use(group)
            if member_id and isinstance(group, ClassicGroup):
                self._touch(group, member_id)
        written.await_disk()

    def commit_transactional(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        producer: TransactionalProducer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        api_version: int = 5,
    ) -> None:
        """Write offsets that count when the producer's transaction commits.

        When this returns they are in the log, and on disk if the topic's settings require it. The caller has verified
        that the group's partition belongs to the transaction.

        Raises: KafkaError; then nothing was written (unless a wait for the disk failed): INVALID_GROUP_ID,
        ILLEGAL_GENERATION (also for a member of a group that does not exist), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE.
        """
        if not group_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        with self._groups.locked(group_id, create=generation_id < 0) as group:
            if group is None:
                raise KafkaError(Errors.ILLEGAL_GENERATION)
            commit = Commit(member_id, group_instance_id, generation_id, offsets, api_version, is_transactional=True)
            self._check_commit(group, commit)
            if not offsets:
                return
            records = _records(group_id, offsets)
            transactions = group.shard.transactions
            with transactions.lock:
                written = group.shard.append(records, producer)
                transactions.add(producer.producer_id, group_id)
                group.offsets.commit_pending(producer.producer_id, offsets, written.base_offset)
            self._sensors.offset_commits.record(len(offsets))
            _note_use(group)
        written.await_disk()

    def _check_commit(self, group: Group, commit: Commit) -> None:
        """Refuse a commit that is not from a member of the current generation. Raises: KafkaError."""
        if isinstance(group, ModernGroup):
            self._kinds[group.KIND].check_commit(group, commit)
        elif (error := _commit_error(group, commit)) is not Errors.NONE:
            raise KafkaError(error)

    def start_verification(
        self, group_id: str, producer_id: int, producer_epoch: int, bumps_epochs: bool
    ) -> tuple[int, int]:
        """Return the group's partition, and the verification guard that a transactional commit needs.

        Args: ``bumps_epochs``: the client uses transaction version 2.
        Returns: a guard of 0 if the transaction is open there; otherwise the coordinator has to verify it.
        Raises: KafkaError INVALID_PRODUCER_EPOCH for an older epoch, or with the coordinator's code.
        """
        self._groups.runtime.prepare()
        shard = self._groups.runtime.find(group_id)
        error, guard = shard.log.start_verification(producer_id, producer_epoch, -1, bumps_epochs=bumps_epochs)
        if error:
            raise error_for_client(Errors.of(error), None)
        return shard.index, guard

    def complete_transaction(self, index: int, marker: EndMarker) -> None:
        """Append the end marker to a partition of the offsets topic, and commit or drop the pending offsets.

        Raises: KafkaError with the log's code, or the coordinator's if the partition is not served now.
        """
        shard = self._groups.runtime.at(index)
        transactions = shard.transactions
        while True:
            with transactions.lock:
                group_ids = transactions.group_ids(marker.producer_id)
            with self._all_locked(shard, group_ids) as groups, transactions.lock:
                if transactions.group_ids(marker.producer_id) != group_ids:
                    continue  # a commit came between the two locks: its group must be locked, too
                shard.check()
                written = append_end_marker(shard.log, marker)
                transactions.end(marker.producer_id)
                for group in groups:
                    group.offsets.complete(marker.producer_id, marker.commit)
            break
        written.await_disk()

    @contextmanager
    def _all_locked(self, shard: GroupShard, group_ids: Sequence[str]) -> Iterator[list[Group]]:
        """Yield the groups of a shard that exist, under their locks. Raises: KafkaError NOT_COORDINATOR."""
        with ExitStack() as locks:
            found = [locks.enter_context(self._groups.locked(group_id, shard=shard)) for group_id in group_ids]
            yield [group for group in found if group is not None]

    # ------------------------------------------------------------ fetch

    def fetch(
        self,
        group_id: str,
        places: Iterable[TopicPartition] | None = None,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
    ) -> FetchedOffsets:
        """Return the committed offsets of these topic-partitions (None: of all); those without an offset are left out.

        Args: ``require_stable``: topic-partitions with a pending offset are in ``unstable`` instead; for None only
        those that also have a committed offset. ``member_id``, ``member_epoch`` of the member that fetches.
        ``topic_ids``: expected ids by name: an offset of a deleted topic with that name is left out.
        Raises: KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION.
        """
        with self._groups.locked(group_id) as group:
            if group is None:
                return FetchedOffsets({}, frozenset())
            if isinstance(group, ModernGroup):
                self._kinds[group.KIND].check_fetch(group, member_id, member_epoch)
            offsets = group.offsets
            committed = offsets.committed
            wanted = list(committed) if places is None else list(places)
            if require_stable and offsets.has_pending:
                unstable = frozenset(place for place in wanted if offsets.is_pending(place))
            else:
                unstable = frozenset()
            found = {place: committed[place] for place in wanted if place in committed and place not in unstable}
            if topic_ids:
                found = {place: one for place, one in found.items() if one.is_of(topic_ids.get(place[0], one.topic_id))}
            return FetchedOffsets(found, unstable)

    # ------------------------------------------------------------ deletion

    def delete(self, group_id: str, places: Iterable[TopicPartition]) -> dict[TopicPartition, Errors]:
        """Delete offsets, pending ones too, except of topics that a member is subscribed to; return the error of each.

        When this returns the deletions are in the log, and on disk if the topic's settings require it.
        Raises: KafkaError INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        if not group_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        with self._groups.locked(group_id) as group:
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND)
            if isinstance(group, ModernGroup) and not group.HAS_OFFSETS:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            if isinstance(group, ClassicGroup) and not group.is_empty and not group.is_consumer_group:
                raise KafkaError(Errors.NON_EMPTY_GROUP)
            subscribed = Errors.GROUP_SUBSCRIBED_TO_TOPIC
            results = {place: subscribed if group.is_subscribed(place[0]) else Errors.NONE for place in places}
            count, written = self._forget(group, [place for place, error in results.items() if error is Errors.NONE])
            self._sensors.offset_deletions.record(count)
        written.await_disk()
        return results

    def delete_topic(self, group_id: str, name: str) -> None:
        """Delete a group's offsets of a deleted topic, not of a new topic with its name. Raises: KafkaError."""
        present = self._image.get(name)
        present_id = None if present is None else present.topic_id
        with self._groups.locked(group_id) as group:
            if group is not None:
                kept = {place for place in group.offsets.of_topics({present_id}) if place[0] == name}
                gone = [place for place in group.offsets.places if place[0] == name and place not in kept]
                self._forget(group, gone)

    def delete_topics(self, topic_ids: Set[UUID]) -> bool:
        """Delete the offsets that name the ids of deleted topics; return False if some are left or cannot be read."""
        counts = self._groups.runtime.counts
        is_done = not (counts.loading or counts.failed)
        for group_id in self._groups.ids():
            try:
                with self._groups.locked(group_id) as group:
                    if group is not None:
                        self._forget(group, group.offsets.of_topics(topic_ids))
            except KafkaError:  # logged when the topic was deleted
                is_done = False
        return is_done

    def _forget(self, group: Group, places: Iterable[TopicPartition]) -> tuple[int, Written]:
        """Delete the offsets that exist; return their number and the latest tombstones, maybe not on disk yet."""
        known = set(group.offsets.places)
        present = [place for place in places if place in known]
        if present:
            group.offsets.deletion = group.shard.append(_tombstones(group.group_id, present))
            group.offsets.forget(present)
        return len(present), group.offsets.deletion

    def bury(self, group: Group) -> Written:
        """Write tombstones for a group without members and its offsets, pending ones too, and drop it.

        Returns: the tombstones, which may not be on disk yet.

        Raises: KafkaError; the group is then unchanged.
        """
        tombstones = _tombstones(group.group_id, group.offsets.places)
        if isinstance(group, ModernGroup):
            tombstones += self._kinds[group.KIND].tombstones(group)
        elif group.is_stored:
            tombstones.append((group_records.group_key(group.group_id), None))
        written = group.shard.append(tombstones) if tombstones else NOTHING_WRITTEN
        group.shard.drop(group, Errors.UNKNOWN_MEMBER_ID)
        return written

    def expire(self) -> int:
        """Remove offsets unused for the retention time, and groups without offsets; return the number of offsets.

        An offset that an open transaction is about to change stays, and so does its group.
        """
        count = 0
        for group_id in self._groups.ids():
            if self._groups.runtime.is_closed:
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
            if group is None or (isinstance(group, ModernGroup) and not group.HAS_OFFSETS):
                return 0
            expired = _expired(group, self._clock.wall_ms(), self._retention_ms)
            self._sensors.offset_expirations.record(self._forget(group, expired)[0])
            awaits_join = isinstance(group, ClassicGroup) and group.pending_joins
            if group.is_empty and not group.offsets and not awaits_join:
                self.bury(group)
            return len(expired)


def _records(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> list[KeyValue]:
    """Return the records. Raises: KafkaError for metadata that the configuration allows but the format does not."""
    try:
        return [
            (group_records.offset_key(group_id, topic, partition), group_records.encode_offset(value))
            for (topic, partition), value in offsets.items()
        ]
    except ProtocolError as error:
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error


def _tombstones(group_id: str, places: Iterable[TopicPartition]) -> list[KeyValue]:
    return [(group_records.offset_key(group_id, topic, partition), None) for topic, partition in places]


def _commit_error(group: ClassicGroup, commit: Commit) -> Errors:
    """Return the error of a commit; a transactional commit is allowed in any state, and before v3 without a member."""
    if commit.member_epoch < 0 and group.state is GroupState.EMPTY:
        return Errors.NONE  # an administrator, or a consumer that does not use groups
    if commit.member_epoch < 0 and not commit.member_id and commit.instance_id is None:
        return Errors.NONE if commit.is_transactional else Errors.UNKNOWN_MEMBER_ID
    error = group.member_error(commit.member_id, commit.instance_id)
    if error is not Errors.NONE:
        return error
    if commit.member_epoch != group.generation_id:
        return Errors.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE and not commit.is_transactional:
        return Errors.REBALANCE_IN_PROGRESS
    return Errors.NONE


def _note_use(group: Group) -> None:
    if isinstance(group, ClassicGroup):
        group.is_known = True


def _expired(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Return the expired offsets.

    The retention time counts from the moment when a classic group became empty, in all other cases from the commit.
    """
    base: Callable[[CommittedOffset], int]
    if isinstance(group, ModernGroup) or (group.state is GroupState.EMPTY and group.protocol_type is None):
        base = _commit_time
    elif group.state is GroupState.EMPTY:
        since_ms = group.state_timestamp_ms

        def base(value: CommittedOffset) -> int:
            return since_ms if since_ms >= 0 else value.commit_timestamp_ms
    elif group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
        base = _commit_time
    else:
        return []
    stable = isinstance(group, ModernGroup) or group.state is GroupState.STABLE
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
