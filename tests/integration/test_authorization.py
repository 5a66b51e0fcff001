"""ACLs of a running broker: native handlers, kill -9 after an acknowledgement, 100,000 ACLs, the `acls` commands."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kbroker.cli import cli
from kbroker.testing.embedded import EmbeddedBroker
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client, fetch_body, new_topics, produce_body, set_configs
from tests.support.closing import close_at_end
from tests.support.fixtures import fixture_of

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
USERS = "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=secret user_root=secret ;"
SASL = {
    **AUTHORIZER,
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "super.users": "User:root",
}
EVERYTHING = {
    "ResourceTypeFilter": 1, "ResourceNameFilter": None, "PatternTypeFilter": 1, "PrincipalFilter": None,
    "HostFilter": None, "Operation": 1, "PermissionType": 1,
}  # fmt: skip


def rule(name: str, operation: int = 4, **changes: object) -> dict[str, object]:
    return {
        "ResourceType": 2, "ResourceName": name, "ResourcePatternType": 3, "Principal": "User:alice", "Host": "*",
        "Operation": operation, "PermissionType": 3, **changes,
    }  # fmt: skip


def log_in(bootstrap: str, user: str) -> Client:
    client = Client(bootstrap, user)
    client.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})
    assert client.call("SaslAuthenticate", 2, {"AuthBytes": f"\0{user}\0secret".encode()})["ErrorCode"] == 0
    return client


broker = fixture_of(EmbeddedBroker, SASL, scope="module")


@pytest.fixture(scope="module")
def root(broker: EmbeddedBroker) -> Iterator[Client]:
    client = log_in(broker.bound_listeners[0].partition("://")[2], "root")
    client.call("CreateTopics", 7, new_topics("mine", "other"))
    yield client
    client.close()


@pytest.fixture
def alice(broker: EmbeddedBroker) -> Client:
    return close_at_end(log_in(broker.bound_listeners[0].partition("://")[2], "alice"))


def produced(client: Client, topic: str) -> int:
    response = client.call("Produce", 9, produce_body(topic))
    return int(response["Responses"][0]["PartitionResponses"][0]["ErrorCode"])


def fetched(client: Client, topic: str, session: tuple[int, int] = (0, -1)) -> int:
    response = client.call("Fetch", 12, fetch_body(topic, 0, session))
    return int(response["Responses"][0]["Partitions"][0]["ErrorCode"])


def create(client: Client, *rules: dict[str, object]) -> None:
    made = client.call("CreateAcls", 3, {"Creations": list(rules)})
    assert {row["ErrorCode"] for row in made["Results"]} == {0}


def deleted(client: Client, **changes: object) -> int:
    """Return the error code of DeleteAcls."""
    (result,) = client.call("DeleteAcls", 3, {"Filters": [{**EVERYTHING, **changes}]})["FilterResults"]
    return int(result["ErrorCode"])


def delete(client: Client, **changes: object) -> int:
    (result,) = client.call("DeleteAcls", 3, {"Filters": [{**EVERYTHING, **changes}]})["FilterResults"]
    return len(result["MatchingAcls"])


def test_a_rule_counts_from_its_response_on(root: Client, alice: Client) -> None:
    """An ACL applies to the first request after its response, although handler threads cache decisions."""
    for _ in range(20):
        assert produced(alice, "mine") == 29
        create(root, rule("mine"), rule("mi", 3, ResourcePatternType=4))
        assert produced(alice, "mine") == 0
        assert fetched(alice, "mine") == 0
        assert (produced(alice, "other"), fetched(alice, "other")) == (29, 29)
        assert (produced(alice, "none"), produced(root, "none")) == (29, 3)
        assert delete(root) == 2
        assert (produced(alice, "mine"), fetched(alice, "mine")) == (29, 29)


def test_a_fetch_session_is_asked_each_time(root: Client, alice: Client) -> None:
    """A partition of a fetch session is denied after the removal of an ACL, and readable when it is added again."""
    create(root, rule("mine", 3), rule("mine"))
    produced(alice, "mine")
    opened = alice.call("Fetch", 12, fetch_body("mine", 0, (0, 0)))
    session = opened["SessionId"]
    assert opened["Responses"][0]["Partitions"][0]["ErrorCode"] == 0
    delete(root)
    incremental = {**fetch_body("mine"), "SessionId": session, "Topics": []}
    refused = alice.call("Fetch", 12, {**incremental, "SessionEpoch": 1})
    assert refused["Responses"][0]["Partitions"][0]["ErrorCode"] == 29
    create(root, rule("mine", 3))
    read = alice.call("Fetch", 12, {**incremental, "SessionEpoch": 2})
    assert read["Responses"][0]["Partitions"][0]["ErrorCode"] == 0
    assert delete(root) == 1


def test_a_fetch_session_is_its_owners(root: Client, alice: Client) -> None:
    """A user with the id of another user's fetch session can neither read nor close the session."""
    opened = root.call("Fetch", 12, fetch_body("other", 0, (0, 0)))
    session = opened["SessionId"]
    for epoch in (1, 2, -1, 0):
        stolen = alice.call("Fetch", 12, {**fetch_body("other", 0, (session, epoch)), "Topics": []})
        assert (stolen["ErrorCode"], stolen["Responses"]) == (70 if epoch > 0 else 0, [])
    goes_on = root.call("Fetch", 12, fetch_body("other", 0, (session, 1)))
    assert (goes_on["ErrorCode"], goes_on["SessionId"]) == (0, session)
    ended = root.call("Fetch", 12, {**fetch_body("other", 0, (session, -1)), "Topics": []})
    assert ended["ErrorCode"] == 0
    assert root.call("Fetch", 12, fetch_body("other", 0, (session, 2)))["ErrorCode"] == 70


