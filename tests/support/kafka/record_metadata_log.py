"""Recorder of the metadata log of Apache Kafka after changes of every kind, with Kafka's snapshots at many offsets.

``python -m tests.support.kafka.record_metadata_log FOLDER`` writes the log's segment, a few of the snapshots, and the
brokers' responses at the end. The tests of the metadata image compare these.
"""

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

from kbroker.client.cluster import Cluster
from kbroker.client.security import ClientSecurity
from tests.support.errors import errors_in
from tests.support.kafka.cluster import KafkaCluster

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "secret",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "metadata.max.idle.interval.ms": "0",  # no NoOpRecords
    "metadata.log.max.record.bytes.between.snapshots": "1",
    "min.insync.replicas": "1",
}
SNAPSHOTS = 4
PASSWORD = "password"
API_VERSIONS, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_CONFIGS = 18, 29, 30, 31, 32
CREATE_TOKEN, RENEW_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKENS = 38, 39, 40, 41
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, ELECT, ALTER_CONFIGS, REASSIGN = 19, 20, 37, 43, 44, 45
DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_SCRAM, ALTER_SCRAM, UPDATE_FEATURES, TOPIC_PARTITIONS = 48, 49, 50, 51, 57, 75
INIT_PRODUCER_ID = 22
TOPICS = [{"Name": name} for name in ("gone", "plain", "wide")]  # sorted, as Kafka requires


def ask(cluster: Cluster, key: int, body: dict[str, Any]) -> dict[str, Any]:
    """Return a response without errors; repeat the request until the brokers have applied earlier changes."""
    for _ in range(100):
        response = cluster.request(key, body)
        found = list(errors_in(response))
        if not found:
            return response
        time.sleep(0.2)
    raise AssertionError(f"API {key}: {found}")


def configs(kind: int, name: str, **values: str | None) -> dict[str, Any]:
    rows = [
        {"Name": key.replace("_", "."), "ConfigOperation": int(value is None), "Value": value}
        for key, value in values.items()
    ]
    return {"ResourceType": kind, "ResourceName": name, "Configs": rows}


