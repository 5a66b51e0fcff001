"""Synchronous client with an Apache Kafka broker: the functions that work with any broker."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.admin import EARLIEST, LATEST, MAX_TIMESTAMP, Admin, MutationThrottledError, NewTopic
from kbroker.client.cluster import Cluster, check
from kbroker.client.cluster_changes import plan_changes, read_cluster
from kbroker.client.cluster_description import describe_cluster
from kbroker.client.cluster_file import read_cluster_file
from kbroker.client.connection import Body
from kbroker.client.consumer import Consumer
from kbroker.client.group_lag import lags_of
from kbroker.client.group_members import ClassicMember, ConsumerMember
from kbroker.client.group_removal import remove_member
from kbroker.client.groups import Groups
from kbroker.client.offset_reset import ResetTo, plan_group_reset
from kbroker.client.partition_reader import PartitionReader
from kbroker.client.producer import CODECS, Delivery, Producer
from kbroker.client.quotas import AsyncQuotaClient, QuotaClient
from kbroker.client.security import ClientSecurity
from kbroker.client.share_offsets import alter_share_offsets
from kbroker.client.tokens import Tokens
from kbroker.common.configs.config_resource import ConfigResourceType, ConfigSource
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.delegation_token import Principal
from kbroker.console.server import ConsoleServer
from kbroker.protocol.records import iter_batches
from tests.support.broker import wait_for
from tests.support.client import drain
from tests.support.console import Browser
from tests.support.console_pages import check_groups_and_access, check_pages
from tests.support.errors import error_of

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(kafka: str) -> Iterator[Cluster]:
    with Cluster(kafka) as opened:
        yield opened


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    (made,) = Admin(cluster).create_topics([NewTopic(name, partitions=3, configs={"retention.ms": "86400001"})])
    assert (made.partitions, made.replication_factor) == (3, 1)
    return name


def test_topic_life(cluster: Cluster, topic: str) -> None:
    """A topic can be created, described, extended and deleted; each refusal has Kafka's error code."""
    admin = Admin(cluster)
    wait_for("the topic is known", lambda: topic in admin.list_topics())
    (described,) = admin.describe_topics([topic])
    assert [p.partition for p in described.partitions] == [0, 1, 2]
    assert described.topic_id is not None
    assert topic in admin.list_topics()
    configs = {e.name: e for e in admin.describe_configs(ConfigResourceType.TOPIC, topic)}
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == (
        "86400001",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
    )
    assert error_of(admin.create_topics, [NewTopic(topic)]) is Errors.TOPIC_ALREADY_EXISTS
    admin.create_topics([NewTopic(topic + "-not")], validate_only=True)
    assert topic + "-not" not in admin.list_topics()
    assert error_of(admin.create_partitions, topic, 2) is Errors.INVALID_PARTITIONS
    admin.create_partitions(topic, 4)
    assert cluster.retry(lambda: cluster.leader(topic, 3)) == described.partitions[0].leader
    admin.delete_topics([topic])
    assert error_of(admin.delete_topics, [topic]) is Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_come_back_as_they_were(cluster: Cluster, topic: str, codec: str, idempotent: bool) -> None:
    """Records that were sent in several batches are read unchanged, with each codec and with null keys and values."""
    deliveries: list[Delivery] = []
    sent = [
        (
            p,
            i,
            None if i % 7 == 0 else b"k%d" % i,
            None if i % 5 == 0 else bytes([i % 256]) * 50,
            [("h", b"v"), ("n", None)],
        )
        for i in range(200)
        for p in (i % 3,)
    ]
    with Producer(
        cluster, codec=codec, idempotent=idempotent, batch_size_bytes=2000, on_delivery=deliveries.append
    ) as producer:
        for partition, time_ms, key, value, headers in sent:
            producer.send(topic, value, key, partition=partition, timestamp_ms=1000 + time_ms, headers=headers)
    assert sum(d.record_count for d in deliveries) == 200
    assert len(deliveries) > 10
    found = drain(cluster, topic, 3)
    assert sorted(sent, key=lambda s: s[1]) == sorted(
        [(r.partition, r.timestamp_ms - 1000, r.key, r.value, r.headers) for r in found], key=lambda s: s[1]
    )
    for partition in range(3):
        offsets = [r.offset for r in found if r.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_offsets_by_time(cluster: Cluster, topic: str) -> None:
    """A timestamp finds the first record at or after it, or -1; the record with the newest timestamp is found too."""
    with Producer(cluster) as producer:
        for time_ms in (1000, 3000, 2000):
            producer.send(topic, b"", partition=0, timestamp_ms=time_ms)
    tp = (topic, 0)
    ask = Admin(cluster).list_offsets
    assert [ask({tp: t})[tp].offset for t in (0, 1500, 3000, 3001)] == [0, 1, 1, -1]
    assert (ask({tp: MAX_TIMESTAMP})[tp].offset, ask({tp: MAX_TIMESTAMP})[tp].timestamp_ms) == (1, 3000)
    consumer = Consumer(cluster, {tp: EARLIEST})
    consumer.seek_to_timestamp(9999)
    assert consumer.positions == {tp: 3}


def test_wrong_offset_is_refused_or_reset(cluster: Cluster, topic: str) -> None:
    """A position outside the log fails with Kafka's error, or is reset as the caller chose."""
    assert error_of(Consumer(cluster, {(topic, 0): 5}).poll) is Errors.OFFSET_OUT_OF_RANGE
    consumer = Consumer(cluster, {(topic, 0): 5}, reset=LATEST, max_wait_ms=10)
    consumer.poll()
    assert consumer.positions == {(topic, 0): 0}


def test_too_large_batch_is_refused_by_name(cluster: Cluster, topic: str) -> None:
    """A batch above `max.message.bytes` is refused with MESSAGE_TOO_LARGE and the name of its partition."""
    producer = Producer(cluster)
    producer.send(topic, bytes(2_000_000), partition=2)
    with pytest.raises(KafkaError, match=f"MESSAGE_TOO_LARGE: partition {topic}-2"):
        producer.flush()


def test_batch_larger_than_the_fetch_still_comes(cluster: Cluster, topic: str) -> None:
    """A consumer whose limits are smaller than one batch receives the batch."""
    with Producer(cluster) as producer:
        producer.send(topic, bytes(100_000), partition=0)
    consumer = Consumer(cluster, {(topic, 0): 0}, max_partition_bytes=1000, max_bytes=1000)
    assert [len(r.value or b"") for r in consumer.poll()] == [100_000]


def test_acks_0_arrives(cluster: Cluster, topic: str) -> None:
    """Records that are sent with acks=0 can be fetched shortly afterwards."""
    with Producer(cluster, acks=1) as producer:  # a new topic may have no leader yet, and acks=0 would lose the record
        producer.send(topic, b"first", partition=1)
    with Producer(cluster, acks=0) as producer:
        producer.send(topic, b"x", partition=1)
    consumer = Consumer(cluster, {(topic, 1): 1}, max_wait_ms=10_000)
    assert [r.value for r in consumer.poll()] == [b"x"]


def test_read_committed_against_a_real_transaction(cluster: Cluster, topic: str, kafka: str) -> None:
    """A read_committed consumer does not return the records of an aborted transaction; another consumer does."""
    from confluent_kafka import Producer as OtherProducer

    other = OtherProducer({"bootstrap.servers": kafka, "transactional.id": topic})
    other.init_transactions(30)
    for value, commit in ((b"aborted", False), (b"committed", True)):
        other.begin_transaction()
        for partition in range(3):
            other.produce(topic, value, partition=partition)
        other.flush(30)
        (other.commit_transaction if commit else other.abort_transaction)(30)
    assert {b"committed"} == {r.value for r in drain(cluster, topic, 3, read_committed=True)}
    assert {b"aborted", b"committed"} == {r.value for r in drain(cluster, topic, 3)}


def test_a_consumer_quota_slows_a_partition_reader(cluster: Cluster, topic: str, kafka: str) -> None:
    """A Fetch response of Kafka without the throttled partition makes the reader wait, not fail."""
    count = 14  # Kafka accepts the bytes of 11 seconds before it throttles
    with Producer(cluster) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number + bytes(1_000), partition=0)
            producer.flush()
    slow = QuotaEntity.of({"client-id": topic})
    QuotaClient(cluster).alter({slow: {"consumer_byte_rate": 1_000.0}})
    wait_for("the quota is known", lambda: QuotaClient(cluster).of(slow))
    throttles: list[float] = []
    with Cluster(kafka, client_id=topic, retry_timeout_s=0.1) as throttled:
        topic_id = throttled.topic(topic).topic_id
        reader = PartitionReader(throttled, topic, 0, 0, count, topic_id, on_throttle=throttles.append)
        batches = (batch for part in reader for batch in iter_batches(part.data, allow_truncated=True))
        found = [row[0] for batch in batches for row in batch.records()]
    QuotaClient(cluster).alter({slow: {"consumer_byte_rate": None}})
    wait_for("the quota is removed", lambda: not QuotaClient(cluster).of(slow))
    assert found == list(range(count))
    assert max(throttles) > 0.1


