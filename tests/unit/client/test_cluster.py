"""Routing, metadata, retries and administrative requests."""

import socket
from typing import Any

import pytest

import kbroker
from kbroker.client.admin import DELETE_RECORDS, Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.cluster_description import describe_cluster
from kbroker.client.connection import (
    API_VERSIONS,
    BrokerConnectionError,
    BrokerTimeoutError,
    Connection,
    format_address,
)
from kbroker.client.quorum_description import DESCRIBE_QUORUM, QuorumReplica, describe_quorum
from kbroker.client.transactions import DESCRIBE_PRODUCERS, Transactions
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from tests.support.fake_broker import Body, FakeBroker
from tests.support.fake_log import FakeTime

METADATA, CREATE_TOPICS = 3, 19


def test_each_request_says_the_same_of_the_clients_software(broker: FakeBroker) -> None:
    """Each ApiVersions request has the same software, since brokers count connections by the latest request."""
    broker.ranges = {key: broker.ranges[key] for key in broker.handlers}
    with Cluster(broker.bootstrap) as cluster:
        describe_cluster(cluster)
    said = [(body["ClientSoftwareName"], body["ClientSoftwareVersion"]) for _, body in broker.asked(API_VERSIONS)]
    assert said == [("kbroker", kbroker.__version__)] * 2


def test_second_bootstrap_server_is_tried(broker: FakeBroker) -> None:
    """A dead bootstrap server is skipped if another responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = format_address(listener.getsockname())
    with Cluster(f"{dead},{broker.bootstrap}") as cluster:
        assert [t.name for t in cluster.fetch_metadata(None)] == ["t"]


def test_known_nodes_are_tried_after_dead_bootstrap_servers(broker: FakeBroker, fake_time: FakeTime) -> None:
    """A node whose connection breaks is found again, although no bootstrap server responds any more."""
    times: dict[str, Any] = {"clock": fake_time.clock, "sleep": fake_time.sleep}
    breaks = iter([True])
    with FakeBroker() as server, Cluster(server.bootstrap, retry_timeout_s=5, **times) as cluster:
        server.handlers[METADATA] = broker.metadata
        cluster.fetch_metadata([])
        cluster.connection_to(7)
        server.close()
        broker.handlers[METADATA] = lambda version, body: (
            None if next(breaks, False) else broker.metadata(version, body)
        )
        assert [t.name for t in cluster.retry(lambda: cluster.fetch_metadata(None))] == ["t"]


def test_all_dead_bootstrap_servers_are_named_in_one_line() -> None:
    """If no server responds, the error names all servers in one line."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        dead = [format_address(one.getsockname()), format_address(two.getsockname())]
    with pytest.raises(BrokerConnectionError) as caught:
        Cluster(",".join(dead))
    assert f"{dead[0]}: connection refused; {dead[1]}: connection refused" == str(caught.value)


def test_connection_closed_while_idle_is_replaced(broker: FakeBroker, cluster: Cluster) -> None:
    """A connection that the broker closed while it was idle causes no failed request."""
    cluster.fetch_metadata(None)
    for sock in broker.sockets:
        sock.shutdown(socket.SHUT_RDWR)
    assert [t.name for t in cluster.fetch_metadata(None)] == ["t"]


def test_throttled_response_delays_the_next_request(broker: FakeBroker, cluster: Cluster, fake_time: FakeTime) -> None:
    """After a response with ThrottleTimeMs the next request is delayed by that time."""
    broker.handlers[METADATA] = lambda version, body: {**broker.metadata(version, body), "ThrottleTimeMs": 2500}
    cluster.fetch_metadata(None)
    assert fake_time.slept == []
    cluster.fetch_metadata(None)
    assert fake_time.slept == [2.5]


def test_a_throttle_time_that_ends_meanwhile_is_not_slept(broker: FakeBroker) -> None:
    """The throttle time may end between two looks at the clock; a negative sleep would be an error."""
    times, slept = [0.0], list[float]()

    def clock() -> float:
        times[0] += 1.0
        return times[0]

    with Cluster(broker.bootstrap, clock=clock, sleep=slept.append, request_timeout_s=1000) as cluster:
        connection = cluster.connection_to(None)
        for left_s in range(1, 5):
            connection.throttled_until_s = times[0] + left_s
            cluster.fetch_metadata(None)
    assert slept
    assert min(slept) > 0


