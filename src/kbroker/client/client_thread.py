"""Thread that runs a blocking client for asyncio: one call at a time, each of which can be cancelled."""

import asyncio
import contextlib
import socket
import threading
from asyncio import Lock
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Address, parse_bootstrap
from kbroker.client.security import ClientSecurity

T = TypeVar("T")


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="kbroker-client")


class CallCancelledError(Exception):
    """Cancellation of the call that runs in the thread, whose result is discarded."""


class ClientThread:
    """Executor of calls on one `Cluster` in one thread. The first call opens the cluster, and `close` ends the thread.

    Cancelling a call shuts its connection down at once; the next call opens a new one. A connection attempt cannot be
    interrupted: the next call waits for its end, at most connect_timeout_s.

    Args: as `kbroker.client.quotas.QuotaClient`.
    Raises: ValueError for a malformed address or an invalid property.
    Threads: `run` and `close` from the thread of one event loop.
    """

    def __init__(self, bootstrap: str, properties: Mapping[str, str] | None, **settings: Any) -> None:
        parse_bootstrap(bootstrap)
        self._security = ClientSecurity(properties or {})
        self._bootstrap = bootstrap
        self._settings = settings
        self._turn = Lock()
        self._executor: ThreadPoolExecutor | None = _one_thread()
        self._cluster: Cluster | None = None  # used by the executor's thread only
        self._is_cancelled = threading.Event()
        self._sockets_lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    async def run(self, call: Callable[[Cluster], T]) -> T:
        """Return the result of ``call``, run in the thread. Raises: its exceptions; RuntimeError after `close`."""
        await self._turn.acquire()
        return await self._run_in_turn(lambda: call(self._open()))

    async def close(self) -> None:
        """Close the connection and end the thread, after the current call. Idempotent."""
        await self._turn.acquire()
        if self._executor is None:
            self._turn.release()
            return
        executor = self._executor
        try:
            await self._run_in_turn(self._close)
        finally:
            self._executor = None
            executor.shutdown(wait=False)

    async def _run_in_turn(self, call: Callable[[], T]) -> T:
        """Run a call while holding the lock, released at the end of the call. Raises: RuntimeError after a close."""
        if self._executor is None:
            self._turn.release()
            raise RuntimeError("the client is closed")
        self._is_cancelled.clear()
        try:
            job = asyncio.get_running_loop().run_in_executor(self._executor, call)
        except RuntimeError:  # no thread was started, but a later thread of this executor would make the call
            self._executor = _one_thread()
            self._turn.release()
            raise
        job.add_done_callback(self._end_turn)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            if not job.done():  # otherwise the thread may already run the next call
                self._give_up()
            raise

    def _end_turn(self, job: "asyncio.Future[Any]") -> None:
        if not job.cancelled():
            job.exception()  # mark the exception as retrieved: nothing awaits a cancelled call
        self._turn.release()

    def _give_up(self) -> None:
        """Interrupt the thread's blocking operation. Threads: the event loop's."""
        self._is_cancelled.set()
        with self._sockets_lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    # for TLS too: SSLSocket.shutdown would change the object
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    # ---- in the thread

    def _open(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(
                self._bootstrap,
                open_stream=self._open_stream,
                authenticate=self._security.authenticate,
                sleep=self._sleep,
                **self._settings,
            )
        return self._cluster

    def _close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def _open_stream(self, address: Address, timeout_s: float) -> socket.socket:
        self._check()
        sock = self._security.open_stream(address, timeout_s)
        with self._sockets_lock:
            self._sockets = [kept for kept in self._sockets if kept.fileno() >= 0]
            self._sockets.append(sock)
        try:
            self._check()
        except CallCancelledError:
            sock.close()
            raise
        return sock

    def _sleep(self, seconds: float) -> None:
        self._is_cancelled.wait(seconds)
        self._check()

    def _check(self) -> None:
        if self._is_cancelled.is_set():
            raise CallCancelledError
