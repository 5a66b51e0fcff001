"""Connection to one broker: frames with a deadline, responses matched by correlation id.

TLS and SASL use two hooks: `open_stream` opens the byte stream (here plaintext; for TLS, a wrapped socket), and
`Cluster` runs an optional `authenticate` step on every new connection before any other request.
"""

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from kbroker.common.addresses import host_port, wrong_host_port
from kbroker.common.errors import ProtocolError, UserError
from kbroker.protocol import codec

MAX_FRAME_BYTES = 100 * 1024 * 1024  # Kafka's socket.request.max.bytes, used as the limit of a response too
RECEIVE_BYTES = 1 << 16
LATE_S = 0.01  # tolerated lateness of a time-out: setting it on the socket costs a system call
API_VERSIONS = 18
TLS_ALERT = 0x1503  # first two bytes of a TLS record: an alert, and the major version 3
UNKNOWN_AUTHORITIES = (18, 19, 20, 21)  # OpenSSL's codes for a certificate that no trusted authority issued
WITH_TLS = "expected a listener without TLS, got one with TLS: change security.protocol or the port"
WITHOUT_LOGIN = " (does this listener require SASL?)"  # closed_hint of a connection without a login

Address = tuple[str, int]
Body = dict[str, Any]
Clock = Callable[[], float]
OpenStream = Callable[[Address, float], socket.socket]


class BrokerConnectionError(UserError):
    """Failure of the transport to a broker: unreachable, closed, timed out, or not a Kafka broker.

    The message is one line that begins with the address. Whether the broker has processed a pending request is unknown.
    """

    def __init__(self, address: Address, message: str) -> None:
        super().__init__(f"{format_address(address)}: {message}")
        self.address = address
        self.message = message


class BrokerTimeoutError(BrokerConnectionError):
    """Time-out without a complete response."""


def format_address(address: Address) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return host_port(*address)


