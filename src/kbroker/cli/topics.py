"""`kbroker topics`: list, describe, create, alter, export and delete, on any Kafka."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from kbroker.cli.name_completion import topic_names
from kbroker.cli.options import CommandGroup, T, bootstrap_option, connect, dry_run_option, json_option, key_values
from kbroker.cli.output import fields, json_rows, note, print_deleted, print_json, print_rows, print_table
from kbroker.client.admin import EARLIEST, Admin, MutationThrottledError, NewTopic, own_configs
from kbroker.common.configs.config_resource import ConfigOperation, ConfigResourceType
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.printable import printable
from kbroker.log.checkpoints import uuid_to_text

SHORTEST_WAIT_MS = 100

wait_option = click.option("--wait", is_flag=True, help="When the controller mutation quota refuses, wait and retry.")


def patiently(wait: bool, sleep: Callable[[float], None], change: Callable[[], T]) -> T:
    """Make a change; with `wait`, repeat it while the controller mutation quota refuses it."""
    while True:
        try:
            return change()
        except MutationThrottledError as refusal:
            if not wait:
                raise
            wait_s = max(refusal.throttle_time_ms, SHORTEST_WAIT_MS) / 1000
            note(f"waiting {wait_s:.1f} s for the controller mutation quota")
            sleep(wait_s)


@click.group(cls=CommandGroup)
def topics() -> None:
    """List, describe, create, alter, export and delete topics."""


@topics.command("list")
@bootstrap_option
@click.option("--internal", is_flag=True, help="Include internal topics.")
@json_option
def list_topics(bootstrap_server: str, internal: bool, as_json: bool) -> None:
    """List topics by name."""
    with connect(bootstrap_server) as cluster:
        found = [t for t in Admin(cluster).describe_topics() if internal or not t.is_internal]
    rows = [
        {
            "name": t.name,
            "partitions": len(t.partitions),
            "replication_factor": max((len(p.replicas) for p in t.partitions), default=0),
        }
        for t in found
    ]
    print_rows(["TOPIC", "PARTITIONS", "REPLICAS"], rows, as_json)


@topics.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...", shell_complete=topic_names)
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap_server: str, as_json: bool) -> None:
    """Show partitions, offsets and changed configs of topics.

    Without TOPIC, shows all topics.
    """
    with connect(bootstrap_server) as cluster:
        found = _describe(cluster, names)
    if as_json:
        print_json(found)
        return
    for number, topic in enumerate(found):
        if number:
            click.echo()
        configs = " ".join(f"{name}={value}" for name, value in topic["configs"].items()) or "-"
        click.echo(printable(f"{topic['name']}  id {topic['id'] or '-'}  configs {configs}"))
        columns = ["partition", "leader", "leader_epoch", "replicas", "isr", "start_offset", "end_offset"]
        header = ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"]
        print_table(header, [[p[c] for c in columns] for p in topic["partitions"]])


def _describe(cluster: Any, names: tuple[str, ...]) -> list[dict[str, Any]]:
    admin = Admin(cluster)
    described = admin.describe_topics(names or None)
    led = [(t.name, p.partition) for t in described for p in t.partitions if p.leader >= 0]
    starts, ends = admin.offsets_at(led, EARLIEST), admin.offsets_at(led)
    found = []
    for t in described:
        partitions = [
            {
                "partition": p.partition,
                "leader": p.leader if p.leader >= 0 else None,
                **fields(p, "leader_epoch replicas isr"),
                "start_offset": starts.get((t.name, p.partition)),
                "end_offset": ends.get((t.name, p.partition)),
            }
            for p in t.partitions
        ]
        configs = own_configs(admin.describe_configs(ConfigResourceType.TOPIC, t.name))
        found.append(
            {
                "name": t.name,
                "id": uuid_to_text(t.topic_id) if t.topic_id else None,
                "is_internal": t.is_internal,
                "configs": configs,
                "partitions": partitions,
            }
        )
    return found


@topics.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...", shell_complete=topic_names)
@bootstrap_option
@json_option
def export(names: tuple[str, ...], bootstrap_server: str, as_json: bool) -> None:
    """Print topics with their partitions and configs as YAML.

    `create --from` and `kbroker cluster apply` read the output. Without TOPIC, prints all topics but internal ones;
    `kbroker cluster export` prints ACLs, quotas and users too.
    """
    from kbroker.cli.cluster import print_content
    from kbroker.client.cluster_file import TOPICS

    print_content(bootstrap_server, [TOPICS], names or None, as_json)


@topics.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@bootstrap_option
@click.option(
    "--from",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.yaml",
    help="Create the topics that this file lists, as `export` prints them.",
)
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(min=1),
    help="Number of partitions.  [default: the broker's num.partitions]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="Number of replicas.  [default: the broker's default.replication.factor]",
)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a topic config. Repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do not fail for a topic that exists; it stays as it is.")
@wait_option
@json_option
def create(
    names: tuple[str, ...],
    bootstrap_server: str,
    path: Path | None,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Create topics, by name or from a file.

    With --from, the options --partitions, --replication-factor and --config apply to topics of the file that omit them.
    The exit status is 75 when the controller mutation quota refuses a topic and --wait was not given.
    """
    from kbroker.cli.configs import corrections
    from kbroker.common.units import counted

    settings = key_values(configs, "--config")
    wanted = [NewTopic(name, partitions or -1, replication_factor or -1, settings) for name in names]
    if path is not None:
        wanted += _of_file(path, partitions or -1, replication_factor or -1, settings)
    elif not names:
        raise click.UsageError("expected TOPIC or --from, got neither")
    with json_rows(as_json) as rows, connect(bootstrap_server) as cluster:
        admin = Admin(cluster)
        for topic in wanted:  # one by one: each is reported before the next can fail
            name = topic.name
            try:
                with corrections("topic", topic.configs):
                    (made,) = patiently(wait, cluster.sleep, partial(admin.create_topics, [topic]))
            except KafkaError as failure:
                if not (if_not_exists and failure.error is Errors.TOPIC_ALREADY_EXISTS):
                    raise
                rows.append({"name": name, "created": False})
                text = f"{name} exists"
            else:
                topic_id = uuid_to_text(made.topic_id) if made.topic_id else None
                count = made.partitions if made.partitions > 0 else None
                rows.append({"name": name, "created": True, "partitions": count, "id": topic_id})
                text = f"created {name}" + (f" with {counted(count, 'partition')}" if count else "")
            if not as_json:
                click.echo(text)


