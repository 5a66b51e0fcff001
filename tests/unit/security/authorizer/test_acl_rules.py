"""Decisions of ACL rules: exact cases, and the compiled table compared with the plain decision function."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbroker.common.security.acls import (
    OPERATIONS,
    Acl,
    AclFilter,
    Decision,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    bits,
    decide,
    java_host,
    normal_host,
    super_users,
)
from kbroker.security.authorizer._acl_table import AclRules
from tests.native import acl_lock

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE, HERE = "User:alice", "192.168.0.1"


def rule(
    name: str = "orders",
    operation: Operation = READ,
    permission: Permission = ALLOW,
    *,
    kind: ResourceType = TOPIC,
    pattern: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def asked(
    acls: Sequence[Acl],
    operation: Operation,
    name: str = "orders",
    kind: ResourceType = TOPIC,
    principal: str = ALICE,
    host: str = HERE,
    everyone: bool = False,
) -> bool:
    """Return the decision of the plain function after a check that the table decides the same."""
    decision = decide(acls, principal, host, operation, kind, name, allows_without_rule=everyone)
    table = AclRules((), everyone)
    table.apply((), [acl._replace(host=normal_host(acl.host)) for acl in acls])
    assert bool(table.permitted(kind, name, principal, host) >> operation & 1) == decision.is_allowed
    return decision.is_allowed


def test_nothing_is_allowed_without_a_rule() -> None:
    assert not asked([], READ)


def test_a_rule_allows_its_operation_alone() -> None:
    assert asked([rule()], READ)
    assert not asked([rule()], WRITE)
    assert not asked([rule()], READ, "order")
    assert not asked([rule()], READ, "orders2")
    assert not asked([rule()], READ, principal="User:bob")
    assert not asked([rule()], READ, kind=GROUP)


def test_deny_goes_before_allow_whatever_is_more_exact() -> None:
    denied = rule("*", READ, DENY, principal="User:*")
    assert not asked([rule(), denied], READ)
    assert asked([rule(operation=WRITE), denied], WRITE)
    assert not asked([rule("ord", READ, DENY, pattern=PREFIXED), rule()], READ)
    assert not asked([rule("orders", READ, DENY), rule("*", ALL)], READ)


def test_patterns() -> None:
    assert asked([rule("ord", pattern=PREFIXED)], READ)
    assert asked([rule("orders", pattern=PREFIXED)], READ)
    assert not asked([rule("orders-", pattern=PREFIXED)], READ)
    assert asked([rule("*")], READ)
    assert not asked([rule("*", pattern=PREFIXED)], READ)  # a name that begins with a star
    assert asked([rule("*", pattern=PREFIXED)], READ, "*x")


def test_names_that_kafka_searches_in_another_way() -> None:
    """``*`` matches every name, and names that sort before ``*`` are matched like all others.

    Kafka 4.3.1 omits names that begin with ``*``, and a search for names that sort before it never ends
    (docs/authorization.md).
    """
    for name in ("*", "*a", "!a", "#y", " ", "+", "~"):
        assert asked([rule("*", kind=GROUP)], READ, name, GROUP)
        assert not asked([rule("*", kind=GROUP), rule("*", READ, DENY, kind=GROUP)], READ, name, GROUP)
    for others in ([rule("#x", kind=GROUP)], [rule("#x", kind=GROUP, pattern=PREFIXED)], [rule("#yz", kind=GROUP)]):
        assert not asked(others, READ, "#y", GROUP)
        assert asked([*others, rule("#", kind=GROUP, pattern=PREFIXED)], READ, "#y", GROUP)


def test_all_principals_and_hosts() -> None:
    assert asked([rule(principal="User:*")], READ)
    assert not asked([rule(principal="*")], READ)
    assert asked([rule(host=HERE)], READ)
    assert not asked([rule(host="192.168.0.2")], READ)
    assert not asked([rule(), rule(host=HERE, permission=DENY)], READ)
    assert asked([rule(), rule(host=HERE, permission=DENY)], READ, host="10.0.0.1")


def test_hosts_of_version_6_in_either_form() -> None:
    """Java writes all groups of an IPv6 address, unlike the addresses of the broker's sockets."""
    assert asked([rule(host="0:0:0:0:0:0:0:1")], READ, host="::1")
    assert asked([rule(host="::1")], READ, host="::1")
    assert normal_host("fe80:0:0:0:1:2:3:4") == "fe80::1:2:3:4"
    assert java_host("::ffff:10.0.0.7") == java_host("0:0:0:0:0:ffff:a00:7") == "10.0.0.7"  # the only form
    assert normal_host("no:host") == "no:host"


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_describe_is_implied_by_allow_and_not_by_deny(operation: Operation) -> None:
    assert asked([rule(operation=operation)], DESCRIBE)
    assert asked([rule(operation=DESCRIBE), rule(operation=operation, permission=DENY)], DESCRIBE)


