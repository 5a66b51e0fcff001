"""The public Broker object: start, stop, properties.

with Broker() as broker:
    print(broker.bootstrap_servers)
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.broker.runtime import BrokerRuntime, Interception, Interceptor
from kbroker.common.addresses import host_port
from kbroker.common.configs.config import BrokerConfig, misspelled_key
from kbroker.common.configs.config_accepted import FIXED_NAMES, REPLICA_SELECTOR
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_quorum import controller_listeners
from kbroker.common.errors import KafkaError, OutcomeUnknownError
from kbroker.common.loggers import get_logger
from kbroker.common.open_files import more_open_files, open_files_limit, raise_open_files_limit
from kbroker.common.threads import new_thread
from kbroker.handlers.api_table import KafkaApis
from kbroker.listeners.socket_options import network_threads
from kbroker.log.log_dir import FULL
from kbroker.log.manager import StartCancelled

if TYPE_CHECKING:
    from kbroker.broker.storage import BrokerStorage
    from kbroker.metrics.exposition import Exposition
    from kbroker.network.request_channel import InboundRequest
    from kbroker.observe.broker_parts import BrokerParts
    from kbroker.observe.http_access import HttpAccess
    from kbroker.observe.mounted_pages import PageServer
    from kbroker.quota.explanation import QuotaExplainer
    from kbroker.quota.verdict import Verdict
    from kbroker.request_log.service import RequestLog
    from kbroker.requests.context import ApiContext

__all__ = ["Broker", "BrokerStartError", "StartCancelled"]

logger = get_logger(__name__)

#: Number of descriptors for the standard streams, signals, folder locks, metadata, the minimum of open segments, and
#: temporary files of a start.
FILES_NEEDED = 40
#: Number of descriptors of a listener: its socket, and the selector of its acceptor with the wake-up descriptor.
DESCRIPTORS_OF_LISTENER = 3
#: Number of descriptors of a network thread: its selector and the wake-up descriptor.
DESCRIPTORS_OF_NETWORK_THREAD = 2
START_FAILURES = (OSError, RuntimeError, ValueError, KafkaError, OutcomeUnknownError)
DISK_ERRORS = {os.strerror(number) for number in (*FULL, errno.EIO)}  # texts of errors that name no file
NO_THREAD = "can't start new thread"  # text of the interpreter's RuntimeError


class BrokerStartError(RuntimeError):
    """Failure of a broker to start; the message states the reason in one line."""


class Broker:
    """A Kafka-compatible broker in this process; several may run at once.

    Args: ``config`` a BrokerConfig or values by Kafka's names, taken as they are (so the defaults of ``listeners`` and
    ``log.dir`` apply); None for a private broker: a free port on 127.0.0.1, logs in memory. ``clock``: the source
    of time, the system's if None.
    Raises: ConfigError for a bad value.
    Threads: start and stop from one thread at a time; properties from any.
    """

    def __init__(
        self, config: BrokerConfig | Mapping[str, object] | None = None, *, clock: BaseClock | None = None
    ) -> None:
        if config is None:
            config = {"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.in.memory": True}
        self.config = config if isinstance(config, BrokerConfig) else BrokerConfig(config)
        self.clock = SystemClock() if clock is None else clock
        self.apis = KafkaApis(forwards=self.config.is_member)
        # Reentrant: a signal handler that stops the broker may run while its thread holds them. Order: as here.
        self._life_lock, self._state_lock = threading.RLock(), threading.RLock()
        self._runtime: BrokerRuntime | None = None
        self._starting: BrokerRuntime | None = None
        self._was_stopped = False  # since the latest start began
        self._storage: BrokerStorage | None = None
        self._interception = Interception()
        self._mounts: dict[str, Callable[[Broker, HttpAccess], PageServer]] = {}
        self._is_cancelled = False
        self.failure = ""  # the reason why the broker stops on its own
        #: Called instead of `stop` when the broker must stop on its own; None: `stop`. See ``failure``.
        self.on_failure: Callable[[], None] | None = None

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Start the broker; it serves clients when this returns.

        Raises: BrokerStartError; StartCancelled after `cancel_start`, and after a `stop` in a signal handler during
        the start. Nothing is left running after these errors.
        """
        with self._life_lock, self._state_lock:
            if self._runtime is not None:
                raise BrokerStartError("this broker runs already")
            self.failure, self._was_stopped = "", False
            for name, value in self.config.unknown.items():
                from kbroker.common.configs.removed_settings import suggest_replacement

                if name == REPLICA_SELECTOR and self.config.selects_by_rack:
                    continue
                if name in FIXED_NAMES:
                    logger.warning("setting %s of Apache Kafka has no effect", name)
                    continue
                hint = suggest_replacement(name, str(value))
                if hint is None and (meant := misspelled_key(name)) is not None:
                    hint = f"did you mean {meant}?"
                logger.warning("unknown setting %s is ignored%s", name, "" if hint is None else f"; {hint}")
            for listener in controller_listeners(self.config):
                logger.warning("listener %s is not served: this broker is the only controller", listener)
            raise_open_files_limit(self.config.integer("kbroker.nofile.limit"))
            needed, limit = descriptors_needed(self.config), open_files_limit()
            if limit is not None and limit < needed:
                raise BrokerStartError(more_open_files(needed))
            mounts = {path: partial(load, self) for path, load in self._mounts.items()}
            parts = self._starting = BrokerRuntime(
                self.config,
                self.clock,
                self.apis,
                self._interception,
                lambda: self._is_cancelled or self._was_stopped,
                mounts,
                self._storage,
            )
            parts.on_failure = self._fail
            try:
                parts.start()
                self._runtime = parts
                if self._was_stopped:
                    raise StartCancelled("the broker was stopped during its start")
                logger.info("broker %d serves %s", self.config.node_id, _first_address(parts))
            except BaseException as error:
                self._runtime = None
                parts.stop()
                if isinstance(error, START_FAILURES) and not isinstance(error, (ConfigError, StartCancelled)):
                    raise BrokerStartError(_one_line(error, self.config)) from error
                raise
            finally:
                self._starting = None

    def join(self, storage: BrokerStorage) -> None:
        """Make this broker a node of the embedded cluster that owns ``storage``, from the next start on."""
        with self._state_lock:
            self._storage = storage

    def cut_connections(self) -> None:
        """Close all connections at once, without responses to requests in flight; none are accepted until a restart."""
        self.parts.server.finish_stop()

    def cancel_start(self) -> None:
        """Make a current or later `start` raise StartCancelled; no effect on a running broker.

        Threads: any; also from a signal handler, as it only sets a flag.
        """
        self._is_cancelled = True

    def stop(self) -> None:
        """Stop in order; acknowledged data is on disk as configured. Idempotent.

        Waits for a stop that another thread has begun. In a signal handler during `start`, that start is cancelled.
        """
        with self._life_lock:
            with self._state_lock:
                parts, self._runtime, self._was_stopped = self._runtime, None, True
            if parts is not None:
                parts.stop()

    def _fail(self, reason: str) -> None:
        """Store the reason, and stop in another thread: the stop waits for the thread that found the failure."""
        self.failure = reason
        new_thread("broker-failure", self.on_failure or self.stop).start()

    def mount(self, path: str, load: Callable[[Broker, HttpAccess], PageServer]) -> None:
        """Serve pages below a path of the HTTP port (``kbroker.metrics.listener``) from the next start on.

        Args: ``path``, such as /console; ``load`` returns the server of the pages, given the port's access check. It is
        called at the first request for a page after each start; the server's ``close`` is called when the broker stops.
        """
        with self._state_lock:
            self._mounts[path] = load

    # ------------------------------------------------------------ for tests

    def intercept(self, interceptor: Interceptor | None, keys: Iterable[int] = ()) -> None:
        """Pass requests to ``interceptor`` before they are served, even after a restart; for fault injection.

        Args: ``keys`` of natively served APIs whose requests then pass through Python; requests that Python serves are
        passed in any case. None ends the interception.
        Threads: any; a request in progress may still be passed to the previous one.
        """
        with self._state_lock:
            self._interception = Interception(interceptor, frozenset(keys) if interceptor is not None else frozenset())
            if self._runtime is not None:
                self._runtime.set_interception(self._interception)

    def resume(self, request: InboundRequest) -> None:
        """Serve a request that an interceptor has taken over as if it had just arrived; it is not passed again.

        Raises: ValueError after its response; RuntimeError if the broker does not run.
        """
        self._serving().resume(request)

    @property
    def is_idle(self) -> bool:
        """Return whether each received request has a response or is delayed, and nothing is due by the broker's clock.

        Bytes that the network threads have not read yet do not count.
        """
        return self._running().is_idle()

    # ------------------------------------------------------------ facts

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients: host:port of the first listener."""
        return _first_address(self._running())

    @property
    def bound_listeners(self) -> list[str]:
        """Bound listeners with their real ports, in the form of the setting ``listeners``."""
        return [str(listener) for listener in self._running().listeners]

    @property
    def is_running(self) -> bool:
        """Return whether the broker has started and has not begun to stop."""
        return self._runtime is not None

    @property
    def waiting_fetches(self) -> int:
        """Number of fetches that wait for records or for the end of their time."""
        return self._running().parts.native_apis.waiting_fetches

    @property
    def cluster_id(self) -> str:
        """Id of the cluster. Raises: RuntimeError if the broker does not run."""
        return self._running().ctx.cluster_id

    @property
    def metrics_url(self) -> str | None:
        """URL of the HTTP port, http://host:port; None without kbroker.metrics.listener."""
        return self._running().metrics.url

    @property
    def exposition(self) -> Exposition:
        """Metrics of the broker, whether or not the HTTP port is open."""
        return self._running().metrics.exposition

    @property
    def parts(self) -> BrokerParts:
        """Parts of the running broker, as metrics and the console read them."""
        return self._serving().parts

    @property
    def request_log(self) -> RequestLog:
        """The log of finished requests; off unless a topic or a folder is set."""
        return self._running().parts.request_log

    @property
    def verdicts(self) -> list[Verdict]:
        """The latest decisions of quotas that delayed or refused, the oldest first.

        At most 1024, and as many of shadow quotas (``Verdict.is_shadow``), which had no effect.
        """
        return self._running().ctx.quotas.verdicts()

    def take_verdicts(self) -> list[Verdict]:
        """Return the recorded verdicts and clear the list."""
        return self._running().ctx.quotas.verdicts(take=True)

    @property
    def quota_explainer(self) -> QuotaExplainer:
        """Explainer of the quotas that apply to a client. Schema: docs/explain.md."""
        return self._running().quota_explainer()

    def xray(self, limit: int = 100) -> dict[str, Any]:
        """Return a snapshot of the broker's activity, taken without stopping a thread. Schema: docs/xray.md.

        Args: ``limit``: maximum number of connections, and of operations per purgatory, the most urgent; 1 to 10000.
        Raises: ValueError for another limit; RuntimeError if the broker does not run.
        """
        return self._running().xray().snapshot(limit)

    @property
    def context(self) -> ApiContext:
        """The parts that handlers use: topics, metadata, configuration."""
        return self._serving().ctx

    def describe(self) -> str:
        """Describe the broker in one line: addresses, node, cluster, place of the data, URL of the metrics."""
        parts = self._running()
        addresses = ", ".join(f"{name}://{host_port(*address)}" for name, address in parts.ctx.endpoints.items())
        data = "in memory" if parts.in_memory else f"data in {', '.join(map(os.path.abspath, self.config.log_dirs))}"
        metrics = f", metrics at {parts.metrics.url}/metrics" if parts.metrics.url is not None else ""
        return f"{addresses}, node {self.config.node_id}, cluster {parts.ctx.cluster_id}, {data}{metrics}"

    def _running(self) -> BrokerRuntime:
        return _of_this_process(self._runtime)

    def _serving(self) -> BrokerRuntime:
        """Return the running parts as soon as they serve requests, which is before `start` returns."""
        parts = self._starting
        return _of_this_process(parts if parts is not None and parts.serves else self._runtime)


