"""The share partitions of the broker: fetches, acknowledgements, sessions, and the threads that complete fetches.

Source: ``SharePartitionManager``, ``SharePartitionCache``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from kbroker._core.clock import BaseClock
from kbroker._core.timer.key_signal import KeySignal
from kbroker._core.timer.purgatory import Purgatory
from kbroker._core.timer.timing_wheel import Timer
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.share.share_coordinator import ShareStatePersister
from kbroker.log._partition_log import PartitionLog
from kbroker.metadata.controller import Controller
from kbroker.metadata.topics import TopicRegistry
from kbroker.network.connections.closed_connections import connection_key
from kbroker.replica._topics import partition_key
from kbroker.share.delayed_share_fetch import DelayedShareFetch, ReadPartition, Results, ShareFetch, ShareFetchParams
from kbroker.share.group_configs import BY_DURATION, EARLIEST, ShareGroupConfigs, share_limits
from kbroker.share.sessions import SharedPartition, ShareSession, ShareSessionCache
from kbroker.share.share_partition import AcknowledgementBatch, SharePartition, SharePartitionKey
from kbroker.share.share_sensors import ShareSensors

logger = get_logger(__name__)

#: Errors after which a share partition is dropped; the next fetch reads its state again.
_FENCING = frozenset(
    {
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.FENCED_STATE_EPOCH,
        Errors.GROUP_ID_NOT_FOUND,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_REAP_MS = 200

#: The error of each partition, None for a success.
Outcomes = dict[SharePartitionKey, KafkaError | None]


class SharePartitionManager:
    """Share partitions by group and partition, and their sessions.

    Threads: any. ``lock`` guards the table of share partitions. No lock is held while a share partition, a persister or
    a response is called. `run_reaper`, `run_waker` and `run_lock_reaper` are the bodies of its threads.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        topics: TopicRegistry,
        controller: Controller,
        persister: ShareStatePersister,
        signal: KeySignal,
        sensors: ShareSensors,
    ) -> None:
        self.clock = clock
        self.sensors = sensors
        self.sessions = ShareSessionCache(
            config.integer("group.share.max.share.sessions"), self._release, self.drop_group
        )
        self.lock = threading.Lock()
        self.purgatory = Purgatory("ShareFetch", clock, config.integer("share.fetch.purgatory.purge.interval.requests"))
        self.lock_timer = Timer(clock)
        self._topics = topics
        self._node_id = config.node_id
        self._controller = controller
        self._persister = persister
        self._signal = signal
        self._appends: dict[int, SharePartitionKey] = {}  # by the key of the partition's appends in the signal
        self._connections: dict[tuple[int, int], str] = {}
        self._limits = share_limits(config)
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._actions: deque[Callable[[], object]] = deque()

    # ------------------------------------------------------------ fetches

    def configs(self, group_id: str) -> ShareGroupConfigs:
        """Return the configs of a group."""
        resource = ConfigResourceType.GROUP, group_id
        return ShareGroupConfigs(self._limits, lambda: self._controller.image.configs.get(resource, {}))

    def fetch(
        self,
        group_id: str,
        member_id: str,
        params: ShareFetchParams,
        partitions: Sequence[SharedPartition],
        epoch: int,
        done: Callable[[Results], None],
        is_abandoned: Callable[[], bool] = bool,
    ) -> None:
        """Acquire records of partitions for a member; ``done`` is called once, now or later, on any thread.

        Args: ``epoch`` of the session's request; the partition that is read first changes with it; ``is_abandoned``
        returns whether the connection of the request is closed.
        """
        if not partitions or params.max_records == 0 or params.max_bytes == 0:
            done({})
            return
        turn = epoch % len(partitions) if epoch >= 1 else 0
        found: dict[SharePartitionKey, ReadPartition] = {}
        fetch = ShareFetch(member_id, params, found, done, self._check_fenced, is_abandoned)
        for topic_id, index, topic in [*partitions[turn:], *partitions[:turn]]:
            key = SharePartitionKey(group_id, topic_id, topic or "", index)
            log = self._log(topic_id, index)
            if isinstance(log, Errors):
                fetch.add_error(key, KafkaError(log))
                continue
            share = self._partition(key, log)
            found[key] = ReadPartition(share, log)
            self._initialize(share, fetch)
        if not found:
            done(fetch.errors)
            return
        keys = [wait_key for key in found for wait_key in (_group_key(key), _place(key))]
        operation = DelayedShareFetch(fetch, self._watch_appends, self._wake)
        self.purgatory.try_complete_else_watch(operation, keys)
        self._run_actions()

    def _partition(self, key: SharePartitionKey, log: PartitionLog) -> SharePartition:
        with self.lock:
            share = self._partitions.get(key)
            if share is None:
                configs = self.configs(key.group_id)
                share = self._partitions[key] = SharePartition(
                    key,
                    log.leader_epoch,
                    configs,
                    self.lock_timer,
                    self.clock,
                    self._persister,
                    partial(self._initial_offset, configs, log),
                    partial(self._wake, key),
                    self.sensors,
                )
            return share

    def _initialize(self, share: SharePartition, fetch: ShareFetch) -> None:
        """Read the state of a share partition, unless reading has begun; drop the partition if reading fails."""
        try:
            share.initialize()
        except KafkaError as error:
            if error.error is not Errors.LEADER_NOT_AVAILABLE:
                self._drop(share.key)
                fetch.add_error(share.key, error)
        self._wake(share.key)

    def _initial_offset(self, configs: ShareGroupConfigs, log: PartitionLog) -> int:
        """Return the first start offset of a share partition, by share.auto.offset.reset."""
        strategy, duration_ms = configs.offset_reset
        if strategy == EARLIEST:
            return log.log_start_offset
        if strategy == BY_DURATION:
            found = log.offset_for_timestamp(max(0, self.clock.epoch_ms() - duration_ms))
            if found.offset >= 0:
                return found.offset
        return log.high_watermark

    def _log(self, topic_id: UUID, index: int) -> PartitionLog | Errors:
        """Return the log of a partition that this node leads, or the error."""
        view = self._topics.get_by_id(topic_id)
        if view is None or not 0 <= index < len(view.partitions):
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        if view.registrations[index].leader != self._node_id:
            return Errors.NOT_LEADER_OR_FOLLOWER
        log: PartitionLog | None = view.partitions[index]
        return Errors.UNKNOWN_TOPIC_OR_PARTITION if log is None or log.is_closed else log

    # ------------------------------------------------------------ acknowledgements

    def acknowledge(
        self,
        group_id: str,
        member_id: str,
        acknowledgements: Mapping[SharedPartition, Iterable[AcknowledgementBatch]],
        done: Callable[[Outcomes], None],
    ) -> None:
        """Acknowledge records of partitions; ``done`` is called once all of them are stored or refused."""
        pending = _Pending(len(acknowledgements), done)
        for (topic_id, index, topic), batches in acknowledgements.items():
            key = SharePartitionKey(group_id, topic_id, topic or "", index)
            with self.lock:
                share = self._partitions.get(key)
            if share is None:
                moved, unknown = Errors.NOT_LEADER_OR_FOLLOWER, Errors.UNKNOWN_TOPIC_OR_PARTITION
                pending.settle(key, KafkaError(moved if self._log(topic_id, index) is moved else unknown))
            else:
                share.acknowledge(member_id, batches, partial(self._acknowledged, pending, key, batches))
        self._run_actions()

    def _acknowledged(
        self,
        pending: _Pending,
        key: SharePartitionKey,
        batches: Iterable[AcknowledgementBatch],
        error: KafkaError | None,
    ) -> None:
        if error is not None:
            self._check_fenced(key, error)
        else:
            for batch in batches:
                if len(batch.types) == 1:
                    self.sensors.acknowledged(batch.types[0], batch.last_offset - batch.first_offset + 1)
                else:
                    for type_ in batch.types:
                        self.sensors.acknowledged(type_, 1)
        pending.settle(key, error)

    def release_member(self, group_id: str, member_id: str) -> None:
        """End the session of a member, and make its records available."""
        session = self.sessions.remove(group_id, member_id)
        if session is not None:
            self._release(session)

    def _release(self, session: ShareSession) -> None:
        """Make the records available that the member of an ended session has acquired."""
        group_id, member_id = session.key
        for topic_id, index, topic in list(session.partitions.values()):  # a copy: an ending fetch changes the order
            key = SharePartitionKey(group_id, topic_id, topic or "", index)
            with self.lock:
                share = self._partitions.get(key)
            if share is not None:
                share.release_member(member_id, partial(self._released_member, key))
                self._wake(key)  # its fetches are abandoned
        self._run_actions()

    def _released_member(self, key: SharePartitionKey, error: KafkaError | None) -> None:
        if error is not None:
            logger.info("cannot store the released records of %s: %s", key, error)
            self._check_fenced(key, error)

    # ------------------------------------------------------------ the table

    def _check_fenced(self, key: SharePartitionKey, error: KafkaError) -> None:
        if error.error in _FENCING:
            logger.info("the share partition %s is fenced: %s", key, error)
            self._drop(key)

    def _drop(self, key: SharePartitionKey) -> None:
        """Remove a share partition; the next fetch reads its state again."""
        with self.lock:
            share = self._partitions.pop(key, None)
        if share is not None:
            share.fence()
            self._wake(key)

    def drop_group(self, group_id: str) -> None:
        """Remove the share partitions of a group without sessions."""
        self._drop_all(lambda key: key.group_id == group_id)

    def topic_deleted(self, name: str) -> None:
        """Remove the share partitions of a deleted topic."""
        self._drop_all(lambda key: key.topic == name)
        for watched, key in list(self._appends.items()):
            if key.topic == name:
                del self._appends[watched]

    def elected(self, topic_id: UUID, index: int) -> None:
        """Remove the share partitions of a partition with a new leader, which reads their state again."""
        self._drop_all(lambda key: (key.topic_id, key.partition) == (topic_id, index))

    def disable(self) -> None:
        """End all sessions and remove all share partitions: the feature share.version was disabled."""
        self.sessions.clear()
        self._drop_all(lambda key: True)

    def _drop_all(self, is_chosen: Callable[[SharePartitionKey], bool]) -> None:
        with self.lock:
            keys = [key for key in self._partitions if is_chosen(key)]
        for key in keys:
            self._drop(key)
        self._run_actions()

    def partitions(self) -> list[SharePartition]:
        """Return the share partitions."""
        with self.lock:
            return list(self._partitions.values())

    # ------------------------------------------------------------ threads

    @property
    def is_idle(self) -> bool:
        """Return whether no fetch and no acquisition lock is due or being expired."""
        return self.purgatory.is_idle and self.lock_timer.is_idle and not self._actions

    def _wake(self, *keys: SharePartitionKey) -> None:
        """Schedule another attempt of the fetches of partitions."""
        for key in keys:
            self._actions.append(partial(self.purgatory.check_and_complete, _group_key(key)))

    def _run_actions(self) -> None:
        """Call the queued functions. The caller holds no lock."""
        while self._actions:
            try:
                run = self._actions.popleft()
            except IndexError:  # another thread took the last function
                return
            run()

    def _watch_appends(self, key: SharePartitionKey, log: PartitionLog) -> None:
        """Check the fetches of a partition after its next append."""
        watched = partition_key(log)
        self._appends[watched] = key
        self._signal.watch(watched, 0)

    def watch_connection(self, connection_id: str) -> None:
        """End the session of a connection when it is closed."""
        watched = connection_key(connection_id)
        self._connections[watched] = connection_id
        self._signal.watch(*watched)

    def disconnected(self, connection_id: str) -> None:
        """End the session of a closed connection, and its watch."""
        watched = connection_key(connection_id)
        self._signal.unwatch(*watched)
        self._connections.pop(watched, None)
        self.sessions.disconnected(connection_id)

    def run_waker(self) -> None:
        """Check fetches after appends, and end the sessions of closed connections, until `close`."""
        while events := self._signal.wait():
            for event in events:
                try:
                    self._follow(*event)
                except Exception:  # a bug must not end the thread: fetches would wait until they expire
                    logger.exception("cannot complete share fetches")
            self._run_actions()

    def _follow(self, high: int, low: int) -> None:
        """Follow an append to a partition, or the end of a connection."""
        if low != 0:
            connection_id = self._connections.pop((high, low), None)
            if connection_id is not None:
                self.sessions.disconnected(connection_id)
        elif (key := self._appends.get(high)) is not None:  # kept: the partition may be watched again by now
            self.purgatory.check_and_complete(_place(key))

    def run_reaper(self) -> None:
        """Expire fetches, until `close`."""
        while not self.purgatory.closed:
            self.purgatory.advance(_REAP_MS)
            self._run_actions()

    def run_lock_reaper(self) -> None:
        """Expire acquisition locks, until `close`."""
        while not self.lock_timer.closed:
            self.lock_timer.advance(_REAP_MS)
            self._run_actions()

    def close(self) -> None:
        """Complete the fetches that wait, and end the threads. Idempotent."""
        self._signal.close()
        self.end_reapers()

    def end_reapers(self) -> None:
        """End the threads of `run_reaper` and `run_lock_reaper`; another manager may get the signal."""
        self.purgatory.close()
        self.lock_timer.close()


class _Pending:
    """Outcomes of acknowledgements of several partitions. Threads: any."""

    def __init__(self, count: int, done: Callable[[Outcomes], None]) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._done = done
        self._outcomes: Outcomes = {}

    def settle(self, key: SharePartitionKey, error: KafkaError | None) -> None:
        """Note the outcome of one partition."""
        with self._lock:
            self._outcomes[key] = error
            is_last = len(self._outcomes) == self._count
        if is_last:
            self._done(self._outcomes)


def _group_key(key: SharePartitionKey) -> tuple[Any, ...]:
    return key.group_id, key.topic_id, key.partition


def _place(key: SharePartitionKey) -> tuple[Any, ...]:
    return key.topic_id, key.partition