@pytest.mark.parametrize(
    "operation", [Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]
)
def test_what_does_not_imply_describe(operation: Operation) -> None:
    assert not asked([rule(operation=operation)], DESCRIBE)


def test_describe_configs_is_implied_by_alter_configs() -> None:
    assert asked([rule(operation=Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not asked([rule(operation=Operation.ALTER)], Operation.DESCRIBE_CONFIGS)
    assert not asked([rule(operation=Operation.DESCRIBE_CONFIGS)], Operation.ALTER_CONFIGS)


@pytest.mark.parametrize("operation", [one for one in Operation if one > ALL])
def test_all_is_every_operation(operation: Operation) -> None:
    assert asked([rule(operation=ALL)], operation)
    assert not asked([rule(operation=ALL), rule(operation=ALL, permission=DENY)], operation)
    assert asked([rule(operation=operation)], operation)


def test_everything_without_a_rule_about_the_resource() -> None:
    """With allow.everyone.if.no.acl.found, any rule for the resource, for any principal, disables the default."""
    assert asked([], READ, everyone=True)
    assert asked([rule("other")], READ, everyone=True)
    assert not asked([rule(principal="User:bob")], READ, everyone=True)
    assert not asked([rule("ord", pattern=PREFIXED, principal="User:bob")], READ, everyone=True)
    assert not asked([rule("*", principal="User:bob")], READ, everyone=True)
    assert asked([rule("*", kind=GROUP)], READ, everyone=True)


def test_super_users_may_do_everything() -> None:
    acls = [rule("*", ALL, DENY, principal="User:*")]
    table = AclRules([ALICE])
    table.apply((), acls)
    assert table.permitted(TOPIC, "orders", ALICE, HERE) == bits(*[one for one in Operation if one > ALL])
    assert table.permitted(TOPIC, "orders", "User:bob", HERE) == 0
    assert decide(acls, ALICE, HERE, READ, TOPIC, "x", super_users=[ALICE]) == Decision(True, "SuperUser")


def test_super_users_have_semicolons_between() -> None:
    assert super_users(" User:admin ; User:CN=a,O=b;; ") == {"User:admin", "User:CN=a,O=b"}
    assert super_users(None) == frozenset()
    with pytest.raises(ValueError, match="principalType:principalName but got admin"):
        super_users("User:a;admin")


def test_the_reason_is_said_as_by_kafka() -> None:
    text = (
        "MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
        "principal=User:alice, host=*, operation=READ, permissionType=ALLOW])"
    )
    assert decide([rule()], ALICE, HERE, DESCRIBE, TOPIC, "orders").rule == text
    assert decide([], ALICE, HERE, READ, TOPIC, "x").rule == "DefaultDeny"
    assert decide([], ALICE, HERE, READ, TOPIC, "x", allows_without_rule=True).rule == "DefaultAllow"


def test_filters() -> None:
    prefixed, wildcard = rule("ord", pattern=PREFIXED), rule("*", kind=GROUP)
    acls = [rule(), prefixed, wildcard]
    assert [acl for acl in acls if AclFilter().matches(acl)] == acls
    match = AclFilter(TOPIC, "orders", PatternType.MATCH)
    assert [acl for acl in acls if match.matches(acl)] == [rule(), prefixed]
    assert [acl for acl in acls if AclFilter(TOPIC, "ord").matches(acl)] == [prefixed]
    assert [acl for acl in acls if AclFilter(TOPIC, "ord", LITERAL).matches(acl)] == []
    assert [acl for acl in acls if AclFilter(principal=ALICE, host="*", operation=READ).matches(acl)] == acls
    assert [acl for acl in acls if AclFilter(permission=DENY).matches(acl)] == []
    assert AclFilter(resource_name="any", pattern_type=PatternType.MATCH).matches(wildcard)


def test_removed_rules_count_no_longer() -> None:
    table = AclRules()
    both = [rule(), rule(operation=WRITE), rule("ord", DESCRIBE, pattern=PREFIXED, host=HERE)]
    table.apply((), both)
    assert table.permitted(TOPIC, "orders", ALICE, HERE) == bits(READ, WRITE, DESCRIBE)
    table.apply([rule()], ())
    assert table.permitted(TOPIC, "orders", ALICE, HERE) == bits(WRITE, DESCRIBE)
    table.apply(both, ())
    assert table.permitted(TOPIC, "orders", ALICE, HERE) == 0
    table.apply([rule("never there")], ())


def test_unknown_codes_are_refused() -> None:
    table = AclRules()
    with pytest.raises(ValueError, match="a resource type must be 0 to 7, got 8"):
        table.permitted(8, "x", ALICE, HERE)
    with pytest.raises(ValueError, match="type 2 and operation 77 is unknown"):
        table.apply((), [(2, "x", 3, ALICE, "*", 77, 3)])  # type: ignore[list-item]


def test_names_that_are_no_ascii_and_empty_ones() -> None:
    table = AclRules()
    table.apply((), [rule("größe", pattern=PREFIXED), rule("\udcff")])
    assert table.permitted(TOPIC, "größer", ALICE, HERE) == bits(READ, DESCRIBE)
    assert table.permitted(TOPIC, "größ", ALICE, HERE) == 0
    assert table.permitted(TOPIC, "\udcff", ALICE, HERE) == bits(READ, DESCRIBE)
    assert table.permitted(TOPIC, "", "", "") == 0


def some_rules(chance: random.Random, count: int) -> list[Acl]:
    names = ["a", "ab", "abc", "abd", "b", "*", "abc-x", "kafka-cluster"]
    kinds = [TOPIC, GROUP, CLUSTER, ResourceType.TRANSACTIONAL_ID]
    found = {
        Acl(
            chance.choice(kinds),
            chance.choice(names),
            chance.choice([LITERAL, PREFIXED]),
            chance.choice([ALICE, "User:bob", "User:*", "Group:x"]),
            chance.choice(["*", "*", HERE, "::1"]),
            Operation(chance.randint(2, 15)),
            chance.choice([ALLOW, ALLOW, ALLOW, DENY]),
        )
        for _ in range(count)
    }
    return sorted(found)


@pytest.mark.parametrize("seed", range(30))
def test_the_table_decides_as_the_plain_form(seed: int) -> None:
    """Random rules give equal decisions for every operation, even after half of the rules are removed."""
    chance = random.Random(seed)
    acls = some_rules(chance, chance.choice([3, 20, 120]))
    everyone = seed % 3 == 0
    table = AclRules((), everyone)
    table.apply((), acls)
    for _ in range(2):
        for name in ("abc", "b", "abc-xyz", "*", "none", "kafka-cluster"):
            for principal in (ALICE, "User:bob", "User:eve", "Group:x"):
                for host in (HERE, "::1", "10.0.0.1"):
                    for kind in (TOPIC, GROUP, CLUSTER):
                        found = table.permitted(kind, name, principal, host)
                        for operation in OPERATIONS[kind]:
                            decision = decide(
                                acls, principal, host, operation, kind, name, allows_without_rule=everyone
                            )
                            assert bool(found >> operation & 1) == decision.is_allowed, decision
        dropped = acls[::2]
        table.apply(dropped, ())
        acls = acls[1::2]


def test_a_long_change_of_rules_holds_no_python_up() -> None:
    """Look-ups by Python wait for the rules without the GIL, so that other threads run meanwhile."""
    table = AclRules()
    table.apply((), [rule("orders"), rule("ord", pattern=PREFIXED), rule("o", WRITE, pattern=PREFIXED)])
    acl_lock.hold(table)
    with ThreadPoolExecutor(2) as pool:
        lengths = pool.submit(table.prefix_lengths, TOPIC)
        found = pool.submit(table.bits, TOPIC, LITERAL, "orders", ALICE, "*")
        assert not any(one.done() for one in (lengths, found))
        acl_lock.release(table)
        assert sorted(lengths.result(10)) == [1, 3]
        assert found.result(10) == (1 << READ, 0)
