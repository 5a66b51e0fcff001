"""Options of ``format("kbroker")``: the names of the official connector, each checked, unknown ones refused.

Spark ignores the case of options, so they are looked up in lower case, and messages name them as the official
connector does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.client.admin import EARLIEST, LATEST
from kbroker.client.cluster import Cluster
from kbroker.client.connection import parse_bootstrap
from kbroker.client.partition_reader import FetchSettings
from kbroker.client.producer import CODECS
from kbroker.client.security import ClientSecurity
from kbroker.common.configs.config_def import INT32_MAX
from kbroker.spark.datasource.option_names import (
    CLIENT_SETTINGS,
    FROM_SPARK,
    OF_ANOTHER_KIND,
    READ_OPTIONS,
    REFUSED,
    SECURITY_SETTINGS,
    TOPIC_CHOICES,
    WRITE_OPTIONS,
)
from kbroker.spark.datasource.positions import Positions, parse_json_object, parse_positions, parse_timestamps
from kbroker.spark.errors import PipelineError

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
KEEP_ON = "set failOnDataLoss=false to continue with the remaining records"  # advice of every error about lost data
DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, None: 0.001}


@dataclass(frozen=True)
class ClientOptions:
    """Address and security of the cluster. `repr` does not show the passwords."""

    bootstrap: str
    client_id: str
    security: tuple[tuple[str, str], ...] = field(repr=False)
    connect_timeout_s: float
    request_timeout_s: float
    retry_timeout_s: float

    def connect(self) -> Cluster:
        """Open the cluster. Raises: BrokerConnectionError, KafkaError."""
        return ClientSecurity(dict(self.security)).open_cluster(
            self.bootstrap,
            client_id=self.client_id,
            connect_timeout_s=self.connect_timeout_s,
            request_timeout_s=self.request_timeout_s,
            retry_timeout_s=self.retry_timeout_s,
        )


@dataclass(frozen=True)
class Topics:
    """The partitions to read: named one by one, all of some topics, or all of topics whose name matches a pattern."""

    assigned: tuple[tuple[str, int], ...] = ()
    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """A checked set of options for reading."""

    client: ClientOptions
    topics: Topics
    start: Positions
    end: Positions  # batch only
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    fetch: FetchSettings
    max_offsets: int | None
    max_offsets_by_time: bool
    min_offsets: int | None
    max_delay_s: float
    min_partitions: int | None
    max_records: int | None
    end_offsets_age_s: float
    metadata_age_s: float


@dataclass(frozen=True)
class WriteOptions:
    """A checked set of options for writing."""

    client: ClientOptions
    topic: str | None
    acks: int
    codec: str
    idempotent: bool | None  # None: idempotent if the cluster allows it
    batch_size_bytes: int
    timeout_ms: int
    transactional_id: str | None = None  # prefix of the transactional ids of the tasks
    transaction_timeout_ms: int = 600_000


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a reader.

    Raises: PipelineError naming the option and what to do.
    """
    given = _Given(options, READ_OPTIONS)
    start, end = _starts(given, streaming)
    if streaming and (ending := given.first("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")):
        raise PipelineError(f"{ending} is for batch queries; a stream has no end, remove it or use spark.read")
    if not streaming and (
        limit := given.first("maxOffsetsPerTrigger", "maxOffsetsByTime", "minOffsetsPerTrigger", "maxTriggerDelay")
    ):
        raise PipelineError(f"{limit} is for streams; remove it or use spark.readStream")
    isolation = given.choice("kafka.isolation.level", "read_uncommitted", ("read_uncommitted", "read_committed"))
    fetch = FetchSettings(
        max_wait_ms=given.integer("kafka.fetch.max.wait.ms", 500, 0),
        min_bytes=given.integer("kafka.fetch.min.bytes", 1, 0),
        max_bytes=given.integer("kafka.fetch.max.bytes", 1 << 20, 1),
        max_partition_bytes=given.integer("kafka.max.partition.fetch.bytes", 1 << 20, 1),
        read_committed=isolation == "read_committed",
    )
    max_offsets = given.optional_integer("maxOffsetsPerTrigger", 1)
    min_offsets = given.optional_integer("minOffsetsPerTrigger", 1)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise PipelineError(
            f"minOffsetsPerTrigger ({min_offsets}) must not be above maxOffsetsPerTrigger ({max_offsets})"
        )
    return ReadOptions(
        client=_client(given),
        topics=_topics(given),
        start=start,
        end=end,
        columns=_columns(given),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        fetch=fetch,
        max_offsets=max_offsets,
        max_offsets_by_time=given.boolean("maxOffsetsByTime", False),
        min_offsets=min_offsets,
        max_delay_s=given.duration_s("maxTriggerDelay", "15m"),
        min_partitions=given.optional_integer("minPartitions", 1),
        max_records=given.optional_integer("maxRecordsPerPartition", 1),
        end_offsets_age_s=given.integer("endOffsetsMaxAgeMs", 100, 0) / 1000,
        metadata_age_s=given.integer("kafka.metadata.max.age.ms", 1000, 0) / 1000,
    )