def test_cluster_is_described(cluster: Cluster, kafka: str) -> None:
    """The description of the cluster has its id, its one broker and its controller."""
    described = describe_cluster(cluster)
    assert described.cluster_id
    (node,) = (one.node for one in described.brokers)
    assert kafka == f"{node.host}:{node.port}"
    assert described.controller_id == node.node_id


def test_quotas_of_kafka(cluster: Cluster, kafka: str, tmp_path: Path) -> None:
    """kbroker's commands set, list, compare, apply and remove quotas of Apache Kafka and show its refusals."""
    from click.testing import CliRunner

    from kbroker.cli import cli

    def run(*args: str, status: int = 0) -> str:
        done = CliRunner().invoke(cli, ["quotas", *args], env={"KBROKER_BOOTSTRAP": kafka})
        assert done.exit_code == status, done.output
        return done.stderr if status else done.stdout

    entity = ("--user", "a b*", "--client-id-default")
    run("set", *entity, "producer_byte_rate=1024", "controller_mutation_rate=0.5")
    run("set", "--ip", "10.1.2.3", "connection_creation_rate=7")
    wait_for("the quotas", lambda: run("list").count("\n") == 4)
    assert [line.split() for line in run("list").splitlines()[1:]] == [
        ["-", "-", "10.1.2.3", "connection_creation_rate", "7/s"],
        ["a", "b*", "<default>", "-", "controller_mutation_rate", "0.5/s"],
        ["a", "b*", "<default>", "-", "producer_byte_rate", "1", "KiB/s"],
    ]
    plan = tmp_path / "q.yaml"
    plan.write_text('- {entity: {user: "a b*", client-id: null}, quotas: {request_percentage: 12.5}}\n')
    changes = [
        "- user a b*, client-id <default>: controller_mutation_rate 0.5/s",
        "- user a b*, client-id <default>: producer_byte_rate 1 KiB/s",
        "+ user a b*, client-id <default>: request_percentage 12.5 %",
    ]
    assert run("diff", str(plan)).splitlines() == changes
    assert run("apply", str(plan), "--dry-run").splitlines() == changes
    assert run("apply", str(plan)).splitlines() == changes
    wait_for("the file", lambda: run("diff", str(plan)) == "")
    assert "must be greater than 0" in run("set", *entity, "producer_byte_rate=0", status=1)
    run("remove", "--ip", "10.1.2.3")
    run("remove", *entity)
    wait_for("the removal", lambda: run("list").count("\n") == 1)


