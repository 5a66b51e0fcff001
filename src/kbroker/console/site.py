"""Interface of a page to its console: the cluster, the user's identity, and the broker of this process if there is one.

A page reads and changes the cluster through ``Site.cluster`` and the clients of ``kbroker.client`` over it (``admin``,
``groups``, ``acls`` ...), as the signed-in user: the broker decides what that user may do. The parts of the broker
(``broker``, ``context``, ``history``) are for pages that Kafka's protocol has no requests for; such a page is marked
``needs_broker`` in ``pages.py``, and `kbroker console` does not offer it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from kbroker._core.clock import BaseClock
from kbroker.broker import Broker
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.schema_registry import SchemaRegistry
from kbroker.common.security.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.console import ROOT as ROOT
from kbroker.console.applied import Applied
from kbroker.console.connections import Connections, Identity
from kbroker.console.denied import needing
from kbroker.console.history import History
from kbroker.console.lag_history import LagHistory
from kbroker.console.requests import PageError
from kbroker.console.topic_history import TopicHistory
from kbroker.requests.context import ApiContext

LONGEST_HREF = 60_000  # characters; a request's first line may have 65,536
REMEMBERED_MS = 2000
METADATA_MS = 10_000  # lifetime of values that depend on the metadata alone, while it is unchanged
MAX_REMEMBERED = 64

T = TypeVar("T")


class Memory:
    """Results that pages need again within seconds, such as the names of all topics. Threads: any."""

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[object, tuple[int, object, Any]] = {}

    def get(self, key: object, make: Callable[[], T], version: object = None) -> T:
        """Return a cached value, or a new one; with ``version``, it lasts longer while that is the same object."""
        now_ms = self._clock.now_ms()
        with self._lock:
            found = self._values.get(key)
        if found is not None and found[0] > now_ms and found[1] is version:
            value: T = found[2]
            return value
        value = make()
        until_ms = self._clock.now_ms() + (REMEMBERED_MS if version is None else METADATA_MS)
        with self._lock:
            self._values = {key: kept for key, kept in self._values.items() if kept[0] > now_ms}
            if len(self._values) < MAX_REMEMBERED:
                self._values[key] = (until_ms, version, value)
        return value

    def clear(self) -> None:
        """Drop everything, after a change."""
        with self._lock:
            self._values.clear()


class Local(NamedTuple):
    """The broker of this process, and its last ten minutes."""

    broker: Broker
    history: History
    topic_history: TopicHistory


class Parts(NamedTuple):
    """Data of a console that all its pages share.

    ``local``: None in `kbroker console`; ``place``: display name of the cluster; ``may_edit``: whether pages may change
    things; ``started_ms``: start time, since 1970; ``applied``: the changes that were made; ``registry``: the Schema
    Registry used to decode messages.
    """

    connections: Connections
    clock: BaseClock
    memory: Memory
    local: Local | None
    place: str
    may_edit: bool
    started_ms: int
    applied: Applied
    registry: SchemaRegistry | None = None

    @property
    def edit_setting(self) -> str:
        """Return the setting that allows changes."""
        return "--edit" if self.local is None else "kbroker.console.edit"


class Site:
    """Data for one request. ``cluster`` is leased at its first use, until the context ends. Threads: the request's.

    ``lags``: those of the groups that pages have shown lately.
    """

    def __init__(self, parts: Parts, identity: Identity, lags: LagHistory) -> None:
        self.parts = parts
        self.identity = identity
        self.lags = lags
        self._leases = ExitStack()
        self._cluster: Cluster | None = None

    def __enter__(self) -> Site:
        self._leases.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._leases.__exit__(kind, error, trace)

    # ------------------------------------------------------------ the cluster

    @property
    def cluster(self) -> Cluster:
        """Connections to the cluster as this user. Raises: BrokerConnectionError."""
        if self._cluster is None:
            self._cluster = self._leases.enter_context(self.parts.connections.lease(self.identity))
        return self._cluster

    @property
    def admin(self) -> Admin:
        """Administrative requests as this user."""
        return Admin(self.cluster)

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Return a value that this user's pages requested within the last two seconds, or a new one."""
        return self.parts.memory.get((self.identity, name), make)

    def remember_metadata(self, name: str, make: Callable[[], T]) -> T:
        """Return a cached value that depends on the cluster's metadata alone: topics, configs, ACLs, quotas.

        It lasts longer than others while the metadata of a broker in this process is unchanged.
        """
        version = self.context.image if self.has_broker else None
        return self.parts.memory.get((self.identity, name), make, version)

    def needs(
        self, operation: Operation, kind: ResourceType = ResourceType.CLUSTER, name: str = CLUSTER_NAME
    ) -> AbstractContextManager[None]:
        """Return a context in which an authorization error about the resource names this ACL (PageError 403)."""
        return needing(self.identity.principal, operation, kind, name)

    @property
    def clock(self) -> BaseClock:
        """The console's clock."""
        return self.parts.clock

    # ------------------------------------------------------------ the broker of this process

    @property
    def has_broker(self) -> bool:
        """Return whether the broker is in this process."""
        return self.parts.local is not None

    @property
    def local(self) -> Local:
        """The broker of this process with its history. Raises: PageError 404 without one."""
        if self.parts.local is None:
            raise PageError(404, "This page needs the console of the broker itself.")
        return self.parts.local

    @property
    def broker(self) -> Broker:
        """The broker. Raises: PageError 404 without one."""
        return self.local.broker

    @property
    def context(self) -> ApiContext:
        """The broker's parts. Raises: PageError 404 without a broker."""
        return self.broker.context

    @property
    def may_describe_cluster(self) -> bool:
        """Return whether the broker's ACLs allow this user Describe on the cluster, for what is read from its parts."""
        return bool(self.allowed(Operation.DESCRIBE, ResourceType.CLUSTER, [CLUSTER_NAME]))

    def allowed(self, operation: Operation, kind: ResourceType, names: Iterable[str]) -> list[str]:
        """Return the names that the broker's ACLs allow this user, as its handlers decide.

        For long lists of the broker's parts; everything else is requested from the cluster.
        """
        authorizer = self.context.auth.authorizer
        if authorizer is None:
            return list(names)
        return [name for name in names if authorizer.permitted(kind, name, *self.identity) >> operation & 1]


class View(NamedTuple):
    """A page to be rendered: its title, template and values; ``entry``: the menu entry, if not that of its address."""

    title: str
    template: str
    values: Mapping[str, Any]
    status: int = 200
    entry: str = ""


class Download(NamedTuple):
    """Bytes that the browser saves as a file."""

    data: bytes
    file_name: str


class Json(NamedTuple):
    """Value that a page passes to its script as JSON."""

    value: Any


def address(page: str, **query: object) -> str:
    """Return the address of a page; parameters that are None or empty are left out.

    Empty if a name is not UTF-8, because queries must be UTF-8 and the id of a group need not be.
    """
    kept = {name.rstrip("_"): value for name, value in query.items() if value is not None and value != ""}
    try:
        return f"{ROOT}/{page}" + (f"?{urlencode(kept)}" if kept else "")
    except UnicodeEncodeError:
        return ""


def short_enough(href: str) -> str:
    """Return the address; empty if it is too long for the HTTP port: names may have 32,767 bytes, each as %XX."""
    return href if len(href) <= LONGEST_HREF else ""
