"""Broker that joins controllers of Apache Kafka: registration, restarts, wrong settings, TLS, SASL, failures."""

import json
import os
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kbroker.broker import Broker
from kbroker.broker.broker import BrokerStartError, StartCancelled
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster, negotiate
from kbroker.client.cluster_description import describe_cluster
from kbroker.client.connection import Connection
from kbroker.client.producer import Producer
from kbroker.common.configs.config_resource import ConfigChange, ConfigResourceType
from kbroker.log.checkpoints import MetaProperties, write_meta_properties
from kbroker.member.lifecycle import BrokerState
from kbroker.member.member import Member, supported_features
from tests.support import need
from tests.support.broker import ConfiguredBroker, wait_for
from tests.support.certificates import Certificates
from tests.support.clock_jump import ClockJump
from tests.support.kafka.broker import ApacheKafka
from tests.support.ports import free_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NODE_ID = 9
DAY_S = 24 * 60 * 60
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SHUTDOWN_MARK = ".kafka_cleanshutdown"


@pytest.fixture(scope="module")
def controller(certificates: Certificates) -> Iterator[ApacheKafka]:
    """Controller 1 with a listener without security and one with TLS and SASL; the user `guest` has no rights."""
    need.kafka_tools()
    port = free_run(2)
    node = ApacheKafka(
        {
            "process.roles": "controller",
            "listeners": f"CONTROLLER://127.0.0.1:{port},SECURED://127.0.0.1:{port + 1}",
            "controller.listener.names": "CONTROLLER,SECURED",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SECURED:SASL_SSL",
            "controller.quorum.voters": "",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.secured.plain.sasl.jaas.config": (
                f'{PLAIN} required user_broker="secret" user_guest="guest";'
            ),
            "listener.name.secured.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
            "listener.name.secured.ssl.keystore.type": "PEM",
            "listener.name.secured.ssl.keystore.location": str(certificates.server),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:broker",
            "broker.session.timeout.ms": "1500",
        },
        port=port,
        heap="160m",
        formatted=("--standalone", "--add-scram", "SCRAM-SHA-256=[name=broker,password=scram-secret]"),
    )
    with node:
        yield node


def settings(folder: Path, controller: ApacheKafka, **changes: str) -> dict[str, object]:
    return {
        "process.roles": "broker",
        "node.id": str(NODE_ID),
        "controller.quorum.bootstrap.servers": controller.bootstrap,
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder),
        "broker.heartbeat.interval.ms": "500",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }


def formatted(folder: Path, controller: ApacheKafka, cluster_id: str = "") -> Path:
    """Format a folder for node 9 and return it."""
    folder.mkdir(exist_ok=True)
    owner = MetaProperties(cluster_id or controller.cluster_id, NODE_ID, uuid.uuid4())
    write_meta_properties(folder, owner)
    return folder


@contextmanager
def started(values: Mapping[str, object]) -> Iterator[tuple[Broker, Member]]:
    broker = Broker(values)
    with broker:
        member = broker.context.member
        assert member is not None
        yield broker, member


def describe_observer(controller: ApacheKafka) -> dict[str, int]:
    """Return the row of the member among the observers of the quorum, as described by the controller.

    An observer is a node with a folder, and remains for five minutes: of the member's rows, which other tests may have
    left with other folders, the last to fetch is returned.
    """
    with closing(Connection(("127.0.0.1", controller.port))) as connection:
        negotiate(connection, 10)
        topics = [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]
        response = connection.request(55, 2, {"Topics": topics})
        (partition,) = response["Topics"][0]["Partitions"]
    rows = [row for row in partition["Observers"] if row["ReplicaId"] == NODE_ID]
    return max(rows, key=lambda row: row["LastFetchTimestamp"])


