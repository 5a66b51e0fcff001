"""Table of requests, each sent by clients with different ACLs: the access that each client has.

``python -m tests.support.authorization tests/support/kafka_authorization.json`` starts Apache Kafka and records its
responses; ``tests/integration/test_authorization_table.py`` compares kbroker with the recording, without Java. Each
user has a few ACLs, so that ACLs need not change between requests.
"""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tests.support import wire
from tests.support.client import Client, new_topics
from tests.support.errors import errors_in

RECORDING = Path(__file__).with_name("kafka_authorization.json")
Body = dict[str, Any]
BodyOf = Callable[[str], Body]  # the argument is a user's name

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID, USER, TOKEN = ResourceType.TRANSACTIONAL_ID, ResourceType.USER, ResourceType.DELEGATION_TOKEN
NAMES = {TOPIC: "t-one", GROUP: "g-one", CLUSTER: "kafka-cluster", TRANSACTIONAL_ID: "x-one"}
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
NO_ID = uuid.UUID(int=0)
PASSWORD = "secret"
ROOT = "root"  # a super user, who has logged in like the other users
OWNER, RENEWER = "u2", "u1"


def own_topic(user: str) -> str:
    """Return the name of a topic that only this user requests and that does not exist."""
    return f"t-own-{user}"


class Situation(NamedTuple):
    """Name of a user and the user's ACLs."""

    user: str
    acls: tuple[Acl, ...]


class Known(NamedTuple):
    """Topic ids, and the HMAC of a delegation token that OWNER did not create and RENEWER may renew."""

    ids: dict[str, uuid.UUID]
    hmac: bytes = b""


def situations() -> Iterator[Situation]:
    """Yield every user, in the order of the recording."""
    number = 0

    def situation(*rules: tuple[ResourceType, str, PatternType, Operation, Permission], host: str = "*") -> Situation:
        nonlocal number
        user = f"u{number}"
        number += 1
        return Situation(user, tuple(Acl(k, n, p, f"User:{user}", host, o, a) for k, n, p, o, a in rules))

    everything = [
        (kind, "*" if kind != CLUSTER else name, LITERAL, Operation.ALL, ALLOW) for kind, name in NAMES.items()
    ]
    yield situation()
    yield situation(*everything)
    yield situation(*everything, host="127.0.0.1")
    yield situation(*everything, host="10.9.8.7")
    for kind, name in NAMES.items():  # a single operation
        for operation in Operation:
            if operation >= Operation.ALL:
                yield situation((kind, name, LITERAL, operation, ALLOW))
    for kind, name in NAMES.items():  # everything but one operation
        for operation in (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
                          Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
                          Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE):  # fmt: skip
            yield situation(*everything, (kind, name, LITERAL, operation, DENY))
    for kind in (TOPIC, GROUP, TRANSACTIONAL_ID):  # prefixes
        prefix = NAMES[kind][:2]
        for operation in (Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE):
            yield situation((kind, prefix, PREFIXED, operation, ALLOW))
        yield situation(*everything, (kind, prefix, PREFIXED, Operation.ALL, DENY))
        yield situation(
            (kind, prefix, PREFIXED, Operation.ALL, ALLOW), (kind, NAMES[kind], LITERAL, Operation.ALL, DENY)
        )
    for operation in (Operation.ALL, Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS):  # tokens of others
        yield situation((USER, "User:another", LITERAL, operation, ALLOW))
        yield situation((USER, f"User:{OWNER}", PREFIXED, operation, ALLOW))
        yield situation((USER, "*", LITERAL, Operation.ALL, ALLOW), (USER, "User:", PREFIXED, operation, DENY))
    for operation in (Operation.ALL, Operation.DESCRIBE, Operation.READ, Operation.DESCRIBE_TOKENS):
        yield situation((TOKEN, "*", LITERAL, operation, ALLOW))
    reader = (GROUP, "*", LITERAL, Operation.READ, ALLOW)  # of topics that a regular expression finds
    for operation in (Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS):
        yield situation(reader, (TOPIC, "t-one", LITERAL, operation, ALLOW))
        yield situation(reader, (TOPIC, "*", LITERAL, Operation.ALL, ALLOW), (TOPIC, "t-o", PREFIXED, operation, DENY))
    describing = (TOPIC, "*", LITERAL, Operation.DESCRIBE, ALLOW)  # topics to be created
    any_topic = (CLUSTER, NAMES[CLUSTER], LITERAL, Operation.CREATE, ALLOW)
    for rules in (
        [describing], [describing, any_topic],
        [describing, (TOPIC, own_topic(f"u{number + 2}"), LITERAL, Operation.CREATE, ALLOW)],
        [describing, (TOPIC, "t-own-", PREFIXED, Operation.CREATE, ALLOW)],
        [(TOPIC, "t-own-", PREFIXED, Operation.CREATE, ALLOW)],
        [describing, any_topic, (TOPIC, "t-own-", PREFIXED, Operation.CREATE, DENY)],
        [describing, (CLUSTER, NAMES[CLUSTER], LITERAL, Operation.CREATE, DENY),
         (TOPIC, "t-own-", PREFIXED, Operation.CREATE, ALLOW)],
    ):  # fmt: skip
        yield situation(*rules)


