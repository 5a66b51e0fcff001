"""Container image: its file system, run in namespaces as client libraries and users run it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker.client.cluster import Cluster
from tests.support import need
from tests.support.certificates import Certificates, pkcs12_store
from tests.support.container import PATH, Container, image_in
from tests.support.docker_api import DockerApi
from tests.support.start_sequences import (
    CLUSTER_ID,
    JAVA_ENV,
    KRAFT,
    LEGACY_ENV,
    START_SEQUENCES,
    TMP_SCRIPT,
    StartSequence,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
CHECKS = ROOT / "tests" / "containers"
IMAGE = "kbroker:8.0.0"  # libraries decide from this tag whether Confluent's image of the version supports KRaft
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")


def words(instruction: str) -> list[str]:
    """Return the command in the exec form of an instruction of the Containerfile."""
    found = re.search(rf"^{instruction}\b[^\[\n]*(\[.*\])$", CONTAINERFILE, re.MULTILINE)
    assert found is not None, f"no {instruction} in the exec form"
    command: list[str] = json.loads(found[1])
    return command


RUN = words("CMD")
READY = r"^kbroker .* ready: "
MAX_BYTES = 60_000_000


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with image_in(tmp_path_factory.mktemp("image") / "root") as folder:
        yield folder


@pytest.fixture
def engine(image: Path, tmp_path: Path) -> Iterator[DockerApi]:
    """API of a container engine for the libraries; CI runs the same programs with Docker."""
    with DockerApi(image, tmp_path) as api:
        yield api


@pytest.fixture
def start(image: Path, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Function that starts containers of the image: start(command, env=..., ...)."""
    started: list[Container] = []

    def one(command: list[str], **options: object) -> Container:
        started.append(Container(image, tmp_path / f"container-{len(started)}", command, **options))  # type: ignore[arg-type]
        return started[-1]

    yield one
    for container in started:
        container.close()


