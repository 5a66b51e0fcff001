"""kill -9 during administration: acknowledged changes are kept, any other change is complete or absent."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Body, Client, more_partitions, new_topics, scram_user
from tests.support.seeds import kill_count, random_seed
from tests.support.wire import Closed

WORKERS, NAMES = 3, 5
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
KINDS = ("topic", "config", "acl", "quota", "user")
Key = tuple[str, str]  # kind and name
State = dict[Key, Any]  # partitions, retention.ms, True, bytes per second or iterations; a key without value is absent
TOPIC, SCRAM_SHA_256, READ, ALLOW, LITERAL, SET, REMOVE = 2, 1, 3, 3, 3, 0, 1
ANY = 1


def row(codes: Any) -> int:
    """Return the error code of the one result in a response."""
    found = next(value for name, value in codes.items() if isinstance(value, list))
    return int(found[0].get("ErrorCode", 0))


class Administrator:
    """Client that makes one change after another to its resources; ``state`` has the acknowledged changes."""

    def __init__(self, number: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = [f"a{number}-{i}" for i in range(NAMES)]
        self.state: State = {}
        self.begun: State = {}  # the change without a response; the value None removes a key
        self.done = 0
        self.failure: str | None = None

    def work(self, bootstrap: str) -> None:
        """Make changes until the connection ends."""
        try:
            with Client(bootstrap) as client:
                while True:
                    api, version, body, self.begun = self.next_change()
                    response = client.call(api, version, body)
                    if row(response):
                        self.failure = f"{api} {body}: {response}"
                        return
                    self.settle()
        except (OSError, Closed):
            return

    def settle(self) -> None:
        """Add the change that was begun to the state."""
        self.state = {key: value for key, value in {**self.state, **self.begun}.items() if value is not None}
        self.begun = {}
        self.done += 1

    def next_change(self) -> tuple[str, int, Body, State]:
        """Return a request that succeeds, and its change of the state."""
        name, kind = self.rng.choice(self.names), self.rng.choice(KINDS)
        number = self.rng.randrange(100_000, 10_000_000)
        old = self.state.get((kind, name))
        if kind == "acl":
            where = {"ResourceName": name, "Principal": f"User:{name}", "Host": "*", "Operation": READ}
            if old:
                rule = {
                    f"{field}Filter" if field in ("Principal", "Host", "ResourceName") else field: value
                    for field, value in where.items()
                }
                rule |= {"ResourceTypeFilter": TOPIC, "PatternTypeFilter": LITERAL, "PermissionType": ALLOW}
                return "DeleteAcls", 3, {"Filters": [rule]}, {(kind, name): None}
            rule = {**where, "ResourceType": TOPIC, "ResourcePatternType": LITERAL, "PermissionType": ALLOW}
            return "CreateAcls", 3, {"Creations": [rule]}, {(kind, name): True}
        if kind == "quota":
            remove = old is not None and self.rng.random() < 0.4
            op = {"Key": "producer_byte_rate", "Value": float(number), "Remove": remove}
            entry = {"Entity": [{"EntityType": "client-id", "EntityName": name}], "Ops": [op]}
            return (
                "AlterClientQuotas",
                1,
                {"Entries": [entry], "ValidateOnly": False},
                {(kind, name): None if remove else float(number)},
            )
        if kind == "user":
            if old is not None and self.rng.random() < 0.4:
                body = {"Deletions": [{"Name": name, "Mechanism": SCRAM_SHA_256}], "Upsertions": []}
                return "AlterUserScramCredentials", 0, body, {(kind, name): None}
            iterations = 4096 + number % 1000
            return "AlterUserScramCredentials", 0, scram_user(name, iterations), {(kind, name): iterations}
        return self.next_topic_change(name, number)

    def next_topic_change(self, name: str, number: int) -> tuple[str, int, Body, State]:
        """Return a request that creates a topic, or changes its configs, adds partitions or deletes it."""
        partitions = self.state.get(("topic", name))
        if partitions is None:
            body = new_topics(name, partitions=2, configs={"retention.ms": str(number)})
            change: State = {("topic", name): 2, ("config", name): number}
            return "CreateTopics", 5, body, change
        what = self.rng.randrange(4)
        if what == 0:
            change = {("topic", name): None, ("config", name): None}
            return "DeleteTopics", 5, {"TopicNames": [name], "TimeoutMs": 30_000}, change
        if what == 1 and partitions < 6:
            return "CreatePartitions", 3, more_partitions(name, partitions + 1), {("topic", name): partitions + 1}
        remove = ("config", name) in self.state and what == 2
        config = {
            "Name": "retention.ms",
            "ConfigOperation": REMOVE if remove else SET,
            "Value": None if remove else str(number),
        }
        body = {
            "Resources": [{"ResourceType": TOPIC, "ResourceName": name, "Configs": [config]}],
            "ValidateOnly": False,
        }
        return "IncrementalAlterConfigs", 1, body, {("config", name): None if remove else number}

    def check(self, seen: State) -> None:
        """Compare with the state after a restart, where the change without a response is complete or absent."""
        mine = {key: value for key, value in seen.items() if key[1] in self.names}
        if mine != self.state:
            acknowledged, begun = self.state, self.begun
            self.settle()
            assert mine == self.state, f"acknowledged: {acknowledged}\nbegun: {begun}\nfound: {mine}"
        self.begun = {}


def observe(bootstrap: str) -> State:
    """Return the state that a new client reads."""
    found: State = {}
    with Client(bootstrap) as client:
        topics = client.call("Metadata", 12, {"Topics": None})["Topics"]
        for topic in topics:
            found["topic", topic["Name"]] = len(topic["Partitions"])
        asked = [
            {"ResourceType": TOPIC, "ResourceName": t["Name"], "ConfigurationKeys": ["retention.ms"]} for t in topics
        ]
        for result in client.call("DescribeConfigs", 4, {"Resources": asked})["Results"]:
            for config in result["Configs"]:
                if config["ConfigSource"] == 1:  # a config of the topic itself
                    found["config", result["ResourceName"]] = int(config["Value"])
        filters = {"ResourceTypeFilter": ANY, "PatternTypeFilter": ANY, "Operation": ANY, "PermissionType": ANY}
        nothing = dict.fromkeys(("ResourceNameFilter", "PrincipalFilter", "HostFilter"))
        for resource in client.call("DescribeAcls", 3, {**filters, **nothing})["Resources"]:
            found["acl", resource["ResourceName"]] = len(resource["Acls"]) == 1
        for entry in client.call("DescribeClientQuotas", 1, {"Components": [], "Strict": False})["Entries"]:
            found["quota", entry["Entity"][0]["EntityName"]] = entry["Values"][0]["Value"]
        for user in client.call("DescribeUserScramCredentials", 0, {"Users": None})["Results"]:
            found["user", user["User"]] = user["CredentialInfos"][0]["Iterations"]
    return found


def wait_for_changes(crowd: list[Administrator], count: int) -> None:
    before = sum(one.done for one in crowd)
    wait_for(
        f"{count} changes",
        lambda: sum(one.done for one in crowd) >= before + count or any(one.failure for one in crowd),
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_under_admin_changes(start_broker: Callable[..., BrokerProcess]) -> None:
    """Resources are as acknowledged after a kill; a change without a response is complete or absent."""
    kills = kill_count(5, 250)
    seed = random_seed()
    rng = random.Random(seed)
    broker = start_broker(**{name.replace(".", "__"): value for name, value in SETTINGS.items()})
    crowd = [Administrator(number, seed + number) for number in range(WORKERS)]
    for turn in range(kills):
        threads = [threading.Thread(target=one.work, args=[broker.bootstrap]) for one in crowd]
        for thread in threads:
            thread.start()
        if turn % 2 == 0:  # in the other turns, a busy machine may not have made a change before the kill
            wait_for_changes(crowd, 2 * WORKERS)
        time.sleep(rng.uniform(0.02, 0.4))  # the moment of the kill is random
        broker.kill()
        for thread in threads:
            thread.join(30)
        assert [one.failure for one in crowd if one.failure] == [], broker.tail()
        broker.start()
        seen = observe(broker.bootstrap)
        for one in crowd:
            one.check(seen)
    folders = {path.name.rpartition("-")[0] for path in broker.folder.glob("a?-*-*")}
    assert folders == {name for (kind, name) in seen if kind == "topic"}, "folders of deleted topics, or none of others"
    changes = sum(one.done for one in crowd)
    print(f"{kills} kills, {changes} changes acknowledged")
    assert changes >= kills * WORKERS
