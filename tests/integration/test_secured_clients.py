"""Client libraries and tools over TLS and SASL: they produce and consume, and report refused logins."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from kafka.errors import KafkaError as PythonKafkaError

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.security import ClientSecurity
from kbroker.common.errors import KafkaError
from tests.support import need
from tests.support.broker import run_to_end
from tests.support.certificates import Certificates
from tests.support.kafka.tools import TOOLS, Tools
from tests.support.secured import LISTENERS, PASSWORDS, SecuredBroker

SETTINGS = {"listener.name.tls.ssl.client.auth": "required"}
WAYS = [
    ("TLS", ""),
    ("SASL", "PLAIN"),
    ("SASL", "SCRAM-SHA-256"),
    ("SASL", "SCRAM-SHA-512"),
    ("BOTH", "PLAIN"),
    ("BOTH", "SCRAM-SHA-256"),
    ("BOTH", "SCRAM-SHA-512"),
]
VALUES = [b"%d" % number + b"x" * 1000 for number in range(300)]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def client(certificates: Certificates) -> Path:
    return certificates.make("client", "client")


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(filter(None, way)))
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


def make_topic(secured: SecuredBroker, name: str, way: tuple[str, str]) -> str:
    return secured.broker.create_topic(f"{name}-{way[0]}-{way[1]}")


def librdkafka(
    secured: SecuredBroker, way: tuple[str, str], client: Path, password: str | None = None
) -> dict[str, Any]:
    listener, mechanism = way
    return {
        "bootstrap.servers": secured.address(listener),
        "security.protocol": LISTENERS[listener],
        "ssl.ca.location": str(secured.certificates.ca),
        **({"ssl.certificate.location": str(client), "ssl.key.location": str(client)} if listener == "TLS" else {}),
        **({"sasl.mechanism": mechanism, "sasl.username": "bob"} if mechanism else {}),
        **({"sasl.password": password or PASSWORDS["bob"]} if mechanism else {}),
    }


def python(secured: SecuredBroker, way: tuple[str, str], client: Path) -> dict[str, Any]:
    listener, mechanism = way
    return {
        "bootstrap_servers": secured.address(listener),
        "security_protocol": LISTENERS[listener],
        **({"ssl_context": secured.tls_context(client)} if LISTENERS[listener].endswith("SSL") else {}),
        **({"sasl_mechanism": mechanism, "sasl_plain_username": "bob"} if mechanism else {}),
        **({"sasl_plain_password": PASSWORDS["bob"]} if mechanism else {}),
    }


@pytest.mark.parametrize(
    ("protocol", "expected"), [("TLS", "with TLS, got none"), ("SASL", "with SASL, got one without")]
)
def test_the_security_of_another_listener(secured: SecuredBroker, protocol: str, expected: str) -> None:
    """TLS or a login at a plaintext listener is an error that names the cause and the remedy."""
    security = ClientSecurity(secured.properties(protocol))
    with (
        pytest.raises(
            (BrokerConnectionError, KafkaError), match=f"expected a listener {expected}: change security.protocol"
        ),
        security.open_cluster(secured.address("PLAINTEXT"), retry_timeout_s=0) as cluster,
    ):
        cluster.fetch_metadata([])


def test_no_login_at_a_listener_that_requires_one(secured: SecuredBroker) -> None:
    """The error of a closed connection asks whether the listener requires SASL, until a response was received."""
    with Cluster(secured.address("SASL")) as cluster:
        for _ in range(2):
            with pytest.raises(
                BrokerConnectionError, match=r"closed the connection \(does this listener require SASL\?\)"
            ):
                cluster.fetch_metadata([])
    half = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}  # without security.protocol
    with (
        ClientSecurity(half).open_cluster(secured.address("SASL"), retry_timeout_s=0) as cluster,
        pytest.raises(BrokerConnectionError, match=r"does this listener require SASL\?"),
    ):
        cluster.fetch_metadata([])
    with Cluster(secured.address("PLAINTEXT")) as cluster:
        cluster.fetch_metadata([])
        assert cluster.connection_to(None).closed_hint == ""


def test_no_tls_at_a_listener_that_requires_it(secured: SecuredBroker) -> None:
    """A plaintext client gets no response from a TLS listener: the error says that it is one."""
    with (
        pytest.raises(BrokerConnectionError, match=r"expected a listener without TLS, got one with TLS"),
        Cluster(secured.address("TLS"), retry_timeout_s=0) as cluster,
    ):
        cluster.fetch_metadata([])


def test_confluent_kafka(secured: SecuredBroker, way: tuple[str, str], client: Path) -> None:
    """confluent-kafka produces and consumes."""
    topic = make_topic(secured, "confluent", way)
    config = librdkafka(secured, way, client)
    producer = confluent_kafka.Producer(config)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(got) < len(VALUES) and time.monotonic() < deadline:
        got += [message.value() for message in consumer.consume(500, 1.0) if message.error() is None]  # type: ignore[misc]
    consumer.close()
    assert got == VALUES


@pytest.mark.filterwarnings(  # kafka-python causes this when it is closed while it connects to another node
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)
def test_kafka_python(secured: SecuredBroker, way: tuple[str, str], client: Path) -> None:
    """kafka-python produces and consumes."""
    topic = make_topic(secured, "python", way)
    config = python(secured, way, client)
    producer = kafka.KafkaProducer(**config)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **config)
    got: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(got) < len(VALUES) and time.monotonic() < deadline:
        got += [record.value for records in consumer.poll(1000).values() for record in records]
    consumer.close()
    assert got == VALUES


def test_aiokafka(secured: SecuredBroker, way: tuple[str, str], client: Path) -> None:
    """aiokafka produces and consumes."""
    topic = make_topic(secured, "aio", way)
    config = python(secured, way, client)

    async def talk() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**config) as producer:
            for value in VALUES:
                await producer.send(topic, value)
            await producer.flush()
        consumer = aiokafka.AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **config)
        got: list[bytes] = []
        async with consumer:
            while len(got) < len(VALUES):
                found = await asyncio.wait_for(consumer.getmany(timeout_ms=1000), 60)
                got += [record.value for records in found.values() for record in records]
        return got

    assert asyncio.run(talk()) == VALUES


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
def test_librdkafka_gets_the_error(secured: SecuredBroker, client: Path, listener: str, mechanism: str) -> None:
    """librdkafka reports a wrong password as an authentication failure, not as a network failure to retry."""
    failures: list[str] = []
    config = librdkafka(secured, (listener, mechanism), client, "wrong")
    producer = confluent_kafka.Producer({**config, "error_cb": lambda error: failures.append(str(error))})
    deadline = time.monotonic() + 30
    while not any("_AUTHENTICATION" in failure for failure in failures) and time.monotonic() < deadline:
        producer.poll(0.1)
    (failure, *_) = [failure for failure in failures if "_AUTHENTICATION" in failure]
    text = "Invalid username or password" if mechanism == "PLAIN" else "due to invalid credentials"
    assert text in failure


def test_python_clients_get_the_error(secured: SecuredBroker, client: Path) -> None:
    """kafka-python and aiokafka raise an error for a wrong password."""
    config = {**python(secured, ("SASL", "PLAIN"), client), "sasl_plain_password": "wrong"}
    with pytest.raises(PythonKafkaError):
        kafka.KafkaAdminClient(**config, api_version_auto_timeout_ms=3000, bootstrap_timeout_ms=3000)

    async def talk() -> None:
        producer = aiokafka.AIOKafkaProducer(**config)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioKafkaError):
        asyncio.run(talk())


@pytest.mark.parametrize("way", [("SASL", "PLAIN"), ("BOTH", "SCRAM-SHA-256")], ids=["PLAIN", "SCRAM"])
def test_librdkafka_renews_its_sessions(certificates: Certificates, client: Path, way: tuple[str, str]) -> None:
    """Sessions of two seconds are renewed in time on their connections under load, and no record is lost."""
    with SecuredBroker(certificates, {"connections.max.reauth.ms": 2000}) as secured:
        secured.add_scram_users()
        topic = make_topic(secured, "renewed", way)
        failures: list[str] = []
        delivered: list[int] = []
        config = librdkafka(secured, way, client)
        producer = confluent_kafka.Producer(
            {**config, "linger.ms": 1, "error_cb": lambda error: failures.append(str(error))}
        )

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(str(error))
            else:
                delivered.append(message.offset())

        count, deadline = 0, time.monotonic() + 6
        while time.monotonic() < deadline:
            producer.produce(topic, b"%d" % count, on_delivery=on_delivery)
            producer.poll(0.002)
            count += 1
        assert producer.flush(30) == 0
        counters = secured.counters()
        assert failures == []
        assert delivered == list(range(count))
        assert counters["sessions_expired"] == 0
        assert counters["reauthenticated"] >= 2


# ---- kbroker's command line


def run(secured: SecuredBroker, listener: str, properties: Path, *words: str) -> str:
    return run_to_end(
        [sys.executable, "-m", "kbroker", *words, "-b", secured.address(listener), "--command-config", str(properties)],
        seconds=60,
    )


def write(path: Path, properties: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def test_our_command_line(secured: SecuredBroker, tmp_path: Path) -> None:
    """`kbroker users` adds a user over TLS, who logs in, lists users and is removed."""
    admin = write(tmp_path / "admin.properties", secured.properties("BOTH", "SCRAM-SHA-512"))
    (tmp_path / "password").write_text("carols secret\n")
    add = ("users", "add", "carol", "--mechanism", "SCRAM-SHA-256", "--password-file", str(tmp_path / "password"))
    assert run(secured, "BOTH", admin, *add) == "carol can log in with SCRAM-SHA-256\n"
    carol = {**secured.properties("SASL", "SCRAM-SHA-256"), "sasl.username": "carol", "sasl.password": "carols secret"}
    del carol["sasl.jaas.config"]
    own = write(tmp_path / "carol.properties", carol)
    listed = json.loads(run(secured, "SASL", own, "users", "list", "--json"))
    assert {"user": "carol", "mechanism": "SCRAM-SHA-256", "iterations": 8192} in listed
    run(secured, "SASL", own, "users", "remove", "carol", "--mechanism", "SCRAM-SHA-256")
    assert "carol" not in run(secured, "BOTH", admin, "users", "list")


# ---- Kafka's tools


Java = Callable[[str, dict[str, str]], Tools]


@pytest.fixture
def java(secured: SecuredBroker, tmp_path: Path) -> Java:
    """Function that returns Kafka's tools with a client's properties for a listener."""
    need.kafka_tools()
    return lambda listener, properties: Tools(
        secured.address(listener), write(tmp_path / f"{listener}.properties", properties)
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_kafka_configs_sets_lists_and_removes_scram_users(java: Java, secured: SecuredBroker) -> None:
    """kafka-configs sets SCRAM users, who log in with Java clients over SASL_SSL, and removes them."""
    admin = java("SASL", secured.properties("SASL", "PLAIN"))
    about = ("--entity-type", "users", "--entity-name", "dora")
    configs = "kafka.admin.ConfigCommand"
    for secret in ("SCRAM-SHA-256=[iterations=5000,password=x]", "SCRAM-SHA-512=[password=doras-secret]"):
        printed = admin(configs, "--alter", *about, "--add-config", secret)
        assert "Completed updating config for user dora." in printed
    described = admin(configs, "--describe", *about)
    credentials = "SCRAM-SHA-256=iterations=5000, SCRAM-SHA-512=iterations=4096"
    assert f"SCRAM credential configs for user-principal 'dora' are {credentials}" in described
    everybody = admin(configs, "--describe", "--entity-type", "users")
    assert "user-principal 'dora'" in everybody
    assert "user-principal 'alice'" in everybody

    own = secured.properties("BOTH", "SCRAM-SHA-512")
    own["sasl.jaas.config"] = own["sasl.jaas.config"].replace("alice-secret", "doras-secret").replace("alice", "dora")
    dora = java("BOTH", own)
    topic = secured.broker.create_topic("java-scram")
    lines = [f"line {number}" for number in range(20)]
    dora(TOOLS + "ConsoleProducer", "--topic", topic, stdin="".join(f"{line}\n" for line in lines))
    consume = ("--topic", topic, "--from-beginning", "--max-messages", "20", "--timeout-ms", "60000")
    assert dora(TOOLS + "consumer.ConsoleConsumer", *consume).splitlines() == lines

    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        admin(configs, "--alter", *about, "--delete-config", mechanism)
    assert "dora" not in admin(configs, "--describe", "--entity-type", "users")
    refused = dora(TOOLS + "TopicCommand", "--list", status=1)
    assert "due to invalid credentials with SASL mechanism SCRAM-SHA-512" in refused


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("listener", "mechanism"), [("TLS", ""), ("SASL", "PLAIN"), ("BOTH", "PLAIN")], ids=["TLS", "SASL", "BOTH"]
)
def test_java_console_tools(java: Java, secured: SecuredBroker, client: Path, listener: str, mechanism: str) -> None:
    """The console consumer reads the console producer's records over each kind of listener."""
    properties = secured.properties(listener, mechanism or "PLAIN")
    if listener == "TLS":
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.location"] = str(client)
    topic = secured.broker.create_topic(f"java-{listener}")
    lines = [f"line {number}" for number in range(20)]
    stdin = "".join(f"{line}\n" for line in lines)
    tools = java(listener, properties)
    tools(TOOLS + "ConsoleProducer", "--topic", topic, stdin=stdin)
    consume = ("--topic", topic, "--group", topic, "--from-beginning", "--max-messages", "20", "--timeout-ms", "60000")
    assert tools(TOOLS + "consumer.ConsoleConsumer", *consume).splitlines() == lines