def quotas(names: dict[str, str | None], **values: float | None) -> dict[str, Any]:
    ops = [{"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in values.items()]
    return {"Entity": [{"EntityType": kind, "EntityName": name} for kind, name in names.items()], "Ops": ops}


def topic(name: str, partitions: int, **values: str) -> dict[str, Any]:
    rows = [{"Name": key.replace("_", "."), "Value": value} for key, value in values.items()]
    return {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 2, "Assignments": [], "Configs": rows}


def user(name: str, mechanism: int) -> dict[str, Any]:
    salted = {"Salt": f"salt of {name}".encode(), "SaltedPassword": salted_password(name)}
    return {"Name": name, "Mechanism": mechanism, "Iterations": 4096, **salted}


def salted_password(name: str) -> bytes:
    from kbroker.common.security.scram import SCRAM_SHA_256

    return SCRAM_SHA_256.salted_password(PASSWORD, f"salt of {name}".encode(), 4096)


def change_topics(cluster: Cluster) -> None:
    first = [topic("plain", 1), topic("wide", 3, retention_ms="1000", cleanup_policy="compact"), topic("gone", 2)]
    ask(cluster, CREATE_TOPICS, {"Topics": first, "timeoutMs": 30000})
    growth = {"Name": "plain", "Count": 3, "Assignments": None}
    ask(cluster, CREATE_PARTITIONS, {"Topics": [growth], "TimeoutMs": 30000, "ValidateOnly": False})
    changes = [
        configs(2, "wide", retention_ms=None, segment_bytes="1048576"), configs(2, "gone", retention_ms="5"),
        configs(4, "", log_cleaner_threads="2"), configs(4, "1", log_cleaner_threads="3"),
        configs(32, "g", consumer_session_timeout_ms="50000"), configs(16, "m", interval_ms="1000"),
    ]  # fmt: skip
    for change in changes:
        ask(cluster, ALTER_CONFIGS, {"Resources": [change], "ValidateOnly": False})
    ask(cluster, DELETE_TOPICS, {"Topics": [{"Name": "gone", "TopicId": b"\0" * 16}], "TimeoutMs": 30000})
    ask(cluster, CREATE_TOPICS, {"Topics": [topic("gone", 1)], "timeoutMs": 30000})
    moved = {"PartitionIndex": 0, "Replicas": [1]}
    rows = [{"Name": "wide", "Partitions": [moved, {"PartitionIndex": 1, "Replicas": [2, 1]}]}]
    ask(cluster, REASSIGN, {"TimeoutMs": 30000, "Topics": rows})


def change_security(cluster: Cluster, secured: str) -> None:
    for rows in ([user("alice", 1), user("bob", 1)], [user("bob", 2)]):
        ask(cluster, ALTER_SCRAM, {"Deletions": [], "Upsertions": rows})
    ask(cluster, ALTER_SCRAM, {"Deletions": [{"Name": "bob", "Mechanism": 1}], "Upsertions": []})
    rows = [
        quotas({"user": "alice"}, producer_byte_rate=1000.0, consumer_byte_rate=2000.0),
        quotas({"user": None, "client-id": "c"}, request_percentage=12.5),
        quotas({"ip": "10.0.0.1"}, connection_creation_rate=7.0), quotas({"client-id": None}, producer_byte_rate=5.0),
    ]  # fmt: skip
    ask(cluster, ALTER_QUOTAS, {"Entries": rows, "ValidateOnly": False})
    rows = [quotas({"user": "alice"}, consumer_byte_rate=None), quotas({"client-id": None}, producer_byte_rate=None)]
    ask(cluster, ALTER_QUOTAS, {"Entries": rows, "ValidateOnly": False})
    acls = [
        {"ResourceType": kind, "ResourceName": name, "ResourcePatternType": pattern, "Principal": "User:alice",
         "Host": "*", "Operation": operation, "PermissionType": permission}
        for kind, name, pattern, operation, permission in (
            (2, "plain", 3, 3, 3), (2, "w", 4, 4, 2), (3, "*", 3, 2, 3), (4, "kafka-cluster", 3, 8, 3),
        )
    ]  # fmt: skip
    ask(cluster, CREATE_ACLS, {"Creations": acls})
    gone = {"ResourceTypeFilter": 3, "ResourceNameFilter": "*", "PatternTypeFilter": 3}
    anyone: dict[str, Any] = {"PrincipalFilter": None, "HostFilter": None, "Operation": 1, "PermissionType": 1}
    ask(cluster, DELETE_ACLS, {"Filters": [{**gone, **anyone}]})
    with session(secured) as alice:
        renewers = [{"PrincipalType": "User", "PrincipalName": "bob"}, {"PrincipalType": "User", "PrincipalName": "x"}]
        owner = {"OwnerPrincipalType": None, "OwnerPrincipalName": None}
        made = [
            ask(alice, CREATE_TOKEN, {**owner, "Renewers": rows, "MaxLifetimeMs": -1}) for rows in (renewers, [], [])
        ]
        ask(alice, RENEW_TOKEN, {"Hmac": made[0]["Hmac"], "RenewPeriodMs": 3_600_000})
        ask(alice, EXPIRE_TOKEN, {"Hmac": made[1]["Hmac"], "ExpiryTimePeriodMs": -1})


def session(secured: str) -> Cluster:
    """Return a connection of the user alice: only authenticated users can have tokens."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    security = ClientSecurity(
        {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{login} username="alice" password="{PASSWORD}";',
        }
    )  # fmt: skip
    return security.open_cluster(secured)


def text(value: object) -> str:
    """Return the text of a value that JSON cannot represent."""
    return value.hex() if isinstance(value, bytes) else str(value)


def describe(cluster: Cluster, secured: str) -> dict[str, Any]:
    """Return the brokers' responses about everything in the log."""
    anything = {"ResourceTypeFilter": 1, "ResourceNameFilter": None, "PatternTypeFilter": 1}
    anyone = {"PrincipalFilter": None, "HostFilter": None, "Operation": 1, "PermissionType": 1}
    resources = [(2, "plain"), (2, "wide"), (2, "gone"), (4, ""), (4, "1"), (32, "g"), (16, "m")]
    names = [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None} for kind, name in resources]
    with session(secured) as alice:
        tokens = ask(alice, DESCRIBE_TOKENS, {"Owners": None})["Tokens"]
    found = {
        "features": ask(cluster, API_VERSIONS, {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"})[
            "FinalizedFeatures"
        ],
        "topics": ask(cluster, TOPIC_PARTITIONS, {"Topics": TOPICS, "Cursor": None})["Topics"],
        "quotas": ask(cluster, DESCRIBE_QUOTAS, {"Components": [], "Strict": False})["Entries"],
        "users": ask(cluster, DESCRIBE_SCRAM, {"Users": None})["Results"],
        "acls": ask(cluster, DESCRIBE_ACLS, {**anything, **anyone})["Resources"],
        "tokens": tokens,
        "configs": [
            (row["ResourceType"], row["ResourceName"], entry["Name"], entry["Value"])
            for name in names
            for row in ask(cluster, DESCRIBE_CONFIGS, {"Resources": [name]})["Results"]
            for entry in row["Configs"]
            if entry["ConfigSource"] in (1, 2, 3, 7, 8) and not (entry["ConfigSource"] == 3 and row["ResourceName"])
        ],
    }
    return found


def minimum(name: str, value: str) -> dict[str, Any]:
    return {"Resources": [configs(2, name, min_insync_replicas=value)], "ValidateOnly": False}


def wait_for_isr(cluster: Cluster, size: int) -> None:
    """Wait until every partition with two replicas has an ISR of this size."""
    for _ in range(300):
        topics = ask(cluster, TOPIC_PARTITIONS, {"Topics": TOPICS, "Cursor": None})["Topics"]
        rows = [row for topic in topics for row in topic["Partitions"] if len(row["ReplicaNodes"]) == 2]
        if all(len(row["IsrNodes"]) == size for row in rows):
            return
        time.sleep(0.2)
    raise AssertionError(f"no ISR of size {size}: {rows}")


def record(folder: Path) -> None:
    with KafkaCluster(2, SETTINGS, protocol="SASL_PLAINTEXT") as kafka, Cluster(kafka.brokers[0].bootstrap) as cluster:
        change_topics(cluster)
        change_security(cluster, kafka.secured)
        updates = [{"Feature": "transaction.version", "MaxVersionLevel": 1, "UpgradeType": 2}]
        ask(cluster, UPDATE_FEATURES, {"timeoutMs": 30000, "FeatureUpdates": updates, "ValidateOnly": False})
        ask(
            cluster,
            INIT_PRODUCER_ID,
            {"TransactionalId": None, "TransactionTimeoutMs": 1, "ProducerId": -1, "ProducerEpoch": -1},
        )
        for name in ("plain", "wide"):
            ask(cluster, ALTER_CONFIGS, minimum(name, "2"))
        wait_for_isr(cluster, 2)
        kafka.brokers[1].kill()
        wait_for_isr(cluster, 1)  # broker 2 is now an eligible leader replica of the two topics
        ask(cluster, ALTER_CONFIGS, minimum("wide", "1"))
        kafka.brokers[1].start()
        wait_for_isr(cluster, 2)
        cluster.request(ELECT, {"ElectionType": 0, "TopicPartitions": None, "TimeoutMs": 30000})
        kafka.brokers[1].kill()
        wait_for_isr(cluster, 1)
        found = describe(cluster, kafka.secured)
        time.sleep(2)  # for the last snapshot
        data = kafka.brokers[0].folder / "data" / "__cluster_metadata-0"
        folder.mkdir(parents=True, exist_ok=True)
        (log,) = data.glob("*.log")
        (folder / f"{log.name}.gz").write_bytes(gzip.compress(log.read_bytes(), mtime=0))
        snapshots = sorted(data.glob("*.checkpoint"))
        wanted = {snapshots[(len(snapshots) - 1) * at // (SNAPSHOTS - 1)] for at in range(SNAPSHOTS)}
        print(len(snapshots), "snapshots")
        for path in wanted:
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        (folder / "described.json").write_text(
            json.dumps(found, indent=1, sort_keys=True, default=text) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    record(Path(sys.argv[1]))
