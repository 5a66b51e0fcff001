"""ACLs: the list, the question whether a user may do something, with the rule that decides; rules added and removed."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from kbroker.client.acls import NO_AUTHORIZER, REASONS, Acls, describe
from kbroker.common.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclFilter,
    Decision,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_principal,
    java_host,
)
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import Needed
from kbroker.console.paging import part_of
from kbroker.console.requests import PageError, Query, sentence
from kbroker.console.site import Site, View, address

KINDS = {kind.title: kind for kind in ResourceType if kind > ResourceType.ANY}
WORDS = {one.title: one for one in Operation if one > Operation.ANY}
PATTERNS = {one.title: one for one in (PatternType.LITERAL, PatternType.PREFIXED)}
PERMISSIONS = {one.title: one for one in (Permission.ALLOW, Permission.DENY)}
#: Values of the forms.
CHOICES = {
    "types": [*KINDS],
    "operations": [*WORDS],
    "patterns": [*PATTERNS],
    "permissions": [*PERMISSIONS],
    "operations_of": {kind.title: ["All", *(one.title for one in some)] for kind, some in OPERATIONS.items()},
    "cluster_name": CLUSTER_NAME,
}

ALTER = Needed(Operation.ALTER)
T = TypeVar("T")


class Fields(NamedTuple):
    """Fields of a form that name a rule, or a question about a user."""

    principal: str = "User:"
    host: str = "*"
    operation: str = "Read"
    resource: str = "Topic"
    name: str = ""
    pattern: str = "Literal"
    permission: str = "Allow"


class AclRow(NamedTuple):
    """A rule in the list; ``fields`` of the form that removes it."""

    acl: Acl
    fields: Mapping[str, str]


class Answer(NamedTuple):
    """Answer to a question: whether it is allowed, and the reason."""

    is_allowed: bool
    question: str
    reason: str


def acls(site: Site, query: Query) -> View:
    """Return a page of the rules whose principal or name contains ``q``, optionally about one type."""
    wanted, kind = query.text("q").strip().lower(), query.text("type")
    with site.needs(Operation.DESCRIBE):
        found = site.remember("acls", lambda: Acls(site.cluster).list_if_any())
    kept = [
        acl
        for acl in found or ()
        if (wanted in acl.principal.lower() or wanted in acl.resource_name.lower())
        and (not kind or acl.resource_type.title == kind)
    ]
    part = part_of(kept, query, "acls")
    values = {
        "part": part,
        "rows": [AclRow(acl, fields_of(acl)._asdict()) for acl in part.rows],
        "q": query.text("q").strip(),
        "type": kind,
        "types": [*KINDS],
        "is_off": found is None,
    }
    return View("ACLs", "acls.html", values)


def acl_check(site: Site, query: Query) -> View:
    """Return the form of a question, "may a user do that?", and its answer."""
    given = {name: query.text(name, default) for name, default in Fields(host="")._asdict().items()}
    fields = Fields(**given)
    answer, problem = None, ""
    if query.text("asked"):
        try:
            answer = _answer(site, fields)
        except ValueError as error:
            problem = sentence(str(error))
    values = {"fields": fields, "answer": answer, "problem": problem, **CHOICES}
    return View("May a user do that?", "acl_check.html", values, 400 if problem else 200)


def _answer(site: Site, fields: Fields) -> Answer:
    kind, operation = _word(KINDS, fields.resource), _word(WORDS, fields.operation)
    name = _name(kind, fields.name)
    check_principal(fields.principal)
    host = _host(fields.host or "127.0.0.1")
    client = Acls(site.cluster)
    with site.needs(Operation.DESCRIBE_CONFIGS):
        settings = client.settings()
    with site.needs(Operation.DESCRIBE):
        decision = client.explain(fields.principal, host, operation, kind, name, settings)
    question = f"{fields.principal} from {host}: {operation.title} on {kind.title} {name}"
    return Answer(decision.is_allowed, question, _reason(decision, client.hides_super_users(settings)))


def _reason(decision: Decision, hides_super_users: bool) -> str:
    if decision.acl is not None:
        return f"This rule decides: {describe(decision.acl)}."
    if decision.rule == NO_AUTHORIZER:
        return "The cluster has no authorizer: everything is allowed."
    reason = sentence(REASONS.get(decision.rule, decision.rule))
    if not decision.is_allowed and hides_super_users:
        return f"{reason} The cluster does not describe super.users: one of those may do it."
    return reason


# ---------------------------------------------------------------- changes


def acl_form(site: Site, query: Query) -> View:
    """Return the form of a new rule."""
    given = {name: query.text(name, default) for name, default in Fields()._asdict().items()}
    fields = Fields(**given)
    return View("Add an ACL", "acl_add.html", {"fields": fields._asdict(), **CHOICES})


def add(site: Site, form: Query) -> Change:
    """Return the change that adds a rule."""
    acl, client, exists = _acl_and_client(site, form)
    lines = [] if exists else [Difference(describe(acl), None, acl.permission.title)]
    href, back = address("acls", q=acl.principal), address("acls")
    return Change(f"Add the ACL {describe(acl)}", lines, lambda: client.add([acl]), href, back=back, needs=ALTER)


def remove(site: Site, form: Query) -> Change:
    """Return the change that removes a rule."""
    acl, client, exists = _acl_and_client(site, form)
    lines = [Difference(describe(acl), acl.permission.title, None)] if exists else []
    title = f"Remove the ACL {describe(acl)}"
    return Change(title, lines, lambda: client.remove([AclFilter(*acl)]), address("acls"), needs=ALTER)


def _acl_and_client(site: Site, form: Query) -> tuple[Acl, Acls, bool]:
    """Return the rule of a form, the client that changes it, and whether the cluster has it."""
    acl, client = _acl(form), Acls(site.cluster)
    with site.needs(Operation.DESCRIBE):
        return acl, client, acl in client.list(AclFilter(*acl))


def fields_of(acl: Acl) -> Fields:
    """Return the fields of a form that name a rule."""
    return Fields(
        acl.principal,
        acl.host,
        acl.operation.title,
        acl.resource_type.title,
        acl.resource_name,
        acl.pattern_type.title,
        acl.permission.title,
    )


def _acl(form: Query) -> Acl:
    """Return the rule of a form. Raises: ValueError; PageError 400."""
    kind = _word(KINDS, form.needed("resource"))
    principal, host = form.needed("principal").strip(), form.text("host").strip() or "*"
    check_principal(principal)
    if not principal.partition(":")[2]:
        raise ValueError(f"expected a principal such as User:alice, or User:* for all, got {principal}")
    return Acl(
        kind,
        _name(kind, form.text("name")),
        _word(PATTERNS, form.text("pattern", "Literal")),
        principal,
        host if host == "*" or form.text("exact") else _host(host),
        _word(WORDS, form.needed("operation")),
        _word(PERMISSIONS, form.text("permission", "Allow")),
    )


def _name(kind: ResourceType, text: str) -> str:
    if kind is ResourceType.CLUSTER:
        return CLUSTER_NAME
    if not text:
        raise ValueError(f"expected a name of a {kind.title}, or * for all, got none")
    return text


def _host(text: str) -> str:
    try:
        ip_address(text)
    except ValueError:
        raise ValueError(f"expected an address such as 10.0.0.7 or ::1, got {text[:60]!r}") from None
    return java_host(text)


def _word(known: Mapping[str, T], text: str) -> T:
    if text not in known:
        raise PageError(400, f"Expected one of {', '.join(known)}, got {text[:40]!r}.")
    return known[text]
