"""The authorizer: rules, which are stored before they apply, and decisions about clients.

Source: ``StandardAuthorizer``, ``AclControlManager``, ``Authorizer.authorizeByResourceType``.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.acls import (
    CLUSTER_NAME,
    CONSOLE_OPERATOR,
    MAX_NAME_BYTES,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    Decision,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_principal,
    decide,
    java_host,
    normal_host,
    super_users,
)
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.record_forms import acl_body
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from kbroker.security.authorizer._acl_table import AclRules

MAX_KEPT_ANSWERS = 1024
MAX_CHANGES = 10_000  # of one request (``QuorumController.MAX_RECORDS_PER_USER_OP``)
MAX_COMPARISONS = 5_000_000  # comparisons of rules with the filters of one request: some three seconds
MAX_FOUND = 10 * MAX_CHANGES  # rules in one response; a rule is repeated for each filter that matches it


class Deleted(NamedTuple):
    """Result of one filter of DeleteAcls. ``error``: reason why no rule was deleted, or None."""

    acls: Sequence[Acl]
    error: KafkaError | None = None


class Authorizer:
    """The rules of a broker.

    Args: ``controller`` changes the rules; ``super_users``: principals that may do everything; ``allows_without_rule``:
    allow.everyone.if.no.acl.found.
    Threads: any. Locks: the controller's during a change, then its own; ``permitted`` and ``explain`` take only that
    of ``rules``.
    """

    def __init__(
        self, controller: Controller, super_users: Iterable[str] = (), allows_without_rule: bool = False
    ) -> None:
        self._controller = controller
        self.lock = threading.Lock()
        self.super_users = frozenset(super_users)
        self.allows_without_rule = allows_without_rule
        self.rules = AclRules(self.super_users, allows_without_rule)
        self._acls: dict[Acl, uuid.UUID] = {}
        self._published = controller.image.acls
        self._by_principal: dict[tuple[str, ResourceType], dict[Acl, None]] = {}
        self._by_type: dict[tuple[str, str, Operation, ResourceType], bool] = {}  # cached results of allows_any
        self._remember(controller.image.acls, {})

    @classmethod
    def configured(cls, config: BrokerConfig, controller: Controller) -> Authorizer:
        """Return the authorizer for a broker's configuration."""
        super_user_names = super_users(config.text("super.users")) | {CONSOLE_OPERATOR}
        return cls(controller, super_user_names, config.boolean("allow.everyone.if.no.acl.found"))

    def __len__(self) -> int:
        return len(self._acls)

    # ---------------------------------------------------------- decisions

    def permitted(self, kind: ResourceType, name: str, principal: str, host: str) -> int:
        """Return the operations that a client may do with a resource: a bit for each."""
        return self.rules.permitted(kind, name, principal, host)

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the client may do an operation on at least one resource (``authorizeByResourceType``)."""
        key = (principal, host, operation, kind)
        with self.lock:
            known = self._by_type.get(key)
            if known is None:
                known = self._may_any(principal, host, operation, kind)
                if len(self._by_type) >= MAX_KEPT_ANSWERS:
                    self._by_type.clear()
                self._by_type[key] = known
        return known

    def _may_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        # a super user needs no rule, so the name does not matter
        if self.rules.permitted(kind, "hardcode", principal, host) >> operation & 1:
            return True
        allowed: set[tuple[PatternType, str]] = set()
        denied: set[tuple[PatternType, str]] = set()
        for acl in self._of_principal(principal, kind):
            if acl.operation not in (operation, Operation.ALL) or not acl.concerns(principal, host):
                continue
            pattern = (acl.pattern_type, acl.resource_name)
            if acl.permission == Permission.ALLOW:
                allowed.add(pattern)
            elif pattern == (PatternType.LITERAL, WILDCARD):
                return False
            else:
                denied.add(pattern)
        if (PatternType.LITERAL, WILDCARD) in allowed:
            return True
        prefixes = {name for kind_of, name in denied if kind_of == PatternType.PREFIXED}
        for pattern in allowed:
            if pattern[0] == PatternType.LITERAL and pattern in denied:
                continue
            name = pattern[1]
            if not any(name[:length] in prefixes for length in range(1, len(name) + 1)):
                return True
        return False

    def explain(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> Decision:
        """Return a decision with the rule that makes it; the time does not depend on the number of rules.

        If no rule about the client decides, the decision is DefaultDeny, or DefaultAllow if ``permitted`` allows it.
        """
        acls = self._about(principal, host, kind, name)
        found = decide(acls, principal, host, operation, kind, name, super_users=self.super_users)
        if found.rule == "DefaultDeny" and self.permitted(kind, name, principal, host) >> operation & 1:
            return Decision(True, "DefaultAllow")
        return found

    def _about(self, principal: str, host: str, kind: ResourceType, name: str) -> Iterator[Acl]:
        """Yield the rules that apply to a client and a resource."""
        data = name.encode("utf-8", "surrogateescape")
        names = {(PatternType.LITERAL, name): None, (PatternType.LITERAL, WILDCARD): None}
        for length in self.rules.prefix_lengths(kind):
            if length <= len(data):
                names[PatternType.PREFIXED, data[:length].decode("utf-8", "surrogateescape")] = None
        for pattern_type, about in names:
            for who in dict.fromkeys((principal, WILDCARD_PRINCIPAL)):
                for where in dict.fromkeys((normal_host(host), WILDCARD)):
                    allowed, denied = self.rules.bits(kind, pattern_type, about, who, where)
                    for permission, bits in ((Permission.ALLOW, allowed), (Permission.DENY, denied)):
                        for operation in Operation if bits else ():
                            if bits >> operation & 1:
                                acl = Acl(kind, about, pattern_type, who, where, operation, permission)
                                # The rule has the host as it was written, nearly always in one of two forms.
                                yield acl if acl in self._acls else acl._replace(host=java_host(where))

    def _of_principal(self, principal: str, kind: ResourceType) -> Iterable[Acl]:
        yield from self._by_principal.get((principal, kind), ())
        if principal != WILDCARD_PRINCIPAL:
            yield from self._by_principal.get((WILDCARD_PRINCIPAL, kind), ())

    def find(self, wanted: AclFilter) -> list[Acl]:
        """Return the rules that match a filter."""
        with self.lock:
            acls = list(self._acls)
        return [acl for acl in acls if wanted.matches(acl)]

    # ------------------------------------------------------------ changes

    def create(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        """Add rules, and return for each the reason for its refusal, or None. An existing rule is not an error.

        They are stored, all or none, and apply when this returns. Raises: KafkaError if too many are new.
        """
        results = [objection(acl) for acl in acls]

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            wanted = dict.fromkeys(acl for acl, error in zip(acls, results, strict=True) if error is None)
            known = self._known(image)
            added = [acl for acl in wanted if acl not in known]
            if len(added) > MAX_CHANGES:
                raise KafkaError(Errors.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
            return [metadata_record("AccessControlEntryRecord", acl_body(uuid.uuid4(), acl)) for acl in added]

        try:
            self._controller.change(plan, publisher=self)
        except KafkaError as refusal:
            if refusal.error is not Errors.KAFKA_STORAGE_ERROR:
                raise
            return [error or refusal for error in results]
        return results

    def delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        """Remove the rules that match the filters, in one step; return them by filter.

        Several filters may match a rule. Raises: KafkaError if these are too many.
        """
        results: list[Deleted] = []

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            nonlocal results
            removed: dict[Acl, None] = {}
            known = self._known(image)
            results = _found(filters, known, removed)
            return [metadata_record("RemoveAccessControlEntryRecord", {"Id": known[acl]}) for acl in removed]

        try:
            self._controller.change(plan, frees_space=True)
        except KafkaError as refusal:
            if refusal.error is not Errors.KAFKA_STORAGE_ERROR:
                raise
            return [Deleted((), result.error or refusal) for result in results]
        return results

    def _known(self, image: MetadataImage) -> Mapping[Acl, uuid.UUID]:
        """Return the rules of an image with their ids; it may contain changes that are not published yet."""
        if image.acls is self._published:
            return self._acls
        return {acl: acl_id for acl_id, acl in image.acls.items()}

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes a rule."""
        return bool(delta.added_acls or delta.removed_acls)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Put changed rules in force."""
        self._remember(delta.added_acls, delta.removed_acls)
        self._published = image.acls

    def _remember(self, added: Mapping[uuid.UUID, Acl], removed: Mapping[uuid.UUID, Acl]) -> None:
        """Apply stored changes; under the lock, except at the start. Two ids of one rule count as one."""
        gone = [acl for acl_id, acl in removed.items() if self._acls.get(acl) == acl_id]
        for acl in gone:
            del self._acls[acl]
            key = (acl.principal, acl.resource_type)
            del self._by_principal[key][acl]
            if not self._by_principal[key]:
                del self._by_principal[key]
        new = []
        for acl_id, acl in added.items():
            if acl not in self._acls:
                new.append(acl)
                self._acls[acl] = acl_id
                self._by_principal.setdefault((acl.principal, acl.resource_type), {})[acl] = None
        ended = [_in_force(acl) for acl in gone if not self._has_twin(acl)]
        self.rules.apply(ended, [_in_force(acl) for acl in new])
        self._by_type.clear()

    def _has_twin(self, acl: Acl) -> bool:
        """Return whether another rule is equal except for the spelling of its host."""
        if ":" not in acl.host:
            return False
        same = self._by_principal.get((acl.principal, acl.resource_type), ())
        return any(_in_force(other) == _in_force(acl) for other in same)


def _in_force(acl: Acl) -> Acl:
    return acl if ":" not in acl.host else acl._replace(host=normal_host(acl.host))


def objection(acl: Acl) -> KafkaError | None:
    """Return the reason why a rule is invalid, in Kafka's words, or None."""
    text = ""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        text = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.resource_name:
        text = "Invalid empty resource name"
    elif acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        text = f"Invalid resourceType {acl.resource_type.name}"
    elif acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        text = f"Invalid patternType {acl.pattern_type.name}"
    elif acl.operation in (Operation.UNKNOWN, Operation.ANY):
        text = f"Invalid operation {acl.operation.name}"
    elif acl.permission not in (Permission.DENY, Permission.ALLOW):
        text = f"Invalid permissionType {acl.permission.name}"
    else:
        try:
            check_principal(acl.principal)
        except ValueError:
            text = (
                f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
                "from the principal name)"
            )
    for what, value in (("resource name", acl.resource_name), ("principal", acl.principal), ("host", acl.host)):
        if not text and len(value.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
            text = f"The {what} must have at most {MAX_NAME_BYTES} bytes"
    return KafkaError(Errors.INVALID_REQUEST, text) if text else None


def _found(filters: Sequence[AclFilter], acls: Collection[Acl], removed: dict[Acl, None]) -> list[Deleted]:
    """Return the rules that match each filter, and add them to ``removed``. Raises: KafkaError."""
    kept: dict[AclFilter, Deleted] = dict.fromkeys(filters, Deleted(()))
    if len(kept) * len(acls) > MAX_COMPARISONS:
        text = f"{len(kept)} filters are too many for {len(acls)} acls: send them in several requests."
        raise KafkaError(Errors.INVALID_REQUEST, text)
    for wanted in kept:
        error = _objection_to(wanted)
        found = [acl for acl in acls if wanted.matches(acl)] if error is None else []
        kept[wanted] = Deleted(found, error)
        removed.update(dict.fromkeys(found))
        if len(removed) > MAX_CHANGES:
            text = f"Cannot remove more than {MAX_CHANGES} acls in a single delete operation."
            raise KafkaError(Errors.INVALID_REQUEST, text)
    results = [kept[wanted] for wanted in filters]
    if sum(len(result.acls) for result in results) > MAX_FOUND:
        text = f"{len(filters)} filters mean the same acls too often: send them in several requests."
        raise KafkaError(Errors.INVALID_REQUEST, text)
    return results


def _objection_to(wanted: AclFilter) -> KafkaError | None:
    if wanted.resource_type == ResourceType.UNKNOWN or wanted.pattern_type == PatternType.UNKNOWN:
        return KafkaError(Errors.INVALID_REQUEST, "Unknown patternFilter.")
    if wanted.operation == Operation.UNKNOWN or wanted.permission == Permission.UNKNOWN:
        return KafkaError(Errors.INVALID_REQUEST, "Unknown entryFilter.")
    return None
