"""Configuration table and the sources of values."""

import threading
from pathlib import Path

import pytest

from kbroker._core.metrics.metric_config import MetricConfig
from kbroker.common.configs.config import (
    BROKER_TABLE,
    TOPIC_TABLE,
    BrokerConfig,
    from_environment,
    parse_properties,
    validate_topic_configs,
)
from kbroker.common.configs.config_def import INT32_MAX, ConfigError, to_text
from kbroker.common.configs.config_resource import ConfigSource
from kbroker.common.listeners import Listener
from kbroker.network.connections._connection_quotas import ConnectionQuotas

KAFKA_TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_topic_keys_are_kafkas() -> None:
    """A topic has exactly Kafka 4.3's keys, and its defaults follow from the broker's."""
    assert {name: to_text(value) for name, value in BrokerConfig().topic_configs({}).items()} == KAFKA_TOPIC_DEFAULTS


def test_table_defaults_pass_their_own_validators() -> None:
    """Every key's default passes the key's validator."""
    for key in (*BROKER_TABLE.values(), *TOPIC_TABLE.values()):
        assert key.parse(to_text(key.default)) == key.default, key.name


def test_every_synonym_is_a_broker_key() -> None:
    """Each topic key's broker key exists."""
    assert {key.synonym for key in TOPIC_TABLE.values()} - set(BROKER_TABLE) == {None}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("retention.ms", "soon", "Invalid value soon for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ("segment.bytes", "1", "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576"),
        (
            "segment.bytes",
            "3000000000",
            "Invalid value 3000000000 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            "cleanup.policy",
            "shred",
            "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "preallocate",
            "maybe",
            "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "min.cleanable.dirty.ratio",
            "2",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        ("no.such.key", "1", "Unknown topic config name: no.such.key"),
    ],
)
def test_bad_topic_value(key: str, value: str, text: str) -> None:
    """An invalid topic value is rejected with Kafka's message."""
    with pytest.raises(ConfigError) as caught:
        validate_topic_configs({key: value}, BrokerConfig())
    assert text == str(caught.value)


def test_compaction_lags_that_contradict_each_other() -> None:
    """A minimum compaction lag above the maximum is rejected with Kafka's message."""
    with pytest.raises(ConfigError) as caught:
        validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, BrokerConfig())
    assert str(caught.value) == ("conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)")
    validate_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}, BrokerConfig())


