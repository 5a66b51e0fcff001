"""Growth of a kbroker under load to a cluster of three Apache Kafka nodes, without its own node in the end.

The steps are those of docs/outgrow.md.
"""

from pathlib import Path

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups
from tests.support import need
from tests.support.broker import wait_for
from tests.support.client import Client
from tests.support.either_broker import EitherBroker
from tests.support.everything import Everything
from tests.support.growing_cluster import GrowingCluster
from tests.support.kafka.tools import TOOLS, Tools
from tests.support.kill import (
    AckLog,
    MemberLog,
    check_delivered,
    check_partition,
    create_topic,
    finish,
    read_all,
    start_module,
)
from tests.support.ledger import BROKER, DYNAMIC_BROKER, Ledger, differences, take_ledger, without_places

LOADED, GROUP, PARTITIONS = "loaded", "loaders", 2
THROTTLE = 20_000_000
SETTINGS = {"group.min.session.timeout.ms": "1000"}  # for the members of the load


class Load:
    """Producer and group in other processes, which bootstrap from one broker."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.acks, self.members = AckLog(folder / "acks"), MemberLog(folder / "commits")
        to = (bootstrap, LOADED)
        self._producer = start_module("acked_producer", *to, str(PARTITIONS), str(self.acks.path), "lz4")
        self._members = start_module("group_members", *to, GROUP, str(self.members.path))

    def wait(self, when: str, count: int = 2000) -> None:
        """Wait until further records were acknowledged and committed."""
        acknowledged, commits = len(self.acks.read().acks), self.members.read().commits

        def goes_on() -> bool:
            self.check()
            return len(self.acks.acks) >= acknowledged + count and self.members.commits >= commits + 10

        wait_for(f"acknowledged and committed records {when}", goes_on, 120)

    def check(self) -> None:
        """Check that neither client had an error that it could not recover from."""
        assert self.acks.read().trouble == self.members.read().trouble == []
        assert self._producer.poll() is self._members.poll() is None

    def end(self, bootstrap: str) -> None:
        """End the producer, and the group when it has committed everything."""
        assert finish(self._producer) == 0
        ends = self.acks.read().sent
        wait_for("the group at the end of each partition", lambda: committed(bootstrap) == ends, 60, 0.2)
        assert finish(self._members, 60) == 0

    def discard(self) -> None:
        """Kill the processes that still run."""
        for process in (self._producer, self._members):
            process.kill()
            process.wait(10)
            assert process.stdin is not None
            process.stdin.close()

    def check_all(self, bootstrap: str) -> None:
        """Check that each acknowledged record is at its offset and was delivered to the group."""
        assert self.acks.read().trouble == self.members.read().trouble == []
        assert len(self.acks.acks) == sum(self.acks.sent.values()), "some records were not acknowledged"
        for partition in range(PARTITIONS):
            check_partition(partition, read_all(bootstrap, LOADED, partition), self.acks)
            check_delivered(partition, self.members.delivered[partition], self.acks.sent[partition])


def committed(bootstrap: str) -> dict[int, int]:
    with Cluster(bootstrap) as cluster:
        return {partition: found.offset for (_, partition), found in Groups(cluster).committed(GROUP).items()}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_one_kbroker_becomes_a_cluster_of_kafka(tmp_path: Path) -> None:
    """Records, offsets, transactions, configs, quotas, users, ACLs and tokens of kbroker are kept by the cluster."""
    need.kafka_tools()
    with EitherBroker(tmp_path / "node-1", SETTINGS) as first:
        first.start(first.kbroker)
        everything = Everything(first.bootstrap, first.sasl_bootstrap)
        everything.fill()
        before = take_ledger(first.bootstrap, everything.alice, first.sasl_bootstrap)
        create_topic(first.bootstrap, LOADED, PARTITIONS)
        load = Load(first.bootstrap, tmp_path)
        try:
            with GrowingCluster(tmp_path, first) as cluster:
                load.wait("by kbroker")
                first.switch()
                load.wait("by Apache Kafka")
                grow(cluster, load)
                with Client(cluster.bootstrap(2)) as client:  # configs of a broker belong to one node
                    everything.alter(client, BROKER, "2", own_configs(before))
                leave(cluster, load)
                load.end(cluster.bootstrap(2))
                load.check_all(cluster.bootstrap(2))
                check_the_rest(cluster, everything, before)
                with pytest.raises(AssertionError, match=r"as the only voter of the quorum, found 2@.*, 3@"):
                    first.kbroker.start()
        finally:
            load.discard()


def own_configs(ledger: Ledger) -> dict[str, str]:
    """Return the dynamic configs of the broker itself."""
    entries = ledger["dynamic configs of the broker"].items()
    return {name: entry["Value"] for name, entry in entries if entry["ConfigSource"] == DYNAMIC_BROKER}


def grow(cluster: GrowingCluster, load: Load) -> None:
    """Add two nodes, and assign a replica of each partition to each of them."""
    cluster.add(2, joins_itself=False)
    cluster.add(3, joins_itself=True)
    load.wait("while there are three controllers")
    cluster.reassign(1, (1, 2, 3), rotates=True, throttle=THROTTLE)
    add = ("--add-config", "min.insync.replicas=2")
    Tools(cluster.bootstrap(1))("kafka.admin.ConfigCommand", "--alter", "--topic", LOADED, *add)
    load.wait("with three replicas")


def leave(cluster: GrowingCluster, load: Load) -> None:
    """Move the replicas of the first node away, and stop that node."""
    cluster.reassign(1, (2, 3), rotates=False, throttle=THROTTLE)
    load.wait("without a replica on the first node")
    cluster.retire_first(other=2)
    load.wait("without the first node")


def check_the_rest(cluster: GrowingCluster, everything: Everything, before: Ledger) -> None:
    """Check that clients find everything that they had at kbroker, and can continue."""
    bootstrap = cluster.bootstrap(2)
    tools = Tools(bootstrap)
    tools(f"{TOOLS}TopicCommand", "--delete", "--topic", LOADED)
    tools(f"{TOOLS}consumer.group.ConsumerGroupCommand", "--delete", "--group", GROUP)
    after = take_ledger(bootstrap, everything.alice, cluster.sasl_bootstrap(2), node_id=2)
    found = differences(without_places(before), without_places(after))
    assert not found, "\n".join([*found, cluster.nodes[2].tail()])
    everything.bootstrap, everything.sasl_bootstrap = bootstrap, cluster.sasl_bootstrap(2)
    everything.log_in(everything.by_token(everything.token))
    everything.read("classic-group", "classic")
    everything.read("consumer-group", "consumer")
    with Client(bootstrap) as client:
        everything.end(client, "left-open", commits=True)
