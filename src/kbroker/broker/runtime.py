"""Start and stop of a broker: the order in which its parts are created and closed.

Start: log folder, metadata, topics, native handlers, groups, handlers, network. Stop: acceptors, network threads stop
reading, handlers, delayed requests, groups, network threads, log, metadata.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker._core.clock import BaseClock, SystemClock
from kbroker._core.requests.request_queue import Queue
from kbroker.apis import api18_api_versions
from kbroker.apis.api00_produce.transaction_verifier import TransactionVerifier
from kbroker.broker import memory_keeper
from kbroker.broker.late_services import offer_coordinators, offer_telemetry
from kbroker.broker.memory_keeper import MemoryKeeper
from kbroker.broker.node_endpoints import NodeEndpoints
from kbroker.broker.node_metadata import NodeMetadata
from kbroker.broker.storage import BrokerStorage
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_broker import usable_cores
from kbroker.common.configs.config_def import INT32_MAX
from kbroker.common.late_service import LateService
from kbroker.common.loggers import get_logger
from kbroker.common.threads import new_thread
from kbroker.common.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.handlers._native_apis import NativeApis
from kbroker.handlers.api_table import KafkaApis
from kbroker.handlers.handler_threads import HandlerThreads
from kbroker.handlers.request_handler import RequestHandlerPool
from kbroker.listeners import refusal_watch
from kbroker.listeners.connection_limits import ConnectionLimits
from kbroker.listeners.descriptor_watch import LOOK_EVERY_MS, DescriptorWatch
from kbroker.listeners.refusal_watch import RefusalWatch
from kbroker.listeners.socket_options import endpoints_of, network_threads, socket_options
from kbroker.log.scheduler import Scheduler
from kbroker.metadata.features import Features
from kbroker.network.socket_server import SocketServer
from kbroker.observe.broker_parts import BrokerParts
from kbroker.observe.http_routes import limit_of, only
from kbroker.observe.memory_pool import memory_pool
from kbroker.observe.metrics_service import MetricsService
from kbroker.quota.service import QuotaService
from kbroker.request_log.service import RequestLog
from kbroker.requests.context import ApiContext
from kbroker.security.credentials import ScramCredentials

if TYPE_CHECKING:
    from kbroker.broker.broker_metadata import NodeLife
    from kbroker.common.listeners import Listener
    from kbroker.coordinator.transaction_service import TransactionService
    from kbroker.metadata.controller import Publisher
    from kbroker.network.request_channel import InboundRequest
    from kbroker.network.transport.authentication import ListenerSecurity
    from kbroker.observe.http_access import HttpAccess
    from kbroker.observe.mounted_pages import PageServer
    from kbroker.observe.xray import XRay
    from kbroker.quota.explanation import QuotaExplainer
    from kbroker.security.authorizer.authorizer import Authorizer
    from kbroker.security.delegation_tokens import DelegationTokens

logger = get_logger(__name__)

#: Number of native handlers kept awake under load; a backlog wakes more. On two cores a second handler only takes turns
#: with the network thread, and the rate of ApiVersions falls by a fifth.
AWAKE_HANDLERS = min(2, max(1, usable_cores() // 2))

PRODUCE = 0  # key of the API

#: Receives a request before it is served; returns True to take it over, then responds, closes or calls Broker.resume.
Interceptor = Callable[["InboundRequest"], bool]


class Interception(NamedTuple):
    """Interceptor of requests, and the keys of the natively served APIs whose requests go through Python for it."""

    interceptor: Interceptor | None = None
    keys: frozenset[int] = frozenset()


class BrokerRuntime:
    """The parts of a running broker. Threads: start and stop from one thread at a time, the rest from any."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: BaseClock,
        apis: KafkaApis,
        interception: Interception,
        is_cancelled: Callable[[], bool],
        mounts: Mapping[str, Callable[[HttpAccess], PageServer]] = MappingProxyType({}),
        storage: BrokerStorage | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.apis = apis
        self._api_names = {entry.key: entry.name for entry in apis.entries.values()}
        self.in_memory = config.boolean("kbroker.in.memory")
        #: Called with the reason when the broker must stop: the outcome of a change of the metadata is unknown.
        self.on_failure: Callable[[str], None] = lambda reason: None
        self.ctx: ApiContext
        self.parts: BrokerParts
        self.serves = False  # whether requests may arrive
        self.listeners: list[Listener] = []
        self._interception = interception
        self._is_cancelled = is_cancelled
        self._shared = storage
        self._mounts = mounts
        self._timeout_s = config.integer("kbroker.shutdown.timeout.ms") / 1000
        self.pid = os.getpid()
        self._xray = LateService(self._make_xray)
        self._undo: list[tuple[str, Callable[[], object]]] = []
        self._stop_lock = threading.RLock()  # reentrant, as Ctrl-C in a step continues with the others

    # ------------------------------------------------------------ start

    def start(self) -> None:
        """Build the parts in order, each with the step that takes it apart; `stop` runs those steps in reverse.

        Raises: StartCancelled as soon as ``is_cancelled`` returns true, between two partitions of the log.
        """
        atexit.register(self.stop)
        self._open_storage()
        self._open_network()
        self._open_topics()
        self._open_coordinators()
        self._on_stop(
            "client telemetry", lambda: self.ctx.telemetry_service.close(lambda it: it.close(self._timeout_s))
        )
        offer_telemetry(self.ctx, self._scheduler, self._server.closed_connections)
        self._start_handlers()
        self.serves = True
        self._start_network()
        self._start_metrics()
        self._on_stop("controlled shutdown", self._metadata.shut_down)
        self._metadata.serve()
        self.metrics.ready()

    def _open_storage(self) -> None:
        """Open log folders and metadata, or use those of the cluster; put the stored configs of the node into force."""
        config, storage = self.config, self._shared
        self._metadata: NodeLife
        if storage is None:
            storage = BrokerStorage(config, self.clock, self.on_failure, self._is_cancelled)
            self._on_stop("log", storage.logs.close)
            self._on_stop("metadata log", storage.metadata.close)
            self._on_stop("moves", storage.logs.mover.close)  # the metadata gets the folder of a move that ends now
            self._scheduler, self._metadata = storage.logs.scheduler, storage.metadata
        else:
            scheduler = self._scheduler = Scheduler(self.clock, f"node-scheduler-{config.node_id}")
            self._on_stop("scheduler", lambda: scheduler.close(self._timeout_s))
            scheduler.start()
            self._metadata = NodeMetadata(config, storage.controller, storage.logs)
        self._storage, self._logs, self._controller = storage, storage.logs, storage.controller

    def _open_network(self) -> None:
        """Bind the listeners; connections are accepted once the network threads have started."""
        config = self.config
        self._requests = Queue(config.integer("queued.max.requests"), self.clock, awake_target=AWAKE_HANDLERS)
        self._python_requests = Queue(INT32_MAX, self.clock)
        self._credentials = ScramCredentials(self._controller)
        self._features = Features(self._controller, self._metadata.features)
        self._tokens = self._delegation_tokens()
        quotas = self._quotas = QuotaService(config, self.clock)
        self._pool = memory_pool(config, self.clock, quotas.metrics)
        request_log = self._request_log = RequestLog(
            config, self.clock, self._api_names, sum(network_threads(config).values())
        )
        self._on_stop("request log", lambda: request_log.stop(self._timeout_s))
        server = self._server = SocketServer(
            config.listeners,
            self._requests,
            socket_options(config),
            pool=self._pool,
            clock=self.clock,
            security=self._security(),
            record=request_log.recorder,
        )
        request_log.observe(quotas.managers, server.connection_quotas)
        self._on_stop("network threads", lambda: server.finish_stop(self._timeout_s))
        self._on_stop("quotas", self._stop_quotas)
        quotas.start(self._scheduler)
        self.listeners = server.bind()
        self._metadata.register(self.listeners, endpoints_of(config, self.listeners))
        self._on_stop("registration", self._metadata.fence)

    def _open_topics(self) -> None:
        """Build the state that handlers use: native handlers, topics, configs and quotas as they are stored."""
        config, quotas, controller, authorizer = self.config, self._quotas, self._controller, self._authorizer()
        native_apis = self._start_native_apis(authorizer)
        ctx = self.ctx = ApiContext(
            config,
            controller,
            self._storage.topics,
            endpoints_of(config, self.listeners),
            self.apis.ranges,
            self.clock,
            connection_quotas=self._server.connection_quotas,
            quotas=quotas.managers,
            credentials=self._credentials,
            delegation_tokens=self._tokens,
            features=self._features,
            authorizer=authorizer,
        )
        self._features.on_change(lambda: self._set_api_versions(native_apis))
        self._metadata.connect(ctx, self.apis, lambda: self._set_api_versions(native_apis))
        limits = ConnectionLimits(config, self._server.connection_quotas)
        if self._storage.config is config:
            ctx.on_broker_change(self._logs.reconfigure)
        ctx.peers, ctx.connect = self._storage.contexts, self._server.connect
        ctx.on_broker_change(limits.on_config_change)
        self._storage.add_node(config.node_id, native_apis)
        self._on_stop("topics", lambda: self._storage.remove_node(config.node_id))
        if self._shared is None:
            self._storage.load()
        ctx.quota_entities.on_change(limits.on_quota_change)
        ctx.quota_entities.on_change(quotas.on_quota_change)
        ctx.quota_entities.load()
        self._follow_metadata(authorizer, NodeEndpoints(native_apis, self.listeners, controller.image))
        self._request_log.start(ctx.topics)
        handlers = HandlerThreads(native_apis.run_handler, native_apis.stop_handlers)
        self.parts = BrokerParts(
            ctx,
            self._logs,
            self._server,
            self._pool,
            self._requests,
            self._python_requests,
            native_apis,
            handlers,
            self._request_log,
            self._api_names,
        )

    def _follow_metadata(self, authorizer: Authorizer | None, nodes: Publisher) -> None:
        """Register the parts that follow the metadata, in Kafka's order, after the topics."""
        ctx = self.ctx
        followers: list[Publisher] = [self._features, ctx, ctx.quota_entities, nodes]
        if self._tokens is not None:
            followers.append(self._tokens)
        if authorizer is not None:
            followers.append(authorizer)
        self._controller.publishers += followers
        for one in followers if self._shared is not None else ():
            self._on_stop("follower of the metadata", partial(self._storage.controller.unfollow, one))
        self._metadata.follow()

    def _open_coordinators(self) -> None:
        """Start the coordinators whose internal topics exist; the others start at the first request about them."""
        ctx, timeout_s = self.ctx, self._timeout_s
        offer_coordinators(ctx, self._scheduler, self._server.signal)
        self._on_stop("groups", lambda: ctx.group_service.close(lambda groups: groups.close(timeout_s)))
        self._on_stop("share coordinator", lambda: ctx.share_service.close(lambda share: share.close()))
        self._on_stop("share partitions", lambda: ctx.share_partition_service.close(lambda it: it.close(timeout_s)))
        self._on_stop("peer", self._storage.add_context(ctx))
        if ctx.topics.get(SHARE_STATE_TOPIC) is not None:
            ctx.share_service.get()
        if ctx.topics.get(OFFSETS_TOPIC) is not None:
            ctx.group_service.get()
        self._on_stop("transactions", lambda: ctx.transaction_service.close(self._close_transactions))
        if ctx.topics.get(TRANSACTION_STATE_TOPIC) is not None:
            ctx.transaction_service.get()

    def _start_network(self) -> None:
        """Start acceptors and network threads, and the periodic tasks that watch them."""
        config, server, scheduler = self.config, self._server, self._scheduler
        self._on_stop("acceptors", server.begin_stop)
        server.start(self.parts.native_apis.executor if config.boolean("kbroker.network.thread.helps") else None)
        self.ctx.on_broker_change(lambda changed: server.resize(network_threads(config)))
        scheduler.schedule("descriptor-watch", DescriptorWatch(server).look, period_ms=LOOK_EVERY_MS)
        scheduler.schedule("memory-keeper", MemoryKeeper().look, period_ms=memory_keeper.LOOK_EVERY_MS)
        refusals = RefusalWatch(
            server.refused_requests,
            {e.key: (e.min_served_version, e.max_version) for e in self.apis.entries.values()},
            self._api_names,
            socket_options(config).max_request_bytes,
            self._request_log.note_refusals if self._request_log.settings.is_on else None,
        )
        scheduler.schedule("refusal-watch", refusals.look, period_ms=refusal_watch.LOOK_EVERY_MS)
        self._on_stop("refusal watch", refusals.look)

    def _delegation_tokens(self) -> DelegationTokens | None:
        """Return the delegation tokens, None without a key for their secrets; schedule the deletion of expired ones."""
        config = self.config
        secret_key = config.text("delegation.token.secret.key")
        if not secret_key:
            return None
        from kbroker.security.delegation_tokens import DelegationTokens

        tokens = DelegationTokens(
            self._controller,
            self.clock,
            secret_key,
            max_lifetime_ms=config.integer("delegation.token.max.lifetime.ms"),
            expiry_time_ms=config.integer("delegation.token.expiry.time.ms"),
        )
        period_ms = config.integer("delegation.token.expiry.check.interval.ms")
        self._scheduler.schedule("delete-expired-tokens", tokens.sweep, delay_ms=period_ms, period_ms=period_ms)
        return tokens

    def _security(self) -> dict[str, ListenerSecurity]:
        """Return TLS and SASL by listener. Without either, Python's ssl and hashlib are not imported."""
        if not any(listener.has_tls or listener.has_sasl for listener in self.config.listeners):
            return {}
        from kbroker.listeners.listener_security import listener_security

        return listener_security(self.config, self.apis, self._credentials, self.clock, self._tokens, self._features)

    def _authorizer(self) -> Authorizer | None:
        """Return the authorizer, and schedule its log; None, without an import, if every request is allowed."""
        if not self.config.text("authorizer.class.name"):
            return None
        from kbroker.security.authorizer.audit_log import LOOK_EVERY_MS, AuditLog
        from kbroker.security.authorizer.authorizer import Authorizer

        authorizer = Authorizer.configured(self.config, self._controller)
        audit = AuditLog(authorizer, self._api_names)
        self._scheduler.schedule("authorizer-log", audit.look, period_ms=LOOK_EVERY_MS)
        self._on_stop("authorizer log", audit.look)
        return authorizer

    def _start_native_apis(self, authorizer: Authorizer | None) -> NativeApis:
        """Create the native handlers' state and start the reapers of its purgatories."""
        config = self.config
        native_apis = NativeApis(
            self.clock,
            self._requests,
            self._python_requests,
            config.node_id,
            max_fetch_sessions=config.integer("max.incremental.fetch.session.cache.slots"),
            fetch_max_bytes=config.integer("fetch.max.bytes"),
            fetch_purge_interval=config.integer("fetch.purgatory.purge.interval.requests"),
            produce_purge_interval=config.integer("producer.purgatory.purge.interval.requests"),
            quotas=self._quotas.managers,
            refused=self._server.refused_requests,
            acls=None if authorizer is None else authorizer.rules,
            appends=self._server.signal,
            peer=self._storage.peer,
            selects_by_rack=config.selects_by_rack,
        )
        for entry in self.apis.entries.values():
            native_apis.set_api(entry.key, entry.min_served_version, entry.max_version, entry.first_flexible)
        self._set_api_versions(native_apis)
        native_apis.intercept(self._interception.keys)
        reapers = [
            new_thread("executor-Fetch-reaper", native_apis.run_fetch_reaper, "Fetch-reaper"),
            new_thread("executor-Produce-reaper", native_apis.run_produce_reaper, "Produce-reaper"),
        ]
        self._on_stop("reapers", lambda: self._join(reapers))
        self._on_stop("native_apis", native_apis.close)
        for thread in reapers:
            thread.start()
        return native_apis

    def _set_api_versions(self, native_apis: NativeApis) -> None:
        ranges, finalized = self.apis.ranges(), self._features.finalized
        bodies = api18_api_versions.encode_bodies(ranges, finalized)
        native_apis.set_api_versions(*bodies, api18_api_versions.unsupported(ranges))

    def _close_transactions(self, service: TransactionService) -> None:
        if not service.close(self._timeout_s):
            logger.error("the threads of transactions did not end within %.1f s", self._timeout_s)

    def _start_metrics(self) -> None:
        metrics = self.metrics = MetricsService(self.config, self._quotas.metrics, self.clock)
        for path, load in self._mounts.items():
            metrics.mount(path, load)
        self._on_stop("metrics port", metrics.stop)
        metrics.routes.add("/xray", self._show_xray)
        metrics.routes.add("/quotas/explain", self._show_quotas)
        metrics.start(self.parts)
        if metrics.url is not None:
            self.ctx.bound_addresses["kbroker.metrics.listener"] = metrics.url.removeprefix("http://")
        self._on_stop("readiness", metrics.not_ready)

    def xray(self) -> XRay:
        """Return the X-ray of this broker, imported on first use."""
        return self._xray.get()

    def _make_xray(self) -> XRay:
        from kbroker.observe.xray import XRay

        return XRay(self.parts)

    def quota_explainer(self) -> QuotaExplainer:
        """Return the explainer of quotas, imported on first use."""
        from kbroker.quota.explanation import QuotaExplainer

        return QuotaExplainer(
            self.ctx.quotas,
            self._server.connection_quotas,
            self.ctx.quota_entities,
            self.clock.epoch_ms,
            self.xray(),
        )

    def _show_quotas(self, query: dict[str, str]) -> dict[str, Any]:
        from kbroker.observe.explanation_route import explanation_of_query

        return explanation_of_query(self.quota_explainer(), query)

    def _show_xray(self, query: dict[str, str]) -> dict[str, Any]:
        from kbroker.observe.xray import DEFAULT_LIMIT, MOST_SHOWN

        only(query, "limit")
        return self.xray().snapshot(limit_of(query, "limit", DEFAULT_LIMIT, MOST_SHOWN))

    def _start_handlers(self) -> None:
        """Start the request handlers, in Python and native."""
        config, requests = self.config, self._requests
        native_apis, handlers = self.parts.native_apis, self.parts.handlers
        self._verifier = TransactionVerifier(
            lambda: self.ctx.add_partitions_to_txn, lambda request: request.hand_over(requests)
        )
        self._set_transactions(native_apis)
        self.ctx.on_broker_change(lambda changed: self._set_transactions(native_apis))
        pool = RequestHandlerPool(
            self.ctx,
            self.apis,
            native_apis.receiver,
            config.integer("kbroker.python.threads"),
            self._server.refused_requests,
            self._intercept,
        )

        def stop_native() -> None:
            requests.close()
            self._join(handlers.threads)
            self._wait_until(lambda: not requests.helpers)

        def stop_python() -> None:
            self._python_requests.close()
            if not pool.stop(self._timeout_s):
                logger.error("a Python request handler did not end within %.1f s", self._timeout_s)

        self._on_stop("waiting requests", lambda: self._complete_waiting(native_apis))
        self._on_stop("Python handlers", stop_python)
        self._on_stop("handlers", stop_native)
        pool.start()
        handlers.resize(config.integer("num.io.threads"))
        self.ctx.on_broker_change(lambda changed: handlers.resize(config.integer("num.io.threads")))

    def _set_transactions(self, native_apis: NativeApis) -> None:
        native_apis.verify_transactions(self.config.boolean("transaction.partition.verification.enable"))

    # ------------------------------------------------------------ interception

    def set_interception(self, interception: Interception) -> None:
        self._interception = interception
        self.parts.native_apis.intercept(interception.keys)

    def _intercept(self, request: InboundRequest) -> bool:
        """Pass a request to the interceptor; return True if no Python handler must serve it."""
        interceptor = self._interception.interceptor
        if request.api_key == PRODUCE and self._verifier.take(request):
            return True
        if request.was_examined:
            return False
        try:
            if interceptor is not None and interceptor(request):
                return True
        except Exception:  # an interceptor's error must not affect the client
            logger.exception("the interceptor failed on api key %d", request.api_key)
        entry = self.apis.entries.get(request.api_key)
        if request.has_response or entry is None or not entry.is_native:
            return request.has_response
        request.hand_over(self._requests)  # Python received the request only for the interceptor
        return True

    def resume(self, request: InboundRequest) -> None:
        entry = self.apis.entries.get(request.api_key)
        request.hand_over(self._requests if entry is not None and entry.is_native else self._python_requests)

    def is_idle(self) -> bool:
        # A request may be declined to Python, be handed back and be declined once more: four checks, in this order.
        ctx = self.ctx
        return all(self._is_idle(python) for python in (False, True, False, True)) and (
            self.parts.native_apis.is_idle
            and all(scheduler.is_idle for scheduler in self._logs.tasks.schedulers)
            and self._scheduler.is_idle
            and (ctx.group_service.started is None or ctx.group_service.started.coordinator.is_idle)
            and (ctx.transaction_service.started is None or ctx.transaction_service.started.is_idle)
            and (ctx.share_partition_service.started is None or ctx.share_partition_service.started.manager.is_idle)
            and ctx.quotas.is_idle
        )

    def _is_idle(self, python: bool) -> bool:
        queue = self._python_requests if python else self._requests
        threads = self.config.integer("kbroker.python.threads") if python else len(self.parts.handlers.threads)
        return len(queue) == 0 and queue.helpers == 0 and queue.sleepers == threads

    def _on_stop(self, what: str, undo: Callable[[], object]) -> None:
        self._undo.append((what, undo))

    # ------------------------------------------------------------ stop

    def stop(self) -> None:
        """Stop the parts in reverse order of their start; the failure of a step is logged. Idempotent.

        At the exit of the process it waits for a stop that another thread has begun. Ctrl-C ends the step that waits,
        and is raised after the remaining steps.
        """
        atexit.unregister(self.stop)
        if os.getpid() != self.pid:  # a child made by fork owns no thread and no file of the broker
            return
        with self._stop_lock:
            while self._undo:
                what, undo = self._undo.pop()
                try:
                    undo()
                except Exception:
                    logger.exception("stopping the %s failed", what)
                except BaseException:  # nothing else would close the port and the log
                    self.stop()
                    raise

    def _complete_waiting(self, native_apis: NativeApis) -> None:
        """Wait for delayed produces within the time limit of a stop; complete delayed fetches at once."""
        self._wait_until(lambda: not native_apis.waiting_produces)
        native_apis.complete_waiting()

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until the condition holds, at most for the time limit of a stop."""
        real = SystemClock()  # a stop takes real time, whatever the time of the broker's clock
        end_ms = real.now_ms() + self._timeout_s * 1000
        while not is_true() and real.now_ms() < end_ms:
            time.sleep(0.005)

    def _stop_quotas(self) -> None:
        if not self._quotas.close(self._timeout_s):
            logger.error("the thread of throttled channels did not end within %.1f s", self._timeout_s)

    def _join(self, threads: list[threading.Thread]) -> None:
        real = SystemClock()
        end_ms = real.now_ms() + self._timeout_s * 1000
        for thread in threads:
            if thread.ident is None:
                continue
            thread.join(max(0.0, (end_ms - real.now_ms()) / 1000))
            if thread.is_alive():
                logger.error("thread %s did not end within %.1f s", thread.name, self._timeout_s)
