"""Console of a member of the cluster, and `kbroker console` connected to the member."""

import re
from urllib.request import urlopen

import pytest

from tests.integration.test_console_command import console
from tests.support.broker import wait_for
from tests.support.client import Client
from tests.support.console import Browser, words_of
from tests.support.kafka import KafkaCluster
from tests.support.member_node import TOKEN, MemberNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def page(browser: Browser, target: str) -> str:
    status, found = browser.ask(target)
    assert status == 200, found
    return words_of(found)


def test_pages_about_the_cluster(kafka: KafkaCluster, member: MemberNode) -> None:
    """The pages show the member, brokers, controllers, and the replicas of partitions that Apache Kafka leads."""
    topic = {"Name": "on-a-page", "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
    topic["Assignments"] = [{"PartitionIndex": 0, "BrokerIds": [2, 1]}]
    with Client(member.bootstrap) as client:
        made = client.call("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 30_000, "validateOnly": False})
        assert made["Topics"][0]["ErrorCode"] == 0
    with urlopen(f"{member.http}/metrics", timeout=10) as response:  # CreateTopics was forwarded
        times = re.findall(r"^kafka_forwarding_manager_(\w+) (\S+)$", response.read().decode(), re.MULTILINE)
    assert len(times) == 5
    assert all(0 <= float(value) < 60_000 for _, value in times), times
    browser = Browser(member.http.removeprefix("http://"))
    assert browser.ask("sign-in", {"token": TOKEN})[0] == 303
    wait_for("the replicas", lambda: " 2 2, 1 2, 1 " in page(browser, "topic?topic=on-a-page"))
    shown = page(browser, "cluster")
    assert "Ready: registered with the controllers, and unfenced. state running broker epoch" in shown
    assert re.search(r" 9 this node 127\.0\.0\.1:\d+ - 0 0 0 ", shown), shown
    # the controller does not describe the quorum to the holder of the token, who is not one of Kafka's users
    assert re.search(
        r"the leader that this node has seen last is 101, in epoch \d+, with high watermark [\d,]+\.", shown
    )
    assert "metadata.version 30 7 to 30" in shown
    assert re.search(r"on-a-page 1 - - ", page(browser, "topics?q=on-a-page")), "no figures of other brokers' logs"
    with console(member.bootstrap) as (outside, _, _):
        shown = page(outside, "cluster")
        assert "Controllers Controller Role Log end Metadata lag 101 leader " in shown
        assert re.search(r" 9 127\.0\.0\.1:\d+ - 0 0 0 \d+ ", shown), shown
        assert "0 0 0 0 B 2 2, 1 2, 1 Show messages" in page(outside, "topic?topic=on-a-page")
