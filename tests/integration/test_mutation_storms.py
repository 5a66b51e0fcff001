"""Controller mutation quotas with client libraries: refusals, muted connections, unaffected clients."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import NodeNotReadyError

from kbroker.client.admin import Admin
from kbroker.client.admin import NewTopic as OurTopic
from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection, parse_bootstrap
from kbroker.client.quotas import QuotaClient
from kbroker.common.quotas import CLIENT_ID, QuotaEntity
from tests.support.broker import BrokerProcess

METADATA, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 3, 19, 20, 37
REFUSED = 89
RATE, WINDOWS = 10, 2
BURST = RATE * WINDOWS
SETTINGS = {"controller.quota.window.num": str(WINDOWS)}
#: Long enough that a busy machine sends the next request within it.
MUTED_S = 5
OVERDRAWN = BURST + MUTED_S * RATE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

Body = dict[str, Any]


def limit(broker: BrokerProcess, client_id: str, rate: float | None = RATE) -> None:
    with Cluster(broker.bootstrap) as cluster:
        entity = QuotaEntity.of({CLIENT_ID: client_id})
        assert QuotaClient(cluster).alter({entity: {"controller_mutation_rate": rate}}) == {entity: None}


def connect(broker: BrokerProcess, client_id: str) -> Connection:
    (address,) = parse_bootstrap(broker.bootstrap)
    return Connection(address, client_id=client_id)


def create(connection: Connection, version: int, name: str, partitions: int) -> tuple[int, int]:
    """Return throttle_time_ms and the error code."""
    topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Assignments": [], "Configs": []}
    response = connection.request(CREATE_TOPICS, version, {"Topics": [topic], "timeoutMs": 9000})
    return response["ThrottleTimeMs"], response["Topics"][0]["ErrorCode"]


def response_after_ms(connection: Connection) -> float:
    begun = time.monotonic()
    connection.request(METADATA, 8, {"Topics": [], "AllowAutoTopicCreation": False})
    return (time.monotonic() - begun) * 1000


@pytest.mark.parametrize("version", [5, 7])
def test_the_channel_is_muted_for_the_throttle_time(broker: BrokerProcess, version: int) -> None:
    """The response is sent at once in every version; then only its connection is muted for the throttle time."""
    client_id = f"muted-{version}"
    limit(broker, client_id)
    first, second, other = connect(broker, client_id), connect(broker, client_id), connect(broker, "free")
    begun = time.monotonic()
    overdraw = create(first, version, f"{client_id}-a", OVERDRAWN)
    if version < 6:
        throttle_time_ms, code = overdraw
        assert code == 0
    else:
        assert overdraw == (0, 0)
        begun = time.monotonic()  # the channel is muted somewhat later, when the response is sent
        throttle_time_ms, code = create(first, version, f"{client_id}-b", 1)
        assert code == REFUSED
    assert 0 < throttle_time_ms <= MUTED_S * 1000
    assert response_after_ms(other) < throttle_time_ms / 2
    assert response_after_ms(second) < throttle_time_ms / 2
    response_after_ms(first)
    assert (time.monotonic() - begun) * 1000 >= throttle_time_ms
    for connection in (first, second, other):
        connection.close()


def test_the_counter_outlives_its_connection(broker: BrokerProcess) -> None:
    """A new connection with the same client id is refused too."""
    limit(broker, "again", 1.0)
    first = connect(broker, "again")
    begun = time.monotonic()
    assert create(first, 7, "again-a", WINDOWS + 30)[1] == 0
    first.close()
    second = connect(broker, "again")
    throttle_time_ms, code = create(second, 7, "again-b", 1)
    assert code == REFUSED
    passed_ms = (time.monotonic() - begun) * 1000
    assert 30_000 - passed_ms - 1 <= throttle_time_ms <= 30_000
    second.close()
    with Cluster(broker.bootstrap) as cluster:
        assert "again-b" not in Admin(cluster).list_topics()


def test_old_and_new_clients_storm(broker: BrokerProcess) -> None:
    """librdkafka (CreateTopics v4) creates all its topics, and kafka-python (v7) is refused; both keep the rate."""
    limit(broker, "old")
    limit(broker, "new")
    begun = time.monotonic()
    old = AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "old", "log_level": 0})
    made = 0
    while made < 60:
        name = f"old-{made}"
        old.create_topics([NewTopic(name, num_partitions=10, replication_factor=1)])[name].result(30)
        made += 10
        elapsed_s = time.monotonic() - begun
        assert made <= BURST + RATE * elapsed_s + 10 + 10
    assert time.monotonic() - begun >= (made - BURST - 2 * 10) / RATE

    new = KafkaAdminClient(bootstrap_servers=broker.bootstrap, client_id="new")
    codes: list[int] = []
    begun = time.monotonic()
    try:
        while codes.count(REFUSED) < 3:
            try:
                response = new.create_topics({f"new-{len(codes)}": {"num_partitions": 10}}, raise_errors=False)
            except NodeNotReadyError:  # the client waits for the throttle time and refuses to send meanwhile
                time.sleep(0.05)
                continue
            codes += [topic["error_code"] for topic in response["topics"]]
            assert codes.count(0) * 10 <= BURST + RATE * (time.monotonic() - begun) + 10
    finally:
        new.close()
    assert codes[:3] == [0, 0, 0]
    assert set(codes) == {0, REFUSED}


def test_automatic_creation_is_silent(broker: BrokerProcess) -> None:
    """Above the quota, a Metadata request creates no topic, has no throttle time and does not mute the connection."""
    limit(broker, "auto", 1.0)
    connection = connect(broker, "auto")
    assert create(connection, 7, "auto-a", WINDOWS + 60) == (0, 0)
    body: Body = {"Topics": [{"Name": "auto-b"}], "AllowAutoTopicCreation": True}
    for _ in range(2):
        response = connection.request(METADATA, 8, body, timeout_s=20)  # the connection would be muted for a minute
        assert (response["ThrottleTimeMs"], [t["ErrorCode"] for t in response["Topics"]]) == (0, [3])
    connection.close()
    limit(broker, "auto", None)
    connection = connect(broker, "auto")
    connection.request(METADATA, 8, body)
    assert [t["ErrorCode"] for t in connection.request(METADATA, 8, body)["Topics"]] == [0]
    connection.close()


def test_kbroker_topics_waits_with_its_option(broker: BrokerProcess) -> None:
    """kbroker's command is refused with the throttle time; with `--wait` it succeeds."""
    limit(broker, "kbroker-cli")
    from click.testing import CliRunner

    from kbroker.cli import cli

    def run(*args: str) -> Any:
        return CliRunner().invoke(cli, args, prog_name="kbroker", env={"KBROKER_BOOTSTRAP": broker.bootstrap})

    made = run("topics", "create", "cli-a", "--partitions", str(OVERDRAWN))
    assert made.exit_code == 0, made.output
    refused = run("topics", "create", "cli-b")
    assert refused.exit_code == 75
    assert "the controller mutation quota is used up, try again in" in refused.stderr
    assert run("topics", "create", "cli-b", "--wait").stdout == "created cli-b with 1 partition\n"
    limit(broker, "kbroker-cli", None)
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topics([OurTopic("cli-c", BURST * 5)])


def test_a_client_too_old_for_89_runs_into_its_timeout(broker: BrokerProcess) -> None:
    """librdkafka (v4) is not refused: its next request times out, and succeeds on a new connection."""
    limit(broker, "old-timeout", 1.0)

    def create(admin: AdminClient, name: str, partitions: int, request_timeout: float) -> None:
        admin.create_topics([NewTopic(name, partitions, 1)], request_timeout=request_timeout)[name].result(30)

    settings = {"bootstrap.servers": broker.bootstrap, "client.id": "old-timeout", "log_level": 0}
    admin = AdminClient(settings)  # type: ignore[arg-type]
    create(admin, "late-a", WINDOWS + 30, 30)
    with pytest.raises(KafkaException) as caught:
        create(admin, "late-b", 1, 1.0)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    create(AdminClient(settings), "late-b", 1, 10)  # type: ignore[arg-type]
    limit(broker, "old-timeout", None)