def test_the_quota_library_against_kafka(kafka: str) -> None:
    """Both quota clients work with Apache Kafka; a refused entity does not prevent the change of the others."""
    ann, ann_any = QuotaEntity.of({"user": "ann"}), QuotaEntity.of({"user": "ann", "client-id": None})
    address = QuotaEntity.of({"ip": "10.9.8.7"})
    rate = "producer_byte_rate"
    with QuotaClient(kafka) as quotas:
        assert quotas.broker_count() == 1
        done = quotas.apply({ann: {rate: 1024.0}, ann_any: {rate: 0.0}, address: {"connection_creation_rate": 3.0}})
        assert [str(refusal) for refusal in done.refusals.values()] == [
            "INVALID_REQUEST: user ann, client-id <default>: Quota producer_byte_rate must be greater than 0"
        ]
        assert [one.entity for one in done.made] == [ann, address]
        wait_for("the quotas", lambda: quotas.of(address) and quotas.of(ann))
        assert quotas.apply({ann_any: {rate: 99.0}}, validate_only=True).refusals == {}
        assert quotas.of(ann_any) == {}
        assert quotas.alter({ann_any: {rate: 99.0}}) == {ann_any: None}
        wait_for("the quota", lambda: quotas.of(ann_any) == {rate: 99.0})
        found = {one.key: one for one in quotas.resolve("ann", "app", "10.9.8.7")}
        assert found[rate][:5] == (rate, 99.0, 2, ann_any, QuotaEntity.of({"user": "ann", "client-id": "app"}))
        assert [one.level for one in found[rate].levels if one.outcome == "overridden"] == [3]
        assert found["connection_creation_rate"].limit == 3.0

    async def awaited() -> None:
        async with AsyncQuotaClient(kafka) as quotas:
            assert (await quotas.of(ann)) == {rate: 1024.0}
            differences = await quotas.diff({ann: {}, ann_any: {}, address: {}})
            assert [(one.entity, one.before, one.after) for one in differences] == [
                (ann, 1024.0, None), (ann_any, 99.0, None), (address, 3.0, None),
            ]  # fmt: skip
            assert (await quotas.apply({ann: {}, ann_any: {}, address: {}})).refusals == {}

    asyncio.run(awaited())