def test_compaction_lags_that_contradict_those_of_the_broker() -> None:
    """A lag that the topic does not set is the broker's, as in Kafka."""
    broker = BrokerConfig({"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "20"})
    for own, text in (({"min.compaction.lag.ms": "21"}, "21) > max.compaction.lag.ms (20"),
                      ({"max.compaction.lag.ms": "9"}, "10) > max.compaction.lag.ms (9")):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            validate_topic_configs(own, broker)
        assert str(caught.value) == f"conflict topic config setting min.compaction.lag.ms ({text})"
    validate_topic_configs({"min.compaction.lag.ms": "21", "max.compaction.lag.ms": "21"}, broker)


def test_bad_value_names_key_value_and_what_is_allowed() -> None:
    """The start error names the key, its value and the allowed values."""
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({"num.io.threads": "0"})
    assert caught.value.explain() == (
        "Invalid value 0 for configuration num.io.threads: Value must be at least 1 "
        "(allowed: a 32-bit integer, 1 to 1000)"
    )


@pytest.mark.parametrize("key", ["socket.send.buffer.bytes", "socket.receive.buffer.bytes"])
def test_a_socket_buffer_of_a_negative_size_is_refused(key: str) -> None:
    """The error names the setting; -1 is the system's default."""
    assert BrokerConfig({key: "-1"}).integer(key) == -1
    with pytest.raises(ConfigError, match=f"Invalid value -2 for configuration {key}: Value must be at least -1"):
        BrokerConfig({key: "-2"})


def test_unknown_keys_are_kept_for_a_warning() -> None:
    """An unknown key does not stop the broker and is kept for a warning."""
    assert BrokerConfig({"no.such.key": "1", "num.partitions": "4"}).unknown == {"no.such.key": "1"}


@pytest.mark.parametrize("value", ["1", "104857599"])
def test_queued_bytes_must_hold_one_request(value: str) -> None:
    """A pool smaller than the largest request would block for ever, and is rejected."""
    with pytest.raises(ConfigError, match=r"socket\.request\.max\.bytes"):
        BrokerConfig({"queued.max.request.bytes": value})


@pytest.mark.parametrize("value", ["-1", "0", "104857600"])
def test_queued_bytes_unlimited_or_large_enough(value: str) -> None:
    """A pool is unlimited or holds at least one largest request."""
    assert BrokerConfig({"queued.max.request.bytes": value}).integer("queued.max.request.bytes") == int(value)


def test_later_sources_win(tmp_path: Path) -> None:
    """--set overrides the environment, which overrides the file."""
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=2\nnum.io.threads=3\nlog.dirs=/from/file\n")
    environ = {"KAFKA_NUM_IO_THREADS": "4", "KAFKA_LOG_DIRS": "/from/env", "HOME": "/root"}
    config = BrokerConfig.load(path, ["log.dirs=/from/set"], environ)
    assert (config.integer("num.partitions"), config.integer("num.io.threads"), str(config.log_dir)) == (
        2,
        4,
        "/from/set",
    )


def test_environment_names() -> None:
    """Variables of Kafka's images and of kbroker are configs, misspelt keys included; other variables are not."""
    environ = {
        "KAFKA_LOG_DIRS": "a",
        "KAFKA_CFG_NUM_PARTITIONS": "2",
        "KBROKER_CFG_NUM_IO_THREADS": "3",
        "KBROKER_REQUEST_BATCH_MAX": "1",
        "KAFKA_OPTS": "-X",
        "KAFKA_HOME": "/opt",
        "KBROKER_SANITIZE": "x",
        "KAFKA_CFG_NO_SUCH": "y",
        "KAFKA_NUM_PARTITONS": "4",
        "KBROKER_CONSOLE_EDITT": "true",
        "KBROKER_BOOTSTRAP": "localhost:9092",
    }
    assert from_environment(environ) == {
        "log.dirs": "a",
        "num.partitions": "2",
        "num.io.threads": "3",
        "kbroker.request.batch.max": "1",
        "no.such": "y",
        "num.partitons": "4",
        "kbroker.console.editt": "true",
    }


def test_properties_file() -> None:
    """Comments, separators, continued lines and escapes are read as in Java."""
    text = "# a\n! b\n a.b = 1 \nc:2\nd 3\ne=x,\\\n   y\nf=a\\tb\\u0041\nempty=\n\nlast=\\\\"
    found = parse_properties(text)
    assert found == {"a.b": "1", "c": "2", "d": "3", "e": "x,y", "f": "a\tbA", "empty": "", "last": "\\"}
    assert parse_properties(r"a=\ud83d\ude00 \u00fc") == {"a": "\U0001f600 \u00fc"}  # two escapes of one character
    assert parse_properties("a=x\u0085y\u2028z\r\nb=1\rc=2\n") == {"a": "x\u0085y\u2028z", "b": "1", "c": "2"}


@pytest.mark.parametrize("key", ["kbroker.request.log.sampling", "log.cleaner.min.cleanable.ratio"])
def test_a_share_that_is_no_number_is_refused_with_its_name(key: str) -> None:
    """NaN, which is neither below nor above a limit, is rejected."""
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({key: "nan"})
    assert refused.value.explain().startswith(f"Invalid value nan for configuration {key}: ")
    assert "0 to 1" in refused.value.explain()


@pytest.mark.parametrize("word", ["num.partitions", "=1", ""])
def test_set_needs_key_and_value(word: str) -> None:
    """A --set without key=value is rejected."""
    with pytest.raises(ConfigError, match="key=value"):
        BrokerConfig.load(overrides=[word])


def test_retention_falls_back_from_ms_to_minutes_to_hours() -> None:
    """The finer unit takes precedence."""
    assert BrokerConfig({"log.retention.hours": 2}).topic_default("retention.ms") == 7_200_000
    assert BrokerConfig({"log.retention.hours": 2, "log.retention.minutes": 1}).topic_default("retention.ms") == 60_000
    assert BrokerConfig({"log.retention.minutes": 1, "log.retention.ms": 5}).topic_default("retention.ms") == 5
    assert BrokerConfig({"log.retention.hours": -1}).topic_default("retention.ms") == -1


def test_dynamic_values_win_and_name_their_source() -> None:
    """This broker's value precedes the default of all brokers, the file and the table."""
    config = BrokerConfig({"message.max.bytes": 300})
    config.set_dynamic({"message.max.bytes": "100"}, {"message.max.bytes": "200", "gone.key": "1"})
    assert config.topic_default("max.message.bytes") == 100
    assert config.sources("message.max.bytes") == [
        (ConfigSource.DYNAMIC_BROKER_CONFIG, "100"),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, "200"),
        (ConfigSource.STATIC_BROKER_CONFIG, 300),
        (ConfigSource.DEFAULT_CONFIG, 1_048_588),
    ]


def test_default_listener_is_local() -> None:
    """A broker without configuration can be reached only from its own machine."""
    assert BrokerConfig().listeners == [Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]


def test_listeners_with_names_of_their_own() -> None:
    """Several listeners have names, IPv6 addresses in brackets, and an advertised address."""
    config = BrokerConfig(
        {
            "listeners": "INTERNAL://[::1]:0,EXTERNAL://:9094",
            "listener.security.protocol.map": "INTERNAL: PLAINTEXT,EXTERNAL:PLAINTEXT",
            "advertised.listeners": "EXTERNAL://broker.example:9094",
        }
    )
    assert config.listeners == [
        Listener("INTERNAL", "PLAINTEXT", "::1", 0),
        Listener("EXTERNAL", "PLAINTEXT", "", 9094),
    ]
    assert config.advertised_listeners == [Listener("EXTERNAL", "PLAINTEXT", "broker.example", 9094)]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"listeners": "127.0.0.1:9092"}, "NAME://host:port"),
        ({"listeners": ""}, "At least one"),
        ({"listeners": "PLAINTEXT://x:70000"}, "out of range"),
        (
            {"listeners": "PLAINTEXT://*:9092"},
            "not an address",
        ),  # it would be the loopback interface, with * advertised
        ({"listeners": "PLAINTEXT://x:" + "9" * 5000}, "NAME://host:port"),
        ({"listeners": "OTHER://x:1"}, "does not name OTHER"),
        ({"listeners": "PLAINTEXT://x:1,PLAINTEXT://x:2"}, "used twice"),
        ({"advertised.listeners": "SSL://x:1"}, "listeners does not name SSL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "cannot reach"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "NAME:PROTOCOL"),
        ({"default.replication.factor": "3"}, "one broker"),
        ({"offsets.topic.segment.bytes": "1048575"}, "at least 1048576"),  # without its topic no group works
        ({"transaction.state.log.segment.bytes": "1000"}, "at least 1048576"),
        ({"share.coordinator.state.topic.segment.bytes": "1"}, "at least 1048576"),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "Disabling the 'classic' protocol is not supported"),
        ({"group.coordinator.rebalance.protocols": "classic,Consumer"}, "one of: consumer, classic, share, streams"),
        ({"group.consumer.assignors": "sticky"}, "assignors: Expected uniform, range, or both, each once"),
        ({"group.consumer.assignors": ""}, "assignors: Expected uniform, range, or both, each once"),
        (
            {"group.consumer.max.session.timeout.ms": "30000", "group.consumer.min.session.timeout.ms": "40000"},
            "max.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            {"group.share.session.timeout.ms": "1000"},
            "share.session.timeout.ms must be greater than or equal to group.share.min.session.timeout.ms",
        ),
        (
            {"group.streams.session.timeout.ms": "100000"},
            "streams.session.timeout.ms must be less than or equal to group.streams.max.session.timeout.ms",
        ),
        (
            {
                "group.consumer.heartbeat.interval.ms": "45000",
                "group.consumer.max.heartbeat.interval.ms": "45000",
                "group.consumer.session.timeout.ms": "45000",
            },
            "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
        ({"group.share.assignors": "other"}, "There is one assignor"),
        (
            {"group.streams.num.standby.replicas": "3"},
            "standby.replicas must be less than or equal to group.streams.max.standby.replicas",
        ),
        ({"log.dirs": ""}, "A folder is needed"),
        ({"listeners": "PLAINTEXT://:9092,SSL://:9092"}, "Port 9092 is used twice"),
        (
            {"group.coordinator.rebalance.protocols": ""},
            r"must not be empty. Valid values include: \[consumer, classic",
        ),
    ],
)
def test_settings_that_cannot_work(values: dict[str, str], text: str) -> None:
    """A value that the broker does not support is rejected at start."""
    with pytest.raises(ConfigError, match=text):
        BrokerConfig(values)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("kbroker.control.listener", "0.0.0.0:1", "127.0.0.1:port"),
        ("kbroker.metrics.listener", "127.0.0.1:x", "host:port"),
        ("kbroker.request.log.topic", "a/b", "a topic's name"),
        ("kbroker.control.virtual.clock", "true", "false"),
        ("kbroker.console.token", "s3cret", "16 to 1024 characters of ASCII without spaces"),
    ],
)
def test_invalid_values_of_own_keys(name: str, value: str, allowed: str) -> None:
    """The error has the key and the allowed values, and shows no secret."""
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({name: value})
    assert (caught.value.key, caught.value.allowed) == (name, allowed)
    assert (value in str(caught.value)) == (name != "kbroker.console.token")


