"""The coordinator of classic groups: their membership, their committed offsets, and what is remembered of both.

Lock order: a group's lock, then ``GroupCoordinator._lock``; the log is appended to under the group's lock, so that its
records are in the order of what happened, and no disk is waited for under it.
Source: ``GroupCoordinator``, ``OffsetMetadataManager``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker._core.timer.purgatory import Purgatory
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.coordinator import group_records
from kbroker.coordinator.classic_group import (
    ClassicGroup,
    GroupState,
    JoinCallback,
    JoinResult,
    SyncCallback,
    SyncResult,
)
from kbroker.coordinator.group_records import CommittedOffset, OffsetKey, StoredGroup
from kbroker.coordinator.internal_topic import InternalTopic, Written
from kbroker.coordinator.membership import JoinRequest, LeavingMember, Membership, SyncRequest
from kbroker.coordinator.offsets_log import OffsetsLog

logger = get_logger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

Place = tuple[str, int]  # topic and partition


class GroupSettings(NamedTuple):
    """Kafka's group settings, in milliseconds and members."""

    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3000
    max_size: int = 2**31 - 1
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000


class DescribedMember(NamedTuple):
    """A member as administrators see it: its metadata in a stable group only, its latest assignment always."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group as administrators see it."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: Sequence[DescribedMember]


class ListedGroup(NamedTuple):
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: GroupState


class GroupCoordinator:
    """All classic groups of the broker.

    Args: ``topic``: where records go; ``clock``: drives sessions, rebalances and expiry.
    Threads: any. ``run_join_reaper`` and ``run_heartbeat_reaper`` each need a thread (or ``advance`` in tests).
    """

    def __init__(self, clock: BaseClock, topic: InternalTopic, settings: GroupSettings | None = None) -> None:
        self._clock = clock
        self._settings = GroupSettings() if settings is None else settings
        self._log = OffsetsLog(topic, clock)
        self._joins = Purgatory("Rebalance", clock)
        self._heartbeats = Purgatory("Heartbeat", clock)
        self._membership = Membership(
            clock,
            self,
            self._joins,
            self._heartbeats,
            initial_delay_ms=self._settings.initial_rebalance_delay_ms,
            max_size=self._settings.max_size,
        )
        self._lock = threading.Lock()
        self._groups: dict[str, ClassicGroup] = {}
        self._closed = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Load groups and offsets from the log; loaded members must send a request within their session timeout."""
        groups = offsets = 0
        for key, value in self._log.replay():
            group = self._groups.setdefault(key.group_id, ClassicGroup(key.group_id))
            if isinstance(value, StoredGroup):
                group.restore(value)
                groups += 1
            elif isinstance(key, OffsetKey):
                group.offsets[key.topic, key.partition] = value
                offsets += 1
        for group in self._groups.values():
            with group.lock:
                self._membership.resume(group)
        if self._groups:
            logger.info("loaded %d groups and %d committed offsets", groups, offsets)

    def run_join_reaper(self) -> None:
        """Expire joins and syncs until closed; blocks, so it needs its own thread."""
        self._joins.run_reaper()

    def run_heartbeat_reaper(self) -> None:
        """Expire sessions until closed; blocks, so it needs its own thread."""
        self._heartbeats.run_reaper()

    @property
    def is_idle(self) -> bool:
        """Whether no join, sync or session is due or being expired: both reapers wait."""
        return self._joins.is_idle and self._heartbeats.is_idle

    def advance(self) -> None:
        """Run what is due on this thread; for tests with a virtual clock and no reapers."""
        while self._joins.advance(0) or self._heartbeats.advance(0):
            pass

    def close(self) -> None:
        """Complete all delayed requests with NOT_COORDINATOR and end the reapers. Idempotent."""
        with self._lock:
            self._closed = True
            groups = list(self._groups.values())
        for group in groups:
            with group.lock:
                if group.state is not GroupState.DEAD:
                    self._membership.dismiss(group, Errors.NOT_COORDINATOR)
        self._joins.close()
        self._heartbeats.close()

    def prepare(self) -> None:
        """Create the offsets topic if it does not exist; that takes a while. Raises: KafkaError."""
        self._log.prepare()

    def check(self, group_id: str) -> None:
        """Raises: KafkaError NOT_COORDINATOR if the group's partition of the offsets topic could not be read."""
        self._log.check(group_id)

    @property
    def partition_counts(self) -> tuple[int, int]:
        """Partitions of the offsets topic whose groups are served, and those that could not be read."""
        failed = len(self._log.unreadable)
        return max(0, self._log.partition_count - failed), failed

    # ------------------------------------------------------------ membership

    def join(self, request: JoinRequest, on_joined: JoinCallback) -> None:
        """Let a member join; ``on_joined`` is called once, now or later, by any thread."""
        settings = self._settings
        error = Errors.NONE
        if not request.group_id:
            error = Errors.INVALID_GROUP_ID
        elif not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            error = Errors.INVALID_SESSION_TIMEOUT
        if error is not Errors.NONE:
            on_joined(JoinResult(error, request.member_id))
            return
        with self._locked(request.group_id, create=not request.member_id) as group:
            if group is None:
                on_joined(JoinResult(Errors.UNKNOWN_MEMBER_ID, request.member_id))
            else:
                self._membership.join(group, request, on_joined)

    def sync(self, request: SyncRequest, on_synced: SyncCallback) -> None:
        """Give a member its assignment; ``on_synced`` is called once, now or later, by any thread."""
        if not request.group_id:
            on_synced(SyncResult(Errors.INVALID_GROUP_ID))
            return
        with self._locked(request.group_id) as group:
            if group is None:
                on_synced(SyncResult(Errors.UNKNOWN_MEMBER_ID))
            else:
                self._membership.sync(group, request, on_synced)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int) -> Errors:
        """Extend a session."""
        if not group_id:
            return Errors.INVALID_GROUP_ID
        with self._locked(group_id) as group:
            if group is None:
                return Errors.UNKNOWN_MEMBER_ID
            return self._membership.heartbeat(group, member_id, group_instance_id, generation_id)

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[Errors]:
        """Remove members, one error code each. Raises: KafkaError INVALID_GROUP_ID."""
        if not group_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        with self._locked(group_id) as group:
            if group is None:
                return [Errors.UNKNOWN_MEMBER_ID] * len(leaving)
            return self._membership.leave(group, leaving)

    # ------------------------------------------------------------ offsets

    def commit(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        offsets: Mapping[Place, CommittedOffset],
    ) -> None:
        """Commit offsets; when this returns they are in the log, and on disk if the topic's settings require it.

        Raises: KafkaError, and nothing was committed (a failed wait for the disk excepted): GROUP_ID_NOT_FOUND for a
        member of a group that does not exist.
        """
        with self._locked(group_id, create=generation_id < 0) as group:
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND)
            error = _commit_error(group, member_id, group_instance_id, generation_id)
            if error is not Errors.NONE:
                raise KafkaError(error)
            written = self._put(group, offsets)
            if member_id:
                self._membership.touch(group, member_id)
        if written is not None:
            written.await_disk()

    def _put(self, group: ClassicGroup, offsets: Mapping[Place, CommittedOffset]) -> Written | None:
        if not offsets:
            return None
        try:
            records = [
                (group_records.offset_key(group.group_id, topic, partition), group_records.encode_offset(value))
                for (topic, partition), value in offsets.items()
            ]
        except ProtocolError as error:  # metadata that the configuration allows but the record format does not
            raise KafkaError(Errors.UNKNOWN_SERVER_ERROR, str(error)) from error
        written = self._log.append(group.group_id, records)
        group.offsets.update(offsets)
        group.is_known = True
        return written

    def committed(self, group_id: str, places: Iterable[Place] | None = None) -> dict[Place, CommittedOffset]:
        """Committed offsets of these partitions, of all when None; those without one are left out."""
        with self._locked(group_id) as group:
            if group is None:
                return {}
            if places is None:
                return dict(group.offsets)
            return {place: group.offsets[place] for place in places if place in group.offsets}

    def delete_offsets(self, group_id: str, places: Iterable[Place]) -> dict[Place, Errors]:
        """Delete committed offsets, except of topics that a member is subscribed to.

        Raises: KafkaError INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        if not group_id:
            raise KafkaError(Errors.INVALID_GROUP_ID)
        with self._locked(group_id) as group:
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND)
            if group.state is not GroupState.EMPTY and not group.is_consumer_group:
                raise KafkaError(Errors.NON_EMPTY_GROUP)
            subscribed = Errors.GROUP_SUBSCRIBED_TO_TOPIC
            results = {place: subscribed if group.is_subscribed(place[0]) else Errors.NONE for place in places}
            self._forget_offsets(group, [place for place, error in results.items() if error is Errors.NONE])
            return results

    def _forget_offsets(self, group: ClassicGroup, places: Iterable[Place]) -> None:
        present = [place for place in places if place in group.offsets]
        if present:
            keys = [group_records.offset_key(group.group_id, topic, partition) for topic, partition in present]
            self._log.append(group.group_id, [(key, None) for key in keys])
            for place in present:
                del group.offsets[place]

    def topic_deleted(self, name: str) -> None:
        """Remove the committed offsets of a deleted topic; if it is ``__consumer_offsets``, drop all groups."""
        if name == OFFSETS_TOPIC:
            self._log.forget_damage()
        for group_id in self._group_ids():
            with self._locked(group_id) as group:
                if group is None:
                    continue
                if name == OFFSETS_TOPIC:
                    self._drop(group, Errors.NOT_COORDINATOR)
                    continue
                try:
                    self._forget_offsets(group, [place for place in group.offsets if place[0] == name])
                except KafkaError as error:
                    logger.warning(
                        "group %s: cannot delete the offsets of the deleted topic %s: %s", group_id, name, error
                    )

    def expire_offsets(self) -> int:
        """Remove offsets unused for ``offsets.retention.minutes``, and groups without any; return how many."""
        count = 0
        for group_id in self._group_ids():
            if self._closed:
                break
            with self._locked(group_id) as group:
                if group is None:
                    continue
                expired = _expired(group, self._clock.wall_ms(), self._settings.offsets_retention_ms)
                try:
                    self._forget_offsets(group, expired)
                    if group.state is GroupState.EMPTY and not group.offsets and not group.pending_joins:
                        self._bury(group)
                except KafkaError as error:
                    logger.warning("group %s: cannot expire offsets: %s", group_id, error)
                    continue
                count += len(expired)
        if count:
            logger.info("%d committed offsets expired", count)
        return count

    # ------------------------------------------------------------ administration

    def describe(self, group_id: str) -> DescribedGroup | None:
        """Describe a group; None if it does not exist."""
        with self._locked(group_id) as group:
            if group is None:
                return None
            stable = group.state is GroupState.STABLE
            members = [
                DescribedMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(group.protocol_name) if stable else b"",
                    member.assignment,
                )
                for member in group.members.values()
            ]
            protocol_name = group.protocol_name or "" if stable else ""
            return DescribedGroup(group_id, group.state, group.protocol_type or "", protocol_name, members)

    def list_groups(self) -> list[ListedGroup]:
        """All groups."""
        found = []
        for group_id in self._group_ids():
            with self._locked(group_id) as group:
                if group is not None:
                    found.append(ListedGroup(group_id, group.protocol_type or "", group.state))
        return found

    def delete(self, group_id: str) -> None:
        """Forget a group that has no members. Raises: KafkaError GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        with self._locked(group_id) as group:
            if group is None:
                raise KafkaError(Errors.GROUP_ID_NOT_FOUND)
            if group.state is not GroupState.EMPTY:
                raise KafkaError(Errors.NON_EMPTY_GROUP)
            self._bury(group)

    def _bury(self, group: ClassicGroup) -> None:
        group_id = group.group_id
        tombstones = [group_records.offset_key(group_id, topic, partition) for topic, partition in group.offsets]
        if group.is_stored:
            tombstones.append(group_records.group_key(group_id))
        if tombstones:
            self._log.append(group_id, [(key, None) for key in tombstones])
        self._drop(group, Errors.UNKNOWN_MEMBER_ID)

    # ------------------------------------------------------------ groups

    def save(self, group: ClassicGroup, assignments: Mapping[str, bytes] | None = None) -> None:
        """Write a group down as it is, or with the assignments about to be given out. Raises: KafkaError."""
        value = group_records.encode_group(group.stored(assignments))
        self._log.append(group.group_id, [(group_records.group_key(group.group_id), value)])
        group.is_stored = True

    def _group_ids(self) -> list[str]:
        with self._lock:
            return list(self._groups)

    @contextmanager
    def _locked(self, group_id: str, create: bool = False) -> Iterator[ClassicGroup | None]:
        """The group, alive, under its lock; None if there is none. One left without any content is forgotten.

        Raises: KafkaError COORDINATOR_NOT_AVAILABLE once closed; NOT_COORDINATOR if what its partition of the offsets
        topic holds is not known.
        """
        self._log.check(group_id)
        while True:
            with self._lock:
                if self._closed:
                    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)
                group = self._groups.get(group_id)
                if group is None and create:
                    group = self._groups[group_id] = ClassicGroup(group_id)
            if group is None:
                yield None
                return
            with group.lock:
                if group.state is GroupState.DEAD:
                    continue  # between our look and our lock it went: look again
                try:
                    yield group
                finally:
                    if group.is_unused:
                        self._drop(group, Errors.UNKNOWN_MEMBER_ID)
                return

    def _drop(self, group: ClassicGroup, error: Errors) -> None:
        if group.state is not GroupState.DEAD:
            self._membership.dismiss(group, error)
        with self._lock:
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]


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


def _expired(group: ClassicGroup, now_ms: int, retention_ms: int) -> list[Place]:
    """Offsets whose time is over: of an empty group by when it became so, of topics no longer subscribed by commit."""
    base: Callable[[CommittedOffset], int]
    if group.state is GroupState.EMPTY and group.protocol_type is None:
        base = _commit_time
    elif group.state is GroupState.EMPTY:
        since_ms = group.state_timestamp_ms

        def base(value: CommittedOffset) -> int:
            return since_ms if since_ms >= 0 else value.commit_timestamp_ms
    elif group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
        base = _commit_time
    else:
        return []
    stable = group.state is GroupState.STABLE
    expired = []
    for place, value in group.offsets.items():
        if stable and group.is_subscribed(place[0]):
            continue
        set_by_client = value.expire_timestamp_ms >= 0
        due_ms = value.expire_timestamp_ms if set_by_client else base(value) + retention_ms
        if now_ms >= due_ms:
            expired.append(place)
    return expired


def _commit_time(value: CommittedOffset) -> int:
    return value.commit_timestamp_ms
