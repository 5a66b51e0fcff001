"""`kbroker configs`: show and change settings of topics and brokers, on any Kafka."""

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import bootstrap_option, connect, json_option, key_values
from kbroker.cli.output import print_json, print_table

if TYPE_CHECKING:
    from kbroker.client.admin import ConfigChange, ResourceType

KINDS = ("topic", "broker", "broker-logger")
ALL_BROKERS = "default"
NOT_SET_HERE = ("DEFAULT_CONFIG", "STATIC_BROKER_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG")


@click.group()
def configs() -> None:
    """Show and change settings of topics and brokers."""


@configs.command()
@click.argument("kind", type=click.Choice(KINDS), metavar="topic|broker|broker-logger")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@bootstrap_option
@click.option("--key", "keys", multiple=True, metavar="NAME", help="Only this setting. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="Those too that were set elsewhere or nowhere.")
@json_option
def describe(
    kind: str, names: tuple[str, ...], bootstrap_server: str, keys: tuple[str, ...], everything: bool, as_json: bool
) -> None:
    """Show what was set on topics or brokers at run time.

    Brokers are named by node id; `default` stands for what was set for all of them.
    """
    from kbroker.client.admin import Admin

    resource = [(name, *_resource(kind, name)) for name in names]
    found: list[dict[str, Any]] = []
    with connect(bootstrap_server) as cluster:
        for shown, kind_code, name in resource:
            entries = Admin(cluster).describe_configs(kind_code, name, keys or None, include_synonyms=True)
            rows = [
                {
                    "name": e.name,
                    "value": e.value,
                    "source": e.source.name,
                    "is_read_only": e.read_only,
                    "is_sensitive": e.is_sensitive,
                    "synonyms": [{"name": s.name, "value": s.value, "source": s.source.name} for s in e.synonyms],
                }
                for e in entries
                if everything or keys or _is_set_here(kind, name, e.source.name)
            ]
            found.append({"type": kind, "name": shown, "configs": rows})
    if as_json:
        print_json(found)
        return
    for number, one in enumerate(found):
        if number:
            click.echo()
        click.echo(f"{one['type']} {one['name']}")
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
@click.argument("kind", type=click.Choice(KINDS), metavar="topic|broker|broker-logger")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@bootstrap_option
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Give a setting a value. Repeatable.")
@click.option("--delete", "deletes", multiple=True, metavar="NAME", help="Back to the default. Repeatable.")
@click.option("--append", "appends", multiple=True, metavar="NAME=VALUE", help="Add to a list. Repeatable.")
@click.option("--subtract", "subtracts", multiple=True, metavar="NAME=VALUE", help="Take from a list. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Only let the broker check it.")
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
    """Change settings of topics or brokers at run time.

    Brokers are named by node id, all of them by `default`. Other settings stay as they are. What is
    changed for one name is changed whole or not at all.
    """
    from kbroker.client.admin import Admin

    wanted = changes(
        {"--set": key_values(sets, "--set"), "--append": key_values(appends, "--append"),
         "--subtract": key_values(subtracts, "--subtract")},
        deletes,
    )  # fmt: skip
    if not wanted:
        raise click.UsageError("nothing to do: give --set, --delete, --append or --subtract")
    resources = [(name, *_resource(kind, name)) for name in names]
    rows = []
    with connect(bootstrap_server) as cluster:
        for shown, kind_code, name in resources:
            Admin(cluster).alter_configs(kind_code, name, wanted, validate_only=dry_run)
            rows.append({"type": kind, "name": shown, "altered": not dry_run})
            if not as_json:
                click.echo(f"{'could alter' if dry_run else 'altered'} {kind} {shown}")
    if as_json:
        print_json(rows)


def changes(by_option: dict[str, dict[str, str]], deletes: tuple[str, ...]) -> "list[ConfigChange]":
    """The changes of `--set`, `--append`, `--subtract` and of the names to be deleted; one of a name at most."""
    from kbroker.client.admin import ConfigChange, ConfigOperation

    operations = {
        "--set": ConfigOperation.SET,
        "--append": ConfigOperation.APPEND,
        "--subtract": ConfigOperation.SUBTRACT,
    }
    found = [
        ConfigChange(name, operations[option], value)
        for option, values in by_option.items()
        for name, value in values.items()
    ]
    found += [ConfigChange(name, ConfigOperation.DELETE) for name in dict.fromkeys(deletes)]
    seen = [change.name for change in found]
    for name in seen:
        if seen.count(name) > 1:
            raise click.UsageError(f"{name} comes twice")
    return found


def _resource(kind: str, name: str) -> "tuple[ResourceType, str]":
    from kbroker.client.admin import ResourceType

    if kind == "topic":
        return ResourceType.TOPIC, name
    if kind == "broker" and name == ALL_BROKERS:
        return ResourceType.BROKER, ""
    if not (name.isascii() and name.isdigit()):
        also = f" or {ALL_BROKERS}" if kind == "broker" else ""
        raise click.BadParameter(f"expected a node id{also}, got {name!r}", param_hint="NAME")
    return (ResourceType.BROKER if kind == "broker" else ResourceType.BROKER_LOGGER), name
