"""The request log's schema: the columns of a record, their types, and its names in JSON.

One record stands for one completed request, for a verdict without one (a connection that had to wait), or for a request
that was refused: its connection was closed instead of a response. Version 4.
JSON uses the names of Kafka's request log (KIP-673, ``RequestConvertToJson``); Arrow and Parquet have one column each.
Columns are only ever added; ``VERSION`` says which set a record has. Source: spec of the network layer, 10 and 11.
"""

from __future__ import annotations

from typing import NamedTuple

VERSION = 4

#: Key of the Arrow schema's metadata that holds the version, and of the JSON object.
VERSION_KEY = "version"

TIMESTAMP_US, STRING, BOOL = "timestamp_us", "string", "bool"  # UTC microseconds since 1970
INT16, INT32, INT64, FLOAT64 = "int16", "int32", "int64", "float64"

QUOTA_TYPES = ("Produce", "Fetch", "Request", "ControllerMutation", "ConnectionRate")


class Column(NamedTuple):
    """One column. ``json``: its path in the JSON object, parts joined by dots; times there are milliseconds.

    ``fields`` are those of a list's elements, else empty. Every column may be null.
    """

    name: str
    type: str
    json: str
    fields: tuple[Column, ...] = ()


#: What a quota decision that delays or refuses leaves behind.
VERDICT = (
    Column("quota_type", STRING, "quotaType"),
    Column("user", STRING, "user"),  # of the counter that judged: empty where the quota's entity has no such part
    Column("client_id", STRING, "clientId"),
    Column("ip", STRING, "ip"),
    Column("level", INT16, "level"),  # of the eight, 1 the most specific; 0: none
    Column("observed", FLOAT64, "observed"),
    Column("limit", FLOAT64, "limit"),
    Column("window_ms", INT64, "windowMs"),
    Column("delay_asked_ms", INT64, "delayAskedMs"),  # by the formula, before any cap
    Column("delay_served_ms", INT64, "delayServedMs"),  # the longest of a request's carries all of it, the others 0
    Column("refused", BOOL, "refused"),
    Column("sequence", INT64, "sequence"),  # of the value judged; refused: of the last one recorded before
    Column("time_ms", INT64, "timeMs"),  # since 1970, as given to the counter
)

#: A value recorded into a client's quota counter.
UPDATE = (
    Column("quota_type", STRING, "quotaType"),
    Column("user", STRING, "user"),
    Column("client_id", STRING, "clientId"),
    Column("sequence", INT64, "sequence"),  # its place among all values of this counter, from 1
    Column("time_ms", INT64, "timeMs"),  # since 1970, as given to the counter
    Column("value", FLOAT64, "value"),  # bytes, percent of a thread, or mutations; below 0: given back
    Column("checked", BOOL, "checked"),  # whether this value was judged, or only counted
)

LIST = "list"

COLUMNS = (
    Column("time", TIMESTAMP_US, "time"),  # when the response was away
    Column("broker", INT32, "broker"),
    Column("sequence", INT64, "sequence"),  # of the records of a broker's life, also of those left out: gaps show
    Column("api_key", INT16, "requestHeader.requestApiKey"),  # null: a verdict without a request, or a refusal
    Column("api_version", INT16, "requestHeader.requestApiVersion"),
    Column("api_name", STRING, "requestHeader.requestApiKeyName"),  # PRODUCE, FETCH, API_VERSIONS ...
    Column("correlation_id", INT32, "requestHeader.correlationId"),
    Column("client_id", STRING, "requestHeader.clientId"),
    Column("connection", STRING, "connection"),
    Column("address", STRING, "address"),
    Column("principal", STRING, "principal"),
    Column("listener", STRING, "listener"),
    Column("security_protocol", STRING, "securityProtocol"),
    Column("software_name", STRING, "clientInformation.softwareName"),
    Column("software_version", STRING, "clientInformation.softwareVersion"),
    Column("request_bytes", INT64, "requestBytes"),
    Column("response_bytes", INT64, "responseBytes"),
    Column("request_queue_time_us", INT64, "requestQueueTimeMs"),
    Column("local_time_us", INT64, "localTimeMs"),
    Column("remote_time_us", INT64, "remoteTimeMs"),
    Column("response_queue_time_us", INT64, "responseQueueTimeMs"),
    Column("send_time_us", INT64, "sendTimeMs"),
    Column("total_time_us", INT64, "totalTimeMs"),
    Column("network_time_us", INT64, "networkTimeMs"),  # of the network thread, within the others
    Column("throttle_time_ms", INT32, "throttleTimeMs"),  # in the response; not part of the total
    Column("error_code", INT16, "errorCode"),  # the first one other than 0; 0 without an error
    Column("error_count", INT32, "errorCount"),  # how often it is in the response
    Column("sampling", FLOAT64, "sampling"),  # the share of requests that is recorded
    Column("repeated", INT32, "repeated"),  # requests this record stands for: idle polls of a second are one, as are
    # refusals beyond the first ten of a second
    Column("verdicts", LIST, "quota.verdicts", VERDICT),
    Column("updates", LIST, "quota.updates", UPDATE),
    # since version 2; null: the request has none. Its first 1024 bytes of UTF-8
    Column("transactional_id", STRING, "request.transactionalId"),
    # since version 3; null: no refusal. A refusal has these, time, broker, sequence, connection, address, listener,
    # sampling and repeated; key and version are guesses, null where there is none
    Column("refusal", STRING, "refusal.reason"),  # unknown-api, unsupported-version, malformed-header ...
    Column("refused_api_key", INT16, "refusal.requestApiKey"),
    Column("refused_api_version", INT16, "refusal.requestApiVersion"),
    # since version 4; null: none. Of shadow quotas: what an enforced one would have decided; nothing was delayed or
    # refused. Their own list, so that readers of verdicts do not take them for throttles
    Column("shadow_verdicts", LIST, "quota.shadowVerdicts", VERDICT),
)