def write_and_read(bootstrap: str, **settings: str) -> None:
    """Write a record with librdkafka and read it."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.produce("greetings", b"hello", b"key")
    assert producer.flush(20) == 0
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", **settings})) as consumer:
        consumer.assign([TopicPartition("greetings", 0, 0)])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        assert (message.key(), message.value()) == (b"key", b"hello")


def test_a_secure_listener_of_testcontainers_for_node(start: Callable[..., Container], tmp_path: Path) -> None:
    """A listener by withSaslSslListener with KRaft has a PKCS 12 keystore and a SCRAM user of the formatted folders."""
    certificates = Certificates(tmp_path / "certificates")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "server.keystore.pfx").write_bytes(pkcs12_store(certificates.server, b"pass"))
    env = {
        **LEGACY_ENV,
        **KRAFT,
        "KAFKA_LISTENERS": f"SECURE://0.0.0.0:9096,{KRAFT['KAFKA_LISTENERS']}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": f"SECURE:SASL_SSL,{KRAFT['KAFKA_LISTENER_SECURITY_PROTOCOL_MAP']}",
        "KAFKA_SSL_PROTOCOL": "TLSv1.2",
        "KAFKA_SSL_KEYSTORE_LOCATION": "/etc/kafka/secrets/server.keystore.pfx",
        "KAFKA_SSL_KEYSTORE_PASSWORD": "pass",
        "KAFKA_SSL_KEYSTORE_TYPE": "PKCS12",
        "KAFKA_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-512",
        "KAFKA_LISTENER_NAME_SECURE_SCRAM-SHA-512_SASL_JAAS_CONFIG": "org.apache.kafka.common.security.scram."
        "ScramLoginModule required;",
    }
    command = ["sh", "-c", f"while [ ! -f {TMP_SCRIPT} ]; do sleep 0.1; done; {TMP_SCRIPT}"]
    container = start(command, env=env, ports=[9093, 9096], mounts=[f"{secrets}:/etc/kafka/secrets"])
    plain, secure = container.mapped(9093), container.mapped(9096)
    user = "SCRAM-SHA-512=[name=app,password=secret]"
    script = (
        f"#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS=BROKER://{container.hostname}:9092,"
        f"PLAINTEXT://localhost:{plain},SECURE://localhost:{secure}\n"
        f'echo \'kafka-storage format --ignore-formatted -t "{CLUSTER_ID}" -c /etc/kafka/kafka.properties '
        f'--add-scram "{user}"\' >> /etc/confluent/docker/configure\n/etc/confluent/docker/run \n'
    )
    container.put(TMP_SCRIPT, script, 0o777)
    container.wait_for_log("Kafka Server started")
    login = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "app"}
    write_and_read(
        f"localhost:{secure}", **login, **{"sasl.password": "secret", "ssl.ca.location": str(certificates.ca)}
    )


def test_environment_of_the_image() -> None:
    """The environment and user of the tests are those of the Containerfile."""
    assert f"\nENV PATH={PATH}\n" in CONTAINERFILE
    assert "\nUSER 1000:0\nWORKDIR /opt/kafka\n" in CONTAINERFILE
    assert "ENTRYPOINT" not in CONTAINERFILE  # libraries set the command only


@pytest.mark.parametrize("sequence", START_SEQUENCES, ids=lambda sequence: sequence.name)
def test_a_library_starts_it(sequence: StartSequence, start: Callable[..., Container]) -> None:
    """The start sequence of a library starts the image, and a client connects to the address from the library."""
    container = start(sequence.command, env=sequence.env, ports=[sequence.port])
    mapped = container.mapped(sequence.port)
    for path, text in sequence.files(mapped, container.hostname).items():
        container.put(path, text, 0o644)
    script = sequence.text(mapped, container.hostname)
    if sequence.is_executed:
        done = container.exec("sh", "-c", script)
        assert done.returncode == 0, done.stderr
    else:
        container.put(sequence.script, script, sequence.mode)
    container.wait_for_log(sequence.ready)
    write_and_read(f"localhost:{mapped}")
    if cluster_id := sequence.env.get("CLUSTER_ID"):
        with Cluster(f"localhost:{mapped}") as cluster:
            cluster.fetch_metadata([])
            assert cluster.cluster_id == cluster_id


def test_defaults_signals_and_tools(start: Callable[..., Container]) -> None:
    """Without settings, localhost:9092 is served, Kafka's tools work in the container, and SIGTERM ends it with status
    0.
    """
    container = start(RUN)
    container.wait_for_log(READY)
    log = container.log()
    assert 'CLUSTER_ID not set. Setting it to default value: "5L6g3nShT-eMCtK--X86sw"' in log
    assert "listener CONTROLLER://localhost:9093 is not served: this broker is the only controller" in log
    assert log.count("Transitioning from RECOVERY to RUNNING") == log.count("Kafka Server started") == 1
    check = words("HEALTHCHECK.*CMD")
    assert "127.0.0.1:9092 serves" in container.exec(*check).stdout
    unhealthy = container.exec(*check, env={"KBROKER_BOOTSTRAP": "127.0.0.1:9093"})
    assert (unhealthy.returncode, unhealthy.stdout) == (1, "")
    assert unhealthy.stderr.startswith("unhealthy: 127.0.0.1:9093: ")

    def tool(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        name, *rest = words
        return container.exec(f"/opt/kafka/bin/{name}.sh", "--bootstrap-server", "localhost:9092", *rest, stdin=stdin)

    created = tool("kafka-topics", "--create", "--topic", "orders", "--partitions", "3", "--replication-factor", "1")
    assert (created.returncode, created.stdout) == (0, "Created topic orders.\n"), created.stderr
    assert tool("kafka-topics", "--list").stdout == "orders\n"
    again = tool("kafka-topics", "--create", "--topic", "orders", "--if-not-exists")
    assert (again.returncode, again.stdout) == (0, "")
    assert "TOPIC_ALREADY_EXISTS" in tool("kafka-topics", "--create", "--topic", "orders").stderr
    described = tool("kafka-topics", "--describe", "--topic", "orders").stdout.splitlines()
    assert described[0].startswith("Topic: orders\tTopicId: ")
    assert described[0].endswith("\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: ")
    assert described[3] == "\tTopic: orders\tPartition: 2\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
    assert tool("kafka-broker-api-versions").stdout.startswith("localhost:9092 (id: 1 rack: null")
    sent = tool("kafka-console-producer", "--topic", "orders", "--property", "parse.key=true", "--property",
                "key.separator=:", stdin="a:one\nb:two\n")  # fmt: skip
    assert (sent.returncode, sent.stdout) == (0, ""), sent.stderr
    read = tool("kafka-console-consumer", "--topic", "orders", "--from-beginning", "--max-messages", "2",
                "--timeout-ms", "20000", "--property", "print.key=true", "--property", "key.separator= = ")  # fmt: skip
    assert sorted(read.stdout.splitlines()) == ["a = one", "b = two"], read.stderr
    wrong = tool("kafka-topics", "--list", "--under-replicated-partitions")
    assert wrong.returncode == 2
    assert "No such option '--under-replicated-partitions'" in wrong.stderr
    container.signal(signal.SIGTERM)
    assert container.wait() == 0


def test_arbitrary_user_and_read_only_root(start: Callable[..., Container], tmp_path: Path) -> None:
    """The image runs as any user of root's group, with a read-only root, a volume for data and a tmpfs."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    settings = {"user": "12345:0", "is_read_only": True, "mounts": [f"{volume}:/var/lib/kafka/data", "tmpfs:/tmp"]}
    for log_end in (1, 2):
        container = start(RUN, **settings)
        container.wait_for_log(READY)
        assert container.exec("sh", "-c", "echo > /opt/kafka/x").returncode != 0
        sent = container.exec("kbroker", "produce", "greetings", stdin="hello\n")
        assert sent.stdout == f"greetings-0: 1 record, offsets {log_end - 1} to {log_end - 1}\n", sent.stderr
        container.signal(signal.SIGTERM)
        assert container.wait() == 0


