"""`kbroker acls`: access control lists, on any Kafka with an authorizer."""

from collections.abc import Iterable
from typing import Any

import click

from kbroker.cli.options import CommandGroup, F, T, bootstrap_option, connect, decorators, json_option
from kbroker.cli.output import print_json, print_rows
from kbroker.client.acls import REASONS, Acls, describe
from kbroker.common.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_principal,
    java_host,
)
from kbroker.common.security.acls import OPERATIONS as AUTHORIZED
from kbroker.common.units import counted

OPERATIONS = {one.title: one for one in Operation if one > Operation.ANY}
RESOURCES = (
    ("topic", ResourceType.TOPIC, "NAME", "A topic"),
    ("group", ResourceType.GROUP, "NAME", "A group"),
    ("transactional-id", ResourceType.TRANSACTIONAL_ID, "NAME", "A transactional id"),
    ("delegation-token", ResourceType.DELEGATION_TOKEN, "ID", "A delegation token"),
    ("user", ResourceType.USER, "User:NAME", "The owner of delegation tokens"),
)
HEAD = ["PERMISSION", "PRINCIPAL", "HOST", "OPERATION", "RESOURCE", "PATTERN", "NAME"]


def resource_options(command: F) -> F:
    """Add the options that name the resources of rules."""
    return decorators(
        *(
            click.option(f"--{option}", multiple=True, metavar=value, help=f"{what}. Repeatable.")
            for option, _, value, what in RESOURCES
        ),
        click.option("--cluster", is_flag=True, help="The cluster."),
    )(command)


operation_option = click.option(
    "--operation",
    "operations",
    multiple=True,
    type=click.Choice(list(OPERATIONS), case_sensitive=False),
    metavar="NAME",
    help=f"Operation: {', '.join(OPERATIONS)}. Repeatable.",
)
pattern_option = click.option(
    "--prefixed",
    is_flag=True,
    help="Match every name that begins with NAME. Without it, the name `*` matches every name.",
)


@click.group(cls=CommandGroup)
def acls() -> None:
    """List, add, remove and explain ACLs."""


@acls.command("list")
@bootstrap_option
@resource_options
@click.option("--principal", metavar="User:NAME", help="Only rules of this principal.")
@click.option("--match", is_flag=True, help="Include prefixed rules and `*` that cover the names.")
@json_option
def list_acls(bootstrap_server: str, principal: str | None, match: bool, as_json: bool, **named: Any) -> None:
    """List rules: all, or those about some resources or of a principal."""
    if principal is not None:
        principal_of(principal, "--principal")
    pattern = PatternType.MATCH if match else PatternType.ANY
    about = needed_resources(**named) if match else resources(**named)
    filters = [AclFilter(kind, name, pattern, principal) for kind, name in about]
    with connect(bootstrap_server) as cluster:
        known = Acls(cluster)
        found = [acl for wanted in filters or [AclFilter(principal=principal)] for acl in known.list(wanted)]
    show(dict.fromkeys(found), as_json)


@acls.command()
@bootstrap_option
@resource_options
@operation_option
@click.option("--allow", "allowed", multiple=True, metavar="User:NAME", help="Principal to allow; `User:*` means all.")
@click.option(
    "--deny", "denied", multiple=True, metavar="User:NAME", help="Principal to deny, even if another rule allows it."
)
@click.option("--host", "hosts", multiple=True, default=["*"], show_default=True, help="Client address.")
@pattern_option
@json_option
def add(
    bootstrap_server: str,
    operations: tuple[str, ...],
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    hosts: tuple[str, ...],
    prefixed: bool,
    as_json: bool,
    **named: Any,
) -> None:
    """Add rules: one for each resource, operation, principal and host."""
    about = needed_resources(**named)
    whom = [(name, Permission.ALLOW) for name in allowed] + [(name, Permission.DENY) for name in denied]
    need(whom, "--allow or --deny")
    for name, permission in whom:
        principal_of(name, "--allow" if permission is Permission.ALLOW else "--deny")
    for host in hosts:
        if host != "*":
            address_of(host, "* or an address")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    need(operations, "--operation")
    for kind, _ in about:
        for operation in operations:
            check_operation(kind, operation)
    made = [
        Acl(kind, name, pattern, principal, java_host(host), OPERATIONS[operation], permission)
        for kind, name in about
        for operation in operations
        for principal, permission in whom
        for host in hosts
    ]
    with connect(bootstrap_server) as cluster:
        Acls(cluster).add(made)
    show(made, as_json)


