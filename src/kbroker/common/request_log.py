"""Schema of the request log: the columns of a record, their types, and their names in JSON.

One record describes one completed request, a verdict without one (a connection that had to wait), or a request that was
refused: its connection was closed without a response. Version 5. JSON uses the names of Kafka's request log
(KIP-673, ``RequestConvertToJson``); Arrow and Parquet have one column each. Columns are only ever added; ``VERSION``
identifies the set of columns.
"""

from typing import Any, NamedTuple

VERSION = 5

#: Key of the version, in the Arrow schema's metadata and in the JSON object.
VERSION_KEY = "version"

TIMESTAMP_US, STRING, BOOL = "timestamp_us", "string", "bool"  # UTC microseconds since 1970
INT16, INT32, INT64, FLOAT64 = "int16", "int32", "int64", "float64"

QUOTA_TYPES = ("Produce", "Fetch", "Request", "ControllerMutation", "ConnectionRate")


class Column(NamedTuple):
    """One column. ``json``: its path in the JSON object, parts joined by dots; times there are milliseconds.

    ``fields``: the fields of a list's elements, else empty. Every column may be null.
    """

    name: str
    type: str
    json: str
    fields: "tuple[Column, ...]" = ()


#: A decision of a quota that delays or refuses.
VERDICT = (
    Column("quota_type", STRING, "quotaType"),
    Column("user", STRING, "user"),  # of the counter that judged: empty if the quota's entity has no user
    Column("client_id", STRING, "clientId"),
    Column("ip", STRING, "ip"),
    Column("level", INT16, "level"),  # of the eight levels, 1 the most specific; 0: none
    Column("observed", FLOAT64, "observed"),
    Column("limit", FLOAT64, "limit"),
    Column("window_ms", INT64, "windowMs"),
    Column("delay_asked_ms", INT64, "delayAskedMs"),  # by the formula, before any cap
    Column("delay_served_ms", INT64, "delayServedMs"),  # the whole delay for the longest of a request, else 0
    Column("refused", BOOL, "refused"),
    Column("sequence", INT64, "sequence"),  # of the judged value; refused: of the last one recorded before
    Column("time_ms", INT64, "timeMs"),  # since 1970, as given to the counter
)

#: A value recorded into a client's quota counter.
UPDATE = (
    Column("quota_type", STRING, "quotaType"),
    Column("user", STRING, "user"),
    Column("client_id", STRING, "clientId"),
    Column("sequence", INT64, "sequence"),  # number of the value in this counter, from 1
    Column("time_ms", INT64, "timeMs"),  # since 1970, as given to the counter
    Column("value", FLOAT64, "value"),  # bytes, percent of a thread, or mutations; below 0: refunded
    Column("checked", BOOL, "checked"),  # whether this value was judged, or only recorded
)

#: Records that a Produce has appended to a partition.
APPENDED = (
    Column("topic", STRING, "topic"),
    Column("partition", INT32, "partition"),
    Column("first_offset", INT64, "firstOffset"),
    Column("last_offset", INT64, "lastOffset"),
)

LIST = "list"

COLUMNS = (
    Column("time", TIMESTAMP_US, "time"),  # when the response was sent
    Column("broker", INT32, "broker"),
    Column("sequence", INT64, "sequence"),  # of records since the start; suppressed ones leave gaps
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
    Column("network_time_us", INT64, "networkTimeMs"),  # of the network thread, part of the other times
    Column("throttle_time_ms", INT32, "throttleTimeMs"),  # in the response; not part of the total
    Column("error_code", INT16, "errorCode"),  # the first one other than 0; 0 without an error
    Column("error_count", INT32, "errorCount"),  # number of its occurrences in the response
    Column("sampling", FLOAT64, "sampling"),  # recorded fraction of the requests
    Column("repeated", INT32, "repeated"),  # number of requests in this record: idle polls of a second,
    # and refusals beyond the first ten of a second
    Column("verdicts", LIST, "quota.verdicts", VERDICT),
    Column("updates", LIST, "quota.updates", UPDATE),
    # since version 2; null: the request has no transactional id. Its first 1024 bytes of UTF-8
    Column("transactional_id", STRING, "request.transactionalId"),
    # since version 3; null: not a refusal. A refusal has these, time, broker, sequence, connection, address, listener,
    # sampling and repeated; key and version are guesses, null if unknown
    Column("refusal", STRING, "refusal.reason"),  # unknown-api, unsupported-version, malformed-header ...
    Column("refused_api_key", INT16, "refusal.requestApiKey"),
    Column("refused_api_version", INT16, "refusal.requestApiVersion"),
    # since version 4; null: none. Decisions that shadow quotas would have made if they were enforced; nothing was
    # delayed or refused. A separate list, so that readers of verdicts do not mistake them for throttles
    Column("shadow_verdicts", LIST, "quota.shadowVerdicts", VERDICT),
    # since version 5; null: not a Produce, nothing appended, or kbroker.request.log.offsets is off
    Column("appended", LIST, "response.appended", APPENDED),
)


def arrow_schema() -> Any:
    """Return the columns of a record as a ``pyarrow.Schema``, with the version in its metadata."""
    import pyarrow as pa

    fields = [pa.field(column.name, arrow_type(column)) for column in COLUMNS]
    return pa.schema(fields, metadata={VERSION_KEY: str(VERSION)})


def arrow_type(column: Column) -> Any:
    """Return the type of a column as a ``pyarrow.DataType``."""
    import pyarrow as pa

    if column.type == LIST:
        return pa.list_(pa.struct([pa.field(field.name, arrow_type(field)) for field in column.fields]))
    return pa.timestamp("us", "UTC") if column.type == TIMESTAMP_US else pa.type_for_alias(column.type)