def test_mounted_file_and_environment(start: Callable[..., Container], tmp_path: Path) -> None:
    """Environment variables and arguments take precedence over a mounted server.properties."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "server.properties").write_text(
        "log.retention.hours=5\nnum.partitions=2\nadvertised.listeners=PLAINTEXT://localhost:9092\n"
    )
    env = {"KAFKA_NUM_PARTITIONS": "7", "KAFKA_VERSION": "4.3.1", "KAFKA_UNKNOWN__THING___TOO": "x"}
    container = start(
        [*RUN, "KAFKA_NODE_ID=4", "KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092"], env=env,
        mounts=[f"{mounted}:/mnt/shared/config"],
    )  # fmt: skip
    line = container.wait_for_log(READY)
    assert "node 4" in line
    log = container.log()
    assert "===> Overriding env params with args ..." in log
    assert "unknown setting unknown_thing-too is ignored" in log
    assert "kafka.version" not in log
    final = container.exec("cat", "/opt/kafka/config/server.properties").stdout
    assert final.startswith("log.retention.hours=5\nnum.partitions=2\n")
    assert "num.partitions=7\n" in final
    container.exec("kafka-topics", "--bootstrap-server", "localhost:9092", "--create", "--topic", "t")
    described = container.exec("kafka-topics", "--bootstrap-server", "localhost:9092", "--describe", "--topic", "t")
    assert "PartitionCount: 7" in described.stdout


def test_tls_by_the_names_of_files(start: Callable[..., Container], tmp_path: Path) -> None:
    """An SSL listener has stores and passwords from the named files, or a PEM file; a missing file is refused."""
    certificates = Certificates(tmp_path / "certificates")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "kafka.keystore.jks").write_bytes(pkcs12_store(certificates.server, b"abcdefgh"))
    (secrets / "kafka.truststore.jks").write_bytes(pkcs12_store(certificates.ca, b"abcdefgh"))
    (secrets / "server.pem").write_bytes(certificates.server.read_bytes())
    (secrets / "creds").write_text("abcdefgh\n")
    mounts = [f"{secrets}:/etc/kafka/secrets"]
    env = {
        "KAFKA_LISTENERS": "SSL://0.0.0.0:9093",
        "KAFKA_SSL_KEYSTORE_FILENAME": "kafka.keystore.jks",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS": "creds",
        "KAFKA_SSL_KEY_CREDENTIALS": "creds",
        "KAFKA_SSL_TRUSTSTORE_FILENAME": "kafka.truststore.jks",
        "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "creds",
        "KAFKA_SSL_CLIENT_AUTH": "required",
        "KAFKA_ADVERTISED_LISTENERS": "SSL://localhost:9093",
    }
    container = start(RUN, env=env, mounts=mounts)
    assert "ready: SSL://localhost:9093" in container.wait_for_log(READY)
    client = certificates.make("client", "client")
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SSL\nssl.truststore.location={certificates.ca}\nssl.keystore.location={client}\n"
    )
    words = [sys.executable, "-m", "kbroker", "topics", "create", "secret", "-b", "localhost:9093", "--command-config"]
    done = container.run_beside(*words, str(config), env={})
    assert done.stdout == "created secret with 1 partition\n", done.stderr
    pem = start(
        RUN, mounts=mounts, env={**env, "KAFKA_SSL_KEYSTORE_FILENAME": "server.pem", "KAFKA_SSL_CLIENT_AUTH": "none"}
    )
    pem.wait_for_log(READY)
    env.pop("KAFKA_SSL_KEY_CREDENTIALS")
    lacking = start(RUN, env=env, mounts=mounts)
    assert lacking.wait() == 1
    assert lacking.log().endswith("KAFKA_SSL_KEY_CREDENTIALS environment variable not set\n")
    missing = start(RUN, env={**env, "KAFKA_SSL_KEYSTORE_FILENAME": "other.pem"})
    assert missing.wait() == 1
    assert missing.log().endswith("/etc/kafka/secrets/other.pem file does not exist\n")


@pytest.mark.parametrize(
    ("env", "status", "reason"),
    [
        ({"KAFKA_PROCESS_ROLES": "controller", "KAFKA_ADVERTISED_LISTENERS": "X://h:1"}, 1,
         "KAFKA_ADVERTISED_LISTENERS is not supported on a KRaft controller."),
        ({**JAVA_ENV, "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@a:9094,2@b:9094,3@c:9094"}, 2, "controller.quorum.voters"),
        ({"KAFKA_NUM_PARTITIONS": "many"}, 2, "num.partitions"),
        ({"CLUSTER_ID": "short", "KAFKA_LOG_DIRS": "/proc/data"}, 1, "/proc/data"),
    ],
    ids=["controller", "other voters", "value", "folder"],
)  # fmt: skip
def test_wrong_settings(env: dict[str, str], status: int, reason: str, start: Callable[..., Container]) -> None:
    """A wrong setting ends the container with an exit status and one line that names the setting."""
    container = start(RUN, env=env)
    assert container.wait() == status
    assert reason in container.log().splitlines()[-1]


def test_size(image: Path) -> None:
    """The compressed image is smaller than 60 MB."""
    packed = subprocess.run(f"tar c -C {image} . | gzip -1 | wc -c", shell=True, capture_output=True, check=True)
    assert int(packed.stdout) < MAX_BYTES


def test_compose_example(start: Callable[..., Container], tmp_path: Path) -> None:
    """The services of the compose example work: the broker, the console and the application.

    Without an engine, console and application share the network of the broker's container.
    """
    services = yaml.safe_load((EXAMPLES / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    broker, console = services["broker"], services["console"]
    assert (broker["read_only"], broker["tmpfs"], broker["volumes"]) == (True, ["/tmp"], ["data:/var/lib/kafka/data"])
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    env = {name: str(value) for name, value in broker["environment"].items()}
    mounts = ["tmpfs:/tmp", f"{data}:/var/lib/kafka/data"]
    container = start(RUN, env=env, hostname="broker", is_read_only=True, mounts=mounts)
    container.wait_for_log(READY)
    assert container.exec(*words("HEALTHCHECK.*CMD")).returncode == 0  # the other services wait for the health check
    program = EXAMPLES / "compose" / "application" / "orders.py"
    done = container.run_beside(sys.executable, str(program), env={})
    assert done.stdout == "read 10 orders, total 45\n", done.stderr
    page = "http://127.0.0.1:8080/console"
    script = (
        f'"$@" & until wget -q -O - --header "Authorization: Bearer $KBROKER_CONSOLE_TOKEN" {page}/topics; '
        "do sleep 0.1; done; kill $!"
    )
    shown = container.exec("sh", "-c", script, "sh", *console["command"], env=console["environment"])
    assert "orders" in shown.stdout, shown.stderr


def test_workflow_example(start: Callable[..., Container]) -> None:
    """The example of a GitHub Actions job works: the broker as a service, and the job's program."""
    job = yaml.safe_load((EXAMPLES / "github-actions" / "kafka.yml").read_text(encoding="utf-8"))["jobs"]["test"]
    service = job["services"]["kafka"]
    assert service["ports"] == ["9092:9092"]
    container = start(RUN, env=service["env"])
    assert ", in memory" in container.wait_for_log(READY)
    python, program = job["steps"][-1]["run"].split()
    assert python == "python"
    done = container.run_beside(sys.executable, str(EXAMPLES.parent / program), env=job["env"])
    assert done.stdout == "read 10 orders, total 45\n", done.stderr


