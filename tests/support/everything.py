"""All state that a broker keeps for its clients: topics, records, groups, transactions, configs, quotas, security."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import partial

from confluent_kafka import TopicPartition

from kbroker.client.security import ClientSecurity
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.client import (
    Body,
    Client,
    librdkafka_consumer,
    librdkafka_producer,
    more_partitions,
    new_topics,
    produce_body,
    row_of,
    set_configs,
)
from tests.support.either_broker import SCRAM_MODULE
from tests.support.errors import errors_in
from tests.support.ledger import BROKER, CLIENT_METRICS, GROUP, TOPIC

ITERATIONS = 4096
PASSWORD = "alice-secret"
TRANSACTIONAL = 16  # attribute of a batch
TRANSACTION_TIMEOUT_MS = 900_000
#: Configs of topics by name; the topic "every-config", made elsewhere, has all configs of topics.
TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {"segment.bytes": "1048576"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"},
    "both-policies": {"cleanup.policy": "compact,delete", "max.compaction.lag.ms": "100000"},
    "squeezed": {"compression.type": "zstd", "compression.zstd.level": "5"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "transactions": {"min.insync.replicas": "1"},
    "prepared": {},
    "kept": {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "2000000"},
}
REMOTE = "remote."
READ_TOPIC = {"ResourceType": 2, "ResourcePatternType": 3, "Host": "*", "Operation": 3, "PermissionType": 3}


class Everything:
    """Generator of a broker's state in rounds, each of which adds records, commits, topics and configs.

    Args:
        bootstrap: of a listener whose clients may do everything; ``sasl_bootstrap``: of one with SCRAM-SHA-256.
        topics: further plain topics; ``value_bytes``: of a record, ``records`` in each partition and round.
        has_shadows: whether the broker accepts shadow quotas; Apache Kafka only stores them.
    """

    def __init__(
        self,
        bootstrap: str,
        sasl_bootstrap: str,
        *,
        topics: int = 2,
        records: int = 40,
        value_bytes: int = 100,
        has_shadows: bool = True,
    ) -> None:
        self.bootstrap = bootstrap
        self.sasl_bootstrap = sasl_bootstrap
        self.round = 0
        self._has_shadows = has_shadows
        self._records = records
        self._value = hashlib.sha512(b"value").digest() * (value_bytes // 64 + 1)
        self._plain = ["plain", *(f"plain-{number}" for number in range(topics))]
        self._sequences: dict[tuple[str, str, int], int] = {}
        self._producers: dict[str, tuple[int, int]] = {}

    @property
    def alice(self) -> dict[str, str]:
        """Return the properties of a client that logs in as the SCRAM user alice."""
        return self._scram("alice", PASSWORD)

    @staticmethod
    def _scram(user: str, password: str, more: str = "") -> dict[str, str]:
        line = f'{SCRAM_MODULE} required username="{user}" password="{password}"{more};'
        return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line}

    def log_in(self, properties: Mapping[str, str]) -> None:
        """Log in at the listener with SCRAM. Raises: KafkaError if the login is refused."""
        security = ClientSecurity(properties)
        with security.open_cluster(self.sasl_bootstrap) as cluster:
            cluster.connection_to(None).request(18, 3, {"ClientSoftwareName": "e", "ClientSoftwareVersion": "1"})

    def by_token(self, token: Body) -> dict[str, str]:
        """Return the properties of a client that logs in with a delegation token."""
        return self._scram(token["TokenId"], base64.b64encode(token["Hmac"]).decode(), ' tokenauth="true"')

    # ------------------------------------------------------------ once

    def fill(self, *, has_group_configs: bool = True) -> None:
        """Create everything that is made once. Args: ``has_group_configs``: the broker lists configs of groups."""
        with Client(self.bootstrap) as client:
            self._create_topics(client, {**TOPICS, **{name: {} for name in self._plain[1:]}})
            self._create_every_config(client)
            self._configure(client)
            if has_group_configs:
                self.alter(client, GROUP, "consumer-group", {"consumer.heartbeat.interval.ms": "6000"})
            self._limit(client)
            self._secure(client)
        self._make_token()
        self.write()
        for protocol in ("classic", "consumer"):
            self.read(f"{protocol}-group", protocol)
            self.read(f"{protocol}-static", protocol, instance="static-1")
        with Client(self.bootstrap) as client:
            self.begin(client, "left-open")
            self.send(client, "left-open", "transactions")
            self._send_offsets(client, "left-open")

    def end_open(self) -> None:
        """Commit the transaction that the first round left open."""
        with Client(self.bootstrap) as client:
            self.end(client, "left-open", commits=True)

    def _send_offsets(self, client: Client, transactional_id: str) -> None:
        producer_id, epoch = self._producers[transactional_id]
        mine = {"TransactionalId": transactional_id, "GroupId": "pending-group", "ProducerId": producer_id}
        self.ask(client, "AddOffsetsToTxn", 3, {**mine, "ProducerEpoch": epoch})
        offset = {"PartitionIndex": 0, "CommittedOffset": 7, "CommittedLeaderEpoch": 0, "CommittedMetadata": "pending"}
        topics = [{"Name": "plain", "Partitions": [offset]}]
        member = {"GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": None}
        self.ask(client, "TxnOffsetCommit", 3, {**mine, "ProducerEpoch": epoch, **member, "Topics": topics})

    def _create_topics(self, client: Client, topics: Mapping[str, Mapping[str, str]], partitions: int = 2) -> None:
        for name, configs in topics.items():
            self.ask(client, "CreateTopics", 7, new_topics(name, partitions=partitions, configs=configs))
        wait_for("the leaders", lambda: all(wire.is_ready(self.bootstrap, name) for name in topics))

    def _create_every_config(self, client: Client) -> None:
        """Create a topic that sets each config of topics to its present value."""
        resource = {"ResourceType": TOPIC, "ResourceName": "plain", "ConfigurationKeys": None}
        (row,) = client.call("DescribeConfigs", 4, {"Resources": [resource]})["Results"]
        values = {one["Name"]: one["Value"] for one in row["Configs"] if not one["Name"].startswith(REMOTE)}
        self._create_topics(client, {"every-config": values}, 1)

    def _configure(self, client: Client) -> None:
        self.alter(client, BROKER, "", {"message.max.bytes": "3000000", "log.cleaner.threads": "1"})
        self.alter(client, BROKER, "1", {"log.retention.ms": "800000000", "max.connections": "5000"})
        self.alter(client, CLIENT_METRICS, "observed", {"interval.ms": "60000", "metrics": "org.apache.kafka."})

    def alter(self, client: Client, kind: int, name: str, configs: Mapping[str, str]) -> None:
        """Set configs of a resource."""
        self.ask(client, "IncrementalAlterConfigs", 1, set_configs(kind, name, configs))

    def _limit(self, client: Client) -> None:
        alice, anyone = ("user", "alice"), ("user", None)
        app, any_app = ("client-id", "app"), ("client-id", None)
        for entity in (
            [alice], [anyone], [app], [any_app], [alice, app], [alice, any_app], [anyone, app], [anyone, any_app],
        ):  # fmt: skip
            self.limit(client, entity, {"producer_byte_rate": 1e9, "request_percentage": 1500.5})
        self.limit(client, [alice], {"consumer_byte_rate": 5e8, "controller_mutation_rate": 400.0})
        self.limit(client, [("ip", "127.0.0.2")], {"connection_creation_rate": 50.0})
        self.limit(client, [("ip", None)], {"connection_creation_rate": 5000.0})
        if self._has_shadows:
            self.limit(client, [("user", "bob")], {"shadow.producer_byte_rate": 1000.0})

    def limit(self, client: Client, entity: Iterable[tuple[str, str | None]], quotas: Mapping[str, float]) -> None:
        """Set quotas of an entity."""
        row = {
            "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in entity],
            "Ops": [{"Key": key, "Value": value, "Remove": False} for key, value in quotas.items()],
        }
        self.ask(client, "AlterClientQuotas", 1, {"Entries": [row], "ValidateOnly": False})

    def _secure(self, client: Client) -> None:
        for mechanism, algorithm in ((1, "sha256"), (2, "sha512")):
            salted = hashlib.pbkdf2_hmac(algorithm, PASSWORD.encode(), b"salt-of-alice", ITERATIONS)
            user = {"Name": "alice", "Mechanism": mechanism, "Iterations": ITERATIONS, "Salt": b"salt-of-alice"}
            body = {"Upsertions": [{**user, "SaltedPassword": salted}], "Deletions": []}
            self.ask(client, "AlterUserScramCredentials", 0, body)
        self.allow(client, "plain", "User:alice")
        prefixed = {"ResourceName": "pl", "ResourcePatternType": 4, "Principal": "User:bob"}
        cluster = {"ResourceType": 4, "ResourceName": "kafka-cluster", "Principal": "User:*", "Host": "10.0.0.1"}
        rows = [
            {**READ_TOPIC, **prefixed, "Operation": 4, "PermissionType": 2},
            {**READ_TOPIC, **cluster, "Operation": 8},
        ]
        self.ask(client, "CreateAcls", 3, {"Creations": rows})

    def allow(self, client: Client, topic: str, principal: str) -> None:
        """Allow a principal to read a topic."""
        rule = {**READ_TOPIC, "ResourceName": topic, "Principal": principal}
        self.ask(client, "CreateAcls", 3, {"Creations": [rule]})

    def _make_token(self) -> None:
        security = ClientSecurity(self.alice)
        with security.open_cluster(self.sasl_bootstrap) as cluster:
            body = {"Renewers": [{"PrincipalType": "User", "PrincipalName": "bob"}], "MaxLifetimeMs": -1}
            response = cluster.connection_to(None).request(38, 3, body)
        assert response["ErrorCode"] == 0, response
        self.token: Body = response

    # ------------------------------------------------------------ each round

    def write(self) -> None:
        """Write one round: records of every kind, commits, and a change of each kind of metadata."""
        number = self.round = self.round + 1
        producer = librdkafka_producer(self.bootstrap, **{"enable.idempotence": True, "linger.ms": 20})
        for topic in (*self._plain, "squeezed", "stamped", "kept"):
            for index in range(2 * self._records):
                value = f"{number}-{index}-".encode() + self._value
                producer.produce(topic, value, f"key-{index}", partition=index % 2, headers=[("round", b"%d" % number)])
                producer.poll(0)
        for topic in ("compacted", "both-policies"):
            for index in range(200):
                text = None if index % 11 == 0 else f"{number}-{index}"
                producer.produce(topic, text, f"key-{index % 20}", partition=index % 2)
        assert producer.flush(120) == 0
        with Client(self.bootstrap) as client:
            for commits in (True, False):
                name = f"transactional-{commits}"
                self.begin(client, name)
                self.send(client, name, "transactions")
                self.end(client, name, commits=commits)
            self._create_topics(client, {f"round-{number}": {"retention.ms": "90000000"}}, 1)
            self.alter(client, TOPIC, "kept", {"delete.retention.ms": str(90_000_000 + number)})
            self.alter(client, BROKER, "1", {"log.cleaner.backoff.ms": str(15_000 + number)})
            self.limit(client, [("user", f"round-{number}")], {"producer_byte_rate": 1e6 + number})
            self.allow(client, f"round-{number}", "User:alice")
            self._replace_topic(client)
            self._grow(client)
            before = {"PartitionIndex": 0, "Offset": number * self._records // 2}
            body = {"Topics": [{"Name": "kept", "Partitions": [before]}], "TimeoutMs": 30_000}
            self.ask(client, "DeleteRecords", 2, body)

    def _replace_topic(self, client: Client) -> None:
        """Delete a topic and create a topic of the same name; delete the topic of an earlier round."""
        if self.round > 1:
            names = ["replaced"] if self.round == 2 else ["replaced", f"round-{self.round - 2}"]
            rows = [{"Name": name} for name in names]
            self.ask(client, "DeleteTopics", 6, {"Topics": rows, "TimeoutMs": 30_000})
        self._create_topics(client, {"replaced": {}})
        for index in (0, 1):
            batch = wire.batch([f"replaced {self.round} {number}".encode() for number in range(self.round)])
            wait_for("the new topic", partial(self._is_stored, client, produce_body("replaced", batch, -1, index)))

    @staticmethod
    def _is_stored(client: Client, body: Body) -> bool:
        return bool(row_of(client.call("Produce", 9, body))["ErrorCode"] == 0)

    def _grow(self, client: Client) -> None:
        if self.round == 1:
            self._create_topics(client, {"growing": {}})
        count = self.round + 2
        self.ask(client, "CreatePartitions", 3, more_partitions("growing", count))
        wait_for("the new partition", lambda: wire.is_ready(self.bootstrap, "growing", count - 1))

    # ------------------------------------------------------------ transactions

    def begin(self, client: Client, transactional_id: str, topic: str = "transactions") -> None:
        """Begin a transaction on both partitions of a topic."""
        body = {"TransactionalId": transactional_id, "TransactionTimeoutMs": TRANSACTION_TIMEOUT_MS}
        wait_for("the coordinator", lambda: self._coordinator_is_ready(client, transactional_id, body))
        rows = [{"Name": topic, "Partitions": [0, 1]}]
        producer_id, epoch = self._producers[transactional_id]
        body = {"V3AndBelowTransactionalId": transactional_id, "V3AndBelowProducerId": producer_id,
                "V3AndBelowProducerEpoch": epoch, "V3AndBelowTopics": rows}  # fmt: skip
        self.ask(client, "AddPartitionsToTxn", 3, body)

    def prepare(self, count: int = 12) -> set[bytes]:
        """Commit transactions whose markers may not be written yet; return the acknowledged values."""
        values = set()
        with Client(self.bootstrap) as client:
            names = [f"prepared-{number}" for number in range(count)]
            for name in names:
                self.begin(client, name, "prepared")
                self.send(client, name, "prepared")
                values |= set(self._values(name))
            for name in names:
                self.end(client, name, commits=True)
        return values

    def _values(self, transactional_id: str) -> list[bytes]:
        return [f"{transactional_id} {self.round} {number}".encode() for number in range(3)]

    def _coordinator_is_ready(self, client: Client, transactional_id: str, body: Body) -> bool:
        client.call("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": [transactional_id]})  # creates its topic
        response = client.call("InitProducerId", 4, {**body, "ProducerId": -1, "ProducerEpoch": -1})
        if response["ErrorCode"]:
            return False
        self._producers[transactional_id] = response["ProducerId"], response["ProducerEpoch"]
        self._sequences = {key: at for key, at in self._sequences.items() if key[0] != transactional_id}
        return True

    def send(self, client: Client, transactional_id: str, topic: str) -> None:
        """Send a batch to each of the two partitions within a transaction."""
        producer_id, epoch = self._producers[transactional_id]
        for index in (0, 1):
            key = transactional_id, topic, index
            sequence = self._sequences.get(key, 0)
            self._sequences[key] = sequence + 3
            batch = wire.batch(
                self._values(transactional_id),
                attributes=TRANSACTIONAL,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            body = produce_body(topic, batch, -1, index)
            self.ask(client, "Produce", 9, {**body, "TransactionalId": transactional_id})

    def end(self, client: Client, transactional_id: str, *, commits: bool) -> None:
        """End a transaction."""
        producer_id, epoch = self._producers[transactional_id]
        body = {"TransactionalId": transactional_id, "ProducerId": producer_id, "ProducerEpoch": epoch}
        self.ask(client, "EndTxn", 3, {**body, "Committed": commits})

    def read(self, group: str, protocol: str, *, instance: str = "", count: int = 30) -> None:
        """Read some records as a member of a group and commit; a static member (``instance``) stays in the group."""
        settings: dict[str, object] = {"group_protocol": protocol}
        if instance:
            settings["group_instance_id"] = instance
            if protocol == "classic":
                settings["session_timeout_ms"] = 900_000
                settings["max_poll_interval_ms"] = 900_000
        consumer = librdkafka_consumer(self.bootstrap, group, **settings)
        consumer.subscribe(["plain"])
        seen = 0
        last: dict[int, int] = {}

        def has_read() -> bool:
            nonlocal seen
            for message in consumer.consume(count, 0.2):
                partition, offset = message.partition(), message.offset()
                if message.error() is None and partition is not None and offset is not None:
                    last[partition] = offset
                    seen += 1
            return seen >= count

        wait_for(f"{count} records in {group}", has_read, 60, 0)
        offsets = [
            TopicPartition("plain", at, offset + 1, metadata=f"round {self.round}") for at, offset in last.items()
        ]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    @staticmethod
    def ask(client: Client, api: str, version: int, body: Body) -> Body:
        """Return the response to a request; fail if it contains an error."""
        response = client.call(api, version, body)
        failed = list(errors_in(response))
        assert not failed, (api, failed)
        return response