def test_largest_time_of_a_stop() -> None:
    """The bound is a wait that every platform supports, so that a stop does not fail."""
    key = "kbroker.shutdown.timeout.ms"
    most_ms = BrokerConfig({key: str(INT32_MAX)}).integer(key)
    assert most_ms / 1000 <= min(threading.TIMEOUT_MAX, 4_294_967)  # the second value is the limit of Windows
    with pytest.raises(ConfigError, match=f"Invalid value {INT32_MAX + 1} for configuration {key}"):
        BrokerConfig({key: str(INT32_MAX + 1)})


@pytest.mark.parametrize(("prefix", "largest"), [("", 1 << 30), ("controller.", 1_099_511_627)])
def test_largest_windows(prefix: str, largest: int) -> None:
    """The bounds are those of the cores, so that the error has the name of the key."""
    samples, seconds = f"{prefix}quota.window.num", f"{prefix}quota.window.size.seconds"
    config = BrokerConfig({samples: "100000", seconds: str(largest)})
    MetricConfig(config.integer(samples), config.integer(seconds) * 1000)
    if not prefix:  # the windows of connection quotas, too
        ConnectionQuotas(samples=config.integer(samples), window_seconds=config.integer(seconds))
    for name, value in ((samples, 100_001), (seconds, largest + 1)):
        with pytest.raises(ConfigError, match=f"Invalid value {value} for configuration {name}"):
            BrokerConfig({name: str(value)})