def page(url: str) -> tuple[int, str]:
    """Return the status and text of a page of the HTTP port."""
    try:
        with urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_life_of_a_member(controller: ApacheKafka, tmp_path: Path) -> None:
    """After its start, a member is unfenced and registered as configured; its stop leaves the clean shutdown file."""
    folder = formatted(tmp_path / "data", controller)
    values = settings(folder, controller, kbroker__metrics__listener="127.0.0.1:0", broker__rack="r1")
    with started(values) as (broker, member):
        registration = broker.context.image.brokers[NODE_ID]
        wait_for("the unfencing", lambda: not broker.context.image.brokers[NODE_ID].is_fenced)
        assert member.lifecycle.state is BrokerState.RUNNING
        assert (registration.epoch, registration.rack) == (member.broker_epoch, "r1")
        assert registration.listeners["PLAINTEXT"][:2] == ("127.0.0.1", int(broker.bootstrap_servers.split(":")[1]))
        assert dict(registration.supported_features) == dict(supported_features())
        wait_for("the cordons", lambda: broker.context.image.brokers[NODE_ID].cordoned_directories is not None)
        cordoned = broker.context.image.brokers[NODE_ID].cordoned_directories
        assert cordoned == registration.directories == (member.metadata.directory_id,)
        found = describe_observer(controller)
        assert found["ReplicaDirectoryId"] == member.metadata.directory_id
        with Cluster(broker.bootstrap_servers) as client:
            described = describe_cluster(client)
            assert described.quorum is not None
            assert (described.quorum.leader_id, [one.node_id for one in described.quorum.voters]) == (1, [1])
            ((node_id, is_fenced, lag),) = [(b.node.node_id, b.is_fenced, b.metadata_lag) for b in described.brokers]
            assert (node_id, is_fenced) == (NODE_ID, False)
            assert lag is not None
        mark = json.loads((folder / SHUTDOWN_MARK).read_text())  # valid from the start, because the member opens no log
        assert mark == {"version": 0, "brokerEpoch": member.broker_epoch}
        assert page(f"{broker.metrics_url}/ready") == (200, "ready\n")
        assert page(f"{broker.metrics_url}/health") == (200, "ok\n")
        metrics = page(f"{broker.metrics_url}/metrics")[1]
        assert "kafka_server_kafka_server_broker_state 3.0" in metrics
        assert f"kafka_raft_current_epoch {float(member.observer.epoch)}" in metrics
        member.loader.fault = "an unknown record"
        assert page(f"{broker.metrics_url}/health") == (503, "an unknown record\n")
        assert page(f"{broker.metrics_url}/ready") == (503, "not ready: an unknown record\n")
        epoch = member.broker_epoch
    assert json.loads((folder / SHUTDOWN_MARK).read_text()) == {"version": 0, "brokerEpoch": epoch}
    with started(values) as (_, member):  # within the session timeout of the first run
        assert member.broker_epoch > epoch
        assert member.loader.counts.errors == 0
    assert json.loads((folder / SHUTDOWN_MARK).read_text())["brokerEpoch"] == member.broker_epoch


def test_a_second_broker_with_the_id(controller: ApacheKafka, tmp_path: Path) -> None:
    """The second process ends with an error that says why; the first process stays unfenced."""
    first = settings(formatted(tmp_path / "a", controller), controller)
    second = settings(
        formatted(tmp_path / "b", controller), controller, initial__broker__registration__timeout__ms="1500"
    )
    with started(first) as (_, member):
        with pytest.raises(BrokerStartError, match=r"another broker with this node\.id is registered and alive"):
            Broker(second).start()
        assert member.lifecycle.state is BrokerState.RUNNING
        assert not member.is_fenced


def test_a_folder_of_another_cluster(controller: ApacheKafka, tmp_path: Path) -> None:
    other = "AAAAAAAAAAAAAAAAAAAAAQ"
    values = settings(
        formatted(tmp_path / "data", controller, other), controller, initial__broker__registration__timeout__ms="1000"
    )
    with pytest.raises(BrokerStartError, match=f"INCONSISTENT_CLUSTER_ID; it belongs to another cluster than {other}"):
        Broker(values).start()


def test_a_folder_that_is_not_formatted(controller: ApacheKafka, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(BrokerStartError, match=r"No `meta\.properties` found"):
        Broker(settings(tmp_path / "data", controller)).start()
    assert not list((tmp_path / "data").iterdir())


def test_a_folder_of_a_broker_that_was_its_own_controller(controller: ApacheKafka, tmp_path: Path) -> None:
    """A metadata log that the broker wrote as its own controller is refused and left unchanged."""
    folder = tmp_path / "data"
    alone = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "node.id": str(NODE_ID)}
    with Broker(alone):
        pass
    log = folder / "__cluster_metadata-0" / f"{0:020}.log"
    before = log.read_bytes()
    with pytest.raises(BrokerStartError, match="is the metadata log of a broker that was its own controller"):
        Broker(settings(folder, controller)).start()
    assert log.read_bytes() == before


