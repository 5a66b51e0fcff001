"""`kbroker quotas`: list, describe, set, remove, resolve, apply and diff client quotas, on any Kafka; their shadows."""

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kbroker.cli.options import (
    EXIT_DIFFERENT,
    CommandGroup,
    EntityName,
    F,
    bootstrap_option,
    connect,
    decorators,
    dry_run_option,
    exit_code_option,
    file_and_prune,
    http_options,
    http_port,
    json_option,
)
from kbroker.cli.output import print_done, print_json
from kbroker.cli.quota_explanation_view import show_explanation
from kbroker.cli.quota_views import json_entry, print_differences, show, show_resolved, warn_of_brokers
from kbroker.client.http_port import HttpPortError
from kbroker.client.quota_file import KEYS, DesiredQuotas, read_quota_file
from kbroker.client.quota_resolution import ask_explanation, explanation_of
from kbroker.client.quotas import Applied, QuotaClient, alter_all
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.printable import printable
from kbroker.common.quota_limits import check_key, parse_limit
from kbroker.common.quotas import ENTITY_TYPES, IP, QuotaEntity, enforced_key, shadow_key
from kbroker.common.similar_names import did_you_mean

Names = dict[str, str | None]

BAD_REQUEST = 400
USER_NAME, CLIENT_NAME, ADDRESS = EntityName("user"), EntityName("client-id"), EntityName("ip")


@click.group(cls=CommandGroup)
def quotas() -> None:
    """Show and change the quotas of users, clients and addresses."""


def entity_options(command: F) -> F:
    """Add the options that name an entity; the command gets `names` by entity type, None for the default."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        names: Names = {}
        for kind in ENTITY_TYPES:
            field = kind.replace("-", "_")
            name, is_default = given.pop(field), given.pop(f"{field}_default")
            if is_default and name is not None:
                raise click.UsageError(f"expected only one of --{kind} and --{kind}-default, got both")
            if name == "":
                raise click.BadParameter("expected a name, got an empty one", param_hint=f"--{kind}")
            if is_default or name is not None:
                names[kind] = name
        if IP in names and len(names) > 1:
            raise click.UsageError("expected --ip alone, got it with a user or client-id")
        return command(names=names, **given)

    return decorators(
        click.option("--user", type=USER_NAME, metavar="NAME", help="A user: alice, not User:alice."),
        click.option("--user-default", is_flag=True, help="Each user without its own quota."),
        click.option(
            "--client-id", type=CLIENT_NAME, metavar="NAME", help="A client id; with --user, of that user only."
        ),
        click.option("--client-id-default", is_flag=True, help="Each client id without its own quota."),
        click.option("--ip", type=ADDRESS, metavar="ADDRESS", help="An IP address that clients connect from."),
        click.option("--ip-default", is_flag=True, help="All addresses without their own quota."),
    )(wrapped)  # type: ignore[return-value]


@contextmanager
def _client(bootstrap_server: str) -> "Iterator[tuple[QuotaClient, int]]":
    """Yield a quota client and the number of brokers; print a note if there are several."""
    with connect(bootstrap_server) as cluster:
        client = QuotaClient(cluster)
        brokers = client.broker_count()
        yield client, brokers
    warn_of_brokers(brokers)


def _entity(names: Names) -> "QuotaEntity":
    if not names:
        raise click.UsageError("expected an entity: --user, --client-id or both, or --ip, or a -default of these")
    return QuotaEntity.of(names)


# ---------------------------------------------------------------- showing


@quotas.command("list")
@bootstrap_option
@entity_options
@json_option
def list_quotas(bootstrap_server: str, names: Names, as_json: bool) -> None:
    """List all quotas, or those of matching entities.

    An entity matches if it includes all the parts given.

    `kbroker quotas apply` reads the output of --json.
    """
    with _client(bootstrap_server) as (client, brokers):
        show(client.describe(names), brokers, as_json)


@quotas.command()
@bootstrap_option
@entity_options
@json_option
def describe(bootstrap_server: str, names: Names, as_json: bool) -> None:
    """Show the quotas of exactly one entity."""
    entity = _entity(names)
    with _client(bootstrap_server) as (client, brokers):
        show({entity: client.of(entity)}, brokers, as_json)


@quotas.command("resolve")
@bootstrap_option
@click.option(
    "--user", type=USER_NAME, default="ANONYMOUS", show_default=True, metavar="NAME", help="The client's user."
)
@click.option(
    "--client-id",
    type=CLIENT_NAME,
    default="",
    metavar="NAME",
    help="Its client id.  [default: a client that sends none]",
)
@click.option("--ip", type=ADDRESS, metavar="ADDRESS", help="The IP address it connects from.")
@json_option
def resolve_quotas(bootstrap_server: str, user: str, client_id: str, ip: str | None, as_json: bool) -> None:
    """Show which quotas apply to a client, and which shadow quotas.

    The output has for each quota the limit, its entity, and the clients that share its counter.

    Quotas have eight levels; the most specific level that is set applies. A client without a client id is limited
    only by quotas without a client id: those of its user (level 3) and of the default user (level 6).
    """
    with _client(bootstrap_server) as (client, brokers):
        show_resolved(client.resolve(user, client_id, ip), client_id, brokers, as_json)


@quotas.command()
@bootstrap_option
@http_options
@click.option("--user", type=USER_NAME, metavar="NAME", help="The client's user.  [default: ANONYMOUS]")
@click.option(
    "--client-id", type=CLIENT_NAME, metavar="NAME", help="Its client id.  [default: a client that sends none]"
)
@click.option("--ip", type=ADDRESS, metavar="ADDRESS", help="The IP address it connects from.")
@click.option("--connection", metavar="ID", help="An open connection, by its id in `kbroker xray`, in place of these.")
@click.option(
    "--compare",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.yaml",
    help="Show the effect that the quotas of this file would have had on the same traffic.",
)
@json_option
def explain(
    bootstrap_server: str,
    http_url: str | None,
    token: str | None,
    user: str | None,
    client_id: str | None,
    ip: str | None,
    connection: str | None,
    compare: Path | None,
    as_json: bool,
) -> None:
    """Explain the effect of quotas on one client.

    The output has the quotas that apply and why the others do not, the current rates as small charts, the amount left,
    the throttled connections with their remaining times, the last verdicts, and the effect of shadow quotas.

    kbroker provides all of this at its HTTP port (kbroker.metrics.listener). For any other Kafka only the quotas that
    apply are shown.
    """
    if connection is not None and (user, client_id, ip) != (None, None, None):
        raise click.UsageError("expected --connection alone, got it with --user, --client-id or --ip")
    wanted = None if compare is None else read_quota_file(compare)
    who = (user or "ANONYMOUS", client_id or "", ip)
    found = _explanation(bootstrap_server, http_url, token, who, connection, wanted)
    if as_json:
        print_json(found)
    else:
        show_explanation(found, None if compare is None else compare.name)


def _explanation(
    bootstrap_server: str,
    http_url: str | None,
    token: str | None,
    who: tuple[str, str, str | None],
    connection: str | None,
    wanted: "DesiredQuotas | None",
) -> dict[str, Any]:
    """Return the explanation of the broker's HTTP port, or else that of its protocol. Raises: HttpPortError."""
    try:
        port = http_port(bootstrap_server, http_url, token)
        return ask_explanation(port, *who, connection=connection, wanted=wanted)
    except HttpPortError as error:
        if http_url is not None or connection is not None or error.status == BAD_REQUEST:
            raise
        why = str(error)
    if wanted is not None:
        why += "; so nothing can be compared"
    with _client(bootstrap_server) as (client, brokers):
        found = explanation_of(client.resolve(*who), *who, why)
    return {**found, "brokers": brokers}


