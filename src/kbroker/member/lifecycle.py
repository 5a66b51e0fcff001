"""Life cycle of a broker with a controller: registration, heartbeats, fencing, controlled shutdown.

Source: ``BrokerLifecycleManager``; spec: KIP-631, KIP-858, KIP-966, KIP-1066.
"""

from __future__ import annotations

import enum
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors
from kbroker.common.limited_log import RepeatedFailures, cause_of
from kbroker.common.listeners import Listener
from kbroker.common.loggers import get_logger
from kbroker.log.scheduler import ScheduledTask, Scheduler
from kbroker.member.controller_channel import Complete, Outcome
from kbroker.metadata.image.registrations import endpoint_rows, endpoints_of, feature_rows, sorted_directories
from kbroker.protocol.codec import Body

logger = get_logger(__name__)

BROKER_REGISTRATION, BROKER_HEARTBEAT = 62, 63
STARTING_INTERVAL_MS, FIRST_SHUTDOWN_INTERVAL_MS = 10, 50
NO_EPOCH = -1


class BrokerState(enum.IntEnum):
    """States of a broker, with the values of Kafka's metric ``BrokerState``."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Registration(NamedTuple):
    """Contents of a broker's registration. ``features``: ranges of supported levels by name."""

    node_id: int
    cluster_id: str
    listeners: Sequence[Listener]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    directory_ids: Sequence[uuid.UUID]
    previous_epoch: int


class LifecycleTimes(NamedTuple):
    """Configs of the life cycle in milliseconds."""

    heartbeat_interval_ms: int
    registration_timeout_ms: int
    directory_failure_timeout_ms: int


