"""Client for the HTTP port of a kbroker broker: find its URL and read JSON from it.

with Cluster("127.0.0.1:9092") as cluster:
    port = HttpPort(find_http_port(cluster))
print(port.get("/xray"))
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.connection import format_address
from kbroker.client.http_get import HttpFailure, http_get
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import KafkaError, UserError
from kbroker.common.listeners import parse_http_address

LISTENER = "kbroker.metrics.listener"
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_SENTENCE = 300  # characters shown of an error response
DEFAULT_TIMEOUT_S = 10.0


class HttpPortError(UserError):
    """Failure to find or reach the HTTP port, or its refusal of a request; the message is one line.

    ``status``: HTTP status of the refusal, None without a response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NoSuchPathError(HttpPortError):
    """Refusal of a path that the HTTP port does not have."""


class HttpPort:
    """Client of one HTTP port. Each request has its own connection; redirects are not followed, to protect the token.

    Args: ``url``: ``http://host:port`` or ``https://host:port``, with a path if a proxy needs one. ``token``: the
    value of ``kbroker.console.token``. ``timeout_s``: for a whole request.
    Raises: ValueError for a malformed URL or token.
    Threads: any.
    """

    def __init__(self, url: str, token: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ValueError(f"expected http://HOST:PORT, got {url!r}")
        if token is not None and re.fullmatch(r"[!-~]+", token) is None:
            raise ValueError("a token has only ASCII characters without spaces")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Return the JSON value of a path, such as ``/xray``.

        Raises: HttpPortError; NoSuchPathError if the broker does not have the path.
        """
        target = self._path + path + (f"?{urlencode(query, errors='surrogateescape')}" if query else "")
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            response = http_get(
                *(self._scheme, self._host, self._port, target, headers),
                timeout_s=self._timeout_s,
                max_bytes=MAX_RESPONSE_BYTES,
            )
        except HttpFailure as failure:
            raise HttpPortError(f"{self.url}: {failure}") from None
        if response.status != 200:
            raise self._refusal(response.status, response.body, path)
        try:
            return json.loads(response.body)
        except ValueError:
            raise HttpPortError(
                f"{self.url}{path}: expected JSON, got something else: is this the HTTP port of a kbroker?"
            ) from None

    def _refusal(self, status: int, body: bytes, path: str) -> HttpPortError:
        text = " ".join(body[: 4 * MAX_SENTENCE].decode("utf-8", "replace").split())
        sentence = "".join(c for c in text if c.isprintable())[:MAX_SENTENCE]
        hint = (
            "; the commands take it from KBROKER_CONSOLE_TOKEN" if status in (401, 403) and self._token is None else ""
        )
        message = f"{self.url}{path}: {status}{f': {sentence}' if sentence else ''}{hint}"
        return NoSuchPathError(message, status) if status == 404 else HttpPortError(message, status)


def find_http_port(cluster: Cluster, node_id: int | None = None) -> str:
    """Return the URL of a broker's HTTP port, as DescribeConfigs reports it.

    Args: ``node_id`` of the broker; None for the one with the lowest id.
    Raises: HttpPortError if the broker has no HTTP port, is not kbroker, or refuses to describe its configs;
        BrokerConnectionError.
    """
    cluster.fetch_metadata([])
    number = min(cluster.nodes) if node_id is None and cluster.nodes else node_id
    if number is None or number not in cluster.nodes:
        raise HttpPortError(f"the cluster has no broker {node_id if node_id is not None else ''}".rstrip())
    node = cluster.nodes[number]
    where = f"broker {number} at {format_address(node.address)}"
    try:
        entries = Admin(cluster).describe_configs(ConfigResourceType.BROKER, str(number), [LISTENER])
    except KafkaError as error:
        raise HttpPortError(f"{where} refuses to describe its HTTP port: {error}; give --http URL") from None
    if not entries:
        raise HttpPortError(f"{where} is not kbroker: it has no {LISTENER}")
    if not entries[0].value:
        raise HttpPortError(f"{where} has no HTTP port: start it with {LISTENER}=HOST:PORT")
    try:
        return url_of_listener(entries[0].value, node.host)
    except ValueError as error:
        raise HttpPortError(f"{where}: {error}") from None


def url_of_listener(listener: str, broker_host: str) -> str:
    """Return the URL at which this machine reaches a listener (host:port) of the broker at ``broker_host``.

    Raises: ValueError if the listener is a loopback address of another machine: on this machine another program may
        use that address.
    """
    host, port = parse_http_address(listener)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None and address.is_unspecified:
        host = broker_host
    elif (host == "localhost" or (address is not None and address.is_loopback)) and not _is_here(broker_host):
        raise ValueError(f"its HTTP port {listener} is for its own machine: run the command there, or give --http URL")
    return f"http://{format_address((host, port))}"


def _is_here(host: str) -> bool:
    """Return whether a host is this machine: only its own addresses can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False