# ---------------------------------------------------------------- changing


@quotas.command("set")
@click.argument("values", nargs=-1, required=True, metavar="KEY=NUMBER...")
@bootstrap_option
@entity_options
@dry_run_option
@json_option
def set_quotas(values: tuple[str, ...], bootstrap_server: str, names: Names, dry_run: bool, as_json: bool) -> None:
    """Set quotas of one entity; its other quotas stay as they are.

    KEY is producer_byte_rate or consumer_byte_rate (bytes per second: 1048576, 1MB, '10 MiB/s'), request_percentage
    (percent of one thread), controller_mutation_rate (partitions per second), or for --ip connection_creation_rate
    (connections per second). With "shadow." before it, the quota is only tried: its verdicts are reported, but it
    delays nothing (kbroker only).
    """
    entity = _entity(names)
    ops: dict[str, float | None] = {}
    for word in values:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"expected KEY=NUMBER, got {word!r}", param_hint="KEY=NUMBER")
        if key in ops:
            raise click.UsageError(f"duplicate {key}: give each quota once")
        try:
            check_key(key)
            ops[key] = parse_limit(key, text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="KEY=NUMBER") from None
    with _client(bootstrap_server) as (client, brokers):
        alter_all(client, {entity: ops}, validate_only=dry_run)
        document = {"altered": not dry_run, **json_entry(entity, ops, brokers)}
        print_done(document, as_json, f"{'could set' if dry_run else 'set'} {', '.join(ops)} of {entity}")


@quotas.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@bootstrap_option
@entity_options
@dry_run_option
@json_option
def remove(keys: tuple[str, ...], bootstrap_server: str, names: Names, dry_run: bool, as_json: bool) -> None:
    """Remove quotas of one entity; all of them without a KEY."""
    entity = _entity(names)
    with connect(bootstrap_server) as cluster:
        client = QuotaClient(cluster)
        has = client.of(entity)
        removed = [key for key in dict.fromkeys(keys or has) if key in has]
        _check_keys(key for key in keys if key not in has)
        if removed:
            alter_all(client, {entity: dict.fromkeys(removed)}, validate_only=dry_run)
    line = f"{entity} has no such quota" if keys else f"{entity} has no quota"
    if removed:
        line = f"{'could remove' if dry_run else 'removed'} {', '.join(removed)} of {entity}"
    document = {"altered": bool(removed) and not dry_run, **json_entry(entity, dict.fromkeys(removed))}
    print_done(document, as_json, line)


