"""Changes through kbroker while the active controller fails and another controller replaces it."""

import itertools
import threading
import time
from pathlib import Path

import pytest

from kbroker.common.errors import Errors
from tests.support import need
from tests.support.broker import wait_for
from tests.support.client import Body, Client, new_topics
from tests.support.kafka import ApacheKafka, KafkaCluster
from tests.support.member_node import MemberNode

CREATE_TOPICS, DESCRIBE_QUORUM = 19, 55
WAITING = 12  # more than the broker has request handler threads
KILLS = 50
#: Timeouts with which an election of three controllers takes about a second.
QUICK_ELECTIONS = {
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "300",
}


def error_of(response: Body) -> int:
    (row,) = response["Topics"]
    error: int = row["ErrorCode"]
    return error


@pytest.mark.slow
def test_waiting_changes_occupy_no_thread(kafka: KafkaCluster, member: MemberNode) -> None:
    """Changes wait while there is no controller and are made later; meanwhile, other requests are served."""
    (controller,) = kafka.controllers
    clients = [Client(member.bootstrap) for _ in range(WAITING)]
    controller.kill()
    try:
        for number, client in enumerate(clients):
            client.begin(CREATE_TOPICS, 7, new_topics(f"waiting-{number}"))
        with Client(member.bootstrap) as other:
            for _ in range(20):
                assert other.call("Metadata", 13, {"Topics": []})["Brokers"]
        assert not any(client.has_response for client in clients)
    finally:
        controller.start()
    assert [error_of(client.end()) for client in clients] == [0] * WAITING
    for client in clients:
        client.close()


class Load:
    """Thread that creates topics through a broker, one after another; it records the longest wait and every error."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.created: list[str] = []
        self.errors: list[str] = []
        self.longest_s = 0.0
        self._bootstrap, self._name = bootstrap, name
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Client(self._bootstrap, timeout=70) as client:
            for number in itertools.count():
                if self._ends.is_set():
                    return
                name, begun = f"{self._name}-{number}", time.monotonic()
                error = error_of(client.call(CREATE_TOPICS, 7, new_topics(name)))
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
                # a request is sent again after a lost connection, although the controller may have stored the topic
                if error in (Errors.NONE, Errors.TOPIC_ALREADY_EXISTS):
                    self.created.append(name)
                else:
                    self.errors.append(f"{name}: {error}")

    def end(self) -> None:
        self._ends.set()
        self._thread.join(90)


def active(kafka: KafkaCluster, member: MemberNode) -> ApacheKafka:
    """Return the active controller, as DescribeQuorum names it through kbroker."""
    topics = [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]
    with Client(member.bootstrap, timeout=70) as client:
        response = client.call(DESCRIBE_QUORUM, 2, {"Topics": topics})
    leader: int = response["Topics"][0]["Partitions"][0]["LeaderId"]
    return kafka.controllers[leader - 101]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_active_controller_is_killed_fifty_times(tmp_path: Path) -> None:
    """No change is lost and no client receives an error, because changes wait for the next controller."""
    need.kafka_tools()
    with KafkaCluster(1, QUICK_ELECTIONS, controllers=3) as kafka:
        member = MemberNode(tmp_path / "member", kafka)
        with member:
            loads = [Load(member.bootstrap, f"load-{number}") for number in range(2)]
            try:
                for _ in range(KILLS):
                    before = [len(load.created) for load in loads]
                    victim = active(kafka, member)
                    victim.kill()
                    wait_for(
                        "changes after a kill",
                        lambda before=before: all(  # type: ignore[misc]
                            len(load.created) > count + 2 for load, count in zip(loads, before, strict=True)
                        ),
                        60,
                    )
                    victim.start()
            finally:
                for load in loads:
                    load.end()
            assert [load.errors for load in loads] == [[], []]
            created = {name for load in loads for name in load.created}
            with Client(member.bootstrap) as client:

                def names() -> set[str]:
                    return {row["Name"] for row in client.call("Metadata", 13, {"Topics": None})["Topics"]}

                wait_for("all topics", lambda: created <= names())
            print(f"{len(created)} topics; longest wait {max(load.longest_s for load in loads):.1f} s")