def _of_file(path: Path, partitions: int, replication_factor: int, configs: dict[str, str]) -> list[NewTopic]:
    """Return the topics of a file, with the given values in place of those that it leaves out."""
    from kbroker.client.cluster_file import read_cluster_file

    listed = read_cluster_file(path).topics
    if listed is None:
        raise click.BadParameter(f"{path}: expected a section topics, found none", param_hint="--from")
    return [
        NewTopic(
            one.name,
            one.partitions or partitions,
            one.replication_factor or replication_factor,
            {**configs, **one.configs},
        )
        for one in listed.values()
    ]


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=topic_names)
@bootstrap_option
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="New number of partitions, more than now.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a topic config. Repeatable.")
@click.option(
    "--delete-config", "deletes", multiple=True, metavar="NAME", help="Reset a config to its default. Repeatable."
)
@dry_run_option
@wait_option
@json_option
def alter(
    names: tuple[str, ...],
    bootstrap_server: str,
    partitions: int | None,
    configs: tuple[str, ...],
    deletes: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Add partitions to topics, or change their configs.

    Configs that are not named stay as they are.
    """
    from kbroker.cli.configs import changes, corrections

    wanted = changes({ConfigOperation.SET: key_values(configs, "--config")}, deletes)
    if partitions is None and not wanted:
        raise click.UsageError("expected at least one of --partitions, --config and --delete-config")
    with json_rows(as_json) as rows, connect(bootstrap_server) as cluster:
        admin = Admin(cluster)
        for name in names:
            if wanted:
                with corrections("topic", [change.name for change in wanted]):
                    admin.alter_configs(ConfigResourceType.TOPIC, name, wanted, validate_only=dry_run)
            if partitions is not None:
                grow = partial(admin.create_partitions, name, partitions, validate_only=dry_run)
                patiently(wait, cluster.sleep, grow)
            rows.append({"name": name, "altered": not dry_run, "partitions": partitions})
            if not as_json:
                click.echo(f"{'could alter' if dry_run else 'altered'} {name}")


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=topic_names)
@bootstrap_option
@click.option("--if-exists", is_flag=True, help="Do not fail for a topic that does not exist.")
@wait_option
@json_option
def delete(names: tuple[str, ...], bootstrap_server: str, if_exists: bool, wait: bool, as_json: bool) -> None:
    """Delete topics with all their data, without confirmation."""
    with connect(bootstrap_server) as cluster:
        admin = Admin(cluster)
        missing = Errors.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None

        def delete_one(name: str) -> None:
            patiently(wait, cluster.sleep, partial(admin.delete_topics, [name]))

        print_deleted("name", names, delete_one, missing, as_json=as_json)
