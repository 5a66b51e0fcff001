"""Checks of the authorizer by API: the only table, for handlers and for docs/authorization.md.

A row is one check: the resource's type, the operation, and the error when it is denied. Rows of an API are in the order
of the checks. Source: ``KafkaApis``, ``ControllerApis``, ``AclApis``, ``ConfigHelper`` of 4.3.1.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.common.errors import Errors
from kbroker.common.security.acls import Operation, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID, TOKEN, USER = ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN, ResourceType.USER

_NONE = Errors.NONE
_TOPIC = Errors.TOPIC_AUTHORIZATION_FAILED
_GROUP = Errors.GROUP_AUTHORIZATION_FAILED
_CLUSTER = Errors.CLUSTER_AUTHORIZATION_FAILED
_TRANSACTIONAL_ID = Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_TOKEN = Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED


class Check(NamedTuple):
    """A check of the authorizer.

    ``error`` NONE: denied items are left out of the response. ``covers``: the part of the response that depends on the
    check; ``is_logged``: a denial is logged, as it is where a client requested access.
    """

    api: int
    kind: ResourceType
    operation: Operation
    error: Errors
    covers: str
    is_logged: bool = True


PRODUCE_TRANSACTIONAL_ID = Check(
    0, TRANSACTIONAL_ID, Operation.WRITE, _TRANSACTIONAL_ID, "the request, if it has transactional records"
)
PRODUCE = Check(0, TOPIC, Operation.WRITE, _TOPIC, "each partition of the topic")
FETCH = Check(1, TOPIC, Operation.READ, _TOPIC, "each partition of the topic")
FETCH_AS_FOLLOWER = Check(1, CLUSTER, Operation.CLUSTER_ACTION, _TOPIC, "every partition, for a replica's Fetch")
LIST_OFFSETS = Check(2, TOPIC, Operation.DESCRIBE, _TOPIC, "each partition of the topic")
METADATA = Check(3, TOPIC, Operation.DESCRIBE, _TOPIC, "a topic that the request names by name or id")
METADATA_ALL = Check(3, TOPIC, Operation.DESCRIBE, _NONE, "each topic, if the request names none", False)
METADATA_CREATE_ANY = Check(3, CLUSTER, Operation.CREATE, _NONE, "topics to be created, then the next check", False)
METADATA_CREATE = Check(3, TOPIC, Operation.CREATE, _TOPIC, "a topic to be created")
METADATA_CLUSTER = Check(3, CLUSTER, Operation.DESCRIBE, _NONE, "ClusterAuthorizedOperations, otherwise 0")
OFFSET_COMMIT_GROUP = Check(8, GROUP, Operation.READ, _GROUP, "the request")
OFFSET_COMMIT = Check(8, TOPIC, Operation.READ, _TOPIC, "each partition of the topic")
OFFSET_FETCH_GROUP = Check(9, GROUP, Operation.DESCRIBE, _GROUP, "the group")
OFFSET_FETCH = Check(9, TOPIC, Operation.DESCRIBE, _TOPIC, "each partition of a named topic")
OFFSET_FETCH_ALL = Check(9, TOPIC, Operation.DESCRIBE, _NONE, "each topic of the group, if the request names none")
FIND_COORDINATOR_GROUP = Check(10, GROUP, Operation.DESCRIBE, _GROUP, "a group")
FIND_COORDINATOR_TRANSACTIONAL_ID = Check(
    10, TRANSACTIONAL_ID, Operation.DESCRIBE, _TRANSACTIONAL_ID, "a transactional id"
)
FIND_COORDINATOR_SHARE = Check(10, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "a share partition: the request")
JOIN_GROUP = Check(11, GROUP, Operation.READ, _GROUP, "the request")
HEARTBEAT = Check(12, GROUP, Operation.READ, _GROUP, "the request")
LEAVE_GROUP = Check(13, GROUP, Operation.READ, _GROUP, "the request")
SYNC_GROUP = Check(14, GROUP, Operation.READ, _GROUP, "the request")
DESCRIBE_GROUPS = Check(15, GROUP, Operation.DESCRIBE, _GROUP, "the group")
LIST_GROUPS_ALL = Check(16, CLUSTER, Operation.DESCRIBE, _NONE, "every group, then the next check", False)
LIST_GROUPS = Check(16, GROUP, Operation.DESCRIBE, _NONE, "the group", False)
CREATE_TOPICS_ANY = Check(19, CLUSTER, Operation.CREATE, _NONE, "every topic, then the next check", False)
CREATE_TOPICS = Check(19, TOPIC, Operation.CREATE, _TOPIC, "the topic")
CREATE_TOPICS_CONFIGS = Check(
    19, TOPIC, Operation.DESCRIBE_CONFIGS, _TOPIC, "the topic's configs and numbers: TopicConfigErrorCode", False
)
DELETE_TOPICS_ANY = Check(20, CLUSTER, Operation.DELETE, _NONE, "every topic, then the next checks", False)
DELETE_TOPICS_DESCRIBE = Check(20, TOPIC, Operation.DESCRIBE, _TOPIC, "the topic; rows of ids omit its name")
DELETE_TOPICS = Check(20, TOPIC, Operation.DELETE, _TOPIC, "the topic")
DELETE_RECORDS = Check(21, TOPIC, Operation.DELETE, _TOPIC, "each partition of the topic")
INIT_PRODUCER_ID_TRANSACTIONAL_ID = Check(
    22, TRANSACTIONAL_ID, Operation.WRITE, _TRANSACTIONAL_ID, "the request, if it has a transactional id"
)
INIT_PRODUCER_ID_TWO_PHASE_COMMIT = Check(
    22, TRANSACTIONAL_ID, Operation.TWO_PHASE_COMMIT, _TRANSACTIONAL_ID, "the request, if it enables two-phase commit"
)
INIT_PRODUCER_ID = Check(
    22, CLUSTER, Operation.IDEMPOTENT_WRITE, _CLUSTER, "a request without one, unless any topic is writable", False
)
OFFSET_FOR_LEADER_EPOCH_ANY = Check(
    23, CLUSTER, Operation.CLUSTER_ACTION, _NONE, "every topic, then the next check", False
)
OFFSET_FOR_LEADER_EPOCH = Check(23, TOPIC, Operation.DESCRIBE, _TOPIC, "each partition of the topic")
ADD_PARTITIONS_TO_TXN_BROKERS = Check(
    24, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "the request, from version 4 on, which is for brokers"
)
ADD_PARTITIONS_TO_TXN_TRANSACTIONAL_ID = Check(
    24, TRANSACTIONAL_ID, Operation.WRITE, _TRANSACTIONAL_ID, "the request, below version 4"
)
ADD_PARTITIONS_TO_TXN = Check(24, TOPIC, Operation.WRITE, _TOPIC, "each partition of the topic, below version 4")
ADD_OFFSETS_TO_TXN_TRANSACTIONAL_ID = Check(25, TRANSACTIONAL_ID, Operation.WRITE, _TRANSACTIONAL_ID, "the request")
ADD_OFFSETS_TO_TXN_GROUP = Check(25, GROUP, Operation.READ, _GROUP, "the request")
END_TXN = Check(26, TRANSACTIONAL_ID, Operation.WRITE, _TRANSACTIONAL_ID, "the request")
WRITE_TXN_MARKERS_ADMIN = Check(27, CLUSTER, Operation.ALTER, _NONE, "the request, then the next check", False)
WRITE_TXN_MARKERS = Check(27, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "the request")
TXN_OFFSET_COMMIT_TRANSACTIONAL_ID = Check(28, TRANSACTIONAL_ID, Operation.WRITE, _TRANSACTIONAL_ID, "the request")
TXN_OFFSET_COMMIT_GROUP = Check(28, GROUP, Operation.READ, _GROUP, "the request")
TXN_OFFSET_COMMIT = Check(28, TOPIC, Operation.READ, _TOPIC, "each partition of the topic")
DESCRIBE_ACLS = Check(29, CLUSTER, Operation.DESCRIBE, _CLUSTER, "the request")
CREATE_ACLS = Check(30, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
DELETE_ACLS = Check(31, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
DESCRIBE_CONFIGS_CLUSTER = Check(
    32, CLUSTER, Operation.DESCRIBE_CONFIGS, _CLUSTER, "a broker, its loggers, a client metrics subscription"
)
DESCRIBE_CONFIGS_TOPIC = Check(32, TOPIC, Operation.DESCRIBE_CONFIGS, _TOPIC, "a topic")
DESCRIBE_CONFIGS_GROUP = Check(32, GROUP, Operation.DESCRIBE_CONFIGS, _GROUP, "a group")
ALTER_CONFIGS_CLUSTER = Check(33, CLUSTER, Operation.ALTER_CONFIGS, _CLUSTER, "a broker, a client metrics subscription")
ALTER_CONFIGS_TOPIC = Check(33, TOPIC, Operation.ALTER_CONFIGS, _TOPIC, "a topic")
ALTER_CONFIGS_GROUP = Check(33, GROUP, Operation.ALTER_CONFIGS, _GROUP, "a group")
ALTER_REPLICA_LOG_DIRS = Check(34, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
DESCRIBE_LOG_DIRS = Check(35, CLUSTER, Operation.DESCRIBE, _CLUSTER, "the request")
CREATE_PARTITIONS = Check(37, TOPIC, Operation.ALTER, _TOPIC, "the topic")
CREATE_DELEGATION_TOKEN = Check(38, USER, Operation.CREATE_TOKENS, _TOKEN, "the request, for another owner")
DESCRIBE_DELEGATION_TOKEN = Check(41, TOKEN, Operation.DESCRIBE, _NONE, "a token of another user")
DESCRIBE_DELEGATION_TOKEN_OWNER = Check(41, USER, Operation.DESCRIBE_TOKENS, _NONE, "tokens of another owner")
DELETE_GROUPS = Check(42, GROUP, Operation.DELETE, _GROUP, "the group")
ELECT_LEADERS = Check(43, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
INCREMENTAL_ALTER_CONFIGS_LOGGERS = Check(44, CLUSTER, Operation.ALTER_CONFIGS, _CLUSTER, "a broker's loggers")
INCREMENTAL_ALTER_CONFIGS_CLUSTER = Check(
    44, CLUSTER, Operation.ALTER_CONFIGS, _CLUSTER, "a broker, a client metrics subscription"
)
INCREMENTAL_ALTER_CONFIGS_TOPIC = Check(44, TOPIC, Operation.ALTER_CONFIGS, _TOPIC, "a topic")
INCREMENTAL_ALTER_CONFIGS_GROUP = Check(44, GROUP, Operation.ALTER_CONFIGS, _GROUP, "a group")
ALTER_PARTITION_REASSIGNMENTS = Check(45, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
LIST_PARTITION_REASSIGNMENTS = Check(46, CLUSTER, Operation.DESCRIBE, _CLUSTER, "the request")
OFFSET_DELETE_GROUP = Check(47, GROUP, Operation.DELETE, _GROUP, "the request")
OFFSET_DELETE = Check(47, TOPIC, Operation.READ, _TOPIC, "each partition of the topic")
DESCRIBE_CLIENT_QUOTAS = Check(48, CLUSTER, Operation.DESCRIBE_CONFIGS, _CLUSTER, "the request")
ALTER_CLIENT_QUOTAS = Check(49, CLUSTER, Operation.ALTER_CONFIGS, _CLUSTER, "the request")
DESCRIBE_USER_SCRAM_CREDENTIALS = Check(50, CLUSTER, Operation.DESCRIBE, _CLUSTER, "the request")
ALTER_USER_SCRAM_CREDENTIALS = Check(51, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
DESCRIBE_QUORUM = Check(55, CLUSTER, Operation.DESCRIBE, _CLUSTER, "the request")
UPDATE_FEATURES = Check(57, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
DESCRIBE_CLUSTER = Check(60, CLUSTER, Operation.DESCRIBE, _NONE, "ClusterAuthorizedOperations, otherwise 0")
DESCRIBE_PRODUCERS = Check(61, TOPIC, Operation.READ, _TOPIC, "each partition of the topic")
UNREGISTER_BROKER = Check(64, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
DESCRIBE_TRANSACTIONS = Check(65, TRANSACTIONAL_ID, Operation.DESCRIBE, _TRANSACTIONAL_ID, "the transactional id")
DESCRIBE_TRANSACTIONS_TOPIC = Check(65, TOPIC, Operation.DESCRIBE, _NONE, "a topic of the transaction")
LIST_TRANSACTIONS = Check(66, TRANSACTIONAL_ID, Operation.DESCRIBE, _NONE, "the transactional id")
CONSUMER_GROUP_HEARTBEAT_GROUP = Check(68, GROUP, Operation.READ, _GROUP, "the request")
CONSUMER_GROUP_HEARTBEAT = Check(68, TOPIC, Operation.DESCRIBE, _TOPIC, "the request, if it names the topic")
CONSUMER_GROUP_HEARTBEAT_REGEX = Check(
    68, TOPIC, Operation.DESCRIBE, _NONE, "a topic that matches SubscribedTopicRegex", False
)
CONSUMER_GROUP_DESCRIBE_GROUP = Check(69, GROUP, Operation.DESCRIBE, _GROUP, "the group")
CONSUMER_GROUP_DESCRIBE = Check(69, TOPIC, Operation.DESCRIBE, _TOPIC, "a group with a member that reads the topic")
LIST_CONFIG_RESOURCES = Check(74, CLUSTER, Operation.DESCRIBE_CONFIGS, _CLUSTER, "the request")
DESCRIBE_TOPIC_PARTITIONS = Check(75, TOPIC, Operation.DESCRIBE, _TOPIC, "a topic that is named; else it is left out")
SHARE_FETCH_GROUP = Check(78, GROUP, Operation.READ, _GROUP, "the request")
SHARE_FETCH = Check(78, TOPIC, Operation.READ, _TOPIC, "each partition of the topic, and its acknowledgements")
SHARE_ACKNOWLEDGE_GROUP = Check(79, GROUP, Operation.READ, _GROUP, "the request")
SHARE_ACKNOWLEDGE = Check(79, TOPIC, Operation.READ, _TOPIC, "each partition of the topic")
SHARE_GROUP_HEARTBEAT_GROUP = Check(76, GROUP, Operation.READ, _GROUP, "the request")
SHARE_GROUP_HEARTBEAT = Check(76, TOPIC, Operation.DESCRIBE, _TOPIC, "the request, if it names the topic")
SHARE_GROUP_DESCRIBE_GROUP = Check(77, GROUP, Operation.DESCRIBE, _GROUP, "the group")
SHARE_GROUP_DESCRIBE = Check(77, TOPIC, Operation.DESCRIBE, _TOPIC, "a group with a member that reads the topic")
ADD_RAFT_VOTER = Check(80, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
REMOVE_RAFT_VOTER = Check(81, CLUSTER, Operation.ALTER, _CLUSTER, "the request")
STREAMS_GROUP_HEARTBEAT_GROUP = Check(88, GROUP, Operation.READ, _GROUP, "the request")
STREAMS_GROUP_HEARTBEAT = Check(88, TOPIC, Operation.DESCRIBE, _TOPIC, "the request, if its topology has the topic")
STREAMS_GROUP_HEARTBEAT_CREATE_ANY = Check(
    88, CLUSTER, Operation.CREATE, _NONE, "internal topics to be created, then the next check", False
)
STREAMS_GROUP_HEARTBEAT_CREATE = Check(
    88, TOPIC, Operation.CREATE, _NONE, "an internal topic to be created: a status in the response"
)
STREAMS_GROUP_DESCRIBE_GROUP = Check(89, GROUP, Operation.DESCRIBE, _GROUP, "the group")
STREAMS_GROUP_DESCRIBE = Check(89, TOPIC, Operation.DESCRIBE, _TOPIC, "a group whose topology has the topic")

INITIALIZE_SHARE_GROUP_STATE = Check(83, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "every partition")
READ_SHARE_GROUP_STATE = Check(84, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "every partition")
WRITE_SHARE_GROUP_STATE = Check(85, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "every partition")
DELETE_SHARE_GROUP_STATE = Check(86, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "every partition")
READ_SHARE_GROUP_STATE_SUMMARY = Check(87, CLUSTER, Operation.CLUSTER_ACTION, _CLUSTER, "every partition")
DESCRIBE_SHARE_GROUP_OFFSETS_GROUP = Check(90, GROUP, Operation.DESCRIBE, _GROUP, "the group")
DESCRIBE_SHARE_GROUP_OFFSETS = Check(90, TOPIC, Operation.DESCRIBE, _TOPIC, "each partition of a named topic")
DESCRIBE_SHARE_GROUP_OFFSETS_ALL = Check(
    90, TOPIC, Operation.DESCRIBE, _NONE, "each topic of the group, if the request names none"
)
ALTER_SHARE_GROUP_OFFSETS_GROUP = Check(91, GROUP, Operation.READ, _GROUP, "the request")
ALTER_SHARE_GROUP_OFFSETS = Check(91, TOPIC, Operation.READ, _TOPIC, "each partition of the topic")
DELETE_SHARE_GROUP_OFFSETS_GROUP = Check(92, GROUP, Operation.DELETE, _GROUP, "the request")
DELETE_SHARE_GROUP_OFFSETS = Check(92, TOPIC, Operation.READ, _TOPIC, "the topic")


def all_checks() -> list[Check]:
    """Return every row, by API and in the order of the checks."""
    return [value for value in globals().values() if isinstance(value, Check)]
