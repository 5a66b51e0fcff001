"""A broker works at both documented ends of every numeric config, or refuses the end by name, and values beyond."""

import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kbroker.broker import Broker, BrokerStartError
from kbroker.client.admin import EARLIEST
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import Consumer
from kbroker.common.configs.config import BROKER_TABLE, TOPIC_TABLE, BrokerConfig
from kbroker.common.configs.config_def import ConfigError, ConfigKey, ConfigType, Dynamic
from kbroker.common.configs.config_resource import ConfigOperation, ConfigResourceType
from kbroker.common.errors import Errors
from tests.conformance.batches import batch
from tests.support import need

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}
TOGETHER = 24  # configs that share a broker
STOP_S = 10.0  # twice the default of kbroker.shutdown.timeout.ms
CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS, PRODUCE = 19, 44, 0
LOW, HIGH = 0, 1

#: Ends at which a broker serves no connection, and so only starts and stops.
UNREACHABLE = {("max.connections", LOW), ("socket.request.max.bytes", LOW)}
#: Ends at which records are refused, with the code.
REFUSING = {
    ("message.max.bytes", LOW): Errors.MESSAGE_TOO_LARGE,
    ("max.message.bytes", LOW): Errors.MESSAGE_TOO_LARGE,
    ("log.message.timestamp.before.max.ms", LOW): Errors.INVALID_TIMESTAMP,
    ("message.timestamp.before.max.ms", LOW): Errors.INVALID_TIMESTAMP,
}
ALONE = {
    *UNREACHABLE, *REFUSING, *((name, HIGH) for name in ("num.io.threads", "num.network.threads")),
    *((name, end) for name in ("kbroker.shutdown.timeout.ms", "kbroker.nofile.limit") for end in (LOW, HIGH)),
}  # fmt: skip

OTHER_WORDS = {"log.cleaner.threads": "cleaner thread"}  # in Kafka's errors

NUMERIC = [key for key in BROKER_TABLE.values() if key.type in BITS or key.type is ConfigType.DOUBLE]
OF_TOPICS = [key for key in TOPIC_TABLE.values() if key.type in BITS or key.type is ConfigType.DOUBLE]


def ends(key: ConfigKey) -> tuple[float, float]:
    """Return the lowest and the highest documented value."""
    if key.type is ConfigType.DOUBLE and key.validator is None:
        return -sys.float_info.max, sys.float_info.max
    bits = BITS.get(key.type, 0)
    found = re.search(r"(-?\d+) to (-?\d+)", key.allowed)
    if found is not None:
        return int(found[1]), int(found[2])
    least = re.search(r"at least (-?\d+)", key.allowed)
    return -(1 << bits) if least is None else int(least[1]), (1 << bits) - 1


def beyond(key: ConfigKey) -> tuple[float, ...]:
    """Return the values next to the ends."""
    low, high = ends(key)
    return () if high == sys.float_info.max else (low - 1, high + 1)


def refusal(values: Mapping[str, object]) -> str | None:
    """Return the text with which a configuration is refused, or None."""
    try:
        BrokerConfig(values)
    except ConfigError as error:
        return error.explain()
    return None


def groups(end: int) -> Iterator[dict[str, float]]:
    """Yield the configs at one of their ends, as many together as do not conflict, without those that are refused."""
    found: dict[str, float] = {}
    for key in NUMERIC:
        one = {key.name: ends(key)[end]}
        if (key.name, end) in ALONE:
            yield one
        elif refusal(one) is None:
            if len(found) == TOGETHER or refusal({**found, **one}) is not None:
                yield found
                found = {}
            found |= one
    yield found


GROUPS = [(end, group) for end in (LOW, HIGH) for group in groups(end)]


@pytest.fixture
def file_limits() -> Iterator[None]:
    """Restore the limits of open files, which a broker may raise."""
    if sys.platform == "win32":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def created(cluster: Cluster, topic: str, configs: Mapping[str, float] | None = None) -> tuple[int, str | None]:
    """Create a topic; return the code and the text of the response."""
    rows = [{"Name": name, "Value": str(value)} for name, value in (configs or {}).items()]
    row = {"Name": topic, "NumPartitions": 1, "ReplicationFactor": 1, "Configs": rows}
    (found,) = cluster.request(CREATE_TOPICS, {"Topics": [row], "timeoutMs": 5000})["Topics"]
    return found["ErrorCode"], found["ErrorMessage"]


def appended(cluster: Cluster, topic: str) -> int:
    """Append a record of the past minute; return the code of the response."""
    data = [{"Index": 0, "Records": batch("v", time_ms=int(time.time() * 1000) - 60_000)}]
    topics = [{"Name": topic, "PartitionData": data}]
    body = {"TransactionalId": None, "Acks": -1, "TimeoutMs": 5000, "TopicData": topics}
    (response,) = cluster.request(PRODUCE, body, max_version=12)["Responses"]
    code: int = response["PartitionResponses"][0]["ErrorCode"]
    return code


