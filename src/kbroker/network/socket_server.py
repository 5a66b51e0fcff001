"""Listeners with their acceptors and network threads, started and stopped in order."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker._core.requests.memory_pool import MemoryPool
from kbroker._core.requests.request_queue import Queue, RequestExecutor
from kbroker._core.timer.key_signal import KeySignal
from kbroker.common.listeners import Listener
from kbroker.common.listening_socket import cannot_listen, close_listening
from kbroker.common.loggers import get_logger
from kbroker.common.threads import have_ended, new_thread
from kbroker.network._acceptor import Acceptor
from kbroker.network._request_metrics import RequestMetrics, RequestRecorder
from kbroker.network.connections._connection_quotas import ConnectionQuotas
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.network.connections.closed_connections import ClosedConnections
from kbroker.network.options import ListenerLimits, SocketServerOptions
from kbroker.network.processor._network_watch import NetworkWatch
from kbroker.network.processor._processor import Processor
from kbroker.network.transport.authentication import ListenerSecurity

logger = get_logger(__name__)


class _BoundListener:
    """One listening socket and the threads that serve it."""

    def __init__(self, listener: Listener, server_socket: socket.socket, is_internal: bool = False) -> None:
        self.listener = listener
        self.is_internal = is_internal
        self.socket = server_socket
        self.processors: list[Processor] = []
        self.acceptor: Acceptor | None = None
        self.acceptor_thread: threading.Thread | None = None
        self.threads: dict[Processor, threading.Thread] = {}  # includes retired processors while they run
        self.free_tables: list[_Tables] = []


class _Tables(NamedTuple):
    """State that one network thread writes; its successor continues it after the thread has ended."""

    metrics: RequestMetrics | None
    recorder: RequestRecorder | None


class SocketServer:
    """Server that accepts connections, reads requests into a queue and sends the responses (Kafka's ``SocketServer``).

    Args:
        listeners: addresses; port 0 selects a free port.
        queue: receives the requests; handlers take them from it (``RequestChannel`` in Python).
        options: see SocketServerOptions.
        pool: memory budget of all requests; None: unlimited.
        clock: None is the system's.
        security: TLS and SASL of each listener by name; other listeners use plain text without authentication.
        record: creates the recorder of finished requests for each network thread of a listener; None: not recorded.
    Raises: TypeError, ValueError for wrong arguments; for some options only in ``start``.
    Threads: bind, start and the stops from one thread. Order of a stop: ``begin_stop``, then the handlers finish the
    queued requests, then ``finish_stop``.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        queue: Queue,
        options: SocketServerOptions | None = None,
        *,
        pool: MemoryPool | None = None,
        clock: BaseClock | None = None,
        security: Mapping[str, ListenerSecurity] | None = None,
        record: Callable[[Listener], RequestRecorder | None] | None = None,
    ) -> None:
        self.options = SocketServerOptions() if options is None else options
        if not isinstance(self.options, SocketServerOptions):
            raise TypeError(f"options must be SocketServerOptions, not {type(options).__name__}")
        self._wanted = list(listeners)
        if not self._wanted:
            raise ValueError("at least one listener is needed")
        for listener in self._wanted:
            if not isinstance(listener, Listener):
                raise TypeError(f"listeners must be Listener, got {type(listener).__name__}")
        if not isinstance(queue, Queue):
            raise TypeError(f"queue must be a Queue, not {type(queue).__name__}")
        if pool is not None and not isinstance(pool, MemoryPool):
            raise TypeError(f"pool must be a MemoryPool or None, not {type(pool).__name__}")
        if clock is not None and not isinstance(clock, BaseClock):
            raise TypeError(f"clock must be a SystemClock, a VirtualClock or None, not {type(clock).__name__}")
        if self.options.network_threads < 1:
            raise ValueError(f"network_threads must be >= 1, got {self.options.network_threads}")
        self._queue = queue
        self._pool = MemoryPool.unlimited() if pool is None else pool
        self._clock = clock
        self._security = dict(security or {})
        self._record = record
        names = [listener.name for listener in self._wanted]
        for name, protection in self._security.items():
            if name not in names:
                raise ValueError(f"security names {name!r}, the listeners are {', '.join(names)}")
            if not isinstance(protection, ListenerSecurity):
                raise TypeError(f"security of {name} must be a ListenerSecurity, not {type(protection).__name__}")
        self.refused_requests = RefusedRequests()
        self.signal = KeySignal()  # closed watched connections; keys of other events have the low number 0
        self.closed_connections = ClosedConnections()  # for a thread that polls them
        self.connection_quotas = ConnectionQuotas(
            self.options.max_connections,
            self.options.max_connections_per_ip,
            self.options.max_connections_per_ip_overrides,
            max_rate=self.options.max_connection_rate,
            samples=self.options.quota_samples,
            window_seconds=self.options.quota_window_seconds,
            inter_broker_listener=self.options.inter_broker_listener,
            clock=clock,
        )
        limits = self.options.listener_limits or {}
        for listener in self._wanted:
            self.connection_quotas.update_listener(listener.name, *limits.get(listener.name, ListenerLimits()))
        self.request_metrics: list[RequestMetrics] = []
        self._bound: list[_BoundListener] = []
        self._entrance: _BoundListener | None = None
        self._started = False
        self._stopping = False
        self._stopped = False
        self._resize_lock = threading.Lock()
        self._next_processor_id = 0
        self._tables: dict[Processor, _Tables] = {}
        self._executor: Callable[[], RequestExecutor | None] = lambda: None
        self._watch: NetworkWatch | None = None
        self._watch_thread: threading.Thread | None = None
        self._pid = os.getpid()

    def bind(self) -> list[Listener]:
        """Bind every listener without accepting yet; return the listeners with their real ports.

        Raises: OSError with the address when one cannot be bound (the others are closed again).
        """
        if not self._bound:
            try:
                for listener in self._wanted:
                    self._bound.append(_BoundListener(listener, self._listen(listener)))
            except BaseException:
                self._close_sockets()
                raise
        return self.listeners

    @property
    def listeners(self) -> list[Listener]:
        """The bound listeners with their real ports."""
        return [b.listener._replace(port=b.socket.getsockname()[1]) for b in self._bound if b.socket.fileno() >= 0]

    @property
    def processors(self) -> list[Processor]:
        """The network threads of all listeners, listener by listener."""
        return [p for b in self._bound for p in b.processors]

    @property
    def network_threads(self) -> list[tuple[Processor, threading.Thread]]:
        """The serving processors, with the thread of each."""
        with self._resize_lock:
            return [(p, b.threads[p]) for b in self._bound for p in b.processors if p in b.threads]

    @property
    def acceptors(self) -> list[Acceptor]:
        """The acceptors, one per listener; none until all exist, nor after the first one has ended with its threads."""
        acceptors = [b.acceptor for b in self._bound]
        return [acceptor for acceptor in acceptors if acceptor is not None] if None not in acceptors else []

    def port(self, listener_name: str) -> int:
        """Return the bound port of a listener. Raises: KeyError for an unknown name."""
        for listener in self.listeners:
            if listener.name == listener_name:
                return listener.port
        raise KeyError(listener_name)

    def start(self, executor: Callable[[], RequestExecutor] | None = None) -> None:
        """Bind, unless already bound, and serve.

        Args: ``executor`` returns the executor of a network thread, which then executes requests itself while few wait;
        None: the threads that read the queue execute all.
        Raises: RuntimeError if it was started before.
        """
        if self._started:
            raise RuntimeError("the socket server was started")
        self.bind()
        self._started = True
        if executor is not None:
            self._executor = executor
            self._watch = NetworkWatch()  # a thread is stuck for a real time, whatever the server's clock
        try:
            for number, bound in enumerate(self._bound):
                self._make_threads(number, bound)
        except BaseException:
            self._close_sockets()
            raise
        for bound in self._bound:
            assert bound.acceptor_thread is not None
            for thread in (*bound.threads.values(), bound.acceptor_thread):
                thread.start()
        if self._watch is not None:
            self._watch_thread = new_thread("network-watch", partial(self._watch_network, self._watch))
            self._watch_thread.start()

    def connect(self, principal: str, remote_host: str) -> socket.socket:
        """Return a connection of this process whose client is authenticated already.

        The connection does not count towards the limits. Its network thread starts with the first such connection.

        Args: ``principal``: as ``User:name``; ``remote_host``: address of the client for ACLs, quotas and logs.
        Threads: any. Raises: OSError if the server does not serve, has too many new connections, or cannot start the
        network thread; ValueError.
        """
        from kbroker.network import internal_entrance

        with self._resize_lock:
            if not self._started or self._stopping:
                raise OSError(errno.ECONNREFUSED, "the socket server does not serve")
            if self._entrance is None:
                # preferably the name of a listener with authentication, which the clients of the entrance have passed
                number, bound = max(enumerate(self._bound), key=lambda one: one[1].listener.has_sasl)
                entrance = _BoundListener(bound.listener, bound.socket, is_internal=True)
                entrance.free_tables = bound.free_tables  # a failed attempt leaves its tables to the next thread
                processor = self._make_processor(number, entrance, internal_entrance.security())
                entrance.processors.append(processor)
                try:
                    entrance.threads[processor].start()
                except (RuntimeError, MemoryError) as why:
                    self._forget(entrance, processor)
                    raise OSError(errno.EAGAIN, "the system starts no more threads") from why
                self._entrance = entrance
            (processor,) = self._entrance.processors
        ours, theirs = internal_entrance.open_pair(principal, remote_host)
        if not processor.offer(theirs.fileno()):
            ours.close()
            theirs.close()
            raise OSError(errno.EAGAIN, "too many new connections")
        theirs.detach()
        return ours

    @property
    def _served(self) -> list[_BoundListener]:
        """The listeners, and the entrance of this process if it is in use."""
        return self._bound if self._entrance is None else [*self._bound, self._entrance]

    def resize(self, network_threads: int | Mapping[str, int]) -> None:
        """Change the number of network threads of each listener, or of the named ones, if the server is running.

        New connections are distributed to the new threads too. If the number is smaller, the last threads end: they
        send the responses that are ready, for at most a second, and close their connections, whose clients reconnect.

        Threads: any, one at a time. Raises: ValueError below 1; OSError, RuntimeError if the system cannot create more
        threads; the threads created before the error stay.
        """
        names = [listener.name for listener in self._wanted]
        wanted = dict.fromkeys(names, network_threads) if isinstance(network_threads, int) else dict(network_threads)
        for count in wanted.values():
            if count < 1:
                raise ValueError(f"network_threads must be >= 1, got {count}")
        with self._resize_lock:
            if not self._started or self._stopping:
                return
            for listener_id, bound in enumerate(self._bound):
                self._resize(listener_id, bound, wanted.get(bound.listener.name, len(bound.processors)))

    def _resize(self, listener_id: int, bound: _BoundListener, count: int) -> None:
        assert bound.acceptor is not None
        kept = bound.processors[:count]
        try:
            while len(kept) < count:
                processor = self._make_processor(listener_id, bound)
                try:
                    bound.threads[processor].start()
                except RuntimeError:
                    self._forget(bound, processor)
                    raise
                kept.append(processor)
        finally:
            retired, bound.processors = bound.processors[count:], kept
            bound.acceptor.deal_to(kept)
            for processor in retired:
                processor.retire()

    def _serve(self, bound: _BoundListener, processor: Processor) -> None:
        """Run a network thread. After a retired thread its tables become available to its successor."""
        processor.run()
        with self._resize_lock:
            if processor not in bound.processors:
                self._forget(bound, processor)

    def _watch_network(self, watch: NetworkWatch) -> None:
        """Start a stand-in for each network thread that is stuck in a request."""
        while (processor := watch.wait()) is not None:
            name = f"network-stand-in-{processor.processor_id}"
            try:
                new_thread(name, processor.stand_in, f"stand-in-{processor.processor_id}").start()
            except (RuntimeError, MemoryError):  # no more threads: this one serves the connections
                processor.stand_in()

    def _forget(self, bound: _BoundListener, processor: Processor) -> None:
        del bound.threads[processor]
        if self._watch is not None:
            self._watch.remove(processor)
        bound.free_tables.append(self._tables.pop(processor))

    def begin_stop(self) -> None:
        """Stop accepting and reading; responses to the requests that were read are still sent."""
        with self._resize_lock:
            self._stopping = True
        for bound in self._bound:
            if bound.acceptor is not None:
                bound.acceptor.stop()
        for bound in self._bound:
            if bound.acceptor_thread is not None and bound.acceptor_thread.ident is not None:
                bound.acceptor_thread.join(5)
        self._close_sockets()
        for bound in self._served:
            for processor in bound.processors:
                processor.begin_stop()

    def finish_stop(self, timeout_s: float = 5.0) -> bool:
        """Send ready responses, close every connection, end the threads; return whether all ended in time."""
        if self._stopped:
            return True
        self._stopped = True
        self.begin_stop()
        self._queue.close()  # a network thread waiting for capacity would block forever
        threads = []
        for bound in self._served:
            for processor, thread in list(bound.threads.items()):
                processor.finish_stop()
                threads.append(thread)
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout_s)
        if self._watch is not None:
            self._watch.close()
        if self._watch_thread is not None:
            have_ended([self._watch_thread], timeout_s)
        self._queue.refuse_all()
        late = [thread.name for thread in threads if thread.is_alive()]
        if late:
            logger.error("network threads did not end in %s s: %s", timeout_s, ", ".join(late))
        else:
            self._forget_threads()
        return not late

    def _forget_threads(self) -> None:
        """Drop the ended threads, whose pollers close their descriptors with the last reference."""
        with self._resize_lock:
            for bound in self._served:
                for processor in list(bound.threads):
                    self._forget(bound, processor)
                bound.processors, bound.acceptor, bound.acceptor_thread = [], None, None

    def stop(self) -> bool:
        """Run both steps of the stop, if handlers need no time between them; return as `finish_stop`."""
        self.begin_stop()
        return self.finish_stop()

    def _listen(self, listener: Listener) -> socket.socket:
        host, dual = listener.host, False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if not host:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            if host and family == socket.AF_INET:
                name = host.encode("ascii") if host.isascii() else host  # text loads the idna codec: 1 ms
                family, _, _, _, address = socket.getaddrinfo(name, listener.port, type=socket.SOCK_STREAM)[0]
                host = str(address[0])
            server = socket.socket(family, socket.SOCK_STREAM)
        except OSError as why:
            raise cannot_listen(listener, why) from why
        try:
            if sys.platform != "win32":
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
            if self.options.receive_buffer_bytes > 0:  # accepted sockets inherit it, so it is set before listening
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.options.receive_buffer_bytes)
            server.bind((host, listener.port))
            server.listen(self.options.backlog)
            server.setblocking(False)
        except OSError as why:
            server.close()
            raise cannot_listen(listener, why) from why
        return server

    def _make_processor(
        self, listener_id: int, bound: _BoundListener, security: ListenerSecurity | None = None
    ) -> Processor:
        """Create a network thread of the listener, not started. ``security``: that of the listener if None."""
        options, name, protocol = self.options, bound.listener.name, bound.listener.protocol
        tables = bound.free_tables.pop() if bound.free_tables else self._make_tables(bound)
        processor_id = self._next_processor_id
        try:
            processor = Processor(
                name,
                processor_id,
                self._queue,
                options,
                pool=self._pool,
                clock=self._clock,
                listener_id=listener_id,
                quotas=None if bound.is_internal else self.connection_quotas,
                security=security or self._security.get(name),
                metrics=tables.metrics,
                recorder=tables.recorder,
                refused=self.refused_requests if options.serves_kafka else None,
                executor=None if bound.is_internal else self._executor(),
                closed=(self.signal, self.closed_connections.signal),
            )
        except BaseException:  # for example, no descriptors: the next attempt reuses the tables
            bound.free_tables.append(tables)
            raise
        if self._watch is not None and not bound.is_internal:
            self._watch.add(processor)
        self._next_processor_id += 1
        self._tables[processor] = tables
        label = f"{options.broker_id}-ListenerName({name})-{protocol}-{processor_id}"
        if bound.is_internal:
            label = f"{options.broker_id}-internal-{processor_id}"
        bound.threads[processor] = new_thread(
            f"data-plane-kafka-network-thread-{label}",
            partial(self._serve, bound, processor),
            f"network-{processor_id}",
        )
        return processor

    def _make_tables(self, bound: _BoundListener) -> _Tables:
        if not self.options.serves_kafka:
            return _Tables(None, None)
        metrics = RequestMetrics() if self.options.request_metrics else None
        if metrics is not None:
            self.request_metrics.append(metrics)
        return _Tables(metrics, None if self._record is None else self._record(bound.listener))

    def _make_threads(self, listener_id: int, bound: _BoundListener) -> None:
        options, name, protocol = self.options, bound.listener.name, bound.listener.protocol
        for _ in range((options.listener_network_threads or {}).get(name, options.network_threads)):
            bound.processors.append(self._make_processor(listener_id, bound))
        bound.acceptor = Acceptor(
            bound.socket.fileno(),
            bound.processors,
            send_buffer_bytes=options.send_buffer_bytes,
            quotas=self.connection_quotas,
            clock=self._clock,
            backend=options.new_backend(),
        )
        port = bound.socket.getsockname()[1]
        bound.acceptor_thread = new_thread(
            f"data-plane-kafka-socket-acceptor-ListenerName({name})-{protocol}-{port}",
            bound.acceptor.run,
            f"acceptor-{port}",
        )

    def _close_sockets(self) -> None:
        for bound in self._bound:
            close_listening(bound.socket, self._pid)
