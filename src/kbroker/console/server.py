"""The console of any Kafka cluster: the same pages at an HTTP port of this process, over ordinary connections."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from kbroker._core.clock import SystemClock
from kbroker.client.connection import parse_bootstrap
from kbroker.client.schema_registry import SchemaRegistry
from kbroker.client.security import ClientSecurity
from kbroker.common.http_messages import PLAIN
from kbroker.common.http_server import HttpServer
from kbroker.console import ROOT
from kbroker.console.app import Console
from kbroker.console.applied import Applied
from kbroker.console.connections import Connections, Identity, over_the_wire
from kbroker.console.remote_users import RemoteUsers
from kbroker.console.site import Memory, Parts
from kbroker.observe.http_access import HttpAccess
from kbroker.observe.mounted_pages import MountedPages
from kbroker.observe.page_handler import MAX_WITH_PAGES, PageHandler


class _Served(NamedTuple):
    mounted: Sequence[MountedPages]


class ConsoleServer:
    """HTTP server of the console of a cluster.

    Args:
        bootstrap: `host:port[,host:port...]`.
        properties: properties of the client, by Kafka's names.
        host, port: address of the HTTP port; 0 selects a free one.
        token: browsers must send it. None: those of this machine need none, but if the properties contain credentials,
            a token is generated, because other users of this machine must not use them.
        may_edit: whether pages may change things.
        registry: the Schema Registry used to decode messages.
    Raises: ValueError for a malformed address or property.
    Threads: start and stop from one thread.
    """

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str],
        host: str,
        port: int,
        token: str | None = None,
        may_edit: bool = False,
        registry: SchemaRegistry | None = None,
    ) -> None:
        clock = SystemClock()
        parse_bootstrap(bootstrap)
        security = ClientSecurity(properties)
        has_credentials = security.sasl is not None or any(name.startswith("ssl.key") for name in properties)
        self.token = token or (secrets.token_urlsafe(24) if has_credentials else None)
        users = RemoteUsers(bootstrap, security)
        self._open = over_the_wire(bootstrap, users.security_of)
        connections = Connections(self._open, clock)
        parts = Parts(
            connections, clock, Memory(clock), None, bootstrap, may_edit, clock.epoch_ms(), Applied(clock), registry
        )
        access = HttpAccess(self.token, clock, self.token is None, "--token")
        self._mounted = MountedPages(
            ROOT, lambda: Console(parts, access, users.own, users if users.have_passwords else None)
        )
        self._server = HttpServer(
            host, port, _Handler, _Served((self._mounted,)), name="console", max_connections=MAX_WITH_PAGES, clock=clock
        )

    def start(self) -> None:
        """Connect to the cluster once, bind and serve. Raises: BrokerConnectionError, KafkaError; OSError."""
        self._open(Identity("", "127.0.0.1")).close()
        self._server.start()

    def stop(self) -> None:
        """Stop serving, and close the connections to the cluster. Idempotent."""
        self._server.stop()
        self._mounted.close()

    @property
    def url(self) -> str:
        """Address of the pages. Raises: RuntimeError while they are not served."""
        return f"{self._server.url}{ROOT}/"


class _Handler(PageHandler):
    def do_GET(self) -> None:
        self.request_is_read()
        with contextlib.suppress(ValueError):
            target = urlsplit(self.path)
            mounted = self.mounted_pages(target)
            if mounted is not None:
                self.show_pages(mounted, target, b"")
                return
            if target.path == "/":
                self.send_page(303, b"", PLAIN, (("Location", f"{ROOT}/"),))
                return
        self.send_sentence(404, f"not found; the console is at {ROOT}/")

    do_HEAD = do_GET
