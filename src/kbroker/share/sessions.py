"""Share sessions: the partitions that a member fetches, and the epoch of its next request.

Source: ``ShareSessionCache``, ``ShareSession``, ``ShareSessionContext``, ``SharePartitionManager.newContext``; KIP-932.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
_MAX_EPOCH = 2**31 - 1
MAX_PARTITIONS = 1_000_000  # limit for all sessions: 350 MB
_FORGET_EVERY = 64  # number of a connection's session keys after which the keys of ended sessions are removed


class SharedPartition(NamedTuple):
    """A partition of a session. ``topic`` is None if the id was unknown when the partition was added."""

    topic_id: UUID
    partition: int
    topic: str | None

    @property
    def place(self) -> tuple[UUID, int]:
        """Topic id and partition number."""
        return self.topic_id, self.partition


class ShareSession:
    """A member's session. The cache's lock guards it.

    ``partitions``: in the order of the next fetch. ``due``: places whose next response is sent even without records.
    """

    __slots__ = ("connection_id", "due", "epoch", "key", "partitions")

    def __init__(self, key: tuple[str, str], partitions: Iterable[SharedPartition], connection_id: str) -> None:
        self.key = key
        self.partitions = {one.place: one for one in partitions}
        self.due: set[tuple[UUID, int]] = set()
        self.epoch = 1
        self.connection_id = connection_id


class ShareSessionCache:
    """Sessions by group and member. Threads: any; ``lock`` is a leaf.

    Args: ``on_leave`` is called with each session that ends because its connection is closed; ``on_empty`` with a
    group whose last session has ended, at the latest when the connection of such a session is closed.
    """

    def __init__(
        self, max_sessions: int, on_leave: Callable[[ShareSession], object], on_empty: Callable[[str], object]
    ) -> None:
        self.lock = threading.Lock()
        self.evictions = 0
        self._max_sessions = max_sessions
        self.partition_count = 0  # of all sessions
        self._on_leave = on_leave
        self._on_empty = on_empty
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[str, set[tuple[str, str]]] = {}  # keys of sessions, also of some that have ended
        self._members: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, group_id: str, member_id: str, partitions: Iterable[SharedPartition], connection_id: str
    ) -> ShareSession:
        """Open a session in place of the member's former one. Raises: KafkaError at a limit; the former is removed."""
        key = group_id, member_id
        session = ShareSession(key, partitions, connection_id)
        with self.lock:
            self._remove(key)
            if len(self._sessions) >= self._max_sessions:
                raise KafkaError(Errors.SHARE_SESSION_LIMIT_REACHED)
            self._reserve(len(session.partitions))
            self._sessions[key] = session
            self._members[group_id] = self._members.get(group_id, 0) + 1
            keys = self._by_connection.setdefault(connection_id, set())
            keys.add(key)
            is_due = len(keys) % _FORGET_EVERY == 0
            ended = {one for one in keys if not self._is_open(one, connection_id)} if is_due else set()
            keys -= ended
        self._check_empty(ended)
        return session

    def advance(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        added: Iterable[SharedPartition] = (),
        removed: Iterable[tuple[UUID, int]] = (),
    ) -> ShareSession:
        """Check the epoch of a request, change the partitions, and return the session; the final epoch changes nothing.

        Raises: KafkaError for an unknown session, another epoch, or at the limit of partitions.
        """
        with self.lock:
            session = self._sessions.get((group_id, member_id))
            if session is None:
                raise KafkaError(Errors.SHARE_SESSION_NOT_FOUND)
            if epoch == FINAL_EPOCH:
                return session
            if epoch != session.epoch:
                raise KafkaError(Errors.INVALID_SHARE_SESSION_EPOCH)
            new = {one.place: one for one in added if one.place not in session.partitions}
            self._reserve(len(new))
            session.partitions.update(new)
            session.due.update(new)
            for place in removed:
                if session.partitions.pop(place, None) is not None:
                    self.partition_count -= 1
                session.due.discard(place)
            session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
            return session

    def is_next(self, session: ShareSession, epoch: int) -> bool:
        """Return whether no other request of the session has come since the one with this epoch."""
        with self.lock:
            return session.epoch == (1 if epoch == _MAX_EPOCH else epoch + 1)

    def must_respond(
        self, session: ShareSession, place: tuple[UUID, int], *, has_records: bool, is_error: bool
    ) -> bool:
        """Return whether a response of the session contains a partition; one with records is fetched last next time.

        A partition with an error is contained in the next response, too.
        """
        with self.lock:
            partition = session.partitions.get(place)
            is_included = has_records or is_error or place in session.due
            session.due.discard(place)
            if is_error and partition is not None:
                session.due.add(place)
            if has_records and partition is not None:
                session.partitions[place] = session.partitions.pop(place)
            return is_included

    def remove(self, group_id: str, member_id: str) -> ShareSession | None:
        """End a session; return it, or None if there was none."""
        with self.lock:
            return self._remove((group_id, member_id))

    def _reserve(self, partitions: int) -> None:
        if self.partition_count + partitions > MAX_PARTITIONS:
            raise KafkaError(Errors.SHARE_SESSION_LIMIT_REACHED)
        self.partition_count += partitions

    def _remove(self, key: tuple[str, str]) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self.partition_count -= len(session.partitions)
            left = self._members.pop(key[0]) - 1
            if left:
                self._members[key[0]] = left
        return session

    def _is_open(self, key: tuple[str, str], connection_id: str) -> bool:
        session = self._sessions.get(key)
        return session is not None and session.connection_id == connection_id

    def clear(self) -> None:
        """End all sessions."""
        with self.lock:
            self._sessions.clear()
            self._members.clear()
            self.partition_count = 0

    def disconnected(self, connection_id: str) -> None:
        """End the sessions of a closed connection, but not those that their members have opened on another one."""
        with self.lock:
            keys = self._by_connection.pop(connection_id, set())
            ended = [self._sessions[key] for key in keys if self._is_open(key, connection_id)]
            for session in ended:
                self._remove(session.key)
            self.evictions += len(ended)
        for session in ended:
            self._on_leave(session)
        self._check_empty(keys)

    def _check_empty(self, keys: Iterable[tuple[str, str]]) -> None:
        for group_id in {group_id for group_id, _ in keys}:
            with self.lock:
                is_empty = group_id not in self._members
            if is_empty:
                self._on_empty(group_id)
