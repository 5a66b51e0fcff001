"""Kafka's command line tools that scripts in containers run, with their most used options, over kbroker's client.

Any other option is an error that names it. Output is Kafka's for ``kafka-topics``, ``kafka-broker-api-versions`` (the
first line of each broker) and ``kafka-storage``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kbroker.cli import OneLineErrors
from kbroker.cli.options import COMMAND_CONFIG, connect, decorators, key_values

TOOLS: dict[str, click.Command] = {}
_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


class KafkaTools(OneLineErrors):
    """The tools by their names, without ``.sh``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return sorted(TOOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the tool of that name; None if there is no such tool."""
        return TOOLS.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of tools."""
        click.Group.format_commands(self, ctx, formatter)


kafka_tools = KafkaTools("kafka-tools")


def _tool(name: str, *options: Callable[[Any], Any], config: str = "--command-config") -> Callable[[Any], Any]:
    """Register a function as a tool. Args: ``config``: the option of the client's properties file."""

    def register(function: Callable[..., None]) -> click.Command:
        servers = click.option("--bootstrap-server", "--broker-list", "servers", required=True, metavar="HOST:PORT")
        security = click.option(*{"--command-config", config}, "command_config", type=_PATH)
        command = click.command(name)(decorators(servers, security, *options)(function))
        TOOLS[name] = command
        return command

    return register


def _connected(servers: str, command_config: Path | None) -> Any:
    click.get_current_context().meta[COMMAND_CONFIG] = command_config
    return connect(servers)


@_tool(
    "kafka-topics",
    click.option("--list", "action", flag_value="list", help="List all topics."),
    click.option("--create", "action", flag_value="create", help="Create a topic."),
    click.option("--delete", "action", flag_value="delete", help="Delete a topic."),
    click.option("--describe", "action", flag_value="describe", help="Show topics and their partitions."),
    click.option("--alter", "action", flag_value="alter", help="Add partitions to a topic."),
    click.option("--topic", metavar="NAME"),
    click.option("--partitions", type=click.IntRange(min=1)),
    click.option("--replication-factor", type=click.IntRange(1, 32767)),
    click.option("--config", "configs", multiple=True, metavar="NAME=VALUE"),
    click.option("--if-not-exists", is_flag=True),
    click.option("--if-exists", is_flag=True),
    click.option("--exclude-internal", is_flag=True),
)
def _topics(
    servers: str,
    command_config: Path | None,
    action: str | None,
    topic: str | None,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    if_exists: bool,
    exclude_internal: bool,
) -> None:
    """List, create, delete, describe and grow topics."""
    from kbroker.client.admin import Admin, NewTopic
    from kbroker.common.errors import Errors, ignoring

    if action is None:
        raise click.UsageError("expected one of --list, --create, --delete, --describe and --alter")
    if topic is None and action not in ("list", "describe"):
        raise click.UsageError(f"--{action} needs --topic NAME")
    expected = [Errors.TOPIC_ALREADY_EXISTS] if if_not_exists else []
    expected += [Errors.UNKNOWN_TOPIC_OR_PARTITION] if if_exists else []
    with _connected(servers, command_config) as cluster:
        admin = Admin(cluster)
        with ignoring(*expected):
            if action == "list":
                found = admin.describe_topics()
                names = [t.name for t in found if not (exclude_internal and t.is_internal)]
                click.echo("".join(f"{name}\n" for name in sorted(names) if topic in (None, name)), nl=False)
            elif action == "describe":
                for one in admin.describe_topics(None if topic is None else [topic]):
                    click.echo(_description(admin, one))
            elif topic is not None and action == "create":
                settings = key_values(configs, "--config")
                admin.create_topics([NewTopic(topic, partitions or -1, replication_factor or -1, settings)])
                click.echo(f"Created topic {topic}.")
            elif topic is not None and action == "delete":
                admin.delete_topics([topic])
            elif topic is not None and partitions is not None:
                admin.create_partitions(topic, partitions)
            else:
                raise click.UsageError("--alter needs --partitions N")


def _description(admin: Any, topic: Any) -> str:
    """Return a topic as ``kafka-topics --describe`` prints it."""
    from kbroker.client.admin import own_configs
    from kbroker.common.configs.config_resource import ConfigResourceType
    from kbroker.log.checkpoints import uuid_to_text

    own = own_configs(admin.describe_configs(ConfigResourceType.TOPIC, topic.name))
    changed = [f"{name}={value}" for name, value in own.items()]
    replicas = max((len(p.replicas) for p in topic.partitions), default=0)
    topic_id = "" if topic.topic_id is None else f"\tTopicId: {uuid_to_text(topic.topic_id)}"  # before Kafka 2.8
    head = (
        f"Topic: {topic.name}{topic_id}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {replicas}\tConfigs: {','.join(changed)}"
    )
    rows = [
        f"\tTopic: {topic.name}\tPartition: {p.partition}\tLeader: {p.leader if p.leader >= 0 else 'none'}"
        f"\tReplicas: {','.join(map(str, p.replicas))}\tIsr: {','.join(map(str, p.isr))}\tElr: \tLastKnownElr: "
        for p in topic.partitions
    ]
    return "\n".join([head, *rows])


@_tool("kafka-broker-api-versions")
def _api_versions(servers: str, command_config: Path | None) -> None:
    """Print a line for each broker, to show that it responds."""
    with _connected(servers, command_config) as cluster:
        from kbroker.client.cluster_description import describe_cluster

        for one in describe_cluster(cluster, has_quorum=False).brokers:
            node, is_fenced = one.node, str(one.is_fenced).lower()
            click.echo(
                f"{node.host}:{node.port} (id: {node.node_id} rack: {node.rack or 'null'} isFenced: {is_fenced})"
            )


_PROPERTY = click.option("--property", "properties", multiple=True, metavar="NAME=VALUE")


@_tool(
    "kafka-console-producer",
    click.option("--topic", required=True, metavar="NAME"),
    _PROPERTY,
    click.option("--reader-property", "properties", multiple=True, metavar="NAME=VALUE"),
    click.option("--request-required-acks", "acks", type=click.Choice(["0", "1", "all", "-1"]), default="all"),
    click.option("--timeout", hidden=True, expose_value=False),
    click.option("--sync", is_flag=True, hidden=True, expose_value=False),
    config="--producer.config",
)
def _producer(servers: str, command_config: Path | None, topic: str, properties: tuple[str, ...], acks: str) -> None:
    """Send each line of standard input to a topic."""
    from kbroker.cli.produce import produce

    wanted = _known(properties, "parse.key", "key.separator", "null.marker")
    words = [topic, "--acks", acks, *_common(servers, command_config)]
    if wanted.get("parse.key", "").lower() == "true":
        words += ["--key-separator", wanted.get("key.separator", "\t")]
    if "null.marker" in wanted:
        words += ["--null-value", wanted["null.marker"]]
    with contextlib.redirect_stdout(io.StringIO()):  # Kafka's tool prints nothing
        produce.main(words, prog_name="kafka-console-producer", standalone_mode=False)


@_tool(
    "kafka-console-consumer",
    click.option("--topic", required=True, metavar="NAME"),
    click.option("--from-beginning", is_flag=True),
    click.option("--max-messages", metavar="N"),
    click.option("--timeout-ms", type=click.IntRange(min=0)),
    click.option("--group", metavar="ID"),
    click.option("--partition", metavar="N"),
    click.option("--isolation-level", type=click.Choice(["read_committed", "read_uncommitted"])),
    _PROPERTY,
    click.option("--formatter-property", "properties", multiple=True, metavar="NAME=VALUE"),
    config="--consumer.config",
)
def _consumer(
    servers: str,
    command_config: Path | None,
    topic: str,
    from_beginning: bool,
    max_messages: str | None,
    timeout_ms: int | None,
    group: str | None,
    partition: str | None,
    isolation_level: str | None,
    properties: tuple[str, ...],
) -> None:
    """Print the records of a topic."""
    from kbroker.cli.consume import consume

    wanted = _known(properties, "print.key", "key.separator", "print.value")
    words = [topic, *_common(servers, command_config)]
    words += ["--from-beginning"] * from_beginning
    words += ["--read-committed"] * (isolation_level == "read_committed")
    for option, value in (("--max-messages", max_messages), ("--group", group), ("--partition", partition)):
        words += [option, value] if value is not None else []
    if timeout_ms is not None:
        words += ["--timeout", str(timeout_ms / 1000)]
    if wanted.get("print.value", "true").lower() != "true":
        raise click.BadParameter(
            "expected print.value=true: records are printed with their values", param_hint="--property"
        )
    if wanted.get("print.key", "").lower() == "true":
        words += ["--format", "key-value", "--key-separator", wanted.get("key.separator", "\t")]
    consume.main(words, prog_name="kafka-console-consumer", standalone_mode=False)


def _known(words: tuple[str, ...], *names: str) -> dict[str, str]:
    """Return the values of ``NAME=VALUE`` words by name, spaces included. Raises: BadParameter for an unknown name."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            raise click.BadParameter(f"expected {'=, '.join(names)}=, got {word!r}", param_hint="--property")
        found[name] = value
    return found


def _common(servers: str, command_config: Path | None) -> list[str]:
    words = ["--bootstrap-server", servers]
    return words if command_config is None else [*words, "--command-config", str(command_config)]


def _storage(words: tuple[str, ...]) -> None:
    """Format and describe log folders; make ids."""
    import tempfile

    from kbroker.cli.storage import storage
    from kbroker.container.stores import without_types

    # Kafka's parser takes -t=ID as well
    joined = ("-t", "-c", "--config=")
    split = [part for word in words for part in (word.split("=", 1) if word.startswith(joined) else [word])]
    with tempfile.NamedTemporaryFile("w", suffix=".properties", encoding="utf-8") as copy:
        at = next((number for number, word in enumerate(split[:-1]) if word in ("-c", "--config")), None)
        if at is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):  # the tool reports an unreadable file
                copy.write(without_types(Path(split[at + 1]).read_text(encoding="utf-8")))
                copy.flush()
                split[at + 1] = copy.name
        storage.main(split, prog_name="kafka-storage", standalone_mode=False)


TOOLS["kafka-storage"] = click.Command(
    "kafka-storage",
    callback=_storage,
    params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