def _of_this_process(parts: BrokerRuntime | None) -> BrokerRuntime:
    if parts is None:
        raise RuntimeError("this broker does not run")
    if parts.pid != os.getpid():
        raise RuntimeError("this broker runs in the parent process; a child made by fork must start another broker")
    return parts


def _first_address(parts: BrokerRuntime) -> str:
    return host_port(*next(iter(parts.ctx.endpoints.values())))


def descriptors_needed(config: BrokerConfig) -> int:
    """Return the minimum number of descriptors with which a start succeeds and a client is served."""
    threads = sum(network_threads(config).values())
    return FILES_NEEDED + DESCRIPTORS_OF_LISTENER * len(config.listeners) + DESCRIPTORS_OF_NETWORK_THREAD * threads


def _one_line(error: Exception, config: BrokerConfig) -> str:
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return more_open_files()
    if isinstance(error, OSError) and not error.filename and error.strerror in DISK_ERRORS:  # the error of a write
        folders = dict.fromkeys(map(str, [*config.log_dirs, config.metadata_log_dir]))
        return f"cannot write a file in {' or '.join(folders)}: {error.strerror}"
    if isinstance(error, KafkaError):
        return " ".join(error.message.split())
    if isinstance(error, FileNotFoundError) and not error.filename:  # the error of getcwd
        return "a log folder is relative to the current folder, which has been deleted; change to another folder"
    if str(error) == NO_THREAD:
        return (
            "the system starts no more threads; raise the limit of threads (ulimit -u, TasksMax in a systemd unit, "
            "--pids-limit of a container) or of memory (ulimit -v)"
        )
    text = error.strerror if isinstance(error, OSError) and error.strerror and not error.filename else str(error)
    return " ".join(text.split()) or type(error).__name__
