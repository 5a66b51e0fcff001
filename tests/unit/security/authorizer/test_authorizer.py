"""The authorizer: rules in the metadata and in force, refused changes, and the three ACL APIs."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.errors import Errors
from kbroker.common.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.record_forms import acl_body
from kbroker.metadata.records.metadata_record import metadata_record
from kbroker.security.authorizer.auth_helper import AuthHelper
from kbroker.security.authorizer.authorizer import Authorizer
from tests.support.fixtures import fixture_of
from tests.support.metadata import LoggedController, MemoryController, change, check_same_change, following
from tests.support.server import Bench, make_bench

ALICE, HERE = "User:alice", "127.0.0.1"
READ, WRITE, ALL = Operation.READ, Operation.WRITE, Operation.ALL
TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def rule(name: str, operation: Operation = WRITE, permission: Permission = ALLOW, **other: Any) -> Acl:
    facts = {"pattern": LITERAL, "kind": TOPIC, "principal": ALICE, "host": "*", **other}
    return Acl(facts["kind"], name, facts["pattern"], facts["principal"], facts["host"], operation, permission)


controller = fixture_of(MemoryController)


def authorizer_of(
    controller: Controller, super_users: Sequence[str] = (), allows_without_rule: bool = False
) -> Authorizer:
    return following(controller, Authorizer(controller, super_users, allows_without_rule))


def may_any(controller: MemoryController, *acls: Acl, principal: str = ALICE) -> bool:
    authorizer = authorizer_of(controller)
    assert authorizer.create(acls) == [None] * len(acls)
    found = authorizer.allows_any(principal, HERE, WRITE, TOPIC)
    assert authorizer.allows_any(principal, HERE, WRITE, TOPIC) == found
    return found


@pytest.mark.parametrize(
    ("acls", "found"),
    [
        ([], False),
        ([rule("a")], True),
        ([rule("a", READ)], False),  # Read does not imply Write
        ([rule("a", ALL)], True),
        ([rule("a", principal="User:bob")], False),
        ([rule("a", principal="User:*")], True),
        ([rule("a", host="10.1.1.1")], False),
        ([rule("a", host=HERE)], True),
        ([rule("a", kind=ResourceType.GROUP)], False),
        ([rule("a"), rule("a", WRITE, DENY)], False),
        ([rule("a"), rule("b", WRITE, DENY)], True),
        ([rule("abc"), rule("a", WRITE, DENY, pattern=PREFIXED)], False),
        ([rule("abc"), rule("abc", WRITE, DENY, pattern=PREFIXED)], False),
        ([rule("abc", pattern=PREFIXED), rule("ab", WRITE, DENY, pattern=PREFIXED)], False),
        ([rule("abc", pattern=PREFIXED), rule("abcd", WRITE, DENY, pattern=PREFIXED)], True),
        ([rule("abc", pattern=PREFIXED), rule("abc", WRITE, DENY)], True),
        ([rule("a"), rule("*", WRITE, DENY)], False),
        ([rule("*"), rule("a", WRITE, DENY)], True),
        ([rule("*"), rule("*", WRITE, DENY)], False),
        ([rule("*"), rule("*", READ, DENY)], True),
        ([rule("*", Operation.CREATE)], False),
    ],
)  # fmt: skip
def test_one_resource_of_a_type(controller: MemoryController, acls: list[Acl], found: bool) -> None:
    """The decision for any resource of a type is Kafka's ``authorizeByResourceType`` of InitProducerId."""
    assert may_any(controller, *acls) == found


def test_super_users_and_defaults_count_for_one_resource_of_a_type(controller: MemoryController) -> None:
    denied = rule("*", WRITE, DENY, principal="User:*")
    assert authorizer_of(controller, [ALICE]).allows_any(ALICE, HERE, WRITE, TOPIC)
    assert authorizer_of(controller, (), True).allows_any(ALICE, HERE, WRITE, TOPIC)
    authorizer = authorizer_of(controller, ["User:root"], True)
    authorizer.create([denied])
    assert authorizer.allows_any("User:root", HERE, WRITE, TOPIC)
    assert not authorizer.allows_any(ALICE, HERE, WRITE, TOPIC)


