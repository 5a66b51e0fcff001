"""One HTTP GET, limited in time and size; redirects are not followed, to protect credentials."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from ssl import SSLContext
from typing import Any, NamedTuple

_CHUNK_BYTES = 1 << 16


class HttpFailure(Exception):
    """Failure to get a response, or a response that is too long; the message is one line without the URL."""


class HttpTimeout(HttpFailure):
    """Time-out without a complete response."""


class Response(NamedTuple):
    """Status, headers with names in lower case, and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def http_get(
    scheme: str,
    host: str,
    port: int | None,
    target: str,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    max_bytes: int,
    context: SSLContext | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Response:
    """Return the response to GET ``target``, on its own connection.

    Args: ``timeout_s``: for the whole request; it also limits the connection to each address of the host, but not the
    look-up of its name, which the system limits. ``max_bytes`` of the body.
    Raises: HttpFailure.
    """
    deadline_s = clock() + timeout_s
    if port is None:  # http.client would take the end of an IPv6 address for a port
        port = http.client.HTTPS_PORT if scheme == "https" else http.client.HTTP_PORT

    def left_s() -> float:
        left_s = deadline_s - clock()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def connected() -> http.client.HTTPConnection:
        if scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    try:
        with closing(connected()) as connection:
            connection.response_class = lambda *args, **options: _LimitedResponse(left_s, *args, **options)  # type: ignore[assignment]
            connection.request("GET", target, headers=dict(headers))
            body = bytearray()
            with connection.getresponse() as response:
                expected = response.length  # None: in chunks, or up to the end of the connection
                while len(body) != expected and (chunk := response.read1(_CHUNK_BYTES)):
                    body += chunk
                    if len(body) > max_bytes:
                        raise HttpFailure(f"expected at most {max_bytes} bytes, got more")
            if expected is not None and len(body) < expected:
                raise HttpFailure(f"expected {expected} bytes, got {len(body)}")
            found = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, found, bytes(body))
    except TimeoutError:
        raise HttpTimeout(f"no response within {timeout_s:.3g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpFailure(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None


class _LimitedResponse(http.client.HTTPResponse):
    """A response whose status line, headers and body arrive before a deadline. Args: ``left_s``: seconds left."""

    def __init__(self, left_s: Callable[[], float], sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_LimitedSource(left_s, sock))


class _LimitedSource(io.RawIOBase):
    """Bytes of a socket; each read waits at most for the rest of the time. Raises (readinto): TimeoutError."""

    def __init__(self, left_s: Callable[[], float], sock: socket.socket) -> None:
        self._left_s, self._socket = left_s, sock
        self._source = sock.makefile("rb", buffering=0)  # keeps the socket open when its connection is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._left_s())
        return self._source.readinto(buffer)

    def close(self) -> None:
        self._source.close()
        super().close()