#: Producer id and epoch that are unknown to every coordinator.
_PRODUCER = {"ProducerId": 987_654, "ProducerEpoch": 3}
_TWO = ("t-one", "t-two")


def _produce(names: Sequence[str], transactional_id: str | None = None) -> Body:
    batch = wire.batch([b"v"])
    if transactional_id is not None:
        batch = wire.batch([b"v"], attributes=16, producer_id=987_654, producer_epoch=3, base_sequence=0)
    rows = [{"Name": name, "PartitionData": [{"Index": 0, "Records": batch}]} for name in names]
    return {"TransactionalId": transactional_id, "Acks": 1, "TimeoutMs": 1000, "TopicData": rows}


def _fetch(topics: Sequence[Body], replica_id: int = -1) -> Body:
    part = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1000}
    rows = [{**topic, "Partitions": [part]} for topic in topics]
    return {
        "ReplicaId": replica_id, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1000, "SessionEpoch": -1, "Topics": rows,
        "ForgottenTopicsData": [], "RackId": "",
    }  # fmt: skip


def _config(kind: int, name: str, key: str, value: str) -> Body:
    return {"ResourceType": kind, "ResourceName": name,
            "Configs": [{"Name": key, "ConfigOperation": 0, "Value": value}]}  # fmt: skip


_CONFIGS = [_config(2, "t-one", "retention.ms", "1000"), _config(2, "t-none", "retention.ms", "1000"),
            _config(4, "1", "log.cleaner.threads", "1"), _config(4, "", "log.cleaner.threads", "1"),
            _config(16, "m", "interval.ms", "1000"), _config(32, "g-one", "consumer.session.timeout.ms", "45000"),
            _config(8, "1", "no.such.logger", "INFO")]  # fmt: skip
_FILTER = {"ResourceTypeFilter": 2, "ResourceNameFilter": "no such topic", "PatternTypeFilter": 3,
           "PrincipalFilter": None, "HostFilter": None, "Operation": 1, "PermissionType": 1}  # fmt: skip
_BAD_ACL = {"ResourceType": 2, "ResourceName": "", "ResourcePatternType": 3, "Principal": "User:x", "Host": "*",
            "Operation": 3, "PermissionType": 3}  # fmt: skip
_OFFSETS = [{"Name": name, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}]}
            for name in ("t-one", "t-two", "t-none")]  # fmt: skip


def _of_user(kind: str | None, name: str | None) -> Body:
    return {"OwnerPrincipalType": kind, "OwnerPrincipalName": name, "Renewers": [], "MaxLifetimeMs": -1}


def _owners(*names: str) -> Body:
    return {"Owners": [{"PrincipalType": "User", "PrincipalName": name} for name in names]}


_VOTER = {"ClusterId": None, "VoterId": 77, "VoterDirectoryId": uuid.UUID(int=5)}


def _topology(source: str, sink: str) -> Body:
    part = {"SubtopologyId": "0", "SourceTopics": [source], "SourceTopicRegex": [], "StateChangelogTopics": []}
    part |= {"RepartitionSinkTopics": [sink], "RepartitionSourceTopics": [], "CopartitionGroups": []}
    return {"Epoch": 0, "Subtopologies": [part]}


