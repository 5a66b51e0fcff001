"""The table of APIs: key to versions and handler. The ApiVersions answer and the native lane's table derive from it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import NamedTuple, Protocol

from kbroker.common.errors import Errors
from kbroker.protocol import codec
from kbroker.server.apis import (
    api02_list_offsets,
    api03_metadata,
    api08_offset_commit,
    api09_offset_fetch,
    api10_find_coordinator,
    api11_join_group,
    api12_heartbeat,
    api13_leave_group,
    api14_sync_group,
    api15_describe_groups,
    api16_list_groups,
    api17_sasl_handshake,
    api18_api_versions,
    api19_create_topics,
    api20_delete_topics,
    api21_delete_records,
    api22_init_producer_id,
    api23_offset_for_leader_epoch,
    api32_describe_configs,
    api33_alter_configs,
    api34_alter_replica_log_dirs,
    api35_describe_log_dirs,
    api36_sasl_authenticate,
    api37_create_partitions,
    api42_delete_groups,
    api43_elect_leaders,
    api44_incremental_alter_configs,
    api45_alter_partition_reassignments,
    api46_list_partition_reassignments,
    api47_offset_delete,
    api48_describe_client_quotas,
    api49_alter_client_quotas,
    api50_describe_user_scram_credentials,
    api51_alter_user_scram_credentials,
    api55_describe_quorum,
    api60_describe_cluster,
    api61_describe_producers,
    api74_list_config_resources,
    api75_describe_topic_partitions,
)
from kbroker.server.context import ApiContext, Body, RequestContext

Handle = Callable[[ApiContext, Body, RequestContext], Body | None]
Failure = Callable[[Body, Errors, RequestContext], Body]

NEVER_FLEXIBLE = 32767


class ApiEntry(NamedTuple):
    """One API. ``served_from``: Produce advertises 0 to 2, which old librdkafka looks for, but serves from 3.

    ``handle`` is None where only the native lane can answer; ``is_native``: the lane is asked first.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    served_from: int
    first_flexible: int
    handle: Handle | None
    failure: Failure | None
    is_native: bool


class KafkaApis:
    """What this broker serves. Immutable after construction."""

    def __init__(self) -> None:
        self.entries: dict[int, ApiEntry] = {}
        self._add(0, None, is_native=True)
        self._add(1, None, is_native=True)
        self._add(2, api02_list_offsets)
        self._add(3, api03_metadata)
        self._add(8, api08_offset_commit)
        self._add(9, api09_offset_fetch)
        self._add(10, api10_find_coordinator)
        self._add(11, api11_join_group)
        self._add(12, api12_heartbeat)
        self._add(13, api13_leave_group)
        self._add(14, api14_sync_group)
        self._add(15, api15_describe_groups)
        self._add(16, api16_list_groups)
        self._add(17, api17_sasl_handshake)
        self._add(18, api18_api_versions, is_native=True)
        self._add(19, api19_create_topics)
        self._add(20, api20_delete_topics)
        self._add(21, api21_delete_records)
        self._add(22, api22_init_producer_id)
        self._add(23, api23_offset_for_leader_epoch)
        self._add(32, api32_describe_configs)
        self._add(33, api33_alter_configs)
        self._add(34, api34_alter_replica_log_dirs)
        self._add(35, api35_describe_log_dirs)
        self._add(36, api36_sasl_authenticate)
        self._add(37, api37_create_partitions)
        self._add(42, api42_delete_groups)
        self._add(43, api43_elect_leaders)
        self._add(44, api44_incremental_alter_configs)
        self._add(45, api45_alter_partition_reassignments)
        self._add(46, api46_list_partition_reassignments)
        self._add(47, api47_offset_delete)
        self._add(48, api48_describe_client_quotas)
        self._add(49, api49_alter_client_quotas)
        self._add(50, api50_describe_user_scram_credentials)
        self._add(51, api51_alter_user_scram_credentials)
        self._add(55, api55_describe_quorum)
        self._add(60, api60_describe_cluster)
        self._add(61, api61_describe_producers)
        self._add(74, api74_list_config_resources)
        self._add(75, api75_describe_topic_partitions)

    def _add(self, key: int, module: ModuleType | None, is_native: bool = False) -> None:
        schema = codec.api(key)
        low, high = schema.advertised_versions
        flexible = NEVER_FLEXIBLE if schema.flexible_from is None else schema.flexible_from
        handle = None if module is None else module.handle
        failure = None if module is None else module.failure
        served_from = max(low, schema.request_versions[0])
        self.entries[key] = ApiEntry(key, schema.name, low, high, served_from, flexible, handle, failure, is_native)

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        """Advertised versions by key."""
        return {entry.key: (entry.min_version, entry.max_version) for entry in self.entries.values()}

    def find(self, key: int, version: int) -> ApiEntry | None:
        """The entry that serves this version, or None: then the connection is closed."""
        entry = self.entries.get(key)
        return entry if entry is not None and entry.served_from <= version <= entry.max_version else None


class Header(Protocol):
    """What an answer's header depends on."""

    @property
    def api_version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...


def encode_answer(entry: ApiEntry, request: Header, body: Body) -> bytes:
    """Return response header and body, without the length before them."""
    flexible = request.api_version >= entry.first_flexible and entry.key != api18_api_versions.KEY
    header = struct.pack(">i", request.correlation_id) + (b"\0" if flexible else b"")
    return header + codec.encode_response(entry.key, request.api_version, body)