def test_explain_says_what_kafka_allows(kafka: str) -> None:
    """`quotas explain` shows the quotas that apply, and why the figures of their use are missing."""
    from click.testing import CliRunner

    from kbroker.cli import cli

    dan = QuotaEntity.of({"user": "dan"})
    with QuotaClient(kafka) as quotas:
        quotas.alter({dan: {"consumer_byte_rate": 2048.0}})
        wait_for("the quota", lambda: quotas.of(dan))
        done = CliRunner().invoke(cli, ["quotas", "explain", "--user", "dan"], env={"KBROKER_BOOTSTRAP": kafka})
        assert done.exit_code == 0, done.output
        quotas.alter({dan: {"consumer_byte_rate": None}})
    words = " ".join(done.stdout.split())
    assert "consumer_byte_rate 2 KiB/s set for level 3: user dan counted for user dan, all its clients" in words
    assert "Kafka's protocol has no request for them (broker 1 at" in words
    assert "is not kbroker" in words


def test_mutation_quota_of_kafka(kafka: str) -> None:
    """THROTTLING_QUOTA_EXCEEDED is raised with its throttle time and not retried; later the same request succeeds."""
    entity = QuotaEntity.of({"client-id": "hasty"})
    with Cluster(kafka, client_id="hasty") as hasty:
        assert QuotaClient(hasty).alter({entity: {"controller_mutation_rate": 2.0}}) == {entity: None}
        wait_for("the quota", lambda: QuotaClient(hasty).of(entity) == {"controller_mutation_rate": 2.0})
        name = f"m-{uuid.uuid4().hex[:8]}"
        Admin(hasty).create_topics([NewTopic(f"{name}-a", partitions=25)])
        with pytest.raises(MutationThrottledError) as caught:
            Admin(hasty).create_topics([NewTopic(f"{name}-b", partitions=1)])
        assert 0 < caught.value.throttle_time_ms <= 1500
        Admin(hasty).create_topics([NewTopic(f"{name}-b", partitions=1)])  # the client waits before it sends
        QuotaClient(hasty).alter({entity: {"controller_mutation_rate": None}})


def test_a_cluster_file(cluster: Cluster, tmp_path: Path) -> None:
    """A cluster file brings Apache Kafka to the listed state; `--prune` deletes what the file does not list."""
    name = f"f-{uuid.uuid4().hex[:8]}"
    path = tmp_path / "cluster.yaml"
    text = f"""
topics:
  - {{name: {name}, partitions: 2, configs: {{retention.ms: 86400000, cleanup.policy: compact}}}}
acls:
  - {{principal: "User:bob", operation: Read, resource: Topic, name: {name}, pattern: Prefixed, host: "::1"}}
quotas:
  - {{entity: {{user: {name}}}, quotas: {{producer_byte_rate: 1 MiB/s}}}}
"""
    path.write_text(text)
    plan = plan_changes(cluster, read_cluster_file(path))
    plan.check()
    assert [(change.kind, change.key, change.after) for change in plan.changes if name in change.name] == [
        ("topic", "", "2 partitions"),
        ("config", "retention.ms", "86400000"),
        ("config", "cleanup.policy", "compact"),
        ("acl", "", "Allow"),
        ("quota", "producer_byte_rate", "1 MiB/s"),
    ]
    assert len(list(plan.apply())) == len(plan.steps)
    wait_for("the state of the file", lambda: not plan_changes(cluster, read_cluster_file(path)).changes)
    found = read_cluster(cluster, ["topics", "acls", "quotas"], [name])
    assert found.topics is not None
    assert found.topics[name].configs == {"cleanup.policy": "compact", "retention.ms": "86400000"}
    path.write_text(text.replace("partitions: 2", "partitions: 3").replace(", cleanup.policy: compact", ""))
    pruned = plan_changes(cluster, read_cluster_file(path), prune=True)
    mine = [step for step in pruned.steps if step.changes[0].name == name]
    for step in mine:
        step.make()
    assert [step.changes[0][1:] for step in mine] == [
        (name, "partitions", "2", "3"),
        (name, "cleanup.policy", "compact", None),
    ]
    path.write_text("acls: []\nquotas: []\n")
    plan = plan_changes(cluster, read_cluster_file(path), prune=True)
    assert {change.kind for change in plan.removals} == {"acl", "quota"}
    assert list(plan.apply())
    # the controller applies a change before the broker does
    wait_for("the state of the file", lambda: not plan_changes(cluster, read_cluster_file(path), prune=True).changes)
    assert name in Admin(cluster).list_config_resources(ConfigResourceType.TOPIC)