def test_a_fetch_that_waits_is_asked_again(broker: EmbeddedBroker, root: Client, alice: Client) -> None:
    """A waiting fetch whose ACL is removed returns no later records; other changes of ACLs have no effect on it."""
    (row,) = root.call("Metadata", 12, {"Topics": [{"Name": "mine"}], "AllowAutoTopicCreation": False})["Topics"]

    def next_offset() -> int:
        place = {"PartitionIndex": 0, "Timestamp": -1}
        asked = {"ReplicaId": -1, "IsolationLevel": 0, "Topics": [{"Name": "mine", "Partitions": [place]}]}
        return int(root.call("ListOffsets", 6, asked)["Topics"][0]["Partitions"][0]["Offset"])

    def waited(version: int, topic: str | dict[str, Any], stays: bool) -> tuple[int, int, bool]:
        create(root, rule("mine", 3))
        before = broker.waiting_fetches
        alice.begin("Fetch", version, fetch_body(topic, next_offset(), max_wait_ms=60_000))
        wait_for("the fetch", lambda: broker.waiting_fetches > before)
        if stays:
            create(root, rule("another"))
        else:
            delete(root)
        assert produced(root, "mine") == 0
        found = alice.end()["Responses"][0]["Partitions"][0]
        delete(root)
        return found["ErrorCode"], found["HighWatermark"], bool(found["Records"])

    for version, topic in ((12, "mine"), (13, {"TopicId": row["TopicId"]})):
        assert waited(version, topic, stays=False) == (29, -1, False)
        assert waited(version, topic, stays=True) == (0, next_offset(), True)


