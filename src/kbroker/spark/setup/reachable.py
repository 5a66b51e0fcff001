"""Check that a master or a Spark Connect server responds: Spark itself would try for one to ten minutes."""

from __future__ import annotations

import os
import socket
import struct
from urllib.parse import urlsplit

from kbroker.spark.errors import PipelineError

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
CONNECT_PORT, MASTER_PORT = 15002, 7077
API_SERVER_PORTS = {"https": 443, "http": 80}
#: A request for a stream that no master has, so all refuse it. Source: MessageEncoder and StreamRequest of Spark.
_STREAM_REQUEST, _STREAM = 6, b"kbroker"
_ASKING = struct.pack(f">qbi{len(_STREAM)}s", 8 + 1 + 4 + len(_STREAM), _STREAM_REQUEST, len(_STREAM), _STREAM)
_SETTINGS_FRAME = 4
#: The preface of a client of HTTP/2 with empty settings; a server of TLS refuses it. Source: RFC 9113, 3.4 and 6.5.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">xHBBI", 0, _SETTINGS_FRAME, 0, 0)
#: By scheme: the name in messages, the default port, the first message of a client (none: a connection is enough).
_SERVERS = {
    "spark": ("Spark master", MASTER_PORT, _ASKING),
    "sc": ("Spark Connect server", CONNECT_PORT, _PREFACE),
    "k8s": ("Kubernetes API server", API_SERVER_PORTS["https"], b""),
}
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")


def require_reachable(url: str, answer_seconds: float = ANSWER_SECONDS) -> None:
    """Connect to a server that the URL of a master (`spark://`, `k8s://`) or of Spark Connect (`sc://`) names.

    Args: `answer_seconds`: time limit for the first byte of a response. Other masters (local, yarn) are not checked,
    nor is Kubernetes behind a proxy.
    Raises: PipelineError with the reason why no server responds, or with the fault of the URL.
    """
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in _SERVERS:
        return
    server, default, greeting = _SERVERS[scheme]
    if scheme == "k8s":
        inner, separator, host = rest.partition("://")
        if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
            return
        if separator:
            rest, default = host, API_SERVER_PORTS.get(inner, default)
    failures = []
    for place in rest.partition("/")[0].split(","):
        address = _address(url, scheme, place, default)
        try:
            with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
                if not greeting or _answers(connection, greeting, answer_seconds):
                    return
                failures.append(f"{place}: connected, but no response within {answer_seconds:g} s")
        except TimeoutError:
            failures.append(f"{place}: no connection within {CONNECT_SECONDS:g} s")
        except OSError as error:
            failures.append(f"{place}: {(error.strerror or str(error)).lower()}")
        except UnicodeError:  # from the resolver's IDNA encoding
            failures.append(f"{place}: not a host name")
    raise PipelineError(f"no {server} responds at {url} ({'; '.join(failures)}): check that it runs, and its address")


def _answers(connection: socket.socket, asking: bytes, seconds: float) -> bool:
    """Return whether the server reacts to a message; one that requires a login or TLS may close the connection."""
    connection.sendall(asking)
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def _address(url: str, scheme: str, place: str, default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or (port is None and scheme == "spark"):
        raise PipelineError(f"expected {scheme}://HOST:PORT, got {url}")
    return host, port or default
