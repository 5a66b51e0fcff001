"""Options of the Spark source: official names in any case, and errors for invalid values."""

import pytest

from kbroker.client.admin import EARLIEST, LATEST
from kbroker.spark.datasource.options import COLUMNS, ReadOptions, Topics, read_columns, read_options, write_options
from kbroker.spark.datasource.positions import Positions
from kbroker.spark.errors import PipelineError

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def read(streaming: bool = False, **more: str) -> ReadOptions:
    return read_options({**BASE, **{k.replace("__", "."): v for k, v in more.items()}}, streaming=streaming)


def refusal(streaming: bool = False, base: dict[str, str] = BASE, **more: str) -> str:
    with pytest.raises(PipelineError) as caught:
        read_options({**base, **{k.replace("__", "."): v for k, v in more.items()}}, streaming=streaming)
    return str(caught.value)


def test_defaults_are_the_official_ones() -> None:
    """A batch query reads from earliest to latest, a stream begins at latest, and data loss is an error."""
    batch, stream = read(), read(streaming=True)
    assert (batch.start, batch.end, stream.start) == (Positions("earliest"), Positions("latest"), Positions("latest"))
    assert batch.fail_on_data_loss
    assert not batch.fetch.read_committed
    assert batch.columns == COLUMNS[:-1]
    assert batch.topics == Topics(names=("t",))


def test_names_have_no_case() -> None:
    """Spark passes option names in lower case."""
    assert read(startingoffsets="EARLIEST", INCLUDEHEADERS="True").columns == COLUMNS


def test_offsets_by_partition() -> None:
    """The offsets -2 and -1 mean earliest and latest, and kbroker's entries of a checkpoint are ignored."""
    text = '{"t": {"0": 5, "1": -2}, "#topicIds": {"t": "x"}}'
    assert read(startingOffsets=text).start.offsets == {("t", 0): 5, ("t", 1): EARLIEST}
    assert read(streaming=True, startingOffsets='{"t": {"0": -1}}').start.offsets == {("t", 0): LATEST}


def test_timestamps_come_before_offsets() -> None:
    """A timestamp precedes timestamps by partition, and these precede offsets, as in the official source."""
    found = read(startingTimestamp="7", startingOffsets="earliest", startingOffsetsByTimestamp='{"t":{"0":1}}').start
    assert (found.timestamp_ms, found.strict) == (7, True)
    found = read(startingOffsetsByTimestamp='{"t":{"0":1}}', startingOffsetsByTimestampStrategy="latest").start
    assert (found.timestamps_ms, found.strict) == ({("t", 0): 1}, False)
    assert read(endingTimestamp="9").end == Positions(timestamp_ms=9, option="endingTimestamp")


def test_topics() -> None:
    """Topics are chosen by exactly one of assign, subscribe and subscribePattern."""
    only = {"kafka.bootstrap.servers": "h:1"}
    assert read_options({**only, "assign": '{"b":[1,0],"a":[2]}'}, streaming=False).topics.assigned == (
        ("a", 2),
        ("b", 0),
        ("b", 1),
    )
    assert read_options({**only, "subscribe": "a, b,a"}, streaming=False).topics.names == ("a", "b")
    assert read_options({**only, "subscribePattern": "a.*"}, streaming=False).topics.pattern == "a.*"
    assert "got none" in refusal(base=only)
    assert "got assign and subscribe" in refusal(assign='{"t":[0]}')
    assert "is not a regular expression" in refusal(base=only, subscribePattern="(")
    for text in ("x", "[]", "{}", '{"t":0}', '{"t":[-1]}', '{"t":["0"]}'):
        assert "assign" in refusal(base=only, assign=text)


def test_columns_are_narrowed_in_the_order_given() -> None:
    """`columns` selects the columns, including headers without another option."""
    assert read(columns="Offset, headers,key").columns == ("offset", "headers", "key")
    assert read_columns({**BASE, "columns": "value", "startingOffsets": "latest"}) == ("value",)
    assert "unknown column 'x'" in refusal(columns="x")
    assert "each once" in refusal(columns="key,key")
    assert "includeHeaders=true" in refusal(columns="key", includeHeaders="true")


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("kafka.fetch.max.wait.ms", 0),
        ("kafka.fetch.min.bytes", 0),
        ("kafka.fetch.max.bytes", 1),
        ("kafka.max.partition.fetch.bytes", 1),
    ],
)
def test_least_values_of_a_fetch(name: str, least: int) -> None:
    """The smallest value of a setting is accepted, a smaller one refused."""
    fetch = read_options({**BASE, name: str(least)}, streaming=False).fetch
    values = {
        "kafka.fetch.max.wait.ms": fetch.max_wait_ms,
        "kafka.fetch.min.bytes": fetch.min_bytes,
        "kafka.fetch.max.bytes": fetch.max_bytes,
        "kafka.max.partition.fetch.bytes": fetch.max_partition_bytes,
    }
    assert values[name] == least
    assert f"{name} must be a whole number >= {least}" in refusal(base={**BASE, name: str(least - 1)})