def test_rules_are_stored_before_they_count(tmp_path: Path) -> None:
    """Rules apply at once and after a restart."""
    controller = LoggedController(tmp_path)
    authorizer = authorizer_of(controller)
    kept, removed = rule("kept", READ, host="0:0:0:0:0:0:0:1"), rule("größe", ALL, DENY, pattern=PREFIXED)
    assert authorizer.create([kept, removed, kept]) == [None, None, None]
    assert authorizer.create([kept]) == [None]
    assert authorizer.permitted(TOPIC, "kept", ALICE, "::1") == 1 << READ | 1 << Operation.DESCRIBE
    (deleted,) = authorizer.delete([AclFilter(pattern_type=PREFIXED)])
    assert (deleted.acls, deleted.error) == ([removed], None)
    controller.close()
    controller = LoggedController(tmp_path)
    again = authorizer_of(controller)
    assert again.find(AclFilter()) == [kept]
    assert again.permitted(TOPIC, "kept", ALICE, "::1") == 1 << READ | 1 << Operation.DESCRIBE
    controller.close()


def test_a_refused_change_is_not_in_force(controller: MemoryController) -> None:
    authorizer = authorizer_of(controller)
    kept = rule("kept")
    authorizer.create([kept])
    controller.storage.is_full = True
    (refused, bad) = authorizer.create([rule("a"), rule("")])
    assert refused is not None
    assert bad is not None
    assert (refused.error, bad.error) == (Errors.KAFKA_STORAGE_ERROR, Errors.INVALID_REQUEST)
    (deleted,) = authorizer.delete([AclFilter()])
    assert deleted.error is not None
    assert deleted.error.error is Errors.KAFKA_STORAGE_ERROR
    assert authorizer.find(AclFilter()) == [kept]
    assert authorizer.permitted(TOPIC, "a", ALICE, HERE) == 0
    assert authorizer.permitted(TOPIC, "kept", ALICE, HERE) != 0


def test_two_forms_of_a_host_are_two_rules(controller: MemoryController) -> None:
    """After the removal of one rule, the rule for the other form still applies."""
    authorizer = authorizer_of(controller)
    long, short = rule("a", host="0:0:0:0:0:0:0:1"), rule("a", host="::1")
    authorizer.create([long, short])
    authorizer.delete([AclFilter(host="::1")])
    assert authorizer.find(AclFilter()) == [long]
    assert authorizer.permitted(TOPIC, "a", ALICE, "::1") != 0
    authorizer.delete([AclFilter()])
    assert authorizer.permitted(TOPIC, "a", ALICE, "::1") == 0


def test_a_rule_with_two_ids_counts_as_one(controller: MemoryController) -> None:
    """A log of another program may contain such duplicates; the rule applies until its last id is removed."""
    authorizer = authorizer_of(controller)
    acl, ids = rule("a"), (uuid.UUID(int=1), uuid.UUID(int=2))
    for acl_id in ids:
        change(controller, metadata_record("AccessControlEntryRecord", acl_body(acl_id, acl)))
    assert (len(authorizer), authorizer.find(AclFilter())) == (1, [acl])
    change(controller, metadata_record("RemoveAccessControlEntryRecord", {"Id": ids[1]}))
    assert authorizer.permitted(TOPIC, "a", ALICE, HERE) != 0
    authorizer.delete([AclFilter()])
    assert (authorizer.permitted(TOPIC, "a", ALICE, HERE), controller.image.acls) == (0, {})


# ---- the APIs


def creation(**changes: object) -> dict[str, object]:
    return {
        "ResourceType": 2,
        "ResourceName": "orders",
        "ResourcePatternType": 3,
        "Principal": ALICE,
        "Host": "*",
        "Operation": 3,
        "PermissionType": 3,
        **changes,
    }


def a_filter(**changes: object) -> dict[str, object]:
    return {
        "ResourceTypeFilter": 1,
        "ResourceNameFilter": None,
        "PatternTypeFilter": 1,
        "PrincipalFilter": None,
        "HostFilter": None,
        "Operation": 1,
        "PermissionType": 1,
        **changes,
    }