def test_share_fetches_need_read_on_the_group_and_on_each_topic(root: Client, alice: Client) -> None:
    """ShareFetch, its acknowledgements and ShareAcknowledge need the operation READ on the group and on each topic."""
    described = root.call("Metadata", 12, {"Topics": [{"Name": name} for name in ("mine", "other")]})["Topics"]
    acks = [{"FirstOffset": 0, "LastOffset": 0, "AcknowledgeTypes": [1]}]
    epoch = [0]

    def asked(api: str, *, has_acks: bool = False) -> tuple[int, dict[str, dict[str, Any]]]:
        rows = [{"PartitionIndex": 0, "AcknowledgementBatches": acks if has_acks else []}]
        body: dict[str, Any] = {
            "GroupId": "sharers", "MemberId": "m", "ShareSessionEpoch": epoch[0], "IsRenewAck": False,
            "Topics": [{"TopicId": one["TopicId"], "Partitions": rows} for one in described],
        }  # fmt: skip
        if api == "ShareFetch":
            body |= {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, "MaxRecords": 9, "BatchSize": 9}
            body |= {"ShareAcquireMode": 0, "ForgottenTopicsData": []}
        response = alice.call(api, 2, body)
        names = {one["TopicId"]: one["Name"] for one in described}
        if response["ErrorCode"] == 0:
            epoch[0] += 1
        return response["ErrorCode"], {names[one["TopicId"]]: one["Partitions"][0] for one in response["Responses"]}

    assert asked("ShareFetch") == (30, {})
    assert asked("ShareAcknowledge") == (30, {})
    create(root, rule("sharers", 3, ResourceType=3), rule("mine", 3))
    error, rows = asked("ShareFetch")
    assert (error, rows["other"]["ErrorCode"]) == (0, 29)
    assert rows.get("mine", {"ErrorCode": 0})["ErrorCode"] != 29
    error, rows = asked("ShareFetch", has_acks=True)
    assert (error, rows["other"]["AcknowledgeErrorCode"]) == (0, 29)
    assert rows["mine"]["AcknowledgeErrorCode"] != 29
    error, rows = asked("ShareAcknowledge", has_acks=True)
    assert (error, rows["other"]["ErrorCode"]) == (0, 29)
    assert rows["mine"]["ErrorCode"] != 29
    assert delete(root) == 2


def test_topics_are_made_with_a_rule_only(root: Client, alice: Client) -> None:
    """Metadata creates a topic only if the client may create that topic, or any topic in the cluster."""

    def asked(name: str) -> int:
        body = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True}
        return int(alice.call("Metadata", 9, body)["Topics"][0]["ErrorCode"])

    assert asked("made-1") == 29
    create(root, rule("made-1", 8), rule("made-2", 8), rule("made-2", 5), rule("made-3", 8))
    assert (asked("made-1"), asked("made-2")) == (29, 0)
    create(root, rule("kafka-cluster", 5, ResourceType=4))
    assert asked("made-3") == 0
    assert asked("made-4") == 29  # the client may not describe the topic
    assert delete(root) == 5


def test_acks_0_without_a_rule_closes_the_connection(alice: Client) -> None:
    alice.begin("Produce", 9, produce_body("other", acks=0))
    assert alice.socket.recv(1) == b""


def test_kill_after_the_acknowledgement(tmp_path: Path) -> None:
    """After kill -9, an acknowledged ACL is kept, and an ACL whose deletion was acknowledged is not."""
    settings = {**AUTHORIZER, "super.users": "User:ANONYMOUS"}
    broker = BrokerProcess(tmp_path / "data", settings)
    try:
        for round_number in range(3):
            broker.start()
            client = Client(f"127.0.0.1:{broker.port}", "admin")
            described = client.call("DescribeAcls", 3, EVERYTHING)["Resources"]
            assert [row["ResourceName"] for row in described] == [f"kept-{one}" for one in range(round_number)]
            create(client, rule(f"kept-{round_number}"), rule("dropped"))
            assert delete(client, ResourceNameFilter="dropped") == 1
            client.close()
            broker.kill()
    finally:
        broker.discard()


