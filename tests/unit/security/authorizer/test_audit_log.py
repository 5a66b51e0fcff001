"""Log lines of the authorizer: Kafka's text, one line for equal requests, and a limited number."""

import pytest

from kbroker.common.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from kbroker.requests.context import RequestContext
from kbroker.security.authorizer import checks
from kbroker.security.authorizer.audit_log import LINES_A_LOOK, LINES_AT_ONCE, AuditLog
from kbroker.security.authorizer.auth_helper import AuthHelper
from kbroker.security.authorizer.authorizer import Authorizer
from tests.support.metadata import MemoryController, following

ALICE, HERE = "User:alice", "127.0.0.1"
LOGGER = "kafka.authorizer.logger"
READ, ALLOW, DENY = Operation.READ, Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def rule(name: str, permission: Permission = ALLOW, *, kind: ResourceType = ResourceType.TOPIC,
         pattern: PatternType = LITERAL, principal: str = ALICE, host: str = "*") -> Acl:  # fmt: skip
    return Acl(kind, name, pattern, principal, host, READ, permission)


class Rig:
    """Authorizer with its audit log, and requests of clients."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        controller = MemoryController()
        self.authorizer = following(controller, Authorizer(controller, ["User:root"]))
        self.auth = AuthHelper(self.authorizer)
        self.log = AuditLog(self.authorizer, {8: "OffsetCommit"})
        self._caplog = caplog

    def client(self, principal: str = ALICE, host: str = HERE) -> RequestContext:
        return RequestContext(8, 9, principal=principal, client_host=host)

    def ask(self, group: str, principal: str = ALICE, host: str = HERE) -> bool:
        return self.auth.allows(self.client(principal, host), checks.OFFSET_COMMIT_GROUP, group)

    def lines(self) -> list[str]:
        """Return the lines that the next check logs."""
        self._caplog.clear()
        self.log.look()
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> Rig:
    caplog.set_level("INFO", LOGGER)
    return Rig(caplog)


def test_refused_requests_are_logged(rig: Rig) -> None:
    """Refusals are logged with Kafka's text, and equal requests share one line."""
    denied = rule("denied", DENY)
    rig.authorizer.create([denied])
    client = rig.client()
    assert rig.auth.allowed(client, checks.OFFSET_COMMIT, ["denied", "denied", "other"]) == set()
    assert not rig.ask("g")
    assert not rig.ask("g")
    assert not rig.auth.allows(client, checks.LIST_GROUPS, "unlogged")
    start = "Principal = User:alice is Denied operation = READ from host = 127.0.0.1 on resource = "
    assert rig.lines() == [
        f"{start}Topic:LITERAL:denied for request = OffsetCommit with resourceRefCount = 2 based on rule "
        f"MatchingAcl(acl={denied})",
        f"{start}Topic:LITERAL:other for request = OffsetCommit with resourceRefCount = 1 based on rule DefaultDeny",
        f"{start}Group:LITERAL:g for request = OffsetCommit with resourceRefCount = 1 based on rule DefaultDeny, "
        "2 times",
    ]
    assert rig.lines() == []
    assert rig.authorizer.rules.decisions == (0, 5)


def test_names_may_be_the_keys_of_a_mapping(rig: Rig) -> None:
    """Each key counts once, whatever its value is."""
    assert rig.auth.allowed(rig.client(), checks.OFFSET_COMMIT, {"orders": None}) == set()
    assert "resource = Topic:LITERAL:orders for request = OffsetCommit with resourceRefCount = 1 " in rig.lines()[0]


