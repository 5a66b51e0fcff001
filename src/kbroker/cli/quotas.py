"""`kbroker quotas`: list, describe, set, remove, resolve, apply and diff client quotas, on any Kafka."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.cli.options import bootstrap_option, connect, json_option
from kbroker.cli.output import print_json

if TYPE_CHECKING:
    from kbroker.cli.quota_plan import Difference
    from kbroker.client.cluster import Cluster
    from kbroker.common.quotas import QuotaEntity

F = TypeVar("F", bound=Callable[..., Any])
Names = dict[str, str | None]

KINDS, IP = ("user", "client-id", "ip"), "ip"
EXIT_DIFFERENT = 3


@click.group()
def quotas() -> None:
    """Show and change the quotas of users, clients and addresses."""


def entity_options(command: F) -> F:
    """Options that name an entity; the command gets them as `names`: by entity type, None for the default."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        names: Names = {}
        for kind in KINDS:
            field = kind.replace("-", "_")
            name, is_default = given.pop(field), given.pop(f"{field}_default")
            if is_default and name is not None:
                raise click.UsageError(f"only one of --{kind} and --{kind}-default")
            if name == "":
                raise click.BadParameter("a name cannot be empty", param_hint=f"--{kind}")
            if is_default or name is not None:
                names[kind] = name
        if IP in names and len(names) > 1:
            raise click.UsageError("an ip stands alone: no user or client-id beside it")
        return command(names=names, **given)

    for option in (
        click.option("--ip-default", is_flag=True, help="Addresses that have none of their own."),
        click.option("--ip", metavar="ADDRESS", help="Connections from an address."),
        click.option("--client-id-default", is_flag=True, help="Client ids that have none of their own, each."),
        click.option("--client-id", metavar="NAME", help="A client id; with a user, that user's client id."),
        click.option("--user-default", is_flag=True, help="Users that have none of their own, each."),
        click.option("--user", metavar="NAME", help="A user, without the `User:` of principals."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _entity(names: Names) -> "QuotaEntity":
    from kbroker.common.quotas import QuotaEntity

    if not names:
        raise click.UsageError("name an entity: --user, --client-id (or both), --ip, or their -default")
    return QuotaEntity.of(names)


# ---------------------------------------------------------------- showing


@quotas.command("list")
@bootstrap_option
@entity_options
@json_option
def list_quotas(bootstrap_server: str, names: Names, as_json: bool) -> None:
    """List all quotas, or those of entities that have the parts named.

    The JSON is what `apply` reads.
    """
    from kbroker.cli.quota_views import show
    from kbroker.client.quotas import Quotas

    with connect(bootstrap_server) as cluster:
        found = Quotas(cluster).describe(names)
    show(found, as_json)


@quotas.command()
@bootstrap_option
@entity_options
@json_option
def describe(bootstrap_server: str, names: Names, as_json: bool) -> None:
    """Show the quotas of exactly one entity."""
    from kbroker.cli.quota_views import show
    from kbroker.client.quotas import Quotas

    entity = _entity(names)
    with connect(bootstrap_server) as cluster:
        found = {entity: Quotas(cluster).of(entity)}
    show(found, as_json)


@quotas.command("resolve")
@bootstrap_option
@click.option("--user", default="ANONYMOUS", show_default=True, metavar="NAME", help="The client's user.")
@click.option("--client-id", default="", metavar="NAME", help="Its client id; without it, a client that sends none.")
@click.option("--ip", metavar="ADDRESS", help="The address it connects from.")
@json_option
def resolve_quotas(bootstrap_server: str, user: str, client_id: str, ip: str | None, as_json: bool) -> None:
    """Show which quotas count for a client.

    Of each key: the limit, who it was set for, and who shares the counter with this client.

    Of eight levels the most specific one that is set wins. A client without a client id is reached only by
    quotas that name no client id: those of its user (level 3) and of the default user (level 6).
    """
    from kbroker.cli.quota_views import show_resolved
    from kbroker.client.quotas import Quotas

    with connect(bootstrap_server) as cluster:
        found = Quotas(cluster).describe()
    show_resolved(found, user, client_id, ip, as_json)


# ---------------------------------------------------------------- changing


@quotas.command("set")
@click.argument("values", nargs=-1, required=True, metavar="KEY=NUMBER...")
@bootstrap_option
@entity_options
@click.option("--dry-run", is_flag=True, help="Only let the broker check it.")
@json_option
def set_quotas(values: tuple[str, ...], bootstrap_server: str, names: Names, dry_run: bool, as_json: bool) -> None:
    """Set quotas of one entity; its others stay.

    Keys: producer_byte_rate and consumer_byte_rate in bytes a second, request_percentage in percent of one thread,
    controller_mutation_rate in partitions a second, and for an ip connection_creation_rate a second.
    """
    from kbroker.cli.quota_views import json_entry

    entity = _entity(names)
    ops: dict[str, float | None] = {}
    for word in values:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"expected KEY=NUMBER, got {word!r}", param_hint="KEY=NUMBER")
        if key in ops:
            raise click.UsageError(f"{key} comes twice")
        try:
            ops[key] = float(text)
        except ValueError:
            raise click.BadParameter(f"{key} must be a number, not {text!r}", param_hint="KEY=NUMBER") from None
    with connect(bootstrap_server) as cluster:
        _alter(cluster, {entity: ops}, dry_run)
    if as_json:
        print_json({"altered": not dry_run, **json_entry(entity, ops)})
    else:
        click.echo(f"{'could set' if dry_run else 'set'} {', '.join(ops)} of {entity}")


@quotas.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@bootstrap_option
@entity_options
@click.option("--dry-run", is_flag=True, help="Only let the broker check it.")
@json_option
def remove(keys: tuple[str, ...], bootstrap_server: str, names: Names, dry_run: bool, as_json: bool) -> None:
    """Remove quotas of one entity; without a KEY, all that it has."""
    from kbroker.cli.quota_plan import KEYS
    from kbroker.cli.quota_views import json_entry
    from kbroker.client.quotas import Quotas

    entity = _entity(names)
    with connect(bootstrap_server) as cluster:
        has = Quotas(cluster).of(entity)
        gone = [key for key in dict.fromkeys(keys or has) if key in has]
        unknown = [key for key in keys if key not in has and key not in KEYS]
        if unknown:
            raise click.UsageError(f"no quota {unknown[0]}; there are {', '.join(KEYS)}")
        if gone:
            _alter(cluster, {entity: dict.fromkeys(gone)}, dry_run)
    if as_json:
        print_json({"altered": bool(gone) and not dry_run, **json_entry(entity, dict.fromkeys(gone))})
    elif gone:
        click.echo(f"{'could remove' if dry_run else 'removed'} {', '.join(gone)} of {entity}")
    else:
        click.echo(f"{entity} has no such quota" if keys else f"{entity} has no quota")


def _alter(cluster: "Cluster", ops: "Mapping[QuotaEntity, Mapping[str, float | None]]", dry_run: bool) -> None:
    """Change all in one request. Raises: KafkaError of the first entity that was refused."""
    from kbroker.client.quotas import Quotas

    for refusal in Quotas(cluster).alter(ops, validate_only=dry_run).values():
        if refusal is not None:
            raise refusal


# ---------------------------------------------------------------- files


def file_argument(command: F) -> F:
    """FILE, and what it decides about."""
    prune = click.option("--prune", is_flag=True, help="Entities that the file does not name are to have no quota.")
    path = click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.yaml")
    return path(bootstrap_option(prune(command)))


@quotas.command()
@file_argument
@click.option("--exit-code", is_flag=True, help=f"Leave with {EXIT_DIFFERENT} if anything would change.")
@json_option
def diff(path: Path, bootstrap_server: str, prune: bool, exit_code: bool, as_json: bool) -> int:
    """Show what `apply` would change."""
    from kbroker.cli.quota_views import print_differences

    found = _compared(path, bootstrap_server, prune)
    print_differences(found, as_json)
    return EXIT_DIFFERENT if exit_code and found else 0


@quotas.command()
@file_argument
@click.option("--dry-run", is_flag=True, help="Only let the broker check it.")
@json_option
def apply(path: Path, bootstrap_server: str, prune: bool, dry_run: bool, as_json: bool) -> None:
    """Make the quotas as a file says, all in one request.

    The file is a list, in YAML (or JSON, if so named), of entities with all of their quotas; null is the default user,
    client id or address. What an entity has beside them is removed; entities that are not named stay, unless --prune.

    \b
    - entity: {user: alice, client-id: null}
      quotas: {producer_byte_rate: 1048576}
    """
    from kbroker.cli.quota_plan import changes, differences, read_file
    from kbroker.cli.quota_views import print_differences
    from kbroker.client.quotas import Quotas

    wanted = read_file(path)
    with connect(bootstrap_server) as cluster:
        client = Quotas(cluster)
        found = differences(client.describe(), wanted, prune)
        results = client.alter(changes(found), validate_only=dry_run) if found else {}
    made = [one for one in found if results[one.entity] is None]
    if not as_json or made == found:
        print_differences(made, as_json)
    for refusal in results.values():
        if refusal is not None:  # the others are made all the same
            raise refusal


def _compared(path: Path, bootstrap_server: str, prune: bool) -> "list[Difference]":
    from kbroker.cli.quota_plan import differences, read_file
    from kbroker.client.quotas import Quotas

    wanted = read_file(path)
    with connect(bootstrap_server) as cluster:
        return differences(Quotas(cluster).describe(), wanted, prune)