def guarded(*super_users: str) -> Bench:
    bench = make_bench()
    bench.ctx.auth = AuthHelper(authorizer_of(bench.ctx.controller, super_users))
    return bench


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer(version: int) -> None:
    bench = make_bench()
    described = bench.ask("DescribeAcls", version, a_filter())
    assert (described["ErrorCode"], described["ErrorMessage"]) == (54, "No Authorizer is configured on the broker")
    (made,) = bench.ask("CreateAcls", version, {"Creations": [creation()]})["Results"]
    assert (made["ErrorCode"], made["ErrorMessage"]) == (54, "No Authorizer is configured.")
    (deleted,) = bench.ask("DeleteAcls", version, {"Filters": [a_filter()]})["FilterResults"]
    assert (deleted["ErrorCode"], deleted["ErrorMessage"]) == (54, "No Authorizer is configured.")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rules_are_made_described_and_deleted(version: int) -> None:
    bench = guarded("User:ANONYMOUS")
    rows = [creation(), creation(Operation=4), creation(ResourceType=3, ResourcePatternType=4, PermissionType=2)]
    made = bench.ask("CreateAcls", version, {"Creations": rows})
    assert [row["ErrorCode"] for row in made["Results"]] == [0, 0, 0]
    described = bench.ask("DescribeAcls", version, a_filter(PrincipalFilter=ALICE))
    assert [(row["ResourceType"], row["ResourceName"], row["PatternType"]) for row in described["Resources"]] == [
        (2, "orders", 3),
        (3, "orders", 4),
    ]
    assert [acl["Operation"] for acl in described["Resources"][0]["Acls"]] == [3, 4]
    filters = [a_filter(ResourceTypeFilter=2), a_filter(Operation=4), a_filter(HostFilter="1.2.3.4")]
    deleted = bench.ask("DeleteAcls", version, {"Filters": filters})["FilterResults"]
    assert [len(row["MatchingAcls"]) for row in deleted] == [2, 1, 0]
    left = bench.ask("DescribeAcls", version, a_filter())["Resources"]
    assert [(row["ResourceType"], row["Acls"][0]["PermissionType"]) for row in left] == [(3, 2)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ResourceType": 99}, "Invalid resourceType UNKNOWN"),
        ({"ResourceType": 1}, "Invalid resourceType ANY"),
        ({"ResourceType": -1}, "Invalid resourceType UNKNOWN"),
        ({"ResourceType": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"ResourceName": ""}, "Invalid empty resource name"),
        ({"ResourcePatternType": 2}, "Invalid patternType MATCH"),
        ({"ResourcePatternType": 1}, "Invalid patternType ANY"),
        ({"ResourcePatternType": 77}, "Invalid patternType UNKNOWN"),
        ({"Operation": 1}, "Invalid operation ANY"),
        ({"Operation": 100}, "Invalid operation UNKNOWN"),
        ({"PermissionType": 1}, "Invalid permissionType ANY"),
        ({"PermissionType": 9}, "Invalid permissionType UNKNOWN"),
        (
            {"Principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal type from the "
            "principal name)",
        ),
    ],
)
def test_bad_rules_are_refused_one_by_one(changes: dict[str, object], text: str) -> None:
    bench = guarded("User:ANONYMOUS")
    made = bench.ask("CreateAcls", 3, {"Creations": [creation(**changes), creation()]})["Results"]
    assert [(row["ErrorCode"], row["ErrorMessage"]) for row in made] == [(42, text), (0, "")]


def test_what_no_record_of_kafka_could_hold(controller: MemoryController) -> None:
    """The length is counted in bytes after invalid UTF-8 is replaced as in Java."""
    long = [rule("a", principal="User:" + "x" * 32_763), rule("a", host="h" * 32_768), rule("\ufffd" * 10_923)]
    texts = [error.message for error in authorizer_of(controller).create(long) if error is not None]
    assert texts == [f"The {what} must have at most 32767 bytes" for what in ("principal", "host", "resource name")]


