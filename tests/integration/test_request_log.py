"""Request log of a running broker: records of requests, verdicts, and replayed throttle times."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.sensor import QuotaViolationError
from kbroker.cli import cli
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.request_log import QUOTA_TYPES
from kbroker.metrics.registry import Metrics
from kbroker.protocol.records import columns
from kbroker.quota._client_quotas import ClientQuotaManagers
from kbroker.testing import EmbeddedBroker, VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client, new_topics
from tests.support.fixtures import fixture_of
from tests.support.wire import Connection, create_topic

USER = "ANONYMOUS"
LOG = "__request_log"
PRODUCER, CONSUMER, PERCENTAGE = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
SETTINGS = {
    "num.network.threads": "1",
    "log.flush.interval.messages": "9223372036854775807",
    "kbroker.request.log.topic": LOG,
}
Record = dict[str, Any]
broker = fixture_of(VirtualBroker, SETTINGS, topics={"t": 2})


@pytest.fixture
def client(broker: VirtualBroker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers, "app") as connection:
        yield connection


def records(broker: EmbeddedBroker, topic: str = LOG) -> list[Record]:
    """Return all records of the topic in the order of their sequence numbers."""
    broker.request_log.flush()
    view = broker.context.topics.get(topic)
    assert view is not None
    found = []
    for log in view.partitions:
        data = log.read(0, 1 << 26).records
        found += [json.loads(value) for value in columns(data).values] if data else []  # type: ignore[attr-defined]
    return sorted(found, key=lambda record: int(record["sequence"]))


def of_client(broker: EmbeddedBroker, client_id: str = "app", count: int = 1, api: str = "") -> list[Record]:
    """Return the records of a client once there are `count`: a request ends after its response was sent."""
    found: list[Record] = []

    def enough() -> bool:
        of_requests = [record for record in records(broker) if "requestHeader" in record]
        found[:] = [
            record
            for record in of_requests
            if record["requestHeader"]["clientId"] == client_id
            and api in ("", record["requestHeader"]["requestApiKeyName"])
        ]
        return len(found) >= count

    wait_until(enough)
    assert len(found) == count, found
    return found


def test_a_request_is_in_the_log_with_its_sizes(broker: VirtualBroker, client: Client) -> None:
    """Requests of native and Python handlers are logged with sizes, client software and principal."""
    software = {"ClientSoftwareName": "my-client", "ClientSoftwareVersion": "1.2.3"}
    first = client.begin("ApiVersions", 3, software)
    client.end()
    response_bytes = len(client.response)
    size = client.produce("t", 1000)
    client.end()
    client.call("ListGroups", 0, {})
    client.call("DescribeCluster", 0, {"IncludeClusterAuthorizedOperations": False})
    found = of_client(broker, count=4)
    assert [r["requestHeader"]["requestApiKeyName"] for r in found] == [
        "API_VERSIONS", "PRODUCE", "LIST_GROUPS", "DESCRIBE_CLUSTER",
    ]  # fmt: skip
    assert (found[0]["requestBytes"], found[0]["responseBytes"]) == (first, response_bytes)
    assert found[1]["requestBytes"] == size
    assert all(r["clientInformation"] == {"softwareName": "my-client", "softwareVersion": "1.2.3"} for r in found)
    assert all(r["principal"] == "User:ANONYMOUS" and r["securityProtocol"] == "PLAINTEXT" for r in found)
    host, port = client.socket.getsockname()[:2]
    assert f"-{host}:{port}-0-" in found[0]["connection"]
    assert all(r["quota"] == {"verdicts": [], "updates": []} for r in found)


def test_the_topic_is_internal_and_its_readers_leave_no_record(broker: VirtualBroker, client: Client) -> None:
    """Clients cannot produce to the log's topic, and their reads of the topic are not logged."""
    client.produce(LOG, 10)
    assert client.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 17
    client.fetch(LOG, max_wait_ms=0)
    client.end()
    body = {"ReplicaId": -1, "Topics": [{"Name": LOG, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]}
    client.call("ListOffsets", 1, body)
    client.produce("t", 10)
    client.end()
    (record,) = of_client(broker)
    assert record["requestHeader"]["requestApiKeyName"] == "PRODUCE"
    assert record["errorCode"] == 0


def tail(broker: EmbeddedBroker, *words: str) -> tuple[str, str]:
    """Return output and errors of `kbroker requests tail` for Produce requests."""
    command = ["requests", "tail", "-b", broker.bootstrap_servers, "--api", "Produce", *words]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_produced_records_are_decoded_below_their_request() -> None:
    """At most ten records per request are read at the logged offsets and decoded; deleted records are reported."""
    with VirtualBroker({**SETTINGS, "kbroker.request.log.offsets": "true"}) as broker:
        broker.create_topic("t", 2)
        with Cluster(broker.bootstrap_servers, client_id="app") as cluster, Producer(cluster) as producer:
            for number in range(13):
                producer.send("t", b'{"n": %d}' % number, b"key \x1b", partition=1)
            producer.flush()
            producer.send("t", (7).to_bytes(4, "big"), partition=0)
            producer.flush()
            first, second = of_client(broker, count=2, api="PRODUCE")
            appended = {"topic": "t", "partition": 1, "firstOffset": 0, "lastOffset": 12}
            assert first["response"] == {"appended": [appended]}
            assert second["response"]["appended"][0]["partition"] == 0
            lines, problems = tail(broker, "--decode", "json", "--decode-key", "text")
            assert lines.splitlines()[2].strip().startswith("t-1 offset 0 time ")
            assert lines.splitlines()[2].endswith('key \\u001b: {"n": 0}')
            assert lines.splitlines()[12].strip() == "and 3 more records"
            assert "t-0 offset 0: the value is printed as it is: not JSON" in problems
            document = json.loads(tail(broker, "--decode", "int32", "--json")[0].splitlines()[1])
            assert document["records"][0]["value"] == 7
            Admin(cluster).delete_records({("t", 1): 13})
        lines, problems = tail(broker, "--decode", "json", "-n", "2")
        assert "t-1 offsets 0 to 12: OFFSET_OUT_OF_RANGE" in lines


@pytest.mark.skipif(sys.platform == "win32", reason="a closed pipe is found by poll")
@pytest.mark.parametrize("place", ["topic", "folder"])
def test_a_closed_pipe_ends_the_wait_for_requests(place: str, tmp_path: Path) -> None:
    """`kbroker requests tail -f | head -1` ends without a further request."""
    with EmbeddedBroker({**SETTINGS, "kbroker.request.log.dir": str(tmp_path)}) as broker:
        with Connection(broker.bootstrap_servers) as admin:
            admin.ask(create_topic("t", 1))
        words = ["-b", broker.bootstrap_servers] if place == "topic" else [str(tmp_path)]
        command = [sys.executable, "-m", "kbroker", "requests", "tail", "--follow", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            assert reader.stdout.readline().startswith(b"TIME (UTC)")
            reader.stdout.close()
            assert reader.wait(30) == 1
            assert reader.stderr.read() == b""


def test_a_deleted_topic_costs_ten_lines_of_a_request() -> None:
    with VirtualBroker({**SETTINGS, "kbroker.request.log.offsets": "true"}) as broker:
        broker.create_topic("wide", 30)
        with Cluster(broker.bootstrap_servers, client_id="app") as cluster, Producer(cluster) as producer:
            for partition in range(30):
                producer.send("wide", b"x", partition=partition)
            producer.flush()
            (record,) = of_client(broker, api="PRODUCE")
            assert len(record["response"]["appended"]) == 30
            Admin(cluster).delete_topics(["wide"])
        lines = tail(broker, "--decode", "text")[0].splitlines()
        assert sum("UNKNOWN_TOPIC_OR_PARTITION" in line for line in lines) == 10
        assert lines[-1].strip() == "and 20 more records"


def test_a_log_without_offsets_says_so_once(broker: VirtualBroker, client: Client) -> None:
    for _ in range(2):
        client.produce("t", 10)
        client.end()
    of_client(broker, count=2)
    lines, problems = tail(broker, "--decode", "auto")
    assert len(lines.splitlines()) == 3
    assert problems.count("kbroker.request.log.offsets=true") == 1


def test_idle_polls_are_one_record_a_second(broker: VirtualBroker, client: Client) -> None:
    """Empty fetches of a consumer without a wait are logged once a second."""
    for _ in range(50):
        client.fetch("t", max_wait_ms=0)
        client.end()
    found = of_client(broker, count=1)
    assert found[0]["requestHeader"]["requestApiKeyName"] == "FETCH"
    assert found[0]["repeated"] in range(1, 51)


def replay(found: list[Record], quotas: ClientQuotaManagers) -> list[tuple[str, int, int]]:
    """Return type, time and throttle time of every checked value over its quota, replayed into new sensors."""
    updates = [update for record in found for update in record["quota"]["updates"]]
    counters: dict[tuple[str, str, str], list[Record]] = {}
    for update in updates:
        counters.setdefault((update["quotaType"], update["user"], update["clientId"]), []).append(update)
    managers = dict(zip(QUOTA_TYPES, (quotas.produce, quotas.fetch, quotas.request), strict=False))
    asked = []
    for (kind, user, client_id), values in counters.items():
        values.sort(key=lambda update: int(update["sequence"]))
        assert [update["sequence"] for update in values] == list(range(1, len(values) + 1))
        sensor = managers[kind].sensor(user, client_id)
        for update in values:
            try:
                sensor.record(update["value"], update["timeMs"], update["checked"])
            except QuotaViolationError as violation:
                asked.append((kind, update["timeMs"], violation.throttle_time_ms or 0))
    return sorted(asked)


def test_a_replay_gives_the_brokers_delays(broker: VirtualBroker, client: Client) -> None:
    """A replay of the logged values into new sensors gives the throttle times of the broker."""
    quotas = ((USER, "app", PRODUCER, 90), (None, "app", CONSUMER, 900), (USER, None, PERCENTAGE, 0.001))
    for quota in quotas:
        broker.context.quotas.update(*quota)
    throttles = []
    for turn in range(30):
        if turn % 3 == 2:
            client.fetch("t", offset=0, max_wait_ms=0)
        else:
            client.produce("t", 300 * (turn % 7))
        throttles.append(client.end()["ThrottleTimeMs"])
        of_client(broker, count=turn + 1)  # the network thread has charged its time before the clock moves
        broker.advance_ms(throttles[-1] + 137 * (turn % 5))
    found = of_client(broker, count=30)
    assert [r["throttleTimeMs"] for r in found] == throttles
    assert {v["quotaType"] for r in found for v in r["quota"]["verdicts"]} == {"Produce", "Fetch"}
    assert any(u["value"] < 0 for r in found for u in r["quota"]["updates"]), "no fetch was given back"
    assert_replay_agrees(found, throttles, ClientQuotaManagers(VirtualClock(0), Metrics()), quotas)


def test_a_replay_gives_the_delays_of_real_time_too() -> None:
    """The times of handlers and network threads are logged, so that a replay gives the throttle times on the system
    clock.
    """
    settings = {**SETTINGS, "quota.window.num": "2"}
    quotas = ((USER, None, PRODUCER, 30_000), (None, "app", PERCENTAGE, 0.5))
    with EmbeddedBroker(settings) as broker, Client(broker.bootstrap_servers, "app") as client:
        broker.create_topic("t")
        for quota in quotas:
            broker.context.quotas.update(*quota)
        throttles = []
        for turn in range(60):
            client.produce("t", 1000 * (turn % 3))
            throttles.append(client.end()["ThrottleTimeMs"])
        found = of_client(broker, count=60)
    values = [u for r in found for u in r["quota"]["updates"] if u["quotaType"] == "Request"]
    assert sum(not u["checked"] for u in values) > 10, "no network time was charged"
    assert sum(throttles) > 0
    assert_replay_agrees(found, throttles, ClientQuotaManagers(VirtualClock(0), Metrics(), samples=2), quotas)


def assert_replay_agrees(
    found: list[Record], throttles: list[int], cold: ClientQuotaManagers, quotas: Iterable[tuple[Any, ...]]
) -> None:
    """Check that a replay of the logged values gives the verdicts of the broker."""
    for quota in quotas:
        cold.update(*quota)
    verdicts = [(v, r) for r in found for v in r["quota"]["verdicts"]]
    assert sum(v["delayServedMs"] for v, _ in verdicts) == sum(throttles)
    broker_asked = sorted(
        (v["quotaType"], next(
            u["timeMs"] for u in r["quota"]["updates"] if u["quotaType"] == v["quotaType"] and u["checked"]
        ), v["delayAskedMs"])
        for v, r in verdicts
    )  # fmt: skip
    assert [one for one in replay(found, cold) if one[2] > 0] == broker_asked
    assert broker_asked


def test_verdicts_name_level_and_limit(broker: VirtualBroker, client: Client) -> None:
    """Two quotas that a request exceeds give two verdicts, of which the larger one throttles."""
    quotas = broker.context.quotas
    quotas.update(None, "app", "producer_byte_rate", 100)
    quotas.update(USER, None, "request_percentage", 1)
    quotas.request.record_no_throttle(USER, "app", 100_000)
    broker.take_verdicts()
    size = client.produce("t", 50_000)
    throttle_ms = client.end()["ThrottleTimeMs"]
    produced, timed = broker.take_verdicts()
    assert (produced.quota_type, produced.level, produced.limit, produced.user, produced.client_tag) == (
        "Produce", 7, 100.0, "", "app",
    )  # fmt: skip
    assert (produced.observed, produced.window_ms) == (size / 10, 10_000)
    assert produced.delay_asked_ms == produced.delay_served_ms == throttle_ms == round((size / 10 - 100) / 100 * 10_000)
    assert (timed.quota_type, timed.level, timed.user, timed.delay_served_ms) == ("Request", 3, USER, 0)
    assert timed.delay_asked_ms > 1000
    assert produced.principal == "User:ANONYMOUS"
    assert produced.api_key == 0
    host, port = client.socket.getsockname()[:2]
    assert f"-{host}:{port}-" in produced.connection
    (record,) = of_client(broker)
    assert [v["delayServedMs"] for v in record["quota"]["verdicts"]] == [throttle_ms, 0]
    assert broker.take_verdicts() == []
    totals = quotas.verdict_totals()
    assert (totals["Produce"], totals["Request"]) == ((1, 0), (1, 0))


def test_a_refused_mutation_is_a_verdict(broker: VirtualBroker, client: Client) -> None:
    """With THROTTLING_QUOTA_EXCEEDED, accepted mutations are an update and refused ones a verdict."""
    broker.context.quotas.update(USER, None, "controller_mutation_rate", 1)
    response = client.call("CreateTopics", 6, new_topics("m0", "m1", partitions=30))
    assert sorted(t["ErrorCode"] for t in response["Topics"]) == [0, 89]
    throttle_ms = response["ThrottleTimeMs"]
    (record,) = of_client(broker)
    (update,) = record["quota"]["updates"]
    (verdict,) = record["quota"]["verdicts"]
    assert (update["quotaType"], update["value"], update["sequence"], update["checked"]) == (
        "ControllerMutation", 30.0, 1, True,
    )  # fmt: skip
    assert (verdict["quotaType"], verdict["refused"], verdict["level"], verdict["limit"]) == (
        "ControllerMutation", True, 3, 1.0,
    )  # fmt: skip
    assert verdict["delayAskedMs"] == verdict["delayServedMs"] == throttle_ms > 0
    assert verdict["windowMs"] == 11_000
    assert (record["errorCode"], record["errorCount"], record["throttleTimeMs"]) == (89, 1, throttle_ms)


def test_verdicts_of_one_request_have_bounded_memory(broker: VirtualBroker) -> None:
    """A request notes verdicts, each with its client id, up to 16 MiB, however many of its topics are refused."""
    client_id = "x" * 32_000
    broker.context.quotas.update(None, client_id, "controller_mutation_rate", 1)
    with Client(broker.bootstrap_servers, client_id) as client:
        response = client.call("CreateTopics", 6, new_topics(*(f"m{number}" for number in range(1500))))
    assert [t["ErrorCode"] for t in response["Topics"]].count(89) > 1400
    wait_until(lambda: broker.context.quotas.verdict_totals()["ControllerMutation"][1] > 0)
    assert broker.context.quotas.verdict_totals()["ControllerMutation"][1] < (1 << 24) // len(client_id)


def test_connections_that_come_too_fast_are_rows_without_a_request(broker: VirtualBroker) -> None:
    """A refused connection is logged with its address and rate, without a request."""
    broker.context.connection_quotas.update_ip_rate("127.0.0.1", 1)
    with Client(broker.bootstrap_servers), Client(broker.bootstrap_servers):
        held = [Client(broker.bootstrap_servers) for _ in range(12)]
        wait_until(lambda: broker.context.connection_quotas.throttled > 0)
        rows = [r for r in records(broker) if "requestHeader" not in r]
        for one in held:
            one.close()
    (verdict,) = rows[0]["quota"]["verdicts"]
    assert (verdict["quotaType"], verdict["ip"], verdict["limit"], verdict["refused"]) == (
        "ConnectionRate", "127.0.0.1", 1.0, True,
    )  # fmt: skip
    assert 0 < verdict["delayServedMs"] <= 1000
    assert verdict["delayAskedMs"] >= verdict["delayServedMs"]
    assert rows[0]["address"] == "127.0.0.1"
    assert any(v.quota_type == "ConnectionRate" and v.refused for v in broker.verdicts)


def test_a_restart_goes_on_in_the_same_topic_and_in_new_files(tmp_path: Path) -> None:
    """After a restart, the topic is continued and a new file begun, whose sequence numbers start at 1."""
    folder = tmp_path / "files"
    settings = {
        "log.dirs": str(tmp_path / "data"), "kbroker.in.memory": "false", "kbroker.request.log.topic": LOG,
        "kbroker.request.log.dir": str(folder),
    }  # fmt: skip
    for _ in range(2):
        with EmbeddedBroker(settings) as broker, Client(broker.bootstrap_servers, "app") as client:
            client.call("ListGroups", 0, {})
    with EmbeddedBroker(settings) as broker:
        wait_until(lambda: len([r for r in records(broker) if r["requestHeader"]["clientId"] == "app"]) == 2)
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for file in files:
        (record,) = (json.loads(line) for line in file.read_text().splitlines())
        assert (record["sequence"], record["requestHeader"]["clientId"]) == (1, "app")


def test_nothing_is_recorded_where_nothing_is_set() -> None:
    """Without settings there is no topic, and nothing is counted."""
    with VirtualBroker({"num.network.threads": "1"}) as broker, Client(broker.bootstrap_servers) as client:
        client.call("ListGroups", 0, {})
        assert not broker.request_log.settings.is_on
        assert tuple(broker.request_log.figures) == (0, 0, 0, 0)
        assert broker.context.topics.get(LOG) is None


def test_limits_for_clients_are_not_the_logs() -> None:
    """Limits for clients do not apply to the log's batches, whose compression is configured."""
    settings = {**SETTINGS, "message.max.bytes": "300", "kbroker.request.log.compression": "lz4"}
    with VirtualBroker(settings) as broker, Client(broker.bootstrap_servers, "app") as client:
        for _ in range(20):
            client.call("ListGroups", 0, {})
        of_client(broker, count=20)
        assert broker.request_log.figures.dropped == 0
        view = broker.context.topics.get(LOG)
        assert view is not None
        assert view.configs["compression.type"] == "lz4"


def test_a_deleted_topic_is_made_again(broker: VirtualBroker, client: Client) -> None:
    """A deleted topic of the log is created again for the next records."""
    client.call("ListGroups", 0, {})
    of_client(broker)
    broker.context.topics.delete(LOG)
    client.call("ListGroups", 0, {})
    wait_until(lambda: broker.request_log.flush() or LOG in broker.topics)  # type: ignore[func-returns-value]
    assert [r["requestHeader"]["requestApiKeyName"] for r in of_client(broker)] == ["LIST_GROUPS"]


def test_after_a_kill_the_files_have_whole_lines_but_for_the_last(tmp_path: Path) -> None:
    """After kill -9, each file has complete lines except for the last one."""
    folder = tmp_path / "files"
    process = BrokerProcess(
        tmp_path / "data", {"kbroker.request.log.topic": LOG, "kbroker.request.log.dir": str(folder)}
    )
    process.start()
    with Client(process.bootstrap, "app") as client:
        for _ in range(300):
            client.call("ListGroups", 0, {})
        wait_for("records in a file", lambda: any(f.stat().st_size for f in folder.iterdir()))
    process.kill()
    process.start()
    try:
        with Client(process.bootstrap, "again") as client:
            client.call("ListGroups", 0, {})
            wait_for("the second start has written a file", lambda: len(list(folder.iterdir())) == 2)
    finally:
        process.stop()
    for file in sorted(folder.iterdir()):
        lines = file.read_bytes().split(b"\n")
        numbers = [json.loads(line)["sequence"] for line in lines[:-1]]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("name", ["a b", "x/y", "."])
def test_a_name_that_no_topic_can_have_stops_the_start(name: str) -> None:
    """An invalid topic name prevents the start."""
    with pytest.raises(ValueError, match=r"kbroker\.request\.log\.topic"):
        EmbeddedBroker({"kbroker.request.log.topic": name}).start()


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    """A folder that cannot be created prevents the start with the setting, its value and the expected value."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "inside", tmp_path / "file", f"{tmp_path}/a\0b"):
        broker = EmbeddedBroker({"kbroker.request.log.dir": str(folder)})
        with pytest.raises(ConfigError, match=r"kbroker\.request\.log\.dir") as refused:
            broker.start()
        assert str(folder) in refused.value.explain()
        assert "a folder in which the broker can create files" in refused.value.explain()
        assert not broker.is_running


def test_a_topic_with_other_records_stops_the_start(tmp_path: Path) -> None:
    """A topic with other records prevents the start, as clients could no longer produce to it."""
    settings = {"log.dirs": str(tmp_path), "kbroker.in.memory": "false"}
    with EmbeddedBroker(settings) as broker, Client(broker.bootstrap_servers) as client:
        broker.create_topic("orders")
        broker.create_topic("empty", 2)
        client.produce("orders", 100)
        client.end()
    with pytest.raises(ConfigError, match=r"orders.*has other records") as refused:
        EmbeddedBroker({**settings, "kbroker.request.log.topic": "orders"}).start()
    assert "a topic with nothing else in it" in refused.value.explain()
    for _ in range(2):  # an empty topic of an operator, then the topic with the log's records
        with EmbeddedBroker({**settings, "kbroker.request.log.topic": "empty"}) as broker:
            with Client(broker.bootstrap_servers) as client:
                client.call("ListGroups", 0, {})
            wait_until(lambda: any(r["requestHeader"]["clientId"] for r in records(broker, "empty")))
            assert len(broker.context.topics.get("empty").partitions) == 2
    with EmbeddedBroker(settings) as broker, Client(broker.bootstrap_servers) as client:
        client.produce("orders", 100)
        assert client.end()["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0


def test_the_log_counts_itself(broker: VirtualBroker, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """The metrics have the written and dropped records, the bytes and the queue of the log."""
    with caplog.at_level(logging.WARNING):
        client.call("ListGroups", 0, {})
        of_client(broker)
    shown = {family.prometheus_name: samples for family, samples in broker.exposition.collect()}
    assert shown["kbroker_request_log_records_written_total"][0].value >= 1  # type: ignore[operator]
    assert shown["kbroker_request_log_records_dropped_total"][0].value == 0
    assert len(shown["kbroker_quota_verdicts_total"]) == 10
    figures = broker.request_log.figures
    assert figures.written >= 1
    assert (figures.dropped, figures.queued_bytes) == (0, 0)
    assert figures.written_bytes > 300
    assert "has dropped" not in caplog.text
