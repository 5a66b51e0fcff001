"""This node as a broker of a cluster with other controllers: its metadata, registration and channels.

Source: ``SharedServer``, ``BrokerServer``.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.client.connection import Address
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_member import quorum_addresses
from kbroker.common.feature_versions import LATEST_RELEASE, RELEASES
from kbroker.common.listeners import Listener
from kbroker.common.loggers import get_logger
from kbroker.log.log_dir import LogDir
from kbroker.log.scheduler import Scheduler
from kbroker.member.controller_channel import ControllerChannel
from kbroker.member.controller_connection import ControllerConnections
from kbroker.member.follower_log import FollowerLog
from kbroker.member.forwarding import TIMEOUT_MS, ForwardingManager
from kbroker.member.lifecycle import BrokerLifecycle, LifecycleTimes, Registration
from kbroker.member.metadata_loader import MetadataLoader
from kbroker.member.producer_ids import RemoteProducerIds
from kbroker.member.raft_client import RaftClient
from kbroker.member.raft_observer import QuorumSettings, RaftObserver
from kbroker.member.registration_tracker import RegistrationTracker, can_cordon, warn_of_fence
from kbroker.member.remote_metadata import RemoteMetadata
from kbroker.member.topic_creation import TopicCreation
from kbroker.metadata.features import SUPPORTED
from kbroker.metadata.image.image import EMPTY_IMAGE
from kbroker.metadata.image.registrations import BrokerRegistration
from kbroker.metadata.log.metadata_log import MetadataLogError
from kbroker.metadata.log.quorum_state import QuorumState
from kbroker.metadata.log.snapshots import Snapshots

logger = get_logger(__name__)

POLL_S = 0.05


class MemberStartError(RuntimeError):
    """Failure of a node to join its cluster; the message has the reason."""


class Member:
    """A broker of a cluster with other controllers.

    Args: ``home``: the locked folder of the metadata log; ``directory_ids``: those of all online log folders;
    ``previous_epoch``: the broker epoch of the last clean stop, -1 without one; ``is_cancelled`` returns whether to
    end the start early; ``on_failure`` is called with the reason when the broker must stop.
    Raises: MetadataLogError, OSError.
    Threads: start and stop by one thread at a time; properties from any.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        home: LogDir,
        directory_ids: Sequence[uuid.UUID],
        previous_epoch: int,
        is_cancelled: Callable[[], bool],
        on_failure: Callable[[str], None],
    ) -> None:
        self._config = config
        self.clock = clock
        self._directory_ids = directory_ids
        self._previous_epoch = previous_epoch
        self._is_cancelled = is_cancelled
        self._on_failure = on_failure
        self._fatal = ""
        self._released = self._is_ready = False
        node_id = config.node_id
        connections = ControllerConnections(config)
        self.log = FollowerLog(home.path, config, clock)
        _check_follower(self.log, home.path, node_id)
        self.metadata = RemoteMetadata(node_id, home.owner.cluster_id, home.directory_id, self.log)
        # after a fault the broker is fenced: its image no longer changes
        self.loader = MetadataLoader(self.log, self.metadata, lambda reason: self.lifecycle.fence())
        servers, voters = quorum_addresses(config)
        self._has_static_voters = bool(voters)
        settings = QuorumSettings(
            node_id,
            home.directory_id,
            home.owner.cluster_id,
            servers,
            voters,
            config.integer("controller.quorum.request.timeout.ms"),
            config.integer("controller.quorum.retry.backoff.ms"),
            config.integer("controller.quorum.fetch.timeout.ms"),
            config.integer("controller.quorum.fetch.max.bytes"),
            config.integer("controller.quorum.fetch.snapshot.max.bytes"),
        )
        self.observer = RaftObserver(settings, self.log, self._write_quorum_state, self.loader.load_snapshot)
        self._raft = RaftClient(
            self.observer, connections, f"raft-client-{node_id}", clock, self.loader.advance, self._on_fatal
        )
        self.snapshots = Snapshots(self.metadata, self.log, config, clock)
        self.metadata.publishers.append(self.snapshots)
        heartbeat_ms = config.integer("broker.heartbeat.interval.ms")
        socket_ms = config.integer("controller.socket.timeout.ms")
        client_id = str(node_id)

        def channel(name: str, retry_timeout_ms: int) -> ControllerChannel:
            return ControllerChannel(
                f"broker-{node_id}-to-controller-{name}",
                client_id,
                clock,
                lambda: self.observer.leader_address,
                connections,
                retry_timeout_ms=retry_timeout_ms,
                request_timeout_ms=socket_ms,
            )

        self._heartbeats = channel("heartbeat", heartbeat_ms)
        self._forwarding = channel("forwarding", TIMEOUT_MS)
        self.forwarding = ForwardingManager(self._forwarding, clock)
        self.topic_creation = TopicCreation(config, self._forwarding, self.forwarding, clock)
        self.producer_ids = RemoteProducerIds(node_id, lambda: self.broker_epoch, self._forwarding)
        self._tasks = Scheduler(clock, "lifecycle-manager")
        self.lifecycle = BrokerLifecycle(
            LifecycleTimes(
                heartbeat_ms,
                config.integer("initial.broker.registration.timeout.ms"),
                config.integer("log.dir.failure.timeout.ms"),
            ),
            clock,
            self._tasks,
            self._heartbeats.send,
            lambda: self.loader.applied_offset,
            on_failure,
        )

        self._tracker = RegistrationTracker(node_id, self.lifecycle, lambda: self._is_ready)

    # ------------------------------------------------------------ start

    def start(self) -> None:
        """Follow the metadata; return when the image is that of the quorum's high watermark.

        A cancelled start returns, too; the caller raises StartCancelled. Raises: MemberStartError.
        """
        self.loader.start()
        self._raft.start()
        timeout_ms = self._config.integer("initial.broker.registration.timeout.ms")
        real = SystemClock()
        end_ms = real.now_ms() + timeout_ms
        observer, loader = self.observer, self.loader

        def is_loaded() -> bool:
            return 0 <= observer.high_watermark <= loader.applied_offset + 1

        while not is_loaded() and not self._is_cancelled():
            self._check_trouble()
            if real.now_ms() >= end_ms:
                reason = observer.last_error or "no controller responded"
                raise MemberStartError(
                    f"the metadata of the cluster cannot be fetched from the controllers within {timeout_ms} ms "
                    f"(initial.broker.registration.timeout.ms): {reason}"
                )
            threading.Event().wait(POLL_S / 5)
        loader.publish()

    def register(self, listeners: Iterable[Listener]) -> None:
        """Register with the controllers; return when this broker has caught up. Raises: MemberStartError."""
        registration = Registration(
            self._config.node_id,
            self.metadata.cluster_id,
            list(listeners),
            supported_features(),
            self._config.text("broker.rack") or None,
            self._directory_ids,
            self._previous_epoch,
        )
        self._heartbeats.start()
        self._forwarding.start()
        self._tasks.start()
        self.lifecycle.start(registration, lambda: self._directory_ids if can_cordon(self.metadata.image) else None)
        self._wait(self.lifecycle.caught_up)

    def follow(self) -> None:
        """Pass the metadata to its publishers from now on."""
        self._tracker.warn_of_replicas(self.metadata.image.topics.values(), EMPTY_IMAGE)
        self.metadata.publishers.append(self._tracker)
        self.loader.release()
        self._released = True

    def serve(self) -> None:
        """Request to be unfenced: the broker serves clients now. Raises: MemberStartError.

        If directories cannot be cordoned yet, it stays fenced, which is logged.
        """
        self._is_ready = True
        if not can_cordon(self.metadata.image):
            warn_of_fence(self.metadata.image)
            return
        self.lifecycle.set_ready_to_unfence()
        self._wait(self.lifecycle.unfenced)

    def _wait(self, event: threading.Event) -> None:
        while not event.wait(POLL_S) and not self._is_cancelled():
            self._check_trouble()
            if self.lifecycle.ended.is_set():
                raise MemberStartError(self.lifecycle.failure or "the broker stops")

    def _check_trouble(self) -> None:
        if self.fault:
            raise MemberStartError(self.fault)

    # ------------------------------------------------------------ stop

    def shut_down(self, timeout_s: float) -> None:
        """Request a controlled shutdown if it is enabled, and wait for it; one that takes longer is logged."""
        if not self._config.boolean("controlled.shutdown.enable"):
            return
        self.lifecycle.begin_controlled_shutdown()
        if not self.lifecycle.ended.wait(timeout_s):
            logger.warning("the controller has not ended the controlled shutdown within %.1f s", timeout_s)

    def end(self, timeout_s: float) -> None:
        """End heartbeats and channels."""
        self.lifecycle.close()
        for what in (self._tasks, self._heartbeats, self._forwarding):
            if not what.close(timeout_s):
                logger.error(
                    "thread of %s did not end within %.1f s", getattr(what, "name", "the life cycle"), timeout_s
                )

    def close(self, timeout_s: float) -> None:
        """End the fetches, and close the metadata log. Idempotent."""
        for what, part in (("raft-io-thread", self._raft), ("kafka-metadata-loader", self.loader)):
            if not part.close(timeout_s):
                logger.error("thread %s did not end within %.1f s", what, timeout_s)
        self.log.close()

    # ------------------------------------------------------------ state

    @property
    def controller_versions(self) -> Mapping[int, tuple[int, int]]:
        """Ranges of versions by API key of the active controller, empty before the first connection."""
        return self._heartbeats.versions

    def on_controller_versions(self, hook: Callable[[], object]) -> None:
        """Call ``hook`` when the active controller has other versions."""
        self._heartbeats.on_versions = hook

    @property
    def broker_epoch(self) -> int:
        """Epoch of the registration, -1 before it."""
        return self.lifecycle.broker_epoch

    @property
    def registration(self) -> BrokerRegistration | None:
        """The registration of this broker in the image, None before."""
        return self.metadata.image.brokers.get(self._config.node_id)

    @property
    def is_fenced(self) -> bool:
        """Return whether this broker is fenced, by its heartbeats or its registration, and serves no clients."""
        found = self.registration
        return self.lifecycle.is_fenced or found is None or found.is_fenced

    @property
    def controller(self) -> tuple[int, Address] | None:
        """Id and address of the active controller, None while they are unknown."""
        return self.observer.leader

    @property
    def channels(self) -> list[ControllerChannel]:
        """Channels to the active controller."""
        return [self._heartbeats, self._forwarding]

    @property
    def fault(self) -> str:
        """The reason why this broker needs an operator, "" if there is none."""
        return self._fatal or self.loader.fault

    @property
    def obstacle(self) -> str:
        """The reason why this broker serves no clients, "" if it does."""
        if self.fault:
            return self.fault
        if not self.lifecycle.caught_up.is_set():
            return f"catching up with the metadata of the cluster{_because(self.trouble)}"
        is_kept_out = self.is_fenced and can_cordon(self.metadata.image)
        return f"fenced by the controller{_because(self.trouble)}" if is_kept_out else ""

    @property
    def trouble(self) -> str:
        """The reason why this broker cannot follow or join its cluster, "" if there is none."""
        return self.fault or self.lifecycle.last_error or self.observer.last_error

    @property
    def lag(self) -> int:
        """Records below the high watermark that are not in force yet."""
        return max(0, self.observer.high_watermark - 1 - self.metadata.image.offset)

    @property
    def fetched_ms_ago(self) -> int:
        """Milliseconds since the last response of a leader, -1 before the first one."""
        fetched_ms = self.observer.fetched_ms
        return -1 if fetched_ms < 0 else max(0, self.clock.now_ms() - fetched_ms)

    # ------------------------------------------------------------ events

    def _write_quorum_state(self, state: QuorumState) -> None:
        # before the first control record is read, only static voters imply kraft.version 0
        self.log.write_quorum_state(state, max(self.metadata.kraft_version, 0 if self._has_static_voters else 1))

    def _on_fatal(self, reason: str) -> None:
        self._fatal = reason
        if self._released:
            self._on_failure(reason)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def supported_features() -> Mapping[str, tuple[int, int]]:
    """Return the ranges of levels with which this broker can be a member.

    Eligible leader replicas are included, unlike in a broker that leads partitions: a member leads none yet.
    """
    highest = RELEASES[LATEST_RELEASE]
    return {name: (levels[0], highest[name]) for name, levels in SUPPORTED.items() if highest[name]}


def _check_follower(log: FollowerLog, log_dir: Path, node_id: int) -> None:
    """Refuse a metadata log that this node has written as its own controller. Raises: MetadataLogError."""
    if log.read_quorum_state().leader_id == node_id:
        log.close()
        raise MetadataLogError(
            f"{log.folder} is the metadata log of a broker that was its own controller: move this folder and "
            f"{log_dir / 'bootstrap.checkpoint'} away, after the controllers were formatted with its metadata"
        )
