"""Error codes of the Kafka protocol (``Errors.java``): a name may change, its number never."""

import enum


class Errors(enum.IntEnum):
    """Every error code of the protocol, with its retriability and a default text.

    ``retriable``: the same request may succeed later (Kafka's Java client retries on it). ``message``: one English
    sentence for error-message fields and logs. Clients treat an unknown code as -1.
    """

    retriable: bool
    message: str

    def __new__(cls, code: int, message: str, retriable: bool = False) -> "Errors":
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.retriable = retriable
        return member

    @classmethod
    def of(cls, code: int) -> "Errors":
        """Return the member of `code`; an unknown, newer code is UNKNOWN_SERVER_ERROR, as for clients."""
        return cls._value2member_map_.get(code, cls.UNKNOWN_SERVER_ERROR)  # type: ignore[return-value]

    UNKNOWN_SERVER_ERROR = -1, "An unexpected error occurred on the server."
    NONE = 0, "No error."
    OFFSET_OUT_OF_RANGE = 1, "The requested offset is not within the range of offsets the partition keeps."
    CORRUPT_MESSAGE = 2, "The record data is damaged: its checksum, size or structure is wrong.", True
    UNKNOWN_TOPIC_OR_PARTITION = 3, "This broker does not host this topic or partition.", True
    INVALID_FETCH_SIZE = 4, "The requested fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at the moment.", True
    NOT_LEADER_OR_FOLLOWER = 6, "This broker is not the leader or a follower of the partition.", True
    REQUEST_TIMED_OUT = 7, "The request timed out.", True
    BROKER_NOT_AVAILABLE = 8, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, "The replica is not available for the topic and partition.", True
    MESSAGE_TOO_LARGE = 10, "The batch is larger than the largest size the topic accepts."
    STALE_CONTROLLER_EPOCH = 11, "The controller moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata of the offset is too long."
    NETWORK_EXCEPTION = 13, "The server disconnected before a response was received.", True
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is loading its state and cannot respond yet.", True
    COORDINATOR_NOT_AVAILABLE = 15, "The coordinator is not available.", True
    NOT_COORDINATOR = 16, "This broker is not the coordinator.", True
    INVALID_TOPIC_EXCEPTION = 17, "The topic name or operation is not valid."
    RECORD_LIST_TOO_LARGE = 18, "The batch is larger than a segment of the partition."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than the topic requires.", True
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "The records were written, but to fewer replicas than required.", True
    INVALID_REQUIRED_ACKS = 21, "The required acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member's protocol type or protocols fit none of the group's other members."
    INVALID_GROUP_ID = 24, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, "The member is unknown to the coordinator."
    INVALID_SESSION_TIMEOUT = 26, "The session timeout is outside the range the broker allows."
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing, so a rejoin is needed."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The committed offset data is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, "Access to the topic is not authorized."
    GROUP_AUTHORIZATION_FAILED = 30, "Access to the group is not authorized."
    CLUSTER_AUTHORIZATION_FAILED = 31, "Access to the cluster is not authorized."
    INVALID_TIMESTAMP = 32, "The timestamp of the record is outside the accepted range."
    UNSUPPORTED_SASL_MECHANISM = 33, "The broker does not support the requested SASL mechanism."
    ILLEGAL_SASL_STATE = 34, "The request is not valid in the current SASL state."
    UNSUPPORTED_VERSION = 35, "The requested version of the API, or the requested feature, is not supported."
    TOPIC_ALREADY_EXISTS = 36, "A topic of this name already exists."
    INVALID_PARTITIONS = 37, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is not between 1 and the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The replica assignment is invalid."
    INVALID_CONFIG = 40, "The configuration is invalid."
    NOT_CONTROLLER = 41, "This broker is not the controller.", True
    INVALID_REQUEST = 42, "The request is malformed or contradicts itself."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The message format of the data does not support the request."
    POLICY_VIOLATION = 44, "The request breaks a policy of the cluster."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The sequence number of the batch is not the next expected one."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The batch with this sequence number was already written."
    INVALID_PRODUCER_EPOCH = 47, "The producer epoch is older than the current one."
    INVALID_TXN_STATE = 48, "The operation is not valid in the current state of the transaction."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is larger than the broker allows."
    CONCURRENT_TRANSACTIONS = 51, "Another operation of the same transaction is still in progress.", True
    TRANSACTION_COORDINATOR_FENCED = 52, "The transaction coordinator has been replaced by a newer one."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "Access to the transactional id is not authorized."
    SECURITY_DISABLED = 54, "Security features are disabled."
    OPERATION_NOT_ATTEMPTED = 55, "The operation was not attempted, because another one of the request failed."
    KAFKA_STORAGE_ERROR = 56, "Reading or writing the log on disk failed.", True
    LOG_DIR_NOT_FOUND = 57, "The log directory is not known to the broker."
    SASL_AUTHENTICATION_FAILED = 58, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, "The broker holds no state for this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, "A reassignment of the partition is in progress."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, "The delegation token is unknown to the broker."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal is neither owner nor renewer of the delegation token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "Delegation tokens need a login by SASL or certificate, not by token."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "Delegation token operations are not authorized."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "The type of the principal is not supported."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The fetch session does not exist.", True
    INVALID_FETCH_SESSION_EPOCH = 71, "The epoch of the fetch session is not the expected one.", True
    LISTENER_NOT_FOUND = 72, "The leader has no listener of this name.", True
    TOPIC_DELETION_DISABLED = 73, "Deletion of topics is disabled."
    FENCED_LEADER_EPOCH = 74, "The leader epoch of the request is older than the broker's.", True
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch of the request is newer than the broker's.", True
    UNSUPPORTED_COMPRESSION_TYPE = 76, "This version of the request does not support the compression type."
    STALE_BROKER_EPOCH = 77, "The broker epoch has changed."
    OFFSET_NOT_AVAILABLE = 78, "The latest offset is not known to the leader yet.", True
    MEMBER_ID_REQUIRED = 79, "The member must join again with the member id it was given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not available.", True
    GROUP_MAX_SIZE_REACHED = 81, "The group has reached its largest size."
    FENCED_INSTANCE_ID = 82, "Another member with the same group instance id took over."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No replica that could become leader is available.", True
    ELECTION_NOT_NEEDED = 84, "The partition does not need a leader election.", True
    NO_REASSIGNMENT_IN_PROGRESS = 85, "No reassignment of the partition is in progress."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "A member of the group is subscribed to the topic."
    INVALID_RECORD = 87, "The record or batch failed validation on the broker."
    UNSTABLE_OFFSET_COMMIT = 88, "Offsets of the partition are held by a transaction that is not finished.", True
    THROTTLING_QUOTA_EXCEEDED = 89, "The throttling quota has been exceeded.", True
    PRODUCER_FENCED = 90, "A newer producer with the same transactional id fenced this one."
    RESOURCE_NOT_FOUND = 91, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, "The resource already exists."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, "Sender and receiver disagree about the set of voters."
    INVALID_UPDATE_VERSION = 95, "The update version is invalid."
    FEATURE_UPDATE_FAILED = 96, "Updating the features failed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, "The snapshot does not exist."
    POSITION_OUT_OF_RANGE = 99, "The position is outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, "The topic id is unknown to the broker.", True
    DUPLICATE_BROKER_REGISTRATION = 101, "A broker with this id is already registered."
    BROKER_ID_NOT_REGISTERED = 102, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic id in the log differs from the one of the request.", True
    INCONSISTENT_CLUSTER_ID = 104, "The cluster id of the request is not this cluster's."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "The transactional id does not exist."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The fetch session mixes topic names and topic ids.", True
    INELIGIBLE_REPLICA = 107, "The replica cannot join the in-sync replicas."
    NEW_LEADER_ELECTED = 108, "The partition has elected a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The requested offset has moved to tiered storage."
    FENCED_MEMBER_EPOCH = 110, "The epoch of the member is fenced, so the member must leave and join again."
    UNRELEASED_INSTANCE_ID = 111, "Another member of the group still uses this group instance id."
    UNSUPPORTED_ASSIGNOR = 112, "The group or the broker does not support the assignor."
    STALE_MEMBER_EPOCH = 113, "The epoch of the member is stale, so the member must get the new one and retry."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request came to an endpoint of the wrong type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This endpoint type is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "The controller id is not known."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription id is not valid."
    TELEMETRY_TOO_LARGE = 118, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, "The registration is invalid."
    TRANSACTION_ABORTABLE = 120, "The transaction cannot continue and must be aborted."
    INVALID_RECORD_STATE = 121, "The state of the record does not allow the acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, "The share session does not exist.", True
    INVALID_SHARE_SESSION_EPOCH = 123, "The epoch of the share session is invalid.", True
    FENCED_STATE_EPOCH = 124, "The state epoch is older than the share coordinator's."
    INVALID_VOTER_KEY = 125, "The key of the voter does not match the receiver's."
    DUPLICATE_VOTER = 126, "The voter is already a member of the voters."
    VOTER_NOT_FOUND = 127, "The voter is not a member of the voters."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, "The client's metadata is stale: start over from the bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, "The topology of the streams group is invalid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The topology epoch of the streams group is invalid."
    STREAMS_TOPOLOGY_FENCED = 132, "The topology epoch of the member is older than the group's."
    SHARE_SESSION_LIMIT_REACHED = 133, "The limit of share sessions has been reached.", True
    GROUP_DELETION_FAILED = 134, "Deleting the group failed."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "Updating the topology description of the streams group failed."
    CONTROLLER_ID_NOT_REGISTERED = 136, "No controller with this id is registered."