def test_delegation_tokens(kafka: str, secured_port: int, login: str) -> None:
    """A delegation token of Apache Kafka can be created, used, renewed and expired."""
    address = f"127.0.0.1:{secured_port}"
    by_password = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{login};"}
    security = ClientSecurity(by_password)
    with security.open_cluster(address) as cluster:
        tokens = Tokens(cluster)
        made = tokens.create(renewers=[Principal("User", "bob")], lifetime_ms=3_600_000)
        assert made.token.owner == made.token.requester == Principal("User", "alice")
        wait_for("the token is listed", lambda: made in tokens.list())
        assert tokens.hmac(made.token.token_id) == made.hmac
        by_token = ClientSecurity(
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": made.login}
        )
        with (
            by_token.open_cluster(address) as client,
            pytest.raises(KafkaError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"),
        ):
            Tokens(client).list()
        assert tokens.renew(made.hmac, 60_000) < made.token.expiry_ms
        tokens.expire(made.hmac)
        wait_for("the token has expired", lambda: not tokens.list())


def test_the_console(kafka: str, topic: str) -> None:
    """The pages of the console show and change topics, configs, groups and quotas of Apache Kafka."""
    server = ConsoleServer(kafka, {}, "127.0.0.1", 0, may_edit=True)
    server.start()
    try:
        browser = Browser(server.url.removeprefix("http://").partition("/")[0])
        check_pages(browser, topic)
        check_groups_and_access(browser, topic)
    finally:
        server.stop()


def test_groups_of_all_kinds(cluster: Cluster, topic: str) -> None:
    """Lags, removal of members, reset of offsets and deletion work with each type of group."""
    groups, name = Groups(cluster), uuid.uuid4().hex[:8]
    with Producer(cluster) as producer:
        producer.send(topic, b"value", partition=1)
    names = {"classic": f"classic-{name}", "consumer": f"consumer-{name}", "share": f"share-{name}"}
    groups.commit(f"empty-{name}", {(topic, 1): 0})
    members: list[ClassicMember | ConsumerMember]
    members = [ClassicMember(groups, names["classic"], topic), ConsumerMember(groups, names["consumer"], topic)]
    for member in members:
        member.join()
    sharing = {"GroupId": names["share"], "MemberId": str(uuid.uuid4()), "SubscribedTopicNames": [topic]}
    groups.cluster.retry(lambda: check_heartbeat(groups, names["share"], {**sharing, "MemberEpoch": 0}))
    alter_share_offsets(groups, f"shared-{name}", {(topic, 1): 0})
    kinds = {**{names[kind]: kind for kind in names}, f"empty-{name}": "classic", f"shared-{name}": "share"}
    found = lags_of(groups, kinds)
    assert [(one.place, one.offset, one.lag) for one in found[f"empty-{name}"]] == [((topic, 1), 0, 1)]
    assert [(one.place, one.offset) for one in found[f"shared-{name}"]] == [((topic, 1), 0)]
    assert found[names["consumer"]] == []
    for kind, group_id in names.items():
        described = groups.describe(group_id)
        assert (described.group_type, len(described.members)) == (kind, 1)
        remove_member(groups, group_id, kind, described.members[0])
        wait_for("the removal", lambda group_id=group_id: groups.describe(group_id).members == ())  # type: ignore[misc]
    plan = plan_group_reset(groups, f"empty-{name}", {}, ResetTo.LATEST)
    assert (plan.before, plan.after) == ({(topic, 1): 0}, {(topic, 1): 1})
    plan.apply(groups)
    assert groups.committed(f"empty-{name}")[topic, 1].offset == 1
    for group_id in kinds:
        groups.delete(group_id)


def check_heartbeat(groups: Groups, group_id: str, body: Body) -> None:
    check(groups.ask(group_id, 76, body)["ErrorCode"], "heartbeat")