class BrokerLifecycle:
    """Life cycle of a broker: one request to the controller at a time; state and response determine the next one.

    Args: ``send``: sends a request to the active controller; ``offset`` returns the offset of the last record that is
    in force; ``on_failure`` is called with the reason when the broker must stop.
    Threads: any. Lock: its own; under it only ``offset`` and ``cordoned`` of ``start`` are called.
    Attributes:
        incarnation_id: new for each start.
        caught_up, unfenced, ended: events; ``ended``: the broker may stop, or cannot register.
        failure: the reason why the broker cannot register, "" otherwise.
        last_error: the reason why the last request failed, "" after a success.
    """

    def __init__(
        self,
        times: LifecycleTimes,
        clock: BaseClock,
        tasks: Scheduler,
        send: Callable[[int, Body, Complete], None],
        offset: Callable[[], int],
        on_failure: Callable[[str], None],
    ) -> None:
        self._times = times
        self._clock = clock
        self._tasks = tasks
        self._send = send
        self._offset = offset
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._failures = RepeatedFailures(clock)
        self._registration: Registration | None = None
        self._task: ScheduledTask | None = None
        self._is_registered = self._is_in_flight = self._is_next_immediate = False
        self._was_registered = False
        self._wants_fence = True
        self._has_shutdown_response = False
        self._offline: dict[uuid.UUID, bool] = {}  # failed directories, and whether a controller has recorded each
        self._cordoned: Callable[[], Sequence[uuid.UUID] | None] = lambda: None
        self.incarnation_id = uuid.uuid4()
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = NO_EPOCH
        self.is_fenced = True
        self.caught_up, self.unfenced, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.failure = ""
        self.last_error = ""

    # ------------------------------------------------------------ commands

    def start(self, registration: Registration, cordoned: Callable[[], Sequence[uuid.UUID] | None]) -> None:
        """Register. Args: ``cordoned`` returns the ids of the directories that get no replicas, None to report none."""
        with self._lock:
            self._registration = registration
            self._cordoned = cordoned
            self.state = BrokerState.STARTING
        logger.info(
            "incarnation %s of broker %d in cluster %s is now STARTING",
            self.incarnation_id, registration.node_id, registration.cluster_id,
        )  # fmt: skip
        self._tasks.schedule(
            "initial-registration-timeout", self._check_registered, delay_ms=self._times.registration_timeout_ms
        )
        self._schedule(0)

    def set_ready_to_unfence(self) -> None:
        """Request to be unfenced: the broker can serve clients."""
        with self._lock:
            self._wants_fence = False
        self._schedule(0)

    def fence(self) -> None:
        """Request to be fenced: the broker can no longer serve clients."""
        with self._lock:
            self._wants_fence = True
        self._schedule(0)

    def begin_controlled_shutdown(self) -> None:
        """Request a controlled shutdown, if the broker runs; ``ended`` is set when it may stop."""
        with self._lock:
            if self.state is not BrokerState.RUNNING:
                logger.info("skipping the controlled shutdown in state %s", self.state.name)
                self._end()
                return
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        logger.info("beginning the controlled shutdown")
        self._schedule(0)

    def report_failed_directory(self, directory_id: uuid.UUID) -> None:
        """Report a log directory that has failed; the broker stops if no controller accepts the report in time."""
        with self._lock:
            if directory_id in self._offline:
                return
            self._offline[directory_id] = False
            is_registered = self._is_registered
        delay_ms = self._times.directory_failure_timeout_ms
        self._tasks.schedule("offline-directory", lambda: self._check_reported(directory_id), delay_ms=delay_ms)
        if is_registered:
            self._schedule(0)

    def register_again(self) -> None:
        """Send the registration again, since the one in the image lacks the directories."""
        with self._lock:
            self._is_registered = False
        self._schedule(0)

    def close(self) -> None:
        """End without waiting for the controller. Idempotent."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self.state is not BrokerState.SHUTTING_DOWN:
            logger.info("transitioning from %s to SHUTTING_DOWN", self.state.name)
        self.state = BrokerState.SHUTTING_DOWN
        if self._task is not None:
            self._task.cancel()
        self.ended.set()

    # ------------------------------------------------------------ time

    def _schedule(self, delay_ms: int) -> None:
        """Schedule the next request after a delay, in place of the time that was scheduled before."""
        with self._lock:
            if self.state is BrokerState.SHUTTING_DOWN:
                return
            if self._is_next_immediate:
                delay_ms, self._is_next_immediate = 0, False
            if self._task is not None:
                self._task.cancel()
            self._task = self._tasks.schedule("communication", self._communicate, delay_ms=delay_ms)

    def _communicate(self) -> None:
        try:
            self._send_next()
        except Exception:  # such as no memory: without a next request the broker would stay fenced
            logger.exception("cannot send a request to the controller")
            self._end_request(self._times.heartbeat_interval_ms)

    def _send_next(self) -> None:
        with self._lock:
            registration = self._registration
            if self.state is BrokerState.SHUTTING_DOWN or registration is None:
                return
            if self._is_in_flight:
                self._is_next_immediate = True
                return
            self._is_in_flight = True
            is_heartbeat = self._is_registered
            body = self._heartbeat(registration) if is_heartbeat else self._registration_request(registration)
            reported = list(self._offline)
        if is_heartbeat:
            self._send(BROKER_HEARTBEAT, body, lambda outcome: self._follow(self._on_heartbeat, outcome, reported))
        else:
            self._send(BROKER_REGISTRATION, body, lambda outcome: self._follow(self._on_registration, outcome))

    def _follow(self, take: Callable[..., int], *response: object) -> None:
        """Apply a response with ``take``, which returns the delay of the next request."""
        delay_ms = self._times.heartbeat_interval_ms
        try:
            delay_ms = take(*response)
        finally:
            self._end_request(delay_ms)

    def _end_request(self, delay_ms: int) -> None:
        with self._lock:
            self._is_in_flight = False
        self._schedule(delay_ms)

    def _check_registered(self) -> None:
        with self._lock:
            if self._was_registered or self.state is BrokerState.SHUTTING_DOWN:
                return
            reason = f": {self.last_error}" if self.last_error else ""
            self.failure = (
                "unable to register with the controller quorum within "
                f"{self._times.registration_timeout_ms} ms (initial.broker.registration.timeout.ms){reason}"
            )
            logger.error("shutting down: %s", self.failure)
            self._end()

    def _check_reported(self, directory_id: uuid.UUID) -> None:
        if not self._offline.get(directory_id, False):
            self._on_failure(f"cannot report the failed log directory {directory_id} to a controller in time")

    # ------------------------------------------------------------ requests

    def _registration_request(self, registration: Registration) -> Body:
        return {
            "BrokerId": registration.node_id,
            "ClusterId": registration.cluster_id,
            "IncarnationId": self.incarnation_id,
            "Listeners": endpoint_rows(endpoints_of(registration.listeners)),
            "Features": feature_rows(registration.features),
            "Rack": registration.rack,
            "IsMigratingZkBroker": False,
            "LogDirs": list(sorted_directories(registration.directory_ids)),
            "PreviousBrokerEpoch": registration.previous_epoch,
        }

    def _heartbeat(self, registration: Registration) -> Body:
        body: Body = {
            "BrokerId": registration.node_id,
            "BrokerEpoch": self.broker_epoch,
            "CurrentMetadataOffset": self._offset(),
            "WantFence": self._wants_fence,
            "WantShutDown": self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            "OfflineLogDirs": list(self._offline),
        }
        if self.caught_up.is_set() and (cordoned := self._cordoned()) is not None:
            body["CordonedLogDirs"] = list(cordoned)
        return body

    # ------------------------------------------------------------ responses

    def _on_registration(self, outcome: Outcome) -> int:
        error = self._error_of(outcome, "register")
        with self._lock:
            if error is not None:
                self._is_next_immediate = False
            else:
                self.broker_epoch = outcome.body["BrokerEpoch"]
                self._is_registered = self._was_registered = True
        if error is None:
            logger.info("registered with broker epoch %d", self.broker_epoch)
        return 0 if error is None else self._times.heartbeat_interval_ms

    def _on_heartbeat(self, outcome: Outcome, reported: Iterable[uuid.UUID]) -> int:
        error = self._error_of(outcome, "send a heartbeat")
        with self._lock:
            if error is not None:
                self._is_next_immediate = False
                return self._times.heartbeat_interval_ms
            for directory_id in reported:
                self._offline[directory_id] = True
            return self._take(outcome.body)

    def _take(self, response: Body) -> int:
        """Apply the response to a heartbeat to the state; return the delay of the next heartbeat."""
        interval_ms = self._times.heartbeat_interval_ms
        if self.state is not BrokerState.STARTING and response["IsFenced"] != self.is_fenced:
            self.is_fenced = response["IsFenced"]
            logger.info("the controller has %s this broker", "fenced" if self.is_fenced else "unfenced")
        if self.state is BrokerState.STARTING:
            if response["IsCaughtUp"]:
                logger.info("caught up with the metadata: transitioning from STARTING to RECOVERY")
                self.state = BrokerState.RECOVERY
                self.caught_up.set()
            return STARTING_INTERVAL_MS
        if self.state is BrokerState.RECOVERY and not self.is_fenced:
            logger.info("unfenced: transitioning from RECOVERY to RUNNING")
            self.state = BrokerState.RUNNING
            self.unfenced.set()
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if response["ShouldShutDown"]:
                logger.info("the controller has ended the controlled shutdown")
                self._end()
            elif not self._has_shutdown_response:
                interval_ms = FIRST_SHUTDOWN_INTERVAL_MS
            self._has_shutdown_response = True
        return interval_ms

    def _error_of(self, outcome: Outcome, what: str) -> str | None:
        """Return the reason why a request failed, None after a success; log it and keep it, except in a shutdown."""
        if outcome.error is not None:
            text = f"{outcome.error.error.name}: {outcome.error.message}"
        elif outcome.body["ErrorCode"] == Errors.NONE:
            self.last_error = ""
            return None
        else:
            text = _explained(Errors.of(outcome.body["ErrorCode"]))
        if self.state is BrokerState.SHUTTING_DOWN:
            return text
        self.last_error = text
        self._failures.log((what, cause_of(text)), logger.warning, "unable to %s: %s", what, text)
        return text


_EXPLANATIONS = {
    Errors.DUPLICATE_BROKER_REGISTRATION: "another broker with this node.id is registered and alive; after a restart "
    "its session ends within broker.session.timeout.ms of the controller",
    Errors.INCONSISTENT_CLUSTER_ID: "the controllers belong to another cluster than cluster.id in meta.properties",
    Errors.CLUSTER_AUTHORIZATION_FAILED: "the principal of this broker needs the operation ClusterAction on the "
    "cluster",
    Errors.UNSUPPORTED_VERSION: "the cluster has finalized a feature level that this broker does not support",
    Errors.STALE_BROKER_EPOCH: "another process has registered with this node.id since",
    Errors.INVALID_REGISTRATION: "the controller refuses directories or features of the registration; a directory.id "
    "that is copied from another broker is one reason",
}


def _explained(error: Errors) -> str:
    text = _EXPLANATIONS.get(error)
    return error.name if text is None else f"{error.name}: {text}"