@acls.command()
@bootstrap_option
@resource_options
@operation_option
@click.option("--principal", metavar="User:NAME", help="Only rules of this principal.")
@click.option("--host", help="Only rules of this address.")
@pattern_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def remove(
    bootstrap_server: str,
    operations: tuple[str, ...],
    principal: str | None,
    host: str | None,
    prefixed: bool,
    yes: bool,
    as_json: bool,
    **named: Any,
) -> None:
    """Remove the rules about some resources.

    Without further options, the rules of all operations, principals and hosts are removed.
    """
    if principal is not None:
        principal_of(principal, "--principal")
    if as_json and not yes:
        raise click.UsageError("expected --yes beside --json")
    if host is not None:
        host = java_host(host)  # in the form that `add` stores; a host name is kept, so that its rule can be removed
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    about = needed_resources(**named)
    filters: list[AclFilter] = [
        AclFilter(kind, name, pattern, principal, host, operation)
        for kind, name in about
        for operation in [OPERATIONS[word] for word in operations] or [Operation.ANY]
    ]
    with connect(bootstrap_server) as cluster:
        known = Acls(cluster)
        if not yes:
            found = dict.fromkeys(acl for wanted in filters for acl in known.list(wanted))
            if not found:
                raise click.ClickException("there is no such ACL")
            show(found, False)
            click.confirm(f"Remove {counted(len(found), 'ACL')}?", abort=True, err=True)
        removed = known.remove(filters)
    show(removed, as_json)


@acls.command()
@bootstrap_option
@click.argument("principal")
@resource_options
@operation_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The client's address.")
@json_option
def explain(
    bootstrap_server: str, principal: str, operations: tuple[str, ...], host: str, as_json: bool, **named: Any
) -> None:
    """Show whether PRINCIPAL may perform an operation, and why.

    The decision is computed from the rules and settings that the broker describes. The exit status is 0 if the
    operation is allowed, 1 if it is denied.
    """
    principal_of(principal, "PRINCIPAL")
    address_of(host, "an address")
    about = needed_resources(**named)
    need(operations, "--operation")
    answers: list[dict[str, Any]] = []
    with connect(bootstrap_server) as cluster:
        known = Acls(cluster)
        for kind, name in about:
            for operation in (OPERATIONS[word] for word in operations):
                decision = known.explain(principal, host, operation, kind, name)
                answers.append(
                    {
                        "principal": principal,
                        "host": host,
                        "operation": operation.name,
                        "resource": kind.title,
                        "name": name,
                        "allowed": decision.is_allowed,
                        "because": decision.rule if decision.acl is None else describe(decision.acl),
                    }
                )
    if as_json:
        print_json(answers)
    else:
        for one in answers:
            word = "may" if one["allowed"] else "may not"
            click.echo(
                f"{principal} {word} {one['operation']} {one['resource']} {one['name']}: "
                f"{REASONS.get(one['because'], one['because'])}"
            )
    if not all(one["allowed"] for one in answers):
        raise SystemExit(1)


def resources(cluster: bool, **named: Iterable[str]) -> list[tuple[ResourceType, str]]:
    """Return the resources that options name."""
    found = [(kind, name) for option, kind, _, _ in RESOURCES for name in named[option.replace("-", "_")]]
    return [*found, (ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else found


def needed_resources(**named: Any) -> "list[tuple[ResourceType, str]]":
    """Return the resources that options name. Raises: UsageError if there is none."""
    return need(resources(**named), "--topic, --group, --transactional-id, --cluster ...")


def principal_of(text: str, option: str) -> str:
    """Return the validated principal of an option. Raises: BadParameter."""
    try:
        check_principal(text)
    except ValueError:
        raise click.BadParameter(f"expected User:NAME, got {text!r}", param_hint=option) from None
    return text


def address_of(host: str, expected: str) -> None:
    """Check an address; brokers look up no names, so a rule with a name never matches. Raises: BadParameter."""
    from ipaddress import ip_address

    try:
        ip_address(host)
    except ValueError:
        message = f"expected {expected}, such as 10.0.0.7 or ::1, got {host!r}"
        raise click.BadParameter(message, param_hint="--host") from None


def check_operation(kind: ResourceType, operation: str) -> None:
    """Check that brokers authorize an operation on resources of a type, as Kafka's tool does. Raises: BadParameter."""
    known = [one.title for one in (Operation.ALL, *AUTHORIZED[kind])]
    if operation not in known:
        message = f"expected an operation on a {kind.title} ({', '.join(known)}), got {operation}"
        raise click.BadParameter(message, param_hint="--operation")


def need(found: T, options: str) -> T:
    """Return the value of options. Raises: UsageError if it is empty."""
    if not found:
        raise click.UsageError(f"expected {options}, got none")
    return found


def show(found: "Iterable[Acl]", as_json: bool) -> None:
    """Print rules."""
    rows = [
        [acl.permission.name, acl.principal, acl.host, acl.operation.name, acl.resource_type.title,
         acl.pattern_type.name, acl.resource_name]
        for acl in found
    ]  # fmt: skip
    print_rows(HEAD, [dict(zip([word.lower() for word in HEAD], row, strict=True)) for row in rows], as_json)