def read_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that the options of a reader select; of other options only the names are checked.

    Raises: PipelineError.
    """
    return _columns(_Given(options, READ_OPTIONS))


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a writer.

    Raises: PipelineError naming the option and what to do.
    """
    given = _Given(options, WRITE_OPTIONS)
    acks = given.choice("kafka.acks", "all", ("all", "-1", "1", "0"))
    waits_for_all = acks in ("all", "-1")
    idempotent = given.boolean("kafka.enable.idempotence", waits_for_all)
    if idempotent and not waits_for_all:
        raise PipelineError(f"kafka.enable.idempotence=true needs kafka.acks=all, got {acks}")
    transactional_id = given.text("kafka.transactional.id")
    if transactional_id is not None and not (transactional_id and idempotent):
        raise PipelineError(
            "kafka.transactional.id must not be empty, and needs kafka.acks=all and kafka.enable.idempotence=true"
        )
    insisted = given.text("kafka.enable.idempotence") is not None
    return WriteOptions(
        client=_client(given),
        topic=given.text("topic"),
        acks=-1 if acks == "all" else int(acks),
        codec=given.choice("kafka.compression.type", "none", tuple(CODECS)),
        idempotent=idempotent if insisted or not idempotent else None,
        batch_size_bytes=given.integer("kafka.batch.size", 512 * 1024, 1),
        timeout_ms=given.integer("kafka.request.timeout.ms", 10_000, 1),
        transactional_id=transactional_id,
        transaction_timeout_ms=given.integer("kafka.transaction.timeout.ms", 600_000, 1),
    )