def _check_keys(keys: Iterable[str]) -> None:
    """Refuse unknown quotas. Raises: click.UsageError for the first."""
    for key in keys:
        if enforced_key(key) not in KEYS:
            hint = did_you_mean(key, [*KEYS, *map(shadow_key, KEYS)])
            listed = ", ".join(KEYS)
            raise click.UsageError(
                f'unknown quota {key!r}: expected one of {listed}, or one with "shadow." before it{hint}'
            )


# ---------------------------------------------------------------- shadows


@quotas.group(cls=CommandGroup)
def shadow() -> None:
    """Enforce shadow quotas, or end their trial.

    A shadow quota (such as shadow.producer_byte_rate) is set, shown and removed like any other. It evaluates the
    traffic but delays nothing.
    """


def shadow_arguments(command: F) -> F:
    """Add the arguments and options of the shadow commands."""
    return decorators(
        click.argument("keys", nargs=-1, metavar="[KEY]..."),
        bootstrap_option,
        entity_options,
        click.option("--all", "of_all", is_flag=True, help="The shadow quotas of all entities."),
        dry_run_option,
        json_option,
    )(command)


@shadow.command()
@shadow_arguments
def promote(**given: Any) -> None:
    """Enforce shadow quotas of one entity, or of all, in one request.

    The enforced quota gets the limit of the shadow, which is removed. Without a KEY, all shadows of the entity
    are enforced.
    """
    _change_shadows(is_promoted=True, **given)


@shadow.command()
@shadow_arguments
def drop(**given: Any) -> None:
    """Remove shadow quotas of one entity, or of all, in one request.

    Enforced quotas stay as they are.
    """
    _change_shadows(is_promoted=False, **given)


def _change_shadows(
    is_promoted: bool,
    keys: tuple[str, ...],
    bootstrap_server: str,
    names: Names,
    of_all: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    if of_all == bool(names):
        raise click.UsageError("expected one entity, such as --user NAME, or --all")
    _check_keys(keys)
    entity = None if of_all else _entity(names)
    with _client(bootstrap_server) as (client, brokers):
        change = client.promote_shadows if is_promoted else client.drop_shadows
        done = change(entity, keys, validate_only=dry_run)
        if done.differences or as_json:
            print_differences(done.made, brokers, as_json)
        elif entity is None:
            click.echo(f"no entity has {'such ' if keys else ''}a shadow quota")
        else:
            click.echo(printable(f"{entity} has no {'such ' if keys else ''}shadow quota"))
    done.check()  # the other entities were changed


# ---------------------------------------------------------------- files


file_argument = file_and_prune("Remove the quotas of entities that the file does not name.")


@quotas.command()
@file_argument
@exit_code_option
@json_option
def diff(path: Path, bootstrap_server: str, prune: bool, exit_code: bool, as_json: bool) -> int:
    """Show what `kbroker quotas apply` would change.

    The broker validates the changes, if this user may alter quotas.
    """
    wanted = read_quota_file(path)
    with _client(bootstrap_server) as (client, brokers):
        found = client.apply(wanted, prune=prune, validate_only=True)
        refusals = {
            entity: refusal
            for entity, refusal in found.refusals.items()
            if refusal.error is not Errors.CLUSTER_AUTHORIZATION_FAILED  # the user may only describe quotas
        }
        found = found._replace(refusals=refusals)
        print_differences(found.made, brokers, as_json)
    _check_applied(found, wanted)
    return EXIT_DIFFERENT if exit_code and found.differences else 0


@quotas.command()
@file_argument
@dry_run_option
@json_option
def apply(path: Path, bootstrap_server: str, prune: bool, dry_run: bool, as_json: bool) -> None:
    """Set the quotas that a file lists, all in one request.

    The file is a list of entities with their quotas, in YAML, or in JSON if its name ends in .json; null means the
    default user, client id or address. An entity loses the quotas that its entry does not list. Entities that the file
    does not name stay as they are, unless --prune.

    \b
    - entity: {user: alice, client-id: null}
      quotas: {producer_byte_rate: 1 MiB/s}
    """
    wanted = read_quota_file(path)
    with _client(bootstrap_server) as (client, brokers):
        done = client.apply(wanted, prune=prune, validate_only=dry_run)
        print_differences(done.made, brokers, as_json)
    _check_applied(done, wanted)


def _check_applied(done: Applied, wanted: DesiredQuotas) -> None:
    """Raise the KafkaError of the first refused entity, if any, with its place in the file; the others were changed."""
    others = len(done.refusals) - 1
    more = f" (and {others} more {'entity' if others == 1 else 'entities'})" if others > 0 else ""
    for entity, refusal in done.refusals.items():
        raise KafkaError(refusal.error, f"{wanted.place_of(entity, refusal.message)}{refusal.message}{more}")
