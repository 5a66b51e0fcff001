"""Whether a master or a Spark Connect server answers at all, found out before Spark tries for a minute or ten."""

from __future__ import annotations

import socket
import struct
from urllib.parse import urlsplit

from kbroker.spark.errors import PipelineError

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
CONNECT_PORT, MASTER_PORT = 15002, 7077
#: A request for a stream that no master has: any of them refuses it. Source: MessageEncoder and StreamRequest of Spark.
_STREAM_REQUEST, _STREAM = 6, b"kbroker"
_ASKING = struct.pack(f">qbi{len(_STREAM)}s", 8 + 1 + 4 + len(_STREAM), _STREAM_REQUEST, len(_STREAM), _STREAM)
_SETTINGS_FRAME = 4
#: How a client of HTTP/2 begins, with empty settings; one that expects TLS refuses it. Source: RFC 9113, 3.4 and 6.5.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">xHBBI", 0, _SETTINGS_FRAME, 0, 0)
_ADDRESSES = {"spark": MASTER_PORT, "sc": CONNECT_PORT}
_ASKED = {"spark": _ASKING, "sc": _PREFACE}


def require_reachable(url: str, seconds: float = CONNECT_SECONDS, answer_seconds: float = ANSWER_SECONDS) -> None:
    """Connect to a machine that the URL of a standalone master (`spark://`) or of Spark Connect (`sc://`) names.

    Args: `seconds`: for each connection; `answer_seconds`: for a master or server to say anything at all. Other masters
    (local, yarn, k8s) are not asked.
    Raises: PipelineError that says why none answers, or what is wrong with the URL.
    """
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in _ADDRESSES:
        return
    failures = []
    for place in rest.partition("/")[0].split(","):
        host, port = _address(url, scheme, place)
        try:
            with socket.create_connection((host, port), timeout=seconds) as connection:
                if _answers(connection, _ASKED[scheme], answer_seconds):
                    return
                failures.append(f"{place}: connected, and nothing was said within {answer_seconds:g} s")
        except TimeoutError:
            failures.append(f"{place}: no connection within {seconds:g} s")
        except OSError as error:
            failures.append(f"{place}: {(error.strerror or str(error)).lower()}")
    what = "master" if scheme == "spark" else "Connect server"
    raise PipelineError(
        f"no Spark {what} answers at {url} ({'; '.join(failures)}): is it running, is this its address?"
    )


def _answers(connection: socket.socket, asking: bytes, seconds: float) -> bool:
    """Whether the other side reacts to a message; where it wants a login or TLS it may close the connection."""
    connection.sendall(asking)
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def _address(url: str, scheme: str, place: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or (port is None and scheme == "spark"):
        raise PipelineError(f"expected {scheme}://HOST:PORT, got {url}")
    return host, port or _ADDRESSES[scheme]