class _Given:
    """The given options; unknown ones are refused."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in (*known, *CLIENT_SETTINGS, *SECURITY_SETTINGS)}
        self.values: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if lower in names:
                self.values[names[lower]] = value
            elif lower not in FROM_SPARK:
                raise PipelineError(_unknown(lower, names))

    def text(self, name: str) -> str | None:
        return self.values.get(name)

    def first(self, *names: str) -> str | None:
        return next((name for name in names if name in self.values), None)

    def integer(self, name: str, default: int, lowest: int) -> int:
        found = self.optional_integer(name, lowest)
        if found is not None and found > INT32_MAX:  # requests and sockets accept no larger value
            raise PipelineError(f"{name} must be at most {INT32_MAX}, got {found}")
        return default if found is None else found

    def optional_integer(self, name: str, lowest: int) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\s*\d{1,18}\s*", text, re.ASCII) or int(text) < lowest:
            raise PipelineError(f"{name} must be a whole number >= {lowest}, got {text!r}")
        return int(text)

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, str(default).lower(), ("true", "false")) == "true"

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        text = self.values.get(name, default).strip().lower()
        if text not in allowed:
            raise PipelineError(f"{name} must be one of {', '.join(allowed)}, got {self.values[name]!r}")
        return text

    def duration_s(self, name: str, default: str) -> float:
        text = self.values.get(name, default)
        found = DURATION.fullmatch(text.strip().lower())
        if found is None:
            raise PipelineError(f"{name} must be a duration such as 30s or 15m, got {text!r}")
        return int(found[1]) * UNIT_S[found[2]]


def _unknown(name: str, known: Mapping[str, str]) -> str:
    if name in REFUSED:
        return REFUSED[name]
    if name in OF_ANOTHER_KIND:
        official, why = OF_ANOTHER_KIND[name]
        return f"{official} {why}"
    if name.startswith("kafka."):
        return (
            f"{name} is not a setting of this source; remove it (supported are: "
            f"{', '.join(sorted(n for n in known.values() if n.startswith('kafka.')))})"
        )
    return (
        f"unknown option {name!r}; remove it, or take one of "
        f"{', '.join(sorted(n for n in known.values() if not n.startswith('kafka.')))}, kafka.*"
    )


def _client(given: _Given) -> ClientOptions:
    bootstrap = given.text("kafka.bootstrap.servers")
    if bootstrap is None:
        raise PipelineError("kafka.bootstrap.servers is missing: name host:port of a broker")
    security = {name.removeprefix("kafka."): given.values[name] for name in SECURITY_SETTINGS if name in given.values}
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise PipelineError(f"kafka.bootstrap.servers: {error}") from None
    try:
        ClientSecurity(security)
    except ValueError as error:
        raise PipelineError(f"kafka.{error}") from None
    return ClientOptions(
        bootstrap=bootstrap,
        client_id=given.text("kafka.client.id") or "kbroker-spark",
        security=tuple(sorted(security.items())),
        connect_timeout_s=given.integer("kafka.socket.connection.setup.timeout.ms", 5_000, 1) / 1000,
        request_timeout_s=given.integer("kafka.request.timeout.ms", 10_000, 1) / 1000,
        retry_timeout_s=given.integer("kafka.default.api.timeout.ms", 10_000, 0) / 1000,
    )


def _topics(given: _Given) -> Topics:
    chosen = [name for name in TOPIC_CHOICES if name in given.values]
    if len(chosen) != 1:
        got = " and ".join(chosen) or "none"
        raise PipelineError(f"exactly one of assign, subscribe and subscribePattern must be given, got {got}")
    text = given.values[chosen[0]]
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise PipelineError(f"subscribePattern {text!r} is not a regular expression: {error}") from None
        return Topics(pattern=text)
    if chosen[0] == "subscribe":
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not names:
            raise PipelineError("subscribe names no topic")
        return Topics(names=names)
    return Topics(assigned=_assigned(text))


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    example = 'a JSON object such as {"topic":[0,1]}'
    found = parse_json_object("assign", text, example)
    pairs: set[tuple[str, int]] = set()
    for topic, partitions in found.items():
        for partition in partitions if isinstance(partitions, list) else [None]:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise PipelineError(f"assign must be {example}, got {text!r}")
            pairs.add((topic, partition))
    if not pairs:
        raise PipelineError("assign names no partition")
    return tuple(sorted(pairs))


def _columns(given: _Given) -> tuple[str, ...]:
    headers = given.boolean("includeHeaders", False)
    text = given.text("columns")
    if text is None:
        return COLUMNS if headers else COLUMNS[:-1]
    by_lower = {name.lower(): name for name in COLUMNS}
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name.lower() not in by_lower:
            raise PipelineError(f"columns: unknown column {name!r}; expected some of {', '.join(COLUMNS)}")
    found = tuple(by_lower[name.lower()] for name in chosen)
    if not found or len(set(found)) != len(found):
        raise PipelineError(f"columns must name at least one column, and each once, got {text!r}")
    if headers and "headers" not in found:
        raise PipelineError("includeHeaders=true needs headers in columns: add it there, or remove one of the options")
    return found


def _starts(given: _Given, streaming: bool) -> tuple[Positions, Positions]:
    start = _position(given, "starting", Positions("latest" if streaming else "earliest"))
    end = _position(given, "ending", Positions("latest"))
    if not streaming and (start.symbol == "latest" or LATEST in start.offsets.values()):
        raise PipelineError("startingOffsets: latest (-1) is for streams; a batch query would read nothing")
    if end.symbol == "earliest" or EARLIEST in end.offsets.values():
        raise PipelineError("endingOffsets: earliest (-2) would read nothing; take latest or offsets")
    return start, end


def _position(given: _Given, side: str, default: Positions) -> Positions:
    """Apply the order of precedence of the official connector: global timestamp, timestamps by partition, offsets."""
    timestamp = given.optional_integer(f"{side}Timestamp", 0)
    if timestamp is not None:
        return Positions(timestamp_ms=timestamp, strict=_strict(given, side), option=f"{side}Timestamp")
    by_partition = given.text(f"{side}OffsetsByTimestamp")
    if by_partition is not None:
        return parse_timestamps(f"{side}OffsetsByTimestamp", by_partition, strict=_strict(given, side))
    text = given.text(f"{side}Offsets")
    return default if text is None else parse_positions(f"{side}Offsets", text)


def _strict(given: _Given, side: str) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return side == "starting" and given.choice(name, "error", ("error", "latest")) == "error"
