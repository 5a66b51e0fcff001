"""The table of APIs: key to versions and handler. ApiVersions and the native handlers' table derive from it."""

import os
import struct
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from kbroker.common.errors import Errors
from kbroker.handlers.forwarded_api import ForwardedApi, forward_unchanged
from kbroker.protocol import codec
from kbroker.protocol.schema import response_plan
from kbroker.requests.context import ApiContext, Body, LongWork, RequestContext
from kbroker.telemetry.decoder import has_decoder

Handler = Callable[[ApiContext, Body, RequestContext], Body | LongWork | None]  # None: the response comes later
ErrorResponseBuilder = Callable[[Body, Errors, RequestContext], Body]

NEVER_FLEXIBLE = 32767
_PRODUCE, _FETCH, _API_VERSIONS = 0, 1, 18
_NATIVE = frozenset({_PRODUCE, _FETCH, _API_VERSIONS})  # native handlers get their requests first

#: APIs of client telemetry, which need the decoder of its metrics.
_TELEMETRY = frozenset({71, 72})

#: APIs whose requests a member of a cluster forwards to the active controller. Source: ``ApiKeys.forwardable``.
_FORWARDED = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81})

#: APIs with a handler in ``kbroker.apis``. Its module has the name of the API's message table, and is imported at the
#: API's first request.
_HANDLED = frozenset({2, 3, *range(8, 52), 55, 57, 60, 61, 64, 65, 66, 68, 69, 71, 72, *range(74, 82), *range(83, 93)})


class ApiEntry(NamedTuple):
    """One API. ``min_served_version``: Produce advertises 0 to 2, which old librdkafka looks for, but serves from 3.

    ``handle`` is None where only native handlers serve the API; ``is_native``: they get its requests first;
    ``is_forwarded``: the active controller serves them.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    min_served_version: int
    first_flexible: int
    handle: Handler | None
    failure: ErrorResponseBuilder | None
    is_native: bool
    is_forwarded: bool = False


def whole_failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return a response that fails as a whole: error code, error text if it has that field, defaults for all else."""
    response = response_plan(request.api_key, request.api_version).default()
    response["ErrorCode"] = int(error)
    if "ErrorMessage" in response:
        response["ErrorMessage"] = error.message
    return response


class LateFunction:
    """A function of a module that is imported when it is first called. Threads: any.

    Args: ``default``: used if the module has no such function.
    """

    __slots__ = ("_default", "_function", "module", "name")

    def __init__(self, module: str, name: str, *default: Callable[..., Any]) -> None:
        self.module = module
        self.name = name
        self._default = default
        self._function: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        function = self._function
        return (self.load() if function is None else function)(*arguments)

    def load(self) -> Callable[..., Any]:
        """Import the module and return the function. Raises: AttributeError, and the errors of the import."""
        with _import_lock:
            function: Callable[..., Any] = getattr(import_module(self.module), self.name, *self._default)
            self._function = function
        return function


# Serializes imports: two handlers may share modules. A fork waits for an import in another thread; otherwise the child
# would have a partial module, and a lock that is never released.
_import_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_import_lock.acquire, after_in_parent=_import_lock.release, after_in_child=_import_lock.release
    )


class KafkaApis:
    """Table of the APIs that this broker serves.

    Args: ``forwards``: whether this broker is a member of a cluster, whose controllers serve some of the APIs.
    Attributes: ``controller_versions`` returns the versions of the active controller, empty while they are unknown.
    Threads: any.
    """

    def __init__(self, *, forwards: bool = False) -> None:
        self._forwards = forwards
        self.controller_versions: Callable[[], Mapping[int, tuple[int, int]]] = dict
        absent = frozenset() if has_decoder() else _TELEMETRY
        self.entries = {key: self._entry(key) for key in sorted((_HANDLED | _NATIVE) - absent)}

    def _entry(self, key: int) -> ApiEntry:
        schema = codec.api(key)
        low, high = schema.advertised_versions
        flexible = NEVER_FLEXIBLE if schema.flexible_from is None else schema.flexible_from
        min_served_version = max(low, schema.request_versions[0])
        is_forwarded = self._forwards and key in _FORWARDED
        handle: Handler | None = None
        failure: ErrorResponseBuilder | None = None
        if key in _HANDLED:
            module = f"kbroker.apis.{schema.file.removesuffix('.json')}"
            failure = LateFunction(module, "failure", whole_failure)
            if is_forwarded:
                handle = ForwardedApi(LateFunction(module, "before_forwarding", forward_unchanged), failure)
            else:
                handle = LateFunction(module, "handle")
        is_native = key in _NATIVE
        return ApiEntry(
            *(key, schema.name, low, high, min_served_version, flexible, handle, failure, is_native, is_forwarded)
        )

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """Return the advertised versions by key; for a forwarded API, only those the controller supports too."""
        ranges = {entry.key: (entry.min_version, entry.max_version) for entry in self.entries.values()}
        controller = self.controller_versions() if self._forwards else {}
        if controller:
            for key in [key for key, entry in self.entries.items() if entry.is_forwarded]:
                (low, high), (their_low, their_high) = ranges[key], controller.get(key, (0, -1))
                ranges[key] = max(low, their_low), min(high, their_high)
                if ranges[key][0] > ranges[key][1]:
                    del ranges[key]
        return ranges

    def find(self, key: int, version: int) -> ApiEntry | None:
        """Return the entry that serves this version; None if it is unsupported: the caller closes the connection."""
        entry = self.entries.get(key)
        return entry if entry is not None and entry.min_served_version <= version <= entry.max_version else None


class Header(Protocol):
    """Fields of a request's header on which the header of its response depends."""

    @property
    def api_version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...


def encode_response(entry: ApiEntry, request: Header, body: Body) -> bytes:
    """Return response header and body, without the length before them."""
    flexible = request.api_version >= entry.first_flexible and entry.key != _API_VERSIONS
    header = struct.pack(">i", request.correlation_id) + (b"\0" if flexible else b"")
    return codec.encode_response(entry.key, request.api_version, body, header)
