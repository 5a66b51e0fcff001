"""Changes of brokers, configs, quotas, ACLs, credentials, tokens, features and producer ids in an image."""

from typing import Any
from uuid import UUID

import pytest

from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.scram import Credential
from kbroker.metadata.image.delta import _REPLAYS, MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, NO_PRODUCER_ID, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError
from kbroker.metadata.image.registrations import BrokerRegistration, ControllerRegistration, Endpoint, VersionRange
from kbroker.metadata.records.metadata_record import (
    RECORD_TYPES,
    MetadataRecord,
    decode_record,
    encode_record,
    metadata_record,
)
from tests.support.metadata_images import (
    Row,
    acl,
    after,
    broker,
    config,
    controller,
    credential,
    delta_of,
    feature,
    no_acl,
    partition,
    producer_ids,
    quota,
    token,
    topic,
    uid,
)

REGISTRATION = BrokerRegistration(
    1, 10, uid(901), {"PLAINTEXT": Endpoint("here", 9092, 0)}, {"metadata.version": VersionRange(7, 30)},
    None, True, False, False, (), None,
)  # fmt: skip
ACL = Acl(ResourceType.TOPIC, "a", PatternType.LITERAL, "User:x", "*", Operation.READ, Permission.ALLOW)
ALICE = QuotaEntity.of({"user": "alice", "client-id": None})
TOKEN = DelegationToken("t", Principal("User", "o"), Principal("User", "r"), (Principal("User", "n:1"),), 1, 3, 2)


def registration_change(**fields: Any) -> Row:
    return "BrokerRegistrationChange", {"BrokerId": 1, "BrokerEpoch": 10, **fields}


def test_every_type_of_record_is_known() -> None:
    """Each type of record has a replay function, except the records of transactions, which the reader resolves."""
    for name in RECORD_TYPES.values():
        if name.endswith("TransactionRecord"):
            with pytest.raises(MetadataReplayError, match=f"expected a record that changes the image, found {name}"):
                MetadataDelta(EMPTY_IMAGE).replay(metadata_record(name, {}))
        else:
            assert name in _REPLAYS
    image = after(*ROWS)
    assert after(("NoOp", {}), ("ZkMigrationState", {"ZkMigrationState": 3}), image=image) == image._replace(
        offset=image.offset + 2
    )


@pytest.mark.parametrize("version", range(5))
def test_a_broker_registers(version: int) -> None:
    """A registration has the fields of its record's version. Directories are sorted in the order of Java's Uuids."""
    low, high, signed, below = uid(5), uid(6), uid(1 << 63), UUID(int=5 << 64 | 1 << 63)
    fields: dict[str, Any] = {"Rack": "r", "Fenced": False}
    expected: dict[str, Any] = {"rack": "r", "is_fenced": False}
    if version >= 1:
        fields["InControlledShutdown"] = expected["in_controlled_shutdown"] = True
    if version >= 2:
        fields["IsMigratingZkBroker"] = expected["is_migrating_zk_broker"] = True
    if version >= 3:
        fields["LogDirs"], expected["directories"] = [high, low, below, signed], (signed, below, low, high)
    if version >= 4:
        fields["CordonedLogDirs"], expected["cordoned_directories"] = [high], (high,)
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(decode_record(encode_record(MetadataRecord("RegisterBrokerRecord", version, broker(1, **fields)[1]))))
    found = REGISTRATION._replace(**expected)
    assert delta.apply(0, 1).brokers == {1: found}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (("FenceBroker", {"Id": 1, "Epoch": 10}), {"is_fenced": True}),
        (("UnfenceBroker", {"Id": 1, "Epoch": 10}), {"is_fenced": False}),
        (registration_change(Fenced=-1), {"is_fenced": False}),
        (registration_change(Fenced=1), {"is_fenced": True}),
        (registration_change(InControlledShutdown=1), {"in_controlled_shutdown": True}),
        (registration_change(LogDirs=[uid(8), uid(5)]), {"directories": (uid(5), uid(8))}),
        (registration_change(LogDirs=[], CordonedLogDirs=[]), {"cordoned_directories": ()}),
        (registration_change(CordonedLogDirs=[uid(6)]), {"cordoned_directories": (uid(6),)}),
        (registration_change(), {}),
    ],
)
@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_registration_changes(is_fenced: bool, row: Row, expected: dict[str, Any]) -> None:
    """A record without a change leaves the mapping of brokers the same object."""
    registered = broker(1, Fenced=is_fenced, LogDirs=[uid(6)])
    before = REGISTRATION._replace(is_fenced=is_fenced, directories=(uid(6),))
    image = after(registered)
    assert image.brokers == {1: before}
    delta = delta_of(image, row)
    assert delta.apply(1, 1).brokers == after(registered, row).brokers == {1: before._replace(**expected)}
    if not expected:
        assert delta.apply(1, 1).brokers is image.brokers