def test_a_start_that_is_cancelled(controller: ApacheKafka, tmp_path: Path) -> None:
    """SIGTERM ends a start for which no controller responds, and the folder can be used again."""
    folder = formatted(tmp_path / "data", controller)
    values = settings(folder, controller) | {"controller.quorum.bootstrap.servers": f"127.0.0.1:{free_run(1)}"}
    broker = Broker(values)
    timer = threading.Timer(0.2, broker.cancel_start)
    timer.start()
    with pytest.raises(StartCancelled):
        broker.start()
    timer.join()
    with started(settings(folder, controller)):
        pass


# ---------------------------------------------------------------- security of the controllers


def secured(folder: Path, controller: ApacheKafka, ca: Path, **changes: str) -> dict[str, object]:
    values = settings(folder, controller)
    return {
        **values,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller.port + 1}",
        "controller.listener.names": "SECURED",
        "listener.security.protocol.map": "SECURED:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "listener.name.secured.ssl.truststore.location": str(ca),
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.secured.plain.sasl.jaas.config": f'{PLAIN} required username="broker" password="secret";',
        **changes,
    }


QUICK_END = {"initial.broker.registration.timeout.ms": "1000"}


def jaas(module: str, user: str, password: str) -> str:
    return f'{module} required username="{user}" password="{password}";'


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_tls_and_sasl(controller: ApacheKafka, tmp_path: Path, certificates: Certificates, mechanism: str) -> None:
    changes = {
        "sasl.mechanism.controller.protocol": mechanism,
        "listener.name.secured.scram-sha-256.sasl.jaas.config": jaas(SCRAM, "broker", "scram-secret"),
    }
    data = formatted(tmp_path / "data", controller)
    with started(secured(data, controller, certificates.ca, **changes)) as (_, member):
        assert member.lifecycle.state is BrokerState.RUNNING
        assert member.controller == (1, ("127.0.0.1", controller.port + 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"listener.name.secured.plain.sasl.jaas.config": jaas(PLAIN, "broker", "wrong")},
            "refuses the connection: SASL_AUTHENTICATION_FAILED",
        ),
        (
            {
                "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
                "listener.name.secured.scram-sha-256.sasl.jaas.config": jaas(SCRAM, "broker", "wrong"),
            },
            "refuses the connection: SASL_AUTHENTICATION_FAILED",
        ),
        (
            {"listener.name.secured.plain.sasl.jaas.config": jaas(PLAIN, "guest", "guest")},
            "CLUSTER_AUTHORIZATION_FAILED; the principal of this broker needs the operation ClusterAction",
        ),
        (
            {"listener.security.protocol.map": "SECURED:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"},
            "no metadata|closed|timed|within",
        ),
    ],
    ids=["password", "SCRAM password", "no CLUSTER_ACTION", "no TLS"],
)
def test_refused(
    controller: ApacheKafka, tmp_path: Path, certificates: Certificates, changes: dict[str, str], reason: str
) -> None:
    values = secured(formatted(tmp_path / "data", controller), controller, certificates.ca)
    with pytest.raises(BrokerStartError, match=reason):
        Broker({**values, **QUICK_END, **changes}).start()


def test_an_unknown_certificate(controller: ApacheKafka, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path / "stranger")
    values = secured(formatted(tmp_path / "data", controller), controller, stranger.ca)
    with pytest.raises(BrokerStartError, match=r"(?i)certificate verify failed"):
        Broker({**values, **QUICK_END}).start()


def test_a_missing_user(controller: ApacheKafka, tmp_path: Path, certificates: Certificates) -> None:
    values = secured(formatted(tmp_path / "data", controller), controller, certificates.ca)
    del values["listener.name.secured.plain.sasl.jaas.config"]
    with pytest.raises(ValueError, match="listener SECURED of the controllers: expected username and password"):
        Broker(values).start()


# ---------------------------------------------------------------- controllers that end


def test_the_controller_dies_and_comes_back(controller: ApacheKafka, tmp_path: Path) -> None:
    """A member without a controller reports the failure; with the controller back, it is unfenced in the same epoch."""
    values = settings(formatted(tmp_path / "data", controller), controller, kbroker__metrics__listener="127.0.0.1:0")
    with started(values) as (broker, member):
        epoch, offset = member.broker_epoch, member.metadata.image.offset
        os.kill(controller.pid, signal.SIGKILL)
        controller.end()
        wait_for("the member's report of the controller's death", lambda: bool(member.trouble))
        assert "127.0.0.1" in member.trouble
        assert page(f"{broker.metrics_url}/health")[0] == 200
        controller.start()
        wait_for("the return", lambda: member.metadata.image.offset > offset and not member.trouble)
        wait_for("the unfencing", lambda: not member.is_fenced)
        assert member.broker_epoch == epoch
        assert member.observer.epoch > 0