def test_the_log_is_on_standard_error(tmp_path: Path) -> None:
    """Denied requests are logged from the start, and other messages at the loggers' levels, set at run time."""
    settings = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    broker = BrokerProcess(tmp_path / "data", settings)

    def level(name: str, value: str) -> None:
        (done,) = client.call("IncrementalAlterConfigs", 1, set_configs(8, str(node), {name: value}))["Responses"]
        assert done["ErrorCode"] == 0, done

    def find(group: str) -> int:
        return int(client.call("FindCoordinator", 3, {"Key": group, "KeyType": 0})["ErrorCode"])

    def lines(what: str) -> list[str]:
        return [line for line in broker.output if what in line]

    try:
        broker.start()
        with Client(broker.bootstrap, "admin") as client:
            node = client.call("Metadata", 9, {"Topics": []})["Brokers"][0]["NodeId"]
            create(client, rule("denied", 8, ResourceType=3, Principal="User:*", PermissionType=2))
            assert find("denied") == 30
            wait_for("the refused request", lambda: lines("is Denied"))
            (line,) = lines("is Denied")
            assert re.match(r"\[20\d\d-.*\] INFO Principal = User:ANONYMOUS is Denied operation = DESCRIBE from", line)
            assert not lines("is Allowed")
            level("kafka.authorizer.logger", "DEBUG")

            def allowed() -> list[str]:
                find("other")
                return lines("on resource = Group:LITERAL:other")

            wait_for("an allowed request", allowed)
            assert " DEBUG Principal = User:ANONYMOUS is Allowed operation" in lines("Group:LITERAL:other")[0]
            level("kbroker.metadata.configs.dynamic_configs", "INFO")
            rows = [{"ResourceType": 4, "ResourceName": "", "Configs": [
                {"Name": "log.retention.ms", "ConfigOperation": 0, "Value": "7000000"}]}]  # fmt: skip
            client.call("IncrementalAlterConfigs", 1, {"Resources": rows, "ValidateOnly": False})
            wait_for("the change", lambda: lines("INFO broker configs changed: log.retention.ms"))
    finally:
        broker.discard()