def test_a_login_ends_with_the_time_out_of_requests(broker: FakeBroker, fake_time: FakeTime) -> None:
    """A request without its own time-out, such as that of a login, ends after the time-out of the cluster."""

    def log_in(connection: Connection) -> None:
        connection.request(METADATA, 9, {})

    def late(version: int, body: Body) -> bytes:
        fake_time.advance(8)
        return b"\0"  # one byte of a response; the client then reads the clock

    broker.handlers[METADATA] = late
    with pytest.raises(BrokerTimeoutError, match="no response within 7 s"):
        Cluster(broker.bootstrap, clock=fake_time.clock, request_timeout_s=7, authenticate=log_in)


def test_unknown_topic_is_asked_for_a_while_then_reported(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """A topic that may just have been created is requested for about a second before the error."""
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic 'nope'"):
        cluster.topic("nope")
    assert 0.5 < sum(fake_time.slept) <= 1.0


def test_offsets_of_a_missing_partition_are_not_waited_for(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """A partition that does not exist is an error as soon as a missing topic is, not after all retries."""
    with pytest.raises(KafkaError, match="topic 't': expected a partition from 0 to 1, got 9"):
        Admin(cluster).offsets_at([("t", 0), ("t", 9)])
    assert sum(fake_time.slept) == pytest.approx(1.55)


def test_metadata_is_cached_until_forgotten(broker: FakeBroker, cluster: Cluster) -> None:
    """A cached topic needs no second Metadata request."""
    for _ in range(3):
        assert cluster.leader("t", 1) == 7
    assert len(broker.asked(METADATA)) == 1
    cluster.forget("t")
    cluster.leader("t", 0)
    assert len(broker.asked(METADATA)) == 2


def test_retry_gives_up_at_once_on_a_final_error(cluster: Cluster, fake_time: FakeTime) -> None:
    """An error that is not retriable is not retried."""
    calls = []

    def attempt() -> None:
        calls.append(1)
        raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, "x")

    with pytest.raises(KafkaError):
        cluster.retry(attempt)
    assert (calls, fake_time.slept) == ([1], [])


def test_create_topic_error_carries_the_brokers_text(broker: FakeBroker, cluster: Cluster) -> None:
    """The error has the code, the topic's name and the broker's reason."""
    broker.handlers[CREATE_TOPICS] = lambda version, body: {
        "Topics": [{"Name": "t", "ErrorCode": 36, "ErrorMessage": "it is there"}]
    }
    with pytest.raises(KafkaError) as caught:
        Admin(cluster).create_topics([NewTopic("t")])
    assert str(caught.value) == "TOPIC_ALREADY_EXISTS: topic 't': it is there"


def test_not_controller_is_tried_again_with_fresh_metadata(
    broker: FakeBroker, cluster: Cluster, fake_time: FakeTime
) -> None:
    """The controller is looked up again after NOT_CONTROLLER."""
    responses = iter([41, 0])
    broker.handlers[CREATE_TOPICS] = lambda version, body: {
        "Topics": [{"Name": "t", "ErrorCode": next(responses), "NumPartitions": 3}]
    }
    (made,) = Admin(cluster).create_topics([NewTopic("t")])
    assert (made.partitions, len(broker.asked(CREATE_TOPICS))) == (3, 2)


def test_a_controller_that_does_not_respond_is_looked_up_again(broker: FakeBroker, cluster: Cluster) -> None:
    """The request after the failure finds the new controller."""
    ids = iter([8, 7])

    def metadata(version: int, body: Body) -> Body:
        found = broker.metadata(version, body)
        found["Brokers"].append({"NodeId": 8, "Host": "127.0.0.1", "Port": 1})
        return {**found, "ControllerId": next(ids)}

    broker.handlers[METADATA] = metadata
    broker.handlers[CREATE_TOPICS] = lambda version, body: {"Topics": [{"Name": "t", "ErrorCode": 0}]}
    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1: "):
        Admin(cluster).create_topics([NewTopic("t")])
    assert [made.name for made in Admin(cluster).create_topics([NewTopic("t")])] == ["t"]


def test_default_partition_count_needs_a_version_that_has_it(broker: FakeBroker) -> None:
    """A broker before CreateTopics v4 would misread -1 partitions, so the client rejects them."""
    broker.ranges[CREATE_TOPICS] = (2, 3)
    with Cluster(broker.bootstrap) as cluster, pytest.raises(KafkaError, match="too old for defaults"):
        Admin(cluster).create_topics([NewTopic("t")])


def test_describe_configs_of_a_name_that_is_not_utf_8(broker: FakeBroker, cluster: Cluster) -> None:
    """Like Java, brokers return such a name with replacement characters."""
    broker.handlers[32] = lambda version, body: {
        "Results": [
            {"ErrorCode": 0, "ErrorMessage": None, "ResourceType": 32, "ResourceName": "g\ufffd", "Configs": []}
        ]
    }
    assert Admin(cluster).describe_configs(ConfigResourceType.GROUP, "g\udcff") == []


def test_describe_configs_names_the_failed_resource(broker: FakeBroker, cluster: Cluster) -> None:
    """An error of DescribeConfigs names its resource."""
    broker.handlers[32] = lambda version, body: {
        "Results": [{"ErrorCode": 3, "ErrorMessage": None, "ResourceType": 2, "ResourceName": "x", "Configs": []}]
    }
    with pytest.raises(KafkaError, match="topic 'x'"):
        Admin(cluster).describe_configs(ConfigResourceType.TOPIC, "x")


@pytest.mark.parametrize("kind", [ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER])
def test_a_broker_that_is_not_there_is_no_wait(broker: FakeBroker, kind: ConfigResourceType) -> None:
    """The client rejects a broker id that the metadata lacks, without a retry and without a request."""
    slept: list[float] = []
    with Cluster(broker.bootstrap, sleep=slept.append) as cluster:
        with pytest.raises(KafkaError, match=r"expected one of the cluster's brokers \(7\), got 99") as refused:
            Admin(cluster).describe_configs(kind, "99")
        assert refused.value.error is Errors.BROKER_NOT_AVAILABLE
        with pytest.raises(KafkaError, match=r"expected one of the cluster's brokers \(7\), got 99"):
            Admin(cluster).alter_configs(kind, "99", [ConfigChange("x", ConfigOperation.SET, "1")])
    assert (slept, broker.asked(32), broker.asked(44)) == ([], [], [])


def test_producers_at_a_broker_that_is_not_there_are_no_wait(broker: FakeBroker) -> None:
    """The client rejects the id of a replica's broker in the same way."""
    slept: list[float] = []
    wrong = pytest.raises(KafkaError, match=r"expected one of the cluster's brokers \(7\), got 99")
    with Cluster(broker.bootstrap, sleep=slept.append) as cluster, wrong:
        Transactions(cluster).describe_producers([("t", 0)], 99)
    assert (slept, broker.asked(DESCRIBE_PRODUCERS)) == ([], [])


def test_cluster_description_without_the_api(broker: FakeBroker) -> None:
    """A broker without DescribeCluster is described from its metadata."""
    broker.ranges = {key: broker.ranges[key] for key in broker.handlers if key != 60}
    with Cluster(broker.bootstrap) as cluster:
        described = describe_cluster(cluster)
    nodes = [one.node.node_id for one in described.brokers]
    assert (described.cluster_id, described.controller_id, nodes) == ("c", 7, [7])


def test_a_node_with_a_new_folder_is_described_once(broker: FakeBroker, cluster: Cluster) -> None:
    """A node has a row for each folder that it has had; only the row that fetched last counts."""

    def row(node_id: int, end: int, fetched_ms: int) -> dict[str, object]:
        return {"ReplicaId": node_id, "LogEndOffset": end, "LastFetchTimestamp": fetched_ms}

    partition = {
        "LeaderId": 1,
        "CurrentVoters": [row(1, 100, 9)],
        "Observers": [row(3, 90, 8), row(2, 99, 7), row(2, 40, 5), row(4, -1, -1)],
    }
    broker.handlers[DESCRIBE_QUORUM] = lambda version, body: {
        "Topics": [{"TopicName": "__cluster_metadata", "Partitions": [partition]}]
    }
    described = describe_quorum(cluster)
    assert described is not None
    assert described.observers == (QuorumReplica(2, 99, 1), QuorumReplica(3, 90, 10))


def test_records_are_deleted_although_another_leader_is_gone(broker: FakeBroker, cluster: Cluster) -> None:
    """A leader that does not respond is reported after the others have deleted their records."""
    alive = broker.metadata

    def metadata(version: int, body: dict[str, Any]) -> dict[str, Any]:
        found = alive(version, body)
        found["Brokers"].append({"NodeId": 8, "Host": "127.0.0.1", "Port": 1})
        found["Topics"][0]["Partitions"][0]["LeaderId"] = 8
        return found

    broker.handlers[METADATA] = metadata
    rows = [{"PartitionIndex": 1, "LowWatermark": 3, "ErrorCode": 0}]
    broker.handlers[DELETE_RECORDS] = lambda version, body: {"Topics": [{"Name": "t", "Partitions": rows}]}
    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1: "):
        Admin(cluster).delete_records({("t", 0): 3, ("t", 1): 3})
    ((_, sent),) = broker.asked(DELETE_RECORDS)
    assert sent["Topics"] == [{"Name": "t", "Partitions": [{"PartitionIndex": 1, "Offset": 3}]}]
    broker.handlers[METADATA] = alive
    Admin(cluster).delete_records({("t", 0): 3})  # by the new leader
