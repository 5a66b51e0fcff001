"""Access control lists in Kafka's terms: rules, filters of rules, and decisions.

``decide`` is the plain form of the authorizer's decision, for one question and its reasons; brokers decide about
requests in ``security.authorizer``. Source: ``StandardAuthorizerData``, ``ResourcePatternFilter``.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

WILDCARD = "*"
WILDCARD_PRINCIPAL = "User:*"
#: Principal of the holder of the console's token if there is an authorizer; it may do everything. No client of a
#: listener can have it: theirs are of the type User.
CONSOLE_OPERATOR = "Console:kbroker.console"
CLUSTER_NAME = "kafka-cluster"
MAX_NAME_BYTES = 32_767  # of each text of a rule, as in Kafka's records
_MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4 address in IPv6


class _Word(IntEnum):
    """A code of Kafka's protocol with a name."""

    @property
    def title(self) -> str:
        """Name in files, on pages and in the log of Kafka's authorizer: ``TransactionalId``."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class ResourceType(_Word):
    """Types of resources."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Word):
    """Types of a rule's resource pattern; ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Word):
    """Operations that rules allow or deny."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Word):
    """Permissions of a rule."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_Code = TypeVar("_Code", ResourceType, PatternType, Operation, Permission)


def known(kind: type[_Code], code: int) -> _Code:
    """Return the enum member of a code, UNKNOWN for an unknown code, as in Java."""
    found = kind._value2member_map_.get(code, kind.UNKNOWN)  # a call of the enum takes five times as long
    assert isinstance(found, kind)
    return found


def bits(*operations: Operation) -> int:
    """Return operations as Kafka's responses encode them: one bit each."""
    return sum(1 << operation for operation in operations)


#: Operations of each type, as the fields of authorized operations name them.
OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}

#: For an operation, the others whose ALLOW rules allow it, too.
IMPLIED: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


class Acl(NamedTuple):
    """One rule."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return (
            f"StandardAcl[resourceType={self.resource_type.name}, resourceName={self.resource_name}, "
            f"patternType={self.pattern_type.name}, principal={self.principal}, host={self.host}, "
            f"operation={self.operation.name}, permissionType={self.permission.name}]"
        )

    @property
    def is_known(self) -> bool:
        """Return whether this version has the types, the operation and the permission of the rule."""
        return 0 not in (self.resource_type, self.pattern_type, self.operation, self.permission)

    def is_about(self, kind: ResourceType, name: str) -> bool:
        """Return whether the pattern covers this resource."""
        if self.resource_type != kind:
            return False
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)

    def concerns(self, principal: str, host: str) -> bool:
        """Return whether the rule applies to this client."""
        return self.principal in (principal, WILDCARD_PRINCIPAL) and (
            self.host == WILDCARD or normal_host(self.host) == normal_host(host)
        )

    def covers(self, operation: Operation) -> bool:
        """Return whether the rule applies to this operation, directly or because another one implies it."""
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission == Permission.ALLOW and self.operation in IMPLIED.get(operation, ())


#: Fields of a rule in records and responses, in the order of ``Acl``; those from Principal on are in every request.
ACL_FIELDS = ("ResourceType", "ResourceName", "PatternType", "Principal", "Host", "Operation", "PermissionType")


def acl_of(kind: int, name: str, pattern: int, row: Mapping[str, Any]) -> Acl:
    """Return the rule of a pattern, by its codes, and a row of a request or response."""
    return Acl(
        known(ResourceType, kind),
        name,
        known(PatternType, pattern),
        row["Principal"],
        row["Host"],
        known(Operation, row["Operation"]),
        known(Permission, row["PermissionType"]),
    )


class AclFilter(NamedTuple):
    """Filter of rules; None and ANY match every value."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter matches a rule."""
        return (
            self.resource_type in (acl.resource_type, ResourceType.ANY)
            and self.operation in (acl.operation, Operation.ANY)
            and self.permission in (acl.permission, Permission.ANY)
            and self.principal in (acl.principal, None)
            and self.host in (acl.host, None)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (acl.pattern_type, PatternType.ANY, PatternType.MATCH):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type == PatternType.MATCH:
            return acl.is_about(acl.resource_type, self.resource_name)
        return acl.resource_name == self.resource_name


class Decision(NamedTuple):
    """Decision and its reason. ``rule``: in the words of Kafka's log; ``acl``: the deciding rule, if any."""

    is_allowed: bool
    rule: str
    acl: Acl | None = None


SUPER_USER = Decision(True, "SuperUser")


def decide(
    acls: Iterable[Acl],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    super_users: Iterable[str] = (),
    allows_without_rule: bool = False,
) -> Decision:
    """Return whether a client may perform an operation, and the rule that decides.

    Args:
        acls: at least all rules about the resource. allows_without_rule: allow.everyone.if.no.acl.found.
    """
    if principal in super_users:
        return SUPER_USER
    about = sorted((acl for acl in acls if acl.is_about(kind, name)), key=_order)
    about.sort(key=lambda acl: acl.resource_name, reverse=True)  # Kafka begins with the longest name
    allowing: Acl | None = None
    for acl in about:
        if acl.concerns(principal, host) and acl.covers(operation):
            if acl.permission == Permission.DENY:
                return Decision(False, f"MatchingAcl(acl={acl})", acl)
            allowing = acl
    if allowing is not None:
        return Decision(True, f"MatchingAcl(acl={allowing})", allowing)
    if not about and allows_without_rule:
        return Decision(True, "DefaultAllow")
    return Decision(False, "DefaultDeny")


def _order(acl: Acl) -> tuple[int, int, str, str, int]:
    return (acl.pattern_type, acl.operation, acl.principal, acl.host, acl.permission)


def super_users(text: str | None) -> frozenset[str]:
    """Return the principals of ``super.users``, which are separated by semicolons because names may contain commas.

    Raises: ValueError for an entry that is not a principal.
    """
    found = [word.strip() for word in (text or "").split(";")]
    for word in found:
        if word:
            check_principal(word)
    return frozenset(word for word in found if word)


def check_principal(text: str) -> None:
    """Check that the text is a type, a colon and a name. Raises: ValueError."""
    if not text or ":" not in text:
        raise ValueError(f"expected a string in format principalType:principalName but got {text}")


def normal_host(host: str) -> str:
    """Return a host in a normal form: Java writes 0:0:0:0:0:0:0:1 instead of ::1."""
    if ":" not in host:
        return host
    try:
        return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, host))
    except (OSError, ValueError):
        return host


def java_host(host: str) -> str:
    """Return a host as Java writes it and Apache Kafka compares it; IPv4 mapped into IPv6 becomes IPv4."""
    if ":" not in host:
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host)
    except (OSError, ValueError):
        return host
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
    return ":".join(f"{packed[at] << 8 | packed[at + 1]:x}" for at in range(0, 16, 2))


def by_pattern(acls: Iterable[Acl]) -> Iterator[tuple[tuple[ResourceType, str, PatternType], list[Acl]]]:
    """Group rules about the same pattern, in the order of their first rules."""
    found: dict[tuple[ResourceType, str, PatternType], list[Acl]] = {}
    for acl in acls:
        found.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
    return iter(found.items())