@pytest.mark.soak
def test_a_hundred_thousand_rules(root: Client, alice: Client) -> None:
    """100,000 ACLs can be created, found and deleted, and do not slow a Produce request down."""

    def seconds() -> float:
        best = 9.0
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(400):
                assert produced(alice, "mine") == 0
            best = min(best, time.perf_counter() - start)
        return best

    create(root, rule("mine"))
    before = seconds()
    for part in range(20):
        create(root, *(rule(f"t{part}-{number}", 3 + part % 10, PermissionType=2 + part // 10,
                            Principal=f"User:u{number % 500}", ResourcePatternType=3 + number % 2)
                       for number in range(5000)))  # fmt: skip
    after = seconds()
    assert after < before * 1.5
    assert (deleted(root), deleted(root, PermissionType=2)) == (
        42,
        42,
    )  # more than 10,000 matches: as in Kafka, no ACL is deleted
    for part in range(20):
        assert delete(root, Operation=3 + part % 10, PermissionType=2 + part // 10) >= 5000
    assert delete(root) == 0


# ---- the commands


@pytest.fixture
def run(broker: EmbeddedBroker, root: Client, tmp_path: Path) -> Any:
    bootstrap = broker.bound_listeners[0].partition("://")[2]
    config = tmp_path / "root.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="root" password="secret";\n'
    )

    def run(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(cli, ["acls", *words, "-b", bootstrap, "--command-config", str(config)])
        assert result.exit_code == status, result.output
        return result.output

    yield run
    delete(root)


def test_the_commands(run: Any) -> None:
    """ACLs can be added, listed by the resource that they match, explained and removed."""
    run("add", "--topic", "orders", "--topic", "bills", "--operation", "Read", "--allow", "User:alice")
    run("add", "--topic", "or", "--prefixed", "--operation", "write", "--deny", "User:*", "--host", "::1")
    run("add", "--cluster", "--operation", "Create", "--allow", "User:alice")
    rows = json.loads(run("list", "--json"))
    assert [(row["permission"], row["host"], row["operation"], row["resource"], row["name"]) for row in rows] == [
        ("ALLOW", "*", "READ", "Topic", "bills"),
        ("DENY", "0:0:0:0:0:0:0:1", "WRITE", "Topic", "or"),
        ("ALLOW", "*", "READ", "Topic", "orders"),
        ("ALLOW", "*", "CREATE", "Cluster", "kafka-cluster"),
    ]
    assert len(json.loads(run("list", "--topic", "orders", "--match", "--json"))) == 2
    assert len(json.loads(run("list", "--principal", "User:alice", "--json"))) == 3
    assert run("explain", "User:alice", "--topic", "orders", "--operation", "Describe") == (
        "User:alice may DESCRIBE Topic orders: ALLOW User:alice from *: READ on Topic orders\n"
    )
    assert run("explain", "User:eve", "--topic", "orders", "--operation", "write", "--host", "::1", status=1) == (
        "User:eve may not WRITE Topic orders: DENY User:* from 0:0:0:0:0:0:0:1: WRITE on prefixed Topic or\n"
    )
    assert "no ACL allows it" in run("explain", "User:eve", "--group", "g", "--operation", "read", status=1)
    assert "it is a super user" in run("explain", "User:root", "--group", "g", "--operation", "read")
    assert run("remove", "--topic", "or", "--prefixed", "--host", "::2", "--yes").count("\n") == 1
    assert "0:0:0:0:0:0:0:1" in run("remove", "--topic", "or", "--prefixed", "--host", "::1", "--yes")
    run("remove", "--topic", "orders", "--topic", "bills", "--operation", "read", "--yes")
    assert len(json.loads(run("list", "--json"))) == 1


def test_wrong_usage(run: Any) -> None:
    rule = ["--topic", "t", "--operation", "read"]
    expected = "expected an address, such as 10.0.0.7 or ::1, got 'localhost'"
    assert expected.replace("an address", "* or an address") in run(
        "add", *rule, "--deny", "User:a", "--host", "localhost", status=2
    )
    assert expected in run("explain", "User:a", *rule, "--host", "localhost", status=2)
    for command in (["list"], ["remove", "--topic", "t", "--yes"]):
        assert "expected User:NAME, got 'a'" in run(*command, "--principal", "a", status=2)
    assert "expected --operation, got none" in run("add", "--topic", "t", "--allow", "User:a", status=2)
    assert "expected --allow or --deny, got none" in run("add", "--topic", "t", "--operation", "read", status=2)
    assert "expected --topic" in run("add", "--operation", "read", "--allow", "User:a", status=2)
    assert "expected User:NAME, got 'alice'" in run("add", "--topic", "t", "--operation", "read", "--allow", "alice",
                                                     status=2)  # fmt: skip
    assert "there is no such ACL" in run("remove", "--topic", "nothing", status=1)
    wrong = run("add", "--topic", "t", "--group", "g", "--operation", "write", "--allow", "User:a", status=2)
    assert (
        "expected an operation on a Group (All, Read, Delete, Describe, DescribeConfigs, AlterConfigs), got Write"
        in wrong
    )
    assert json.loads(run("list", "--json")) == []


@pytest.mark.parametrize(("principals", "question"), [(["a"], "Remove 1 ACL?"), (["a", "b"], "Remove 2 ACLs?")])
def test_removal_asks_for_confirmation(run: Any, principals: list[str], question: str) -> None:
    """Without `--yes` the command asks with the number of ACLs, and removes no ACL without a confirmation."""
    run("add", "--topic", "t", "--operation", "read", *(f"--allow=User:{name}" for name in principals))
    said = run("remove", "--topic", "t", status=1)  # standard input has ended
    assert question in said
    assert "expected a line, got the end of standard input; nothing was changed" in said
    assert len(json.loads(run("list", "--topic", "t", "--json"))) == len(principals)


def test_a_broker_without_an_authorizer() -> None:
    with EmbeddedBroker({}) as broker:
        bootstrap = broker.bound_listeners[0].partition("://")[2]
        result = CliRunner().invoke(cli, ["acls", "list", "-b", bootstrap])
        assert (result.exit_code, "No Authorizer is configured" in result.output) == (1, True)
        words = ["explain", "User:a", "--topic", "t", "--operation", "read"]
        result = CliRunner().invoke(cli, ["acls", *words, "-b", bootstrap])
        assert result.output == "User:a may READ Topic t: there is no authorizer\n"