class UserError(Exception):
    """A failure that the user can remedy; the message is one line, which a command prints without a traceback."""


class KafkaError(Exception):
    """A failure with a Kafka error code.

    Args:
        error: the code for the client.
        message: text for the client and the log; default: the code's text.
    """

    def __init__(self, error: Errors, message: str | None = None) -> None:
        self.error = error
        self.message = error.message if message is None else message
        super().__init__(f"{error.name}: {self.message}")


class ignoring:
    """Context manager that suppresses a KafkaError with one of these codes."""

    def __init__(self, *errors: Errors) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, failure: BaseException | None, traceback: object) -> bool:
        return isinstance(failure, KafkaError) and failure.error in self._errors


class OutcomeUnknownError(Exception):
    """Change of metadata that may or may not be stored: the request gets no response, and the broker stops."""


class ProtocolError(KafkaError):
    """Bytes that are not a valid message or batch, or a message that cannot be encoded.

    It closes the connection, as in Kafka; for invalid bytes inside a valid request `error` is the code of the response.
    """

    def __init__(self, message: str, error: Errors = Errors.INVALID_REQUEST) -> None:
        super().__init__(error, message)

    def __reduce__(self) -> "tuple[type[ProtocolError], tuple[str, Errors]]":
        return type(self), (self.message, self.error)