def check_records(cluster: Cluster, topic: str, refused: Errors = Errors.NONE) -> None:
    """Append a record and read it; with an error, append none."""
    assert appended(cluster, topic) == int(refused)
    if refused is Errors.NONE:
        consumer = Consumer(cluster, {(topic, 0): EARLIEST}, max_wait_ms=1000)
        assert [record.value for record in consumer.poll()] == [b"v"]


@pytest.mark.usefixtures("file_limits")
@pytest.mark.parametrize(
    ("end", "group"), GROUPS, ids=lambda value: next(iter(value)) if isinstance(value, dict) else None
)
def test_a_broker_works_at_the_ends_of_its_configs(tmp_path: Path, end: int, group: dict[str, float]) -> None:
    """It creates a topic, takes a record, returns it, and stops in time."""
    broker = Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), **group})
    try:
        broker.start()
    except BrokerStartError as error:
        if "open files" in str(error):
            need.lack(str(error))
        raise
    try:
        if not {(name, end) for name in group} & UNREACHABLE:
            refused = [REFUSING[name, end] for name in group if (name, end) in REFUSING]
            with Cluster(broker.bootstrap_servers) as cluster:
                assert created(cluster, "t") == (0, None)
                check_records(cluster, "t", *refused)
    finally:
        began_s = time.monotonic()
        broker.stop()
    assert time.monotonic() - began_s < STOP_S


@pytest.mark.parametrize("key", NUMERIC, ids=lambda key: key.name)
def test_values_beyond_the_ends_are_refused_by_name(key: ConfigKey) -> None:
    """The error has the config's name; that of an end, which conflicts with another config, has it too."""
    for value in beyond(key):
        text = refusal({key.name: value})
        assert text is not None
        assert re.match(rf"Invalid value {value}(\.0)? for configuration {re.escape(key.name)}: ", text)
    for value in ends(key):
        text = refusal({key.name: value})
        assert text is None or OTHER_WORDS.get(key.name, key.name) in text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a client of a broker with the defaults."""
    folder = tmp_path_factory.mktemp("data")
    with (
        Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder)}) as broker,
        Cluster(broker.bootstrap_servers) as opened,
    ):
        yield opened


@pytest.mark.parametrize("key", OF_TOPICS, ids=lambda key: key.name)
def test_a_topic_works_at_the_ends_of_its_configs(cluster: Cluster, key: ConfigKey) -> None:
    for end, value in enumerate(ends(key)):
        topic = f"{key.name}-{end}"
        assert created(cluster, topic, {key.name: value}) == (0, None)
        check_records(cluster, topic, REFUSING.get((key.name, end), Errors.NONE))
    for value in beyond(key):
        code, text = created(cluster, "beyond", {key.name: value})
        assert code == Errors.INVALID_CONFIG
        assert text is not None
        assert re.match(rf"Invalid value {value}(\.0)? for configuration {re.escape(key.name)}: ", text)


def altered(cluster: Cluster, name: str, value: float | None) -> tuple[int, str | None]:
    """Set or delete a config of all brokers; return the code and the text of the response."""
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    row = {"Name": name, "ConfigOperation": int(operation), "Value": None if value is None else str(value)}
    resource = {"ResourceType": int(ConfigResourceType.BROKER), "ResourceName": "1", "Configs": [row]}
    (found,) = cluster.request(INCREMENTAL_ALTER_CONFIGS, {"Resources": [resource]})["Responses"]
    return found["ErrorCode"], found["ErrorMessage"]


@pytest.mark.parametrize(
    "key", [key for key in NUMERIC if key.dynamic is not Dynamic.READ_ONLY], ids=lambda key: key.name
)
def test_a_broker_works_when_a_config_changes_to_its_ends(cluster: Cluster, key: ConfigKey) -> None:
    """A change is refused by name or in force while records are appended and read, and is taken back."""
    for end, value in enumerate(ends(key)):
        code, text = altered(cluster, key.name, value)
        if code:
            assert code in (Errors.INVALID_REQUEST, Errors.INVALID_CONFIG)
            assert text is not None
            assert OTHER_WORDS.get(key.name, key.name) in text
            continue
        topic = f"dynamic-{key.name}-{end}"
        assert created(cluster, topic) == (0, None)
        check_records(cluster, topic, REFUSING.get((key.name, end), Errors.NONE))
        assert altered(cluster, key.name, None) == (0, None)
    for value in beyond(key):
        code, text = altered(cluster, key.name, value)
        assert code == Errors.INVALID_REQUEST
        assert text is not None
        assert key.name in text