def _share_state(**fields: object) -> Body:
    rows = [{"Partition": 0, **fields}]
    return {"GroupId": "g-one", "Topics": [{"TopicId": NO_ID, "Partitions": rows}]}


def requests(known: Known) -> list[tuple[str, int, Body | BodyOf]]:
    """Return every request, in the order of the recording."""
    one, two = known.ids["t-one"], known.ids["t-two"]
    named = [{"Name": name} for name in ("t-one", "t-two", "t-none")]
    by_id = [{"TopicId": topic_id, "Name": None} for topic_id in (one, two, uuid.UUID(int=77))]
    member = {"MemberId": "m", "GenerationId": 1}
    return [
        ("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False, "IncludeTopicAuthorizedOperations": True}),
        ("Metadata", 1, {"Topics": None}),
        ("Metadata", 9, {"Topics": named, "AllowAutoTopicCreation": False, "IncludeTopicAuthorizedOperations": True,
                         "IncludeClusterAuthorizedOperations": True}),
        ("Metadata", 12, {"Topics": by_id, "AllowAutoTopicCreation": False, "IncludeTopicAuthorizedOperations": True}),
        ("Metadata", 12, {"Topics": [{"Name": "bad name"}], "AllowAutoTopicCreation": False}),
        ("DescribeTopicPartitions", 0, {"Topics": named, "ResponsePartitionLimit": 100, "Cursor": None}),
        ("DescribeTopicPartitions", 0, {"Topics": [], "ResponsePartitionLimit": 100, "Cursor": None}),
        ("DescribeCluster", 1, {"IncludeClusterAuthorizedOperations": True}),
        ("Produce", 9, _produce(("t-one",))),
        ("Produce", 9, _produce(("t-one", "t-two", "t-none"))),
        ("Produce", 7, _produce(("t-two",))),
        ("Produce", 11, _produce(("t-one", "t-two"), "x-one")),
        ("Produce", 11, _produce(("t-one",), "y-two")),
        ("Fetch", 12, _fetch([{"Topic": name} for name in ("t-one", "t-two", "t-none")])),
        ("Fetch", 4, _fetch([{"Topic": name} for name in _TWO])),
        ("Fetch", 13, _fetch([{"TopicId": topic_id} for topic_id in (one, two, uuid.UUID(int=77))])),
        ("Fetch", 12, _fetch([{"Topic": "t-none"}], replica_id=2)),
        ("ListOffsets", 6, {"ReplicaId": -1, "IsolationLevel": 0, "Topics": [
            {"Name": name, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]} for name in _TWO]}),
        ("ListOffsets", 1, {"ReplicaId": -1, "Topics": [
            {"Name": name, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]} for name in ("t-one", "t-none")]}),
        ("OffsetForLeaderEpoch", 4, {"ReplicaId": -1, "Topics": [
            {"Topic": name, "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}]}
            for name in ("t-one", "t-two", "t-none")]}),
        ("FindCoordinator", 3, {"Key": "g-one", "KeyType": 0}),
        ("FindCoordinator", 2, {"Key": "x-one", "KeyType": 1}),
        ("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["g-one", "h-two"]}),
        ("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": ["x-one", "y-two"]}),
        ("OffsetCommit", 8, {"GroupId": "g-one", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": _OFFSETS}),
        ("OffsetCommit", 10, {"GroupId": "g-one", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": [
            {"TopicId": topic_id, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1, "CommittedMetadata": ""}]}
            for topic_id in (one, two, uuid.UUID(int=77))]}),
        ("OffsetFetch", 7, {"GroupId": "g-one", "Topics": [
            {"Name": name, "PartitionIndexes": [0]} for name in ("t-one", "t-two", "t-none")]}),
        ("OffsetFetch", 7, {"GroupId": "g-one", "Topics": None}),
        ("OffsetFetch", 8, {"Groups": [{"GroupId": name, "Topics": None} for name in ("g-one", "h-two")]}),
        ("JoinGroup", 5, {"GroupId": "g-join", "SessionTimeoutMs": 10_000, "RebalanceTimeoutMs": 10_000, "MemberId": "",
                          "ProtocolType": "consumer", "Protocols": [{"Name": "p", "Metadata": b""}]}),
        ("JoinGroup", 5, {"GroupId": "g-one", "SessionTimeoutMs": 10_000, "RebalanceTimeoutMs": 10_000,
                          "MemberId": "no-such", "ProtocolType": "consumer",
                          "Protocols": [{"Name": "p", "Metadata": b""}]}),
        ("SyncGroup", 3, {"GroupId": "g-one", **member, "Assignments": []}),
        ("Heartbeat", 3, {"GroupId": "g-one", **member}),
        ("LeaveGroup", 3, {"GroupId": "g-one", "Members": [{"MemberId": "m"}]}),
        ("DescribeGroups", 5, {"Groups": ["g-one", "h-two"], "IncludeAuthorizedOperations": True}),
        ("ListGroups", 4, {"StatesFilter": []}),
        ("DeleteGroups", 2, {"GroupsNames": ["g-none", "h-none"]}),
        ("OffsetDelete", 0, {"GroupId": "g-one", "Topics": [
            {"Name": name, "Partitions": [{"PartitionIndex": 9}]} for name in ("t-one", "t-two", "t-none")]}),
        ("ConsumerGroupHeartbeat", 0, {"GroupId": "g-one", "MemberId": "m", "MemberEpoch": 5,
                                       "SubscribedTopicNames": ["t-one", "t-two"]}),
        ("ConsumerGroupHeartbeat", 0, {"GroupId": "g-one", "MemberId": "m", "MemberEpoch": 5,
                                       "SubscribedTopicNames": ["t-one"]}),
        ("ConsumerGroupDescribe", 0, {"GroupIds": ["g-one", "h-two"], "IncludeAuthorizedOperations": True}),
        ("StreamsGroupHeartbeat", 0, {"GroupId": "g-one", "MemberId": "m", "MemberEpoch": 5,
                                      "Topology": _topology("t-one", "t-two")}),
        ("StreamsGroupHeartbeat", 0, {"GroupId": "g-one", "MemberId": "m", "MemberEpoch": 5,
                                      "Topology": _topology("t-one", "t-one")}),
        ("StreamsGroupHeartbeat", 0, {"GroupId": "h-two", "MemberId": "m", "MemberEpoch": 5}),
        ("StreamsGroupDescribe", 0, {"GroupIds": ["g-one", "h-two"], "IncludeAuthorizedOperations": True}),
        ("ShareGroupHeartbeat", 1, {"GroupId": "g-one", "MemberId": "m", "MemberEpoch": 5, "RackId": None,
                                    "SubscribedTopicNames": ["t-one", "t-two"]}),
        ("ShareGroupHeartbeat", 1, {"GroupId": "g-one", "MemberId": "m", "MemberEpoch": 5, "RackId": None,
                                    "SubscribedTopicNames": ["t-one"]}),
        ("ShareGroupDescribe", 1, {"GroupIds": ["g-one", "h-two"], "IncludeAuthorizedOperations": True}),
        ("DescribeShareGroupOffsets", 1, {"Groups": [{"GroupId": name, "Topics": [
            {"TopicName": topic, "Partitions": [0]} for topic in ("t-none", "n-none")]}
            for name in ("g-one", "h-two")]}),
        ("DescribeShareGroupOffsets", 1, {"Groups": [
            {"GroupId": name, "Topics": None} for name in ("g-one", "h-two")]}),
        ("AlterShareGroupOffsets", 0, {"GroupId": "g-none", "Topics": [
            {"TopicName": topic, "Partitions": [{"PartitionIndex": 0, "StartOffset": 0}]}
            for topic in ("t-none", "n-none")]}),
        ("DeleteShareGroupOffsets", 0, {"GroupId": "g-none", "Topics": [{"TopicName": "t-none"}]}),
        ("InitializeShareGroupState", 0, _share_state(StateEpoch=0, StartOffset=0)),
        ("ReadShareGroupState", 0, _share_state(LeaderEpoch=0)),
        ("WriteShareGroupState", 0, _share_state(StateEpoch=0, LeaderEpoch=0, StartOffset=0, StateBatches=[])),
        ("DeleteShareGroupState", 0, _share_state()),
        ("ReadShareGroupStateSummary", 0, _share_state(LeaderEpoch=0)),
        ("CreateTopics", 7, {**new_topics("t-new", "n-new", "t-one"), "validateOnly": True}),
        ("CreatePartitions", 3, {"Topics": [{"Name": name, "Count": 3, "Assignments": None}
                                            for name in ("t-one", "t-two", "t-none")], "TimeoutMs": 9000,
                                 "ValidateOnly": True}),
        ("DeleteTopics", 5, {"TopicNames": ["t-none", "n-none"], "TimeoutMs": 9000}),
        ("DeleteTopics", 6, {"Topics": [{"Name": "t-none", "TopicId": NO_ID}, {"Name": "n-none", "TopicId": NO_ID},
                                        {"Name": None, "TopicId": uuid.UUID(int=77)}], "TimeoutMs": 9000}),
        ("DeleteRecords", 2, {"Topics": [{"Name": name, "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}
                                         for name in ("t-one", "t-two", "t-none")]}),
        ("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000}),
        ("InitProducerId", 4, {"TransactionalId": "x-one", "TransactionTimeoutMs": 1000, **_PRODUCER}),
        ("AddPartitionsToTxn", 3, {"V3AndBelowTransactionalId": "x-one", "V3AndBelowProducerId": 987_654,
                                   "V3AndBelowProducerEpoch": 3,
                                   "V3AndBelowTopics": [{"Name": name, "Partitions": [0]} for name in _TWO]}),
        ("AddPartitionsToTxn", 4, {"Transactions": [{"TransactionalId": "x-one", **_PRODUCER, "VerifyOnly": True,
                                                     "Topics": [{"Name": "t-one", "Partitions": [0]}]}]}),
        ("AddOffsetsToTxn", 3, {"TransactionalId": "x-one", **_PRODUCER, "GroupId": "g-one"}),
        ("EndTxn", 3, {"TransactionalId": "x-one", **_PRODUCER, "Committed": True}),
        ("TxnOffsetCommit", 3, {"TransactionalId": "x-one", "GroupId": "g-one", **_PRODUCER, "Topics": _OFFSETS[2:]}),
        ("WriteTxnMarkers", 1, {"Markers": [{**_PRODUCER, "TransactionResult": False, "CoordinatorEpoch": 0, "Topics": [
            {"Name": "t-none", "PartitionIndexes": [0]}]}]}),
        ("DescribeTransactions", 0, {"TransactionalIds": ["x-one", "y-two"]}),
        ("ListTransactions", 0, {"StateFilters": [], "ProducerIdFilters": []}),
        ("DescribeProducers", 0, {"Topics": [{"Name": name, "PartitionIndexes": [0]}
                                             for name in ("t-one", "t-two", "t-none")]}),
        ("DescribeConfigs", 4, {"Resources": [
            {"ResourceType": row["ResourceType"], "ResourceName": row["ResourceName"], "ConfigurationKeys": None}
            for row in _CONFIGS]}),
        ("IncrementalAlterConfigs", 1, {"Resources": _CONFIGS, "ValidateOnly": True}),
        ("AlterConfigs", 2, {"Resources": [
            {**row, "Configs": [{"Name": one["Name"], "Value": one["Value"]} for one in row["Configs"]]}
            for row in _CONFIGS[:6] if row["ResourceName"]], "ValidateOnly": True}),
        ("ListConfigResources", 1, {"ResourceTypes": [4]}),
        ("AlterReplicaLogDirs", 2, {"Dirs": [{"Path": "/no/such", "Topics": [{"Name": "t-one", "Partitions": [0]}]}]}),
        ("DescribeLogDirs", 4, {"Topics": []}),
        ("ElectLeaders", 2, {"ElectionType": 0, "TopicPartitions": [{"Topic": "t-one", "Partitions": [0]}],
                             "TimeoutMs": 1000}),
        ("AlterPartitionReassignments", 0, {"TimeoutMs": 1000, "Topics": [
            {"Name": "t-one", "Partitions": [{"PartitionIndex": 0, "Replicas": None}]}]}),
        ("ListPartitionReassignments", 0, {"TimeoutMs": 1000, "Topics": None}),
        ("DescribeClientQuotas", 1, {"Components": [], "Strict": False}),
        ("AlterClientQuotas", 1, {"ValidateOnly": True, "Entries": [
            {"Entity": [{"EntityType": "user", "EntityName": "another"}],
             "Ops": [{"Key": "producer_byte_rate", "Value": 1.0, "Remove": True}]}]}),
        ("DescribeUserScramCredentials", 0, {"Users": [{"Name": "no-such"}]}),
        ("AlterUserScramCredentials", 0, {"Deletions": [{"Name": "no-such", "Mechanism": 1}], "Upsertions": []}),
        ("DescribeQuorum", 1, {"Topics": [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]}),
        ("UpdateFeatures", 1, {"timeoutMs": 1000, "ValidateOnly": True, "FeatureUpdates": [
            {"Feature": "no.such", "MaxVersionLevel": 1, "UpgradeType": 1}]}),
        ("UnregisterBroker", 0, {"BrokerId": 77}),
        ("DescribeAcls", 3, _FILTER),
        ("CreateAcls", 3, {"Creations": [_BAD_ACL]}),
        ("DeleteAcls", 3, {"Filters": [_FILTER]}),
        ("AddRaftVoter", 1, {**_VOTER, "TimeoutMs": 1000, "Listeners": [
            {"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": 1}]}),
        ("RemoveRaftVoter", 0, _VOTER),
        ("DescribeDelegationToken", 3, {"Owners": None}),
        ("DescribeDelegationToken", 1, {"Owners": []}),
        ("DescribeDelegationToken", 2, _owners("another")),
        ("DescribeDelegationToken", 3, _owners(OWNER, "another", "no-such")),
        ("RenewDelegationToken", 2, {"Hmac": known.hmac, "RenewPeriodMs": 3_600_000}),
        ("RenewDelegationToken", 1, {"Hmac": b"no such token", "RenewPeriodMs": 3_600_000}),
        ("ExpireDelegationToken", 2, {"Hmac": known.hmac, "ExpiryTimePeriodMs": 3_600_000}),
        ("CreateDelegationToken", 3, _of_user("User", "another")),
        ("CreateDelegationToken", 3, _of_user("User", OWNER)),
        ("CreateDelegationToken", 3, _of_user(None, None)),
        ("CreateDelegationToken", 2, {"Renewers": [], "MaxLifetimeMs": -1}),
        ("CreateDelegationToken", 3, lambda user: _of_user("User", user)),
    ]  # fmt: skip


_SHOWN = (
    "ErrorCode", "PartitionErrorCode", "TopicConfigErrorCode", "Name", "Topic", "TopicName", "GroupId", "Key", "User",
    "TransactionalId", "ResourceName", "TopicAuthorizedOperations", "ClusterAuthorizedOperations",
    "AuthorizedOperations", "PrincipalName",
)  # fmt: skip
_LEFT_OUT = frozenset({"Brokers", "Nodes", "Configs", "Synonyms", "ConfigResources", "Members", "NodeEndpoints"})


def outcome(api: str, body: Any) -> str:
    """Return the part of a response that depends on ACLs: error codes, names and authorized operations, sorted."""
    if isinstance(body, list):
        return "[" + ",".join(sorted(outcome(api, part) for part in body)) + "]"
    if not isinstance(body, dict):
        return ""
    parts = [
        f"{name[0] if name != 'ErrorCode' else ''}{body[name]}" for name in _SHOWN if body.get(name) not in (None, "")
    ]
    for name, value in body.items():
        if isinstance(value, list) and name not in _LEFT_OUT and not (api == "DescribeLogDirs" and name == "Topics"):
            parts.append(outcome(api, value))
        elif name == "Configs" and isinstance(value, list):
            parts.append("c" if value else "-")
    return "(" + " ".join(parts) + ")"


class Table:
    """Sender of every request of the table to one broker.

    Args: ``plain`` and ``sasl``: addresses of the listener without authentication and of the SASL listener; ``wait_s``:
    time without a change after which work that continues after a response counts as finished.
    """

    def __init__(self, plain: str, sasl: str, wait_s: float) -> None:
        self.plain, self.sasl, self.wait_s = plain, sasl, wait_s
        self.admin = Client(plain, "admin")

    def prepare(self) -> Known:
        """Create topics, groups, transactional ids, tokens and every user's ACLs."""
        made = self.admin.call("CreateTopics", 7, new_topics(*_TWO, partitions=2))
        ids = {row["Name"]: row["TopicId"] for row in made["Topics"]}
        for kind, keys in ((0, ["g-one", "h-two"]), (1, ["x-one", "y-two"])):
            self._until("FindCoordinator", 4, {"KeyType": kind, "CoordinatorKeys": keys})
        for group in ("g-one", "h-two"):
            commit = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": _OFFSETS[:2]}
            self._until("OffsetCommit", 8, commit)
        for name in ("x-one", "y-two"):
            self._until("InitProducerId", 4, {"TransactionalId": name, "TransactionTimeoutMs": 60_000,
                                              "ProducerId": -1, "ProducerEpoch": -1})  # fmt: skip
        rows = [
            {"ResourceType": int(acl.resource_type), "ResourceName": acl.resource_name,
             "ResourcePatternType": int(acl.pattern_type), "Principal": acl.principal, "Host": acl.host,
             "Operation": int(acl.operation), "PermissionType": int(acl.permission)}
            for situation in situations() for acl in situation.acls
        ]  # fmt: skip
        made = self.admin.call("CreateAcls", 3, {"Creations": rows})
        assert {row["ErrorCode"] for row in made["Results"]} == {0}, made
        everything = {**_FILTER, "ResourceTypeFilter": 1, "ResourceNameFilter": None, "PatternTypeFilter": 1}
        for _ in range(2000):
            known = self.admin.call("DescribeAcls", 3, everything)
            if sum(len(row["Acls"]) for row in known["Resources"]) == len(rows):
                return Known(ids, self._tokens())
        raise AssertionError("the rules do not come into force")

    def _tokens(self) -> bytes:
        """Create a token of OWNER and a token of another user that RENEWER may renew; return the HMAC of the second."""
        renewers = [{"PrincipalType": "User", "PrincipalName": RENEWER}]
        with self._log_in(ROOT) as root:
            self._until("CreateDelegationToken", 3, _of_user("User", OWNER), root)
            made = root.call("CreateDelegationToken", 3, {**_of_user("User", "another"), "Renewers": renewers})
            for _ in range(300):
                if len(root.call("DescribeDelegationToken", 3, {"Owners": None})["Tokens"]) == 2:
                    return bytes(made["Hmac"])
                time.sleep(0.1)
        raise AssertionError("the tokens do not come into force")

    def _until(self, api: str, version: int, body: Body, client: Client | None = None) -> None:
        """Repeat a request until it has no error: internal topics are created by their first use."""
        for _ in range(300):
            response = (client or self.admin).call(api, version, body)
            if "ErrorCode" in str(response) and not any(errors_in(response)):
                return
            time.sleep(0.1)
        raise AssertionError(f"{api} does not work")

    def rows(self) -> Iterator[tuple[str, int, list[str]]]:
        """Yield each request's name and version with the outcomes of all users in order."""
        known = self.prepare()
        clients = {situation.user: self._log_in(situation.user) for situation in situations()}
        for api, version, body in requests(known):
            yield (
                api,
                version,
                [
                    outcome(api, client.call(api, version, body(user) if callable(body) else body))
                    for user, client in clients.items()
                ],
            )
        yield (
            "ConsumerGroupHeartbeat",
            1,
            self._found_by_expression(clients, {topic_id: name for name, topic_id in known.ids.items()}),
        )
        yield "Metadata", 9, self._made_on_the_way(clients)
        for client in (*clients.values(), self.admin):
            client.close()

    def _found_by_expression(self, clients: Mapping[str, Client], names: Mapping[uuid.UUID, str]) -> list[str]:
        """Return the topics assigned to each user's member, whose subscription is a regular expression."""
        found: dict[str, str] = {}
        joining = {
            "MemberEpoch": 0,
            "RebalanceTimeoutMs": 60_000,
            "SubscribedTopicNames": [],
            "SubscribedTopicRegex": "t-(one|two)",
            "TopicPartitions": [],
        }
        staying = {"RebalanceTimeoutMs": -1}
        members = {user: {"GroupId": f"g-of-{user}", "MemberId": f"member-{user}", **joining} for user in clients}
        last_change = time.monotonic()
        while members and time.monotonic() < last_change + self.wait_s:
            for user, body in list(members.items()):
                row = clients[user].call("ConsumerGroupHeartbeat", 1, body)
                if row["ErrorCode"] != 0:
                    found[user] = f"refused {row['ErrorCode']}"
                    del members[user]
                    continue
                topics = (row["Assignment"] or {}).get("TopicPartitions", [])
                members[user] = {"GroupId": body["GroupId"], "MemberId": body["MemberId"], **staying,
                                 "MemberEpoch": row["MemberEpoch"], "TopicPartitions": topics or None}  # fmt: skip
                if topics:
                    last_change = time.monotonic()
                    found[user] = " ".join(sorted(names[row["TopicId"]] for row in topics))
            time.sleep(0.05)
        for user, body in members.items():
            found.setdefault(user, "nothing")
            clients[user].call("ConsumerGroupHeartbeat", 1, {**body, "MemberEpoch": -1, "TopicPartitions": None})
        return [found[user] for user in clients]

    def _made_on_the_way(self, clients: Mapping[str, Client]) -> list[str]:
        """Return whether each user's Metadata creates its topic. Kafka returns error 3 or 5 until then, kbroker 0."""
        refused = {}
        for user, client in clients.items():
            body = {"Topics": [{"Name": own_topic(user)}], "AllowAutoTopicCreation": True}
            (row,) = client.call("Metadata", 9, body)["Topics"]
            refused[user] = f"{row['ErrorCode']}, " if row["ErrorCode"] not in (0, 3, 5) else ""
        made: set[str] = set()
        last_change = time.monotonic()
        while time.monotonic() < last_change + self.wait_s:
            topics = {row["Name"] for row in self.admin.call("Metadata", 9, {"Topics": None})["Topics"]}
            if topics != made:
                made, last_change = topics, time.monotonic()
            time.sleep(0.05)
        return [f"{refused[user]}{'made' if own_topic(user) in made else 'not made'}" for user in clients]

    def _log_in(self, user: str) -> Client:
        client = Client(self.sasl, user)
        assert client.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})["ErrorCode"] == 0
        token = f"\0{user}\0{PASSWORD}".encode()
        assert client.call("SaslAuthenticate", 2, {"AuthBytes": token})["ErrorCode"] == 0, user
        return client