def test_a_broker_unregisters() -> None:
    image = after(broker(1), broker(2))
    delta = delta_of(image, ("UnregisterBroker", {"BrokerId": 1, "BrokerEpoch": 10}))
    assert set(delta.apply(2, 1).brokers) == {2}


def test_a_controller_registers() -> None:
    delta = delta_of(EMPTY_IMAGE, controller(3))
    expected = ControllerRegistration(3, uid(903), True, REGISTRATION.listeners, REGISTRATION.supported_features)
    assert delta.apply(0, 1).controllers == {3: expected}


def test_configs_are_set_and_removed() -> None:
    """An image omits a resource without configs and keeps empty values."""
    image = after(config(4, "", "x", "1"), config(4, "1", "x", ""), config(2, "a", "x", "1"))
    assert image.configs == {(4, ""): {"x": "1"}, (4, "1"): {"x": ""}, (2, "a"): {"x": "1"}}
    delta = delta_of(image, config(4, "", "x", None), config(2, "a", "y", "2"), config(32, "g", "z", None))
    new = delta.apply(9, 1)
    assert new.configs == {(4, "1"): {"x": ""}, (2, "a"): {"x": "1", "y": "2"}}
    assert new.configs[4, "1"] is image.configs[4, "1"]
    assert delta.changed_configs == {(4, ""), (2, "a"), (32, "g")}
    assert image.configs[2, "a"] == {"x": "1"}


def test_quotas_are_set_and_removed() -> None:
    """The order of an entity's parts does not matter. Keys of shadow quotas are kept."""
    image = after(quota("producer_byte_rate", 1.5), quota("shadow.producer_byte_rate", 2.0))
    assert image.client_quotas == {ALICE: {"producer_byte_rate": 1.5, "shadow.producer_byte_rate": 2.0}}
    other = QuotaEntity.of({"ip": "1.2.3.4"})
    swapped: dict[str, str | None] = {"client-id": None, "user": "alice"}
    rows = (quota("producer_byte_rate", None, swapped), quota("connection_creation_rate", 5.0, other.names))
    delta = delta_of(image, *rows)
    expected = {ALICE: {"shadow.producer_byte_rate": 2.0}, other: {"connection_creation_rate": 5.0}}
    assert delta.apply(9, 1).client_quotas == expected
    assert delta.changed_quotas == {ALICE: {"producer_byte_rate": None}, other: {"connection_creation_rate": 5.0}}
    assert after(*rows, quota("shadow.producer_byte_rate", None), image=image).client_quotas == {
        other: {"connection_creation_rate": 5.0}
    }


def test_rules_are_added_replaced_and_removed() -> None:
    image = after(acl(1), acl(2))
    assert image.acls == {uid(1): ACL, uid(2): ACL}
    delta = delta_of(image, no_acl(1), acl(2, Host="h"), acl(3, PermissionType=2), acl(4), no_acl(4))
    new = ACL._replace(host="h")
    denied = ACL._replace(permission=Permission.DENY)
    assert delta.apply(9, 1).acls == {uid(2): new, uid(3): denied}
    assert delta.added_acls == {uid(2): new, uid(3): denied}
    assert delta.removed_acls == {uid(1): ACL, uid(2): ACL}


def test_unknown_codes_of_a_rule_match_nothing() -> None:
    (found,) = after(acl(1, ResourceType=77, PatternType=77, Operation=77, PermissionType=77)).acls.values()
    unknown = (ResourceType.UNKNOWN, "a", PatternType.UNKNOWN, "User:x", "*", Operation.UNKNOWN, Permission.UNKNOWN)
    assert found == unknown


def test_credentials_are_set_and_removed() -> None:
    image = after(credential("alice", 1), credential("alice", 2), credential("bob", 2, 8192))
    expected = Credential(b"salt", 4096, b"stored", b"server")
    bob = expected._replace(iterations=8192)
    assert image.scram_credentials == {
        ("alice", "SCRAM-SHA-256"): expected,
        ("alice", "SCRAM-SHA-512"): expected,
        ("bob", "SCRAM-SHA-512"): bob,
    }
    gone: Row = ("RemoveUserScramCredential", {"Name": "alice", "Mechanism": 2})
    delta = delta_of(image, gone, credential("bob", 2), ("RemoveUserScramCredential", {"Name": "no", "Mechanism": 1}))
    assert delta.apply(9, 1).scram_credentials == {
        ("alice", "SCRAM-SHA-256"): expected,
        ("bob", "SCRAM-SHA-512"): expected,
    }


