"""Records of the metadata log and the images that result from them."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.records.metadata_record import MetadataRecord, decode_record, encode_record, metadata_record

Row = tuple[str, dict[str, Any]]


def uid(number: int) -> UUID:
    """Return the id with a number: two topics or directories with different numbers have different ids."""
    return UUID(int=number << 64 | 0x10000 + number)


def read(rows: Iterable[Row], level: int = 30) -> list[MetadataRecord]:
    """Return records as a reader of the log receives them, with every field present."""
    return [decode_record(encode_record(metadata_record(name + "Record", body, level))) for name, body in rows]


def delta_of(image: MetadataImage, *rows: Row) -> MetadataDelta:
    """Return the delta of an image by rows, each the name of a record without "Record" and its fields."""
    delta = MetadataDelta(image)
    for record in read(rows):
        delta.replay(record)
    return delta


def after(*rows: Row, image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    """Return the image after the rows, whose offsets follow the image's offset."""
    return delta_of(image, *rows).apply(image.offset + len(rows), 1)


def topic(name: str, number: int) -> Row:
    return "Topic", {"Name": name, "TopicId": uid(number)}


def partition(number: int, index: int = 0, **fields: Any) -> Row:
    body = {"PartitionId": index, "TopicId": uid(number), "Replicas": [1, 2], "Isr": [1, 2], "Leader": 1}
    return "Partition", {**body, "LeaderEpoch": 0, "PartitionEpoch": 0, **fields}


def change(number: int, index: int = 0, **fields: Any) -> Row:
    return "PartitionChange", {"TopicId": uid(number), "PartitionId": index, **fields}


def removal(number: int) -> Row:
    return "RemoveTopic", {"TopicId": uid(number)}


def config(kind: int, name: str, key: str, value: str | None) -> Row:
    return "Config", {"ResourceType": kind, "ResourceName": name, "Name": key, "Value": value}


def broker(number: int, **fields: Any) -> Row:
    endpoint = {"Name": "PLAINTEXT", "Host": "here", "Port": 9092, "SecurityProtocol": 0}
    feature = {"Name": "metadata.version", "MinSupportedVersion": 7, "MaxSupportedVersion": 30}
    body = {"BrokerId": number, "BrokerEpoch": 10, "IncarnationId": uid(900 + number), "Rack": None}
    return "RegisterBroker", {**body, "EndPoints": [endpoint], "Features": [feature], **fields}


def controller(number: int) -> Row:
    fields = dict(broker(number)[1])
    del fields["BrokerId"], fields["BrokerEpoch"], fields["Rack"]
    return "RegisterController", {"ControllerId": number, "ZkMigrationReady": True, **fields}


def producer_ids(number: int) -> Row:
    return "ProducerIds", {"BrokerId": 1, "BrokerEpoch": 10, "NextProducerId": number}


def acl(number: int, **fields: Any) -> Row:
    body = {"ResourceType": 2, "ResourceName": "a", "PatternType": 3, "Principal": "User:x", "Host": "*"}
    return "AccessControlEntry", {"Id": uid(number), **body, "Operation": 3, "PermissionType": 3, **fields}


def no_acl(number: int) -> Row:
    return "RemoveAccessControlEntry", {"Id": uid(number)}


def quota(key: str, value: float | None, names: dict[str, str | None] | None = None) -> Row:
    rows = [
        {"EntityType": kind, "EntityName": name}
        for kind, name in (names or {"user": "alice", "client-id": None}).items()
    ]
    return "ClientQuota", {"Entity": rows, "Key": key, "Value": value or 0.0, "Remove": value is None}


def credential(user: str, mechanism: int, iterations: int = 4096) -> Row:
    keys = {"Salt": b"salt", "StoredKey": b"stored", "ServerKey": b"server", "Iterations": iterations}
    return "UserScramCredential", {"Name": user, "Mechanism": mechanism, **keys}


def token(token_id: str = "t", **fields: Any) -> Row:
    body = {"Owner": "User:o", "Requester": "User:r", "Renewers": ["User:n:1"], "TokenId": token_id}
    return "DelegationToken", {**body, "IssueTimestamp": 1, "MaxTimestamp": 3, "ExpirationTimestamp": 2, **fields}


def feature(name: str, level: int) -> Row:
    return "FeatureLevel", {"Name": name, "FeatureLevel": level}