def test_odd_rules_that_kafka_takes() -> None:
    """Kafka accepts principals with any type or colons, hosts that are not addresses, and names that are not UTF-8."""
    bench = guarded("User:ANONYMOUS")
    odd = [
        creation(Principal=":"),
        creation(Principal="User:a:b"),
        creation(Host=""),
        creation(Host="not a host"),
        creation(ResourceName="a\udcff"),
        creation(ResourceType=2, Operation=12),
    ]
    made = bench.ask("CreateAcls", 3, {"Creations": odd})["Results"]
    assert [row["ErrorCode"] for row in made] == [0] * len(odd)
    names = {row["ResourceName"] for row in bench.ask("DescribeAcls", 3, a_filter())["Resources"]}
    assert names == {"orders", "a\ufffd"}


def test_filters_with_unknown_words() -> None:
    bench = guarded("User:ANONYMOUS")
    bench.ask("CreateAcls", 3, {"Creations": [creation()]})
    filters = [a_filter(ResourceTypeFilter=99), a_filter(Operation=99), a_filter(PatternTypeFilter=0), a_filter()]
    deleted = bench.ask("DeleteAcls", 3, {"Filters": filters})["FilterResults"]
    assert [(row["ErrorCode"], row["ErrorMessage"], len(row["MatchingAcls"])) for row in deleted] == [
        (42, "Unknown patternFilter.", 0),
        (42, "Unknown entryFilter.", 0),
        (42, "Unknown patternFilter.", 0),
        (0, None, 1),
    ]
    assert bench.ask("DescribeAcls", 3, a_filter(ResourceTypeFilter=99))["Resources"] == []
    assert bench.ask("DescribeAcls", 3, a_filter(Operation=0))["ErrorCode"] == Errors.INVALID_REQUEST


def test_rules_about_rules() -> None:
    """DescribeAcls requires Describe of the cluster; CreateAcls and DeleteAcls require Alter."""
    bench = guarded("User:root")
    for name, body in (
        ("DescribeAcls", a_filter()),
        ("CreateAcls", {"Creations": [creation()]}),
        ("DeleteAcls", {"Filters": [a_filter()]}),
    ):
        for principal, error in ((ALICE, Errors.CLUSTER_AUTHORIZATION_FAILED), ("User:root", Errors.NONE)):
            response = bench.ask(name, 3, body, principal=principal)
            rows = response.get("Results") or response.get("FilterResults") or [response]
            assert [row["ErrorCode"] for row in rows] == [error]


def test_a_request_changes_ten_thousand_rules_at_most() -> None:
    """As in Kafka, a request with more than 10,000 new or removed rules is refused without a change."""
    bench = guarded("User:ANONYMOUS")

    def create(count: int, name: str = "t") -> int:
        rows = [creation(ResourceName=f"{name}{number}") for number in range(count)]
        (code,) = {row["ErrorCode"] for row in bench.ask("CreateAcls", 3, {"Creations": rows})["Results"]}
        return int(code)

    def delete(*filters: dict[str, object]) -> list[tuple[int, int]]:
        rows = bench.ask("DeleteAcls", 3, {"Filters": list(filters)})["FilterResults"]
        return [(row["ErrorCode"], len(row["MatchingAcls"])) for row in rows]

    assert create(10_001) == Errors.POLICY_VIOLATION
    assert delete(a_filter()) == [(0, 0)]
    assert create(10_000) == 0
    assert create(10_001) == 0  # all but one exist
    assert delete(a_filter(PermissionType=2), a_filter(), a_filter()) == [(42, 0)] * 3
    assert delete(a_filter(ResourceNameFilter="t10000"), a_filter(ResourceNameFilter="t10000")) == [(0, 1), (0, 1)]
    for text, filters in (
        ("11 filters mean the same acls too often", [a_filter()] * 11),
        ("501 filters are too many for 10000 acls", [a_filter(HostFilter=f"{number}") for number in range(501)]),
    ):
        for row in bench.ask("DeleteAcls", 3, {"Filters": filters})["FilterResults"]:
            assert (row["ErrorCode"], row["ErrorMessage"]) == (42, f"{text}: send them in several requests.")
    assert delete(a_filter()) == [(0, 10_000)]


def test_a_rule_that_another_request_has_stored_applies(controller: MemoryController) -> None:
    """A second request for the same rule, which stores nothing, returns once the rule applies."""
    authorizer = authorizer_of(controller)
    check_same_change(authorizer, lambda: authorizer.create([rule("a")]))
    assert authorizer.allows_any(ALICE, HERE, WRITE, TOPIC)