@pytest.mark.parametrize("values", [{"node.id": 7}, {"broker.id": 7}, {"broker.id": 3, "node.id": 7}])
def test_broker_id_is_described_as_node_id(values: dict[str, int]) -> None:
    """Both names show the same number."""
    config = BrokerConfig(values)
    assert (config.value("node.id"), config.value("broker.id")) == (7, 7)
    assert config.sources("broker.id") == [(ConfigSource.STATIC_BROKER_CONFIG, 7), (ConfigSource.DEFAULT_CONFIG, -1)]


def test_broker_id_is_the_old_name_of_node_id() -> None:
    """A file with broker.id keeps its number, and node.id takes precedence."""
    assert (
        BrokerConfig({"broker.id": 7}).node_id,
        BrokerConfig({"broker.id": 7, "node.id": 3}).node_id,
        BrokerConfig().node_id,
    ) == (7, 3, 1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"group.share.session.timeout.ms": "70000"},
            "group.share.session.timeout.ms must be less than or equal to group.share.max.session.timeout.ms",
        ),
        (
            {"group.share.max.delivery.count.limit": "5", "group.share.delivery.count.limit": "6"},
            "group.share.max.delivery.count.limit must be greater than or equal to group.share.delivery.count.limit",
        ),
        (
            {"group.share.min.record.lock.duration.ms": "30000", "group.share.record.lock.duration.ms": "20000"},
            "group.share.record.lock.duration.ms must be greater than or equal to "
            "group.share.min.record.lock.duration.ms",
        ),
        (
            {"group.share.max.share.sessions": "100"},
            "group.share.max.share.sessions must be greater than or equal to group.share.max.size",
        ),
        (
            {"group.share.assignors": "simple,other"},
            "group.share.assignors must contain exactly one assignor, but found 2",
        ),
    ],
)
def test_settings_of_share_groups_are_checked_against_each_other(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig(settings)
    assert str(raised.value) == reason