def parse_bootstrap(text: str) -> list[Address]:
    """Return the addresses of a comma-separated list of `host[:port]` or `[ipv6][:port]`; the default port is 9092.

    Raises: ValueError that names the malformed entry; TypeError for anything but a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a text host:port[,host:port...], got {type(text).__name__}")
    addresses = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        if entry.startswith("["):
            host, bracket, rest = entry[1:].partition("]")
            port_text = rest[1:] if rest.startswith(":") else rest
            valid = bool(bracket) and (not rest or rest.startswith(":"))
        else:
            host, colon, port_text = entry.partition(":")
            valid = not colon or bool(port_text)
        port = 9092 if not port_text else int(port_text) if port_text.isascii() and port_text.isdigit() else -1
        if not valid or not host or not 0 < port < 65536:
            raise ValueError(wrong_host_port(entry))
        addresses.append((host, port))
    if not addresses:
        raise ValueError("expected host:port[,host:port...], got no address")
    return addresses


def open_plaintext(address: Address, timeout_s: float) -> socket.socket:
    """Connect over TCP within `timeout_s` seconds."""
    sock = socket.create_connection(address, timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class FrameMemory:
    """Reusable memory for responses: each response overwrites the previous one.

    New memory costs more than receiving into it: it must be cleared, and the system maps it page by page.

    Args: ``likely_bytes``: a response up to this size fits; a larger one gets its own memory.
    Threads: one at a time.
    """

    def __init__(self, likely_bytes: int) -> None:
        self._likely_bytes = likely_bytes
        self._kept = bytearray()

    def take(self, size_bytes: int) -> memoryview | None:
        """Return memory of `size_bytes`, which the next call reuses; None if that exceeds the likely size."""
        if size_bytes > self._likely_bytes:
            return None
        if size_bytes > len(self._kept):
            self._kept = bytearray(size_bytes if 2 * size_bytes <= self._likely_bytes else self._likely_bytes)
        return memoryview(self._kept)[:size_bytes]


class Connection:
    """A blocking connection; requests may be pipelined, responses arrive in the order of their requests.

    Args:
        address: host and port.
        client_id: sent in every request header.
        connect_timeout_s: seconds for connecting.
        request_timeout_s: seconds for an exchange that gives no other time-out, such as a login.
        max_frame_bytes: a response that declares more than this closes the connection.
        open_stream: makes the connected socket.
        clock: monotonic seconds.

    Raises: BrokerConnectionError when connecting fails. Any later transport failure closes the connection, so that a
        late response is not taken for the next one.

    Threads: one at a time.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str = "kbroker",
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        open_stream: OpenStream = open_plaintext,
        clock: Clock = time.monotonic,
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.request_timeout_s = request_timeout_s
        self.max_frame_bytes = max_frame_bytes
        self.versions: dict[int, tuple[int, int]] = {}  # filled by Cluster's negotiation: api key -> broker's range
        self.closed_hint = ""  # end of the message if the broker closes the connection before the next response
        self._is_answered = False  # True once a response was decoded
        self.throttled_until_s = 0.0  # time of this connection's clock until which the broker does not read
        self._renew_at_s: float | None = None
        self._clock = clock
        self._correlation_id = 0
        self._time_out_s = -1.0  # the time-out set on the socket
        try:
            self._sock: socket.socket | None = open_stream(address, connect_timeout_s)
        except TimeoutError:
            raise BrokerTimeoutError(address, f"no connection within {connect_timeout_s:g} s") from None
        except OSError as error:
            raise BrokerConnectionError(address, _reason(error)) from None
        except UnicodeError:  # from the resolver's IDNA encoding
            raise BrokerConnectionError(address, "not a host name") from None

    @property
    def closed(self) -> bool:
        """True once the socket is closed."""
        return self._sock is None

    def close(self) -> None:
        """Close the socket. Idempotent."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def interrupt(self) -> None:
        """End the exchange in progress with BrokerConnectionError. Threads: any."""
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of TLS too: SSLSocket.shutdown changes the object

    def is_stale(self) -> bool:
        """Return whether the peer has closed an idle connection or sent unrequested bytes; it is then closed.

        Checked before a kept connection is reused, so that a request is not lost on a closed socket.
        """
        if self._sock is None:
            return True
        self._time_out_s = 0.0
        self._sock.settimeout(0)
        try:
            if hasattr(self._sock, "pending"):  # TLS: bytes that it buffers itself are not a response
                self._sock.recv(1)
            else:
                self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                return False
        self.close()
        return True

    def renew_after(self, seconds: float | None) -> None:
        """Set the time after which the session must be renewed; None: it lasts as long as the connection."""
        self._renew_at_s = None if seconds is None else self._clock() + seconds

    def needs_renewal(self) -> bool:
        """Return whether the session is about to expire."""
        return self._renew_at_s is not None and self._clock() >= self._renew_at_s

    def request(
        self,
        api_key: int,
        api_version: int,
        body: Body,
        *,
        timeout_s: float | None = None,
        expect_response: bool = True,
    ) -> Body:
        """Send one request and return the decoded body of its response (an empty dict if none is expected).

        Args:
            api_key: key of the API.
            api_version: version to encode and decode with.
            body: fields by Kafka's names.
            timeout_s: seconds for the whole exchange; `request_timeout_s` when None.
            expect_response: False for Produce with acks=0.

        Raises: BrokerConnectionError, BrokerTimeoutError; ProtocolError for a body that does not fit its version.
        """
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        frame = self.exchange(api_key, api_version, body, timeout_s=limit_s, expect_response=expect_response)
        return {} if frame is None else self.decode(api_key, api_version, frame)

    def exchange(
        self, api_key: int, api_version: int, body: Body, *, timeout_s: float, expect_response: bool = True
    ) -> bytearray | memoryview | None:
        """Send a request; return its response frame, None if none is expected. Only the correlation id is checked."""
        deadline = self._clock() + timeout_s
        correlation_id = self.send_request(api_key, api_version, body, timeout_s=timeout_s)
        if not expect_response:
            return None
        return self._receive_until(deadline, timeout_s, correlation_id)

    def send_request(self, api_key: int, api_version: int, body: Body, *, timeout_s: float) -> int:
        """Send one request; return its correlation id, for `receive_response`. Raises: as `request`."""
        if self._sock is None:
            raise BrokerConnectionError(self.address, "connection is closed")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        request = codec.encode_request_frame(api_key, api_version, self._correlation_id, self.client_id, body)
        with self._closed_by_failure(timeout_s):
            self._send(request, self._clock() + timeout_s)
        return self._correlation_id

    def receive_response(
        self, correlation_id: int, *, timeout_s: float, memory: FrameMemory | None = None
    ) -> bytearray | memoryview:
        """Wait for the response to the oldest request without one; return its frame.

        Args:
            correlation_id: id of that request.
            timeout_s: seconds from now.
            memory: receives the response if it fits; the frame is then valid until the next response overwrites it.
        """
        return self._receive_until(self._clock() + timeout_s, timeout_s, correlation_id, memory)

    def _receive_until(
        self, deadline: float, timeout_s: float, awaited: int, memory: FrameMemory | None = None
    ) -> bytearray | memoryview:
        with self._closed_by_failure(timeout_s):
            (size_bytes,) = struct.unpack(">i", self._receive(4, deadline))
            if not 4 <= size_bytes <= self.max_frame_bytes:
                if size_bytes >> 16 == TLS_ALERT:
                    raise BrokerConnectionError(self.address, WITH_TLS)
                raise BrokerConnectionError(
                    self.address,
                    f"expected a response of 4 to {self.max_frame_bytes} bytes, got {size_bytes} "
                    "(is this a Kafka port?)",
                )
            frame = self._receive(size_bytes, deadline, memory)
            (correlation_id,) = struct.unpack_from(">i", frame)
            if correlation_id != awaited:
                raise BrokerConnectionError(
                    self.address, f"correlation id mismatch: expected {awaited}, got {correlation_id}"
                )
            return frame

    @contextlib.contextmanager
    def _closed_by_failure(self, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise BrokerTimeoutError(self.address, f"no response within {timeout_s:g} s") from None
            if isinstance(error, OSError):
                raise BrokerConnectionError(self.address, _reason(error)) from None
            raise

    def decode(self, api_key: int, api_version: int, frame: bytearray | memoryview) -> Body:
        """Decode the frame of a response; record the throttle time, during which the broker does not read.

        Raises: BrokerConnectionError.
        """
        self.closed_hint = ""
        self._is_answered = True
        try:
            _, response = codec.decode_response_frame(api_key, api_version, frame)
        except ProtocolError as error:
            self.close()
            what = f"cannot decode the response to {codec.api(api_key).name} version {api_version}"
            raise BrokerConnectionError(self.address, f"{what}: {error.message}") from None
        throttle_time_ms = response.get("ThrottleTimeMs", 0)
        if throttle_time_ms > 0:
            self.throttled_until_s = self._clock() + throttle_time_ms / 1000
        return response

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._arm(deadline)
            assert self._sock is not None
            view = view[self._sock.send(view) :]

    def _receive(self, size_bytes: int, deadline: float, memory: FrameMemory | None = None) -> bytearray | memoryview:
        kept = None if memory is None else memory.take(size_bytes)
        if kept is not None:
            self._fill(kept, deadline)
            return kept
        # grows with the bytes that arrive, so that a wrong size costs no memory
        data = bytearray(min(size_bytes, RECEIVE_BYTES))
        filled = 0
        while True:
            with memoryview(data) as view:
                self._fill(view[filled:], deadline)
            filled = len(data)
            if filled == size_bytes:
                return data
            data += bytes(min(size_bytes - filled, filled))

    def _fill(self, view: memoryview, deadline: float) -> None:
        assert self._sock is not None
        read = getattr(self._sock, "read", None)  # of a TLS socket, whose recv_into would call it for each 16 KiB
        while view:
            self._arm(deadline)
            received = self._sock.recv_into(view) if read is None else read(len(view), view)
            if not received:
                raise BrokerConnectionError(self.address, self._closed_text(deadline))
            view = view[received:]

    def _closed_text(self, deadline: float) -> str:
        """Return the reason why the broker has closed the connection, as far as it can be found by the deadline."""
        sock = self._sock
        is_tcp = sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)
        if not self._is_answered and is_tcp and not hasattr(sock, "read"):  # the first request, without TLS
            from kbroker.client.security import requires_tls

            if requires_tls(self.address, deadline, self._clock):  # the socket of a reset connection has no peer
                return WITH_TLS
        return f"the broker closed the connection{self.closed_hint}"

    def _arm(self, deadline: float) -> None:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        assert self._sock is not None
        if not left <= self._time_out_s <= left + LATE_S:
            self._sock.settimeout(left)
            self._time_out_s = left


def _reason(error: OSError) -> str:
    """Return the system's text in lower case, without the error number; for TLS, with the setting that may be wrong."""
    text = error.strerror or str(error) or type(error).__name__
    if type(error).__module__ == "ssl":  # not isinstance: ssl is loaded with TLS only
        text = re.sub(r"^\[.*?\] | \(_ssl\.c:[0-9]+\)$", "", text)
        if getattr(error, "verify_code", 0) in UNKNOWN_AUTHORITIES:
            text += "; expected its authority in ssl.truststore.location"
        elif text.endswith("certificate required"):
            text += ": set ssl.keystore.location"
    return text[:1].lower() + text[1:]