@pytest.mark.parametrize(
    ("streaming", "options", "message"),
    [
        (False, {"foo": "1"}, "unknown option 'foo'; remove it"),
        (False, {"kafka.foo": "1"}, "kafka.foo is not a setting of this source"),
        (False, {"kafka.group.id": "g"}, "kafka.group.id is not supported: the source uses no consumer group"),
        (False, {"kafka.auto.offset.reset": "x"}, "set startingOffsets"),
        (False, {"kafkaConsumer.pollTimeoutMs": "1"}, "kafka.default.api.timeout.ms"),
        (False, {"kafka.ssl.truststore.password": "x"}, "PEM"),
        (False, {"path": "/x"}, "name topics with subscribe"),
        (False, {"topic": "t"}, "topic is for writing"),
        (False, {"kafka.acks": "1"}, "kafka.acks is for writing; remove it from the reader"),
        (False, {"startingOffsets": "latest"}, "a batch query would read nothing"),
        (False, {"startingOffsets": '{"t":{"0":-1}}'}, "a batch query would read nothing"),
        (False, {"endingOffsets": "earliest"}, "would read nothing"),
        (False, {"startingOffsets": "newest"}, "startingOffsets must be earliest, latest or a JSON"),
        (False, {"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets must be"),
        (False, {"startingOffsets": '{"t":{"a":1}}'}, "startingOffsets must be"),
        (False, {"startingOffsets": '{"t":{"0":true}}'}, "startingOffsets must be"),
        (False, {"startingOffsets": "{}"}, "names no partition"),
        (False, {"startingTimestamp": "noon"}, "startingTimestamp must be a whole number >= 0, got 'noon'"),
        (False, {"kafka.request.timeout.ms": "99999999999999"}, "kafka.request.timeout.ms must be at most 2147483647"),
        (False, {"maxOffsetsPerTrigger": "9"}, "maxOffsetsPerTrigger is for streams"),
        (True, {"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        (True, {"maxOffsetsPerTrigger": "0"}, "must be a whole number >= 1"),
        (True, {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "must not be above"),
        (True, {"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a duration"),
        (True, {"failOnDataLoss": "maybe"}, "failOnDataLoss must be one of true, false"),
        (True, {"kafka.isolation.level": "x"}, "kafka.isolation.level must be one of"),
        (True, {"kafka.bootstrap.servers": "h:x"}, "kafka.bootstrap.servers: expected host:port"),
        (True, {"kafka.security.protocol": "X"}, "kafka.security.protocol must be one of"),
        (True, {"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism must be one of"),
    ],
)
def test_what_cannot_be_is_said(streaming: bool, options: dict[str, str], message: str) -> None:
    """The error names the option and the correction."""
    with pytest.raises(PipelineError) as caught:
        read_options({**BASE, **options}, streaming=streaming)
    assert message in str(caught.value)


def test_passwords_are_not_shown() -> None:
    """Passwords are hidden because options may be printed in a plan or a traceback."""
    options = read(
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__username="u",
        kafka__sasl__password="secret-word",
    )
    assert "secret-word" not in repr(options)
    assert dict(options.client.security)["sasl.password"] == "secret-word"


def test_writing() -> None:
    """Defaults are acks=all and an idempotent producer; options of the reader are refused."""
    only = {"kafka.bootstrap.servers": "h:1"}
    found = write_options({**only, "topic": "t", "checkpointLocation": "/x"})
    assert (found.topic, found.acks, found.idempotent, found.codec) == ("t", -1, None, "none")
    assert write_options({**only, "kafka.acks": "1"}).idempotent is False
    for options, message in (
        ({"includeHeaders": "true"}, "includeHeaders is for reading"),
        ({"subscribe": "t"}, "subscribe is for reading; remove it from the writer"),
        ({"kafka.transactional.id": "x", "kafka.acks": "1"}, "kafka.transactional.id must not be empty, and needs"),
        ({"kafka.transactional.id": ""}, "kafka.transactional.id must not be empty, and needs"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "needs kafka.acks=all"),
        ({"kafka.compression.type": "rar"}, "kafka.compression.type must be one of"),
    ):
        with pytest.raises(PipelineError, match=message):
            write_options({**only, **options})
