"""`kbroker configs`: show and change configs of topics, brokers, groups and client metrics, on any Kafka."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from kbroker.cli.options import CommandGroup, bootstrap_option, connect, dry_run_option, json_option, key_values
from kbroker.cli.output import fields, json_rows, print_json, print_table
from kbroker.client.admin import Admin
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation, ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.printable import printable

RESOURCES = {
    "topic": ConfigResourceType.TOPIC,
    "broker": ConfigResourceType.BROKER,
    "broker-logger": ConfigResourceType.BROKER_LOGGER,
    "group": ConfigResourceType.GROUP,
    "client-metrics": ConfigResourceType.CLIENT_METRICS,
}
KINDS = tuple(RESOURCES)
NODES = ("broker", "broker-logger")
ALL_BROKERS = "default"
NOT_SET_HERE = ("DEFAULT_CONFIG", "STATIC_BROKER_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG")


@click.group(cls=CommandGroup)
def configs() -> None:
    """Show and change configs of topics, brokers and groups."""


@configs.command()
@click.argument("kind", type=click.Choice(KINDS), metavar="topic|broker|broker-logger|group|client-metrics")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@bootstrap_option
@click.option("--key", "keys", multiple=True, metavar="NAME", help="Show only this config. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="Include inherited and default values.")
@json_option
def describe(
    kind: str, names: tuple[str, ...], bootstrap_server: str, keys: tuple[str, ...], everything: bool, as_json: bool
) -> None:
    """Show configs that were set at run time.

    The NAME of a broker is its node id; `default` shows the values for all brokers. Without NAME, shows all topics,
    brokers and client metrics, or the groups that have configs.
    """
    resources = [(name, *_resource(kind, name)) for name in names]
    found: list[dict[str, Any]] = []
    with connect(bootstrap_server) as cluster:
        if not names:
            resources = [
                (name, RESOURCES[kind], name) for name in Admin(cluster).list_config_resources(RESOURCES[kind])
            ]
        for shown, kind_code, name in resources:
            entries = Admin(cluster).describe_configs(kind_code, name, keys or None, include_synonyms=True)
            rows = [
                {
                    **fields(e, "name value"),
                    "source": e.source.name,
                    "is_read_only": e.read_only,
                    "is_sensitive": e.is_sensitive,
                    "synonyms": [{"name": s.name, "value": s.value, "source": s.source.name} for s in e.synonyms],
                }
                for e in entries
                if everything or keys or _is_set_here(kind, name, e.source.name)
            ]
            found.append({"type": kind, "name": shown, "configs": rows})
    absent = sorted(set(keys).difference(config["name"] for one in found for config in one["configs"]))
    hints = _hints(kind, absent)
    for key in absent:
        click.echo(f"found no config {key}{hints.get(key, '')}", err=True)
    if as_json:
        print_json(found)
        return
    for number, one in enumerate(found):
        if number:
            click.echo()
        click.echo(printable(f"{one['type']} {one['name']}"))
        cells = [[c["name"], _shown(c), c["source"]] for c in one["configs"]]
        print_table(["NAME", "VALUE", "SOURCE"], cells)


def _shown(config: dict[str, Any]) -> str | None:
    if config["is_sensitive"]:
        return "(hidden)"
    return '""' if config["value"] == "" else config["value"]


def _is_set_here(kind: str, name: str, source: str) -> bool:
    if kind == "broker":
        return source == ("DYNAMIC_BROKER_CONFIG" if name else "DYNAMIC_DEFAULT_BROKER_CONFIG")
    return source not in NOT_SET_HERE


@configs.command()
@click.argument("kind", type=click.Choice(KINDS), metavar="topic|broker|broker-logger|group|client-metrics")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@bootstrap_option
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a config. Repeatable.")
@click.option("--delete", "deletes", multiple=True, metavar="NAME", help="Reset a config to its default. Repeatable.")
@click.option("--append", "appends", multiple=True, metavar="NAME=VALUE", help="Add a value to a list. Repeatable.")
@click.option(
    "--subtract", "subtracts", multiple=True, metavar="NAME=VALUE", help="Remove a value from a list. Repeatable."
)
@dry_run_option
@json_option
def alter(
    kind: str,
    names: tuple[str, ...],
    bootstrap_server: str,
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    appends: tuple[str, ...],
    subtracts: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change configs at run time.

    The NAME of a broker is its node id; `default` means all brokers. Configs that are not named stay as they are. For
    each NAME, either all changes are made or none.
    """
    values = {
        ConfigOperation.SET: key_values(sets, "--set"),
        ConfigOperation.APPEND: key_values(appends, "--append"),
        ConfigOperation.SUBTRACT: key_values(subtracts, "--subtract"),
    }
    wanted = changes(values, deletes)
    if not wanted:
        raise click.UsageError("expected at least one of --set, --delete, --append and --subtract")
    resources = [(name, *_resource(kind, name)) for name in names]
    with json_rows(as_json) as rows, connect(bootstrap_server) as cluster:
        for shown, kind_code, name in resources:
            with corrections(kind, [change.name for change in wanted]):
                Admin(cluster).alter_configs(kind_code, name, wanted, validate_only=dry_run)
            rows.append({"type": kind, "name": shown, "altered": not dry_run})
            if not as_json:
                click.echo(printable(f"{'could alter' if dry_run else 'altered'} {kind} {shown}"))


@contextmanager
def corrections(kind: str, names: Iterable[str]) -> Iterator[None]:
    """Add the likely name to the error of a misspelled config, or print it where the broker has accepted the config."""
    found = _hints(kind, names)
    try:
        yield
    except KafkaError as failure:
        hint = next((text for name, text in found.items() if name in failure.message), None)
        if hint is None or failure.error is not Errors.INVALID_CONFIG:
            raise
        raise KafkaError(failure.error, failure.message.rstrip(".") + hint) from failure
    for name, hint in found.items():
        click.echo(f"{name} is not a known config and has no effect{hint}", err=True)


def _hints(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Return the text to append to a message about each misspelled name."""
    from kbroker.common.configs.config import TOPIC_TABLE, misspelled_key
    from kbroker.common.similar_names import misspelled_name

    meant = {}
    for name in names:
        if kind == "topic":
            meant[name] = None if name in TOPIC_TABLE else misspelled_name(name, TOPIC_TABLE)
        elif kind == "broker":
            meant[name] = misspelled_key(name)
    return {name: f"; did you mean {known}?" for name, known in meant.items() if known is not None}


def changes(values: dict[ConfigOperation, dict[str, str]], deletes: tuple[str, ...]) -> list[ConfigChange]:
    """Return the changes of configs by operation, and their deletions; at most one for each. Raises: UsageError."""
    found = [ConfigChange(name, op, value) for op, some in values.items() for name, value in some.items()]
    found += [ConfigChange(name, ConfigOperation.DELETE) for name in dict.fromkeys(deletes)]
    seen = [change.name for change in found]
    for name in seen:
        if seen.count(name) > 1:
            raise click.UsageError(f"duplicate change of {name}: give each config once")
    return found


def _resource(kind: str, name: str) -> "tuple[ConfigResourceType, str]":
    if kind not in NODES:
        return RESOURCES[kind], name
    if kind == "broker" and name == ALL_BROKERS:
        return ConfigResourceType.BROKER, ""
    if not (name.isascii() and name.isdigit()):
        also = f" or {ALL_BROKERS}" if kind == "broker" else ""
        raise click.BadParameter(f"expected a node id{also}, got {name!r}", param_hint="NAME")
    return RESOURCES[kind], name