@pytest.mark.soak
def test_apache_kafka_and_kbroker_on_one_folder(controller: ApacheKafka, tmp_path: Path) -> None:
    """After kbroker has served a folder of Kafka and was killed once, Kafka leads it again with all records."""
    port = free_run(2)
    values = {
        "process.roles": "broker",
        "node.id": str(NODE_ID),
        "controller.quorum.bootstrap.servers": controller.bootstrap,
        "controller.quorum.voters": "",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": f"{tmp_path / 'kafka' / 'data'},{tmp_path / 'kafka' / 'more'}",
        "broker.heartbeat.interval.ms": "500",
        "log.cleaner.dedupe.buffer.size": "2097152",
    }
    kafka = ApacheKafka(
        values,
        port=port,
        heap="160m",
        folder=tmp_path / "kafka",
        cluster_id=controller.cluster_id,
        formatted=("--no-initial-controllers",),
    )
    written = tmp_path / "server.properties"
    written.write_text("".join(f"{name}={value}\n" for name, value in values.items() if value))
    node = ConfiguredBroker(tmp_path, port, written)
    try:
        kafka.start()
        with Cluster(kafka.bootstrap) as client:
            Admin(client).create_topics([NewTopic("in-place", 4, 1)])
            with Producer(client) as producer:
                for number in range(8):
                    producer.send("in-place", b"%d" % number, partition=number % 4)
        kafka.end()
        before = segments(tmp_path)
        assert len(before) == 4
        node.start()
        node.kill()
        node.start()
        with Cluster(kafka.bootstrap) as client:

            def in_sync() -> list[tuple[int, ...]]:
                return [one.isr for one in client.fetch_metadata(["in-place"])[0].partitions]

            # a killed node that is not back within the session timeout is fenced, and later returns to the ISR
            wait_for("the replicas in sync", lambda: in_sync() == [(NODE_ID,)] * 4)
        assert node.stop() == 0
        assert segments(tmp_path) == before
        kafka.start()
        with Cluster(kafka.bootstrap) as client:

            def leaders() -> set[int]:
                return {one.leader for one in client.fetch_metadata(["in-place"])[0].partitions}

            wait_for("the leaders", lambda: leaders() == {NODE_ID})
            ends = Admin(client).list_offsets({("in-place", number): -1 for number in range(4)})
            assert [ends["in-place", number].offset for number in range(4)] == [2] * 4
    finally:
        node.discard()
        kafka.end()


def segments(folder: Path) -> dict[Path, bytes]:
    """Return the contents of the segments of the topic `in-place`."""
    return {path: path.read_bytes() for path in folder.rglob("in-place-*/*.log")}


@pytest.mark.soak
def test_the_wall_clock_is_set(controller: ApacheKafka, tmp_path: Path) -> None:
    """Jumps of the wall clock by a day in both directions do not fence the member; changes are forwarded after each
    jump.
    """
    jump = ClockJump(tmp_path)
    port = free_run(1)
    values = settings(formatted(tmp_path / "data", controller), controller, listeners=f"PLAINTEXT://127.0.0.1:{port}")
    written = tmp_path / "server.properties"
    written.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    node = ConfiguredBroker(tmp_path, port, written)
    node.wrapper = list(jump.wrapper)
    node.start()

    def end_offset() -> int:
        return describe_observer(controller)["LogEndOffset"]

    def await_six_records() -> None:  # the controllers write a record every 500 ms: six take twice the session timeout
        wanted = end_offset() + 6
        wait_for("six records", lambda: end_offset() >= wanted)

    with Cluster(node.bootstrap) as client:
        admin = Admin(client)
        before = json.loads((tmp_path / "data" / SHUTDOWN_MARK).read_text())
        for number, days in enumerate((1, 0, -1, 0)):
            jump.set_ahead(days * DAY_S)
            await_six_records()
            assert [one.is_fenced for one in describe_cluster(client).brokers if one.node.node_id == NODE_ID] == [False]
            admin.alter_configs(ConfigResourceType.BROKER, "", [ConfigChange("num.io.threads", 0, str(4 + number))])
    assert node.stop() == 0, node.tail()
    assert "fenced" not in node.tail()
    assert json.loads((tmp_path / "data" / SHUTDOWN_MARK).read_text()) == before  # the member was not registered again