def settings() -> dict[str, str]:
    """Return the settings of a broker with a listener for the users (SASL) and one for the anonymous admin."""
    names = (ROOT, *(situation.user for situation in situations()))
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in names)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ROOT}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "delegation.token.secret.key": "a key",
    }


def read(file: Path = RECORDING) -> list[tuple[str, int, list[str]]]:
    """Return the recorded rows."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    words = stored["outcomes"]
    return [(api, version, [words[number] for number in numbers]) for api, version, numbers in stored["rows"]]


def write(rows: Sequence[tuple[str, int, list[str]]], file: Path) -> None:
    """Store rows; each distinct outcome is stored once."""
    words = list(dict.fromkeys(word for _, _, found in rows for word in found))
    index = {word: number for number, word in enumerate(words)}
    lines = ",\n".join(json.dumps([api, version, [index[one] for one in found]], separators=(",", ":"))
                       for api, version, found in rows)  # fmt: skip
    outcomes = ",\n".join(json.dumps(word) for word in words)
    file.write_text(f'{{"outcomes": [\n{outcomes}],\n"rows": [\n{lines}]}}\n', encoding="utf-8")


def main(file: str) -> None:
    """Record the responses of Apache Kafka."""
    from bench.loads import peers

    port = peers.free_port()
    with peers.kafka(settings(), f"SASL_PLAINTEXT://127.0.0.1:{port}") as server:
        rows = list(Table(server.bootstrap, f"127.0.0.1:{port}", 30.0).rows())
    write(rows, Path(file))
    print(f"{sum(len(found) for _, _, found in rows)} decisions of {len(rows)} requests")


if __name__ == "__main__":
    main(sys.argv[1])