def run_library(engine: DockerApi, *command: str, folder: Path = ROOT, seconds: float = 100, **env: str) -> str:
    """Run a program with the engine; return its output."""
    environment = {
        **os.environ,
        "DOCKER_HOST": engine.url,
        "TESTCONTAINERS_HOST_OVERRIDE": "localhost",
        "TESTCONTAINERS_RYUK_DISABLED": "true",
        **env,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_testcontainers_for_python(engine: DockerApi) -> None:
    """testcontainers-python starts the image, with KRaft and without."""
    assert run_library(engine, sys.executable, str(CHECKS / "check.py"), IMAGE) == "ok\n"


@pytest.mark.soak
def test_testcontainers_for_java(engine: DockerApi) -> None:
    """KafkaContainer and ConfluentKafkaContainer of testcontainers-java start the image in the JUnit example."""
    need.program("java", "mvn")
    folder = ROOT / "examples" / "junit"
    text = run_library(engine, "mvn", "-B", "test", f"-Dkbroker.image={IMAGE}", folder=folder, seconds=600)
    assert "Tests run: 2, Failures: 0, Errors: 0, Skipped: 0" in text


@pytest.mark.soak
def test_testcontainers_for_go(engine: DockerApi) -> None:
    """testcontainers-go starts the image, and franz-go connects to the broker."""
    need.program("go")
    assert run_library(engine, "go", "run", ".", IMAGE, folder=CHECKS / "go", seconds=600, GOFLAGS="-mod=mod") == "ok\n"


@pytest.mark.soak
def test_testcontainers_for_node(engine: DockerApi) -> None:
    """@testcontainers/kafka starts the image, and kafkajs connects to the broker."""
    need.program("node", "npm")
    run_library(engine, "npm", "ci", "--silent", folder=CHECKS / "node", seconds=300)
    assert run_library(engine, "node", "check.mjs", IMAGE, folder=CHECKS / "node").endswith("ok\n")


@pytest.mark.soak
def test_testcontainers_for_rust(engine: DockerApi, tmp_path: Path) -> None:
    """The apache module of testcontainers-rs starts the image."""
    need.program("cargo")
    name, tag = IMAGE.split(":")
    command = ["cargo", "run", "--locked", "--quiet", name, tag]
    assert run_library(engine, *command, folder=CHECKS / "rust", seconds=1200, CARGO_TARGET_DIR=str(tmp_path)) == "ok\n"