def test_tokens_are_set_and_removed() -> None:
    image = after(token(), token("u", Renewers=[]))
    other = TOKEN._replace(token_id="u", renewers=())
    assert image.delegation_tokens == {"t": TOKEN, "u": other}
    delta = delta_of(image, token(ExpirationTimestamp=3), ("RemoveDelegationToken", {"TokenId": "u"}))
    renewed = TOKEN._replace(expiry_ms=3)
    assert delta.apply(9, 1).delegation_tokens == {"t": renewed}
    assert delta.changed_tokens == {"t": renewed, "u": None}


def test_a_feature_of_level_0_is_absent() -> None:
    """The level of kraft.version in a feature record is ignored; only control records set it."""
    image = after(feature("metadata.version", 30), feature("group.version", 1), feature("kraft.version", 1))
    assert image.features == {"metadata.version": 30, "group.version": 1}
    delta = delta_of(image, feature("group.version", 0), feature("transaction.version", 2))
    assert delta.apply(9, 1).features == {"metadata.version": 30, "transaction.version": 2}
    assert delta.changed_features == {"group.version": 0, "transaction.version": 2}


def test_producer_ids_are_those_of_the_last_block() -> None:
    image = after(topic("a", 1))
    assert image.next_producer_id == NO_PRODUCER_ID
    rows = (producer_ids(1000), producer_ids(2000))
    assert after(*rows, image=image).next_producer_id == 2000


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("FenceBroker", {"Id": 3, "Epoch": 10}), "FenceBrokerRecord: expected a registered broker, found broker id 3"),
        (("UnfenceBroker", {"Id": 1, "Epoch": 9}), "UnfenceBrokerRecord of broker 1: expected its broker epoch 10, fo"),
        (registration_change(BrokerEpoch=11), "RegistrationChangeRecord of broker 1: expected its broker epoch 10"),
        (registration_change(Fenced=2), "broker 1: expected Fenced to be one of 1, 0, -1, found 2"),
        (registration_change(InControlledShutdown=-1), "expected InControlledShutdown to be one of 1, 0, found -1"),
        (broker(2, EndPoints=[{"Name": "", "Port": 1}]), "broker 2: expected a name for each listener, found an empty"),
        (no_acl(9), "RemoveAccessControlEntryRecord: expected the id of a rule, found "),
        (credential("a", 3), r"SCRAM credential of user a: expected mechanism 1 \(SCRAM-SHA-256\) or 2 .*, found 3"),
        (token(Owner="o"), "delegation token t: expected a string in format principalType:principalName but got o"),
        (feature("metadata.version", 31), r"a level from 7 \(3.3-IV3\) to 30 \(4.3-IV0\), found 31 \(4.4-IV0\);"),
        (feature("metadata.version", 6), r"metadata.version: expected a level from 7 .* to 30 .*, found 6; "),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused(row: Row, message: str) -> None:
    with pytest.raises(MetadataReplayError, match=message):
        delta_of(after(broker(1)), row)


ROWS: tuple[Row, ...] = (
    feature("metadata.version", 30), feature("group.version", 1), broker(1), topic("a", 1), partition(1),
    config(2, "a", "x", "1"), quota("request_percentage", 10.0), acl(1), credential("alice", 1), token(),
    producer_ids(1000),
)  # fmt: skip
SUBJECTS = {
    "features": feature("group.version", 0),
    "brokers": broker(2),
    "topics": topic("b", 2),
    "configs": config(2, "a", "x", "2"),
    "client_quotas": quota("request_percentage", None),
    "next_producer_id": producer_ids(2000),
    "acls": acl(2),
    "scram_credentials": credential("bob", 1),
    "delegation_tokens": token("u"),
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_subjects_without_a_change_stay_the_same_objects(subject: str) -> None:
    image = after(*ROWS)
    new = after(SUBJECTS[subject], image=image)
    places = {subject, "topics_by_id"} if subject == "topics" else {subject}
    differ = {name for name in MetadataImage._fields if getattr(new, name) is not getattr(image, name)}
    assert differ - {"offset", "epoch"} == places
    assert getattr(new, subject) != getattr(image, subject)