def test_a_flood_of_refused_requests_does_not_fill_a_disk(rig: Rig) -> None:
    """At most 64 lines are logged at once, then 4 a check; all requests are counted. Quiet checks restore the limit."""

    def flood(count: int) -> list[str]:
        for number in range(count):
            rig.ask(f"group-{number}")
        return rig.lines()

    first = flood(100)
    assert (len(first), first[-1]) == (LINES_AT_ONCE + 1, "36 more requests are Denied")
    for _ in range(3):
        found = flood(100)
        assert (len(found), found[-1]) == (LINES_A_LOOK + 1, "96 more requests are Denied")
    assert len(flood(3)) == 3
    for _ in range(LINES_AT_ONCE // LINES_A_LOOK):
        assert rig.lines() == []
    assert len(flood(100)) == LINES_AT_ONCE + 1


def test_allowed_requests_are_logged_when_the_level_asks(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Allowed requests are logged after the refusals while the level is DEBUG, from the check after its change on."""
    allowing = rule("g", kind=ResourceType.GROUP)
    rig.authorizer.create([allowing])
    assert rig.ask("g")
    assert rig.lines() == []
    caplog.set_level("DEBUG", LOGGER)
    assert rig.lines() == []
    for group in ("g", "g", "h"):
        rig.ask(group)
    rig.ask("g", "User:root")
    assert rig.auth.operations(rig.client(), ResourceType.GROUP, "g")  # grants nothing, so it is not logged
    start = "Principal = User:{} is {} operation = READ from host = 127.0.0.1 on resource = Group:LITERAL:"
    end = "for request = OffsetCommit with resourceRefCount = 1 based on rule"
    assert rig.lines() == [
        f"{start.format('alice', 'Denied')}h {end} DefaultDeny",
        f"{start.format('alice', 'Allowed')}g {end} MatchingAcl(acl={allowing}), 2 times",
        f"{start.format('root', 'Allowed')}g {end} SuperUser",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG", "DEBUG"]
    for number in range(100):
        rig.ask(f"{number}", "User:root")
    assert rig.lines()[-1] == "36 more requests are Allowed"
    caplog.set_level("INFO", LOGGER)
    rig.lines()
    rig.ask("g")
    assert rig.authorizer.rules.take_notes(True) == ([], 0)


def test_the_rule_of_a_line(rig: Rig) -> None:
    """The logged rule has its original prefix, wildcard, principal and form of the host."""
    group = ResourceType.GROUP
    cases = (
        (rule("a-", DENY, kind=group, pattern=PREFIXED), "a-1", HERE),
        (rule("größe", DENY, kind=group, principal="User:*"), "größe", HERE),
        (rule("h", DENY, kind=group, host="0:0:0:0:0:0:0:1"), "h", "::1"),
        (rule("i", DENY, kind=group, host="::2"), "i", "::2"),
        (rule("*", DENY, kind=group), "z", HERE),
    )
    for acl, name, host in cases:
        rig.authorizer.create([acl])
        assert not rig.ask(name, host=host)
        (line,) = rig.lines()
        assert line.endswith(f"based on rule MatchingAcl(acl={acl})")
    assert not rig.ask("a-2")
    rig.authorizer.create([rule("b", kind=group, principal="User:bob")])
    rig.ask("b", "User:carol")
    removed = rule("c", DENY, kind=group, principal="User:bob")
    rig.authorizer.create([removed, rule("c", kind=group, principal="User:bob")])
    rig.ask("c", "User:bob")
    rig.authorizer.delete([AclFilter(resource_name="c", permission=DENY)])
    assert [line.partition("based on rule ")[2] for line in rig.lines()][1:] == [
        "DefaultDeny",
        "a rule that has changed",
    ]


def test_odd_names_in_a_line(rig: Rig) -> None:
    """Control characters are escaped, and a long name is truncated."""
    rig.ask("g\n2026-01-01 INFO all is well\x1b[2J", "User:eve\r\n")
    rig.ask("n" * 300)
    rig.ask("n", "User:" + "p" * 300)
    odd, long, who = rig.lines()
    assert "\\u000a2026" in odd
    assert "User:eve\\u000d\\u000a is Denied" in odd
    assert odd.isprintable()
    assert f":{'n' * 256} for" in long
    assert "based on rule a rule about the whole name" in long
    assert who.startswith(f"Principal = User:{'p' * 250} is Denied")


def test_lines_do_not_look_through_all_rules(rig: Rig) -> None:
    """A flood of refused requests does not search all rules for the reasons."""
    many = [rule(f"g{number}", DENY, kind=ResourceType.GROUP, principal="User:*") for number in range(100)]
    rig.authorizer.create(many)
    for number in range(3):
        rig.ask(f"g{number}")
    del rig.authorizer._by_principal
    assert [line.partition("based on rule ")[2] for line in rig.lines()] == [f"MatchingAcl(acl={a})" for a in many[:3]]
