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
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.telemetry.decoder import has_decoder

Handler = Callable[[ApiContext, Body, RequestContext], Body | None]
ErrorResponseBuilder = Callable[[Body, Errors, RequestContext], Body]
TakesLong = Callable[[ApiContext, Body, RequestContext], bool]

NEVER_FLEXIBLE = 32767
_PRODUCE, _FETCH, _API_VERSIONS = 0, 1, 18
_NATIVE = frozenset({_PRODUCE, _FETCH, _API_VERSIONS})  # native handlers get their requests first

#: APIs of client telemetry, which need the decoder of its metrics.
_TELEMETRY = {71: "api71_get_telemetry_subscriptions", 72: "api72_push_telemetry"}

#: Requests of these go to the active controller in a member of a cluster. Source: ``ApiKeys.forwardable``.
_FORWARDED = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81})

#: APIs of topics, whose modules find whether a request takes seconds.
_MAY_TAKE_LONG = frozenset({19, 20, 37})

#: The module of each API's handler in ``kbroker.apis``, imported at the API's first request.
_MODULES = {
    2: "api02_list_offsets",
    3: "api03_metadata",
    8: "api08_offset_commit",
    9: "api09_offset_fetch",
    10: "api10_find_coordinator",
    11: "api11_join_group",
    12: "api12_heartbeat",
    13: "api13_leave_group",
    14: "api14_sync_group",
    15: "api15_describe_groups",
    16: "api16_list_groups",
    17: "api17_sasl_handshake",
    18: "api18_api_versions",
    19: "api19_create_topics",
    20: "api20_delete_topics",
    21: "api21_delete_records",
    22: "api22_init_producer_id",
    23: "api23_offset_for_leader_epoch",
    24: "api24_add_partitions_to_txn",
    25: "api25_add_offsets_to_txn",
    26: "api26_end_txn",
    27: "api27_write_txn_markers",
    28: "api28_txn_offset_commit",
    29: "api29_describe_acls",
    30: "api30_create_acls",
    31: "api31_delete_acls",
    32: "api32_describe_configs",
    33: "api33_alter_configs",
    34: "api34_alter_replica_log_dirs",
    35: "api35_describe_log_dirs",
    36: "api36_sasl_authenticate",
    37: "api37_create_partitions",
    38: "api38_create_delegation_token",
    39: "api39_renew_delegation_token",
    40: "api40_expire_delegation_token",
    41: "api41_describe_delegation_token",
    42: "api42_delete_groups",
    43: "api43_elect_leaders",
    44: "api44_incremental_alter_configs",
    45: "api45_alter_partition_reassignments",
    46: "api46_list_partition_reassignments",
    47: "api47_offset_delete",
    48: "api48_describe_client_quotas",
    49: "api49_alter_client_quotas",
    50: "api50_describe_user_scram_credentials",
    51: "api51_alter_user_scram_credentials",
    55: "api55_describe_quorum",
    57: "api57_update_features",
    60: "api60_describe_cluster",
    61: "api61_describe_producers",
    64: "api64_unregister_broker",
    65: "api65_describe_transactions",
    66: "api66_list_transactions",
    68: "api68_consumer_group_heartbeat",
    69: "api69_consumer_group_describe",
    **_TELEMETRY,
    74: "api74_list_config_resources",
    75: "api75_describe_topic_partitions",
    76: "api76_share_group_heartbeat",
    77: "api77_share_group_describe",
    78: "api78_share_fetch",
    79: "api79_share_acknowledge",
    80: "api80_add_raft_voter",
    81: "api81_remove_raft_voter",
    83: "api83_initialize_share_group_state",
    84: "api84_read_share_group_state",
    85: "api85_write_share_group_state",
    86: "api86_delete_share_group_state",
    87: "api87_read_share_group_state_summary",
    88: "api88_streams_group_heartbeat",
    89: "api89_streams_group_describe",
    90: "api90_describe_share_group_offsets",
    91: "api91_alter_share_group_offsets",
    92: "api92_delete_share_group_offsets",
}


class ApiEntry(NamedTuple):
    """One API. ``min_served_version``: Produce advertises 0 to 2, which old librdkafka looks for, but serves from 3.

    ``handle`` is None where only native handlers serve the API; ``is_native``: they get its requests first;
    ``is_forwarded``: the active controller serves them; ``takes_long``: None if no request of the API does.
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
    takes_long: TakesLong | None = None


def whole_failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return an error for a whole request: its code, its text where the response has one, defaults for all else."""
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
    ``controller_versions`` returns the versions of the active controller, empty while they are unknown.
    Threads: any.
    """

    def __init__(self, *, forwards: bool = False) -> None:
        self._forwards = forwards
        self.controller_versions: Callable[[], Mapping[int, tuple[int, int]]] = dict
        absent = set() if has_decoder() else set(_TELEMETRY)
        self.entries = {key: self._entry(key, _MODULES.get(key)) for key in sorted({*_MODULES, *_NATIVE} - absent)}

    def _entry(self, key: int, name: str | None) -> ApiEntry:
        schema = codec.api(key)
        low, high = schema.advertised_versions
        flexible = NEVER_FLEXIBLE if schema.flexible_from is None else schema.flexible_from
        min_served_version = max(low, schema.request_versions[0])
        is_forwarded = self._forwards and key in _FORWARDED
        handle: Handler | None = None
        failure: ErrorResponseBuilder | None = None
        takes_long: TakesLong | None = None
        if name is not None:
            module = f"kbroker.apis.{name}"
            failure = LateFunction(module, "failure", whole_failure)
            if is_forwarded:
                handle = ForwardedApi(LateFunction(module, "before_forwarding", forward_unchanged), failure)
            else:
                handle = LateFunction(module, "handle")
                takes_long = LateFunction(module, "takes_long") if key in _MAY_TAKE_LONG else None
        is_native = key in _NATIVE
        return ApiEntry(
            *(key, schema.name, low, high, min_served_version, flexible, handle, failure, is_native, is_forwarded),
            takes_long,
        )

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """Advertised versions by key; of a forwarded API those that the controller supports too."""
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
        """Return the entry that serves this version; None if unsupported, and the connection is then closed."""
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
