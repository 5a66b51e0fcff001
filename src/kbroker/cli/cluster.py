"""`kbroker cluster`: description of a cluster; its topics, ACLs and quotas as a file, on any Kafka."""

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import click

from kbroker.cli.configs import corrections
from kbroker.cli.options import (
    EXIT_DIFFERENT,
    CommandGroup,
    bootstrap_option,
    connect,
    dry_run_option,
    exit_code_option,
    file_and_prune,
    json_option,
)
from kbroker.cli.output import note, print_difference, print_json, print_table
from kbroker.client.cluster_changes import Plan, plan_changes, read_cluster, unknown_acls
from kbroker.client.cluster_description import BrokerDescription, describe_cluster
from kbroker.client.cluster_file import ACLS, SECTIONS, USERS, cluster_document, read_cluster_file, yaml_text
from kbroker.client.connection import BrokerConnectionError, format_address
from kbroker.client.quorum_description import QuorumDescription
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.printable import printable
from kbroker.common.units import counted


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Describe a cluster; export, compare and apply its content."""


@cluster.command()
@bootstrap_option
@json_option
def describe(bootstrap_server: str, as_json: bool) -> None:
    """Show brokers, controllers and features of a cluster.

    LEADERS, REPLICAS and IN SYNC are numbers of partitions; METADATA LAG is the number of records of the cluster's
    metadata that a node has not fetched yet.
    """
    with connect(bootstrap_server) as connected:
        found = describe_cluster(connected)
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "controller": found.controller_id if found.controller_id >= 0 else None,
                "brokers": [_broker_document(broker) for broker in found.brokers],
                "quorum": None if found.quorum is None else asdict(found.quorum),
                "features": [asdict(feature) for feature in found.features],
            }
        )
        return
    click.echo(f"cluster {found.cluster_id or '-'}")
    rows = [
        [
            one.node.node_id,
            format_address(one.node.address),
            one.node.rack,
            "fenced" if one.is_fenced else "active",
            one.leaders,
            one.replicas,
            one.in_sync,
            one.metadata_lag,
        ]
        for one in found.brokers
    ]
    print_table(["BROKER", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS", "IN SYNC", "METADATA LAG"], rows)
    if found.quorum is None:
        click.echo(f"controller {found.controller_id if found.controller_id >= 0 else '-'}")
    else:
        _show_quorum(found.quorum)
    if found.features:
        click.echo()
        features = [
            [feature.name, feature.finalized_level, f"{feature.min_supported_level}-{feature.max_supported_level}"]
            for feature in found.features
        ]
        print_table(["FEATURE", "LEVEL", "SUPPORTED"], features)


def _broker_document(broker: BrokerDescription) -> dict[str, object]:
    values = asdict(broker)
    return {**values.pop("node"), **values}


def _show_quorum(quorum: QuorumDescription) -> None:
    click.echo()
    rows = [
        [one.node_id, "leader" if one.node_id == quorum.leader_id else "follower", one.log_end_offset, one.lag]
        for one in quorum.voters
    ]
    print_table(["CONTROLLER", "ROLE", "LOG END", "METADATA LAG"], rows)
    click.echo(f"leader epoch {quorum.leader_epoch}, high watermark {quorum.high_watermark}")


# ---------------------------------------------------------------- the content of a cluster as a file


@cluster.command()
@bootstrap_option
@click.option("--only", "sections", multiple=True, type=click.Choice(SECTIONS), help="Only this section. Repeatable.")
@json_option
def export(bootstrap_server: str, sections: tuple[str, ...], as_json: bool) -> None:
    """Print topics, ACLs, quotas and the names of users as YAML.

    `kbroker cluster diff` and `apply` read the output, and a file named .json for that of --json. The output has the
    configs that were set for topics, but no passwords, and no internal topics.
    """
    print_content(bootstrap_server, sections or SECTIONS, None, as_json)


def print_content(
    bootstrap_server: str, sections: Collection[str], topics: Iterable[str] | None, as_json: bool
) -> None:
    """Print sections of a cluster. Args: ``topics``: only these, which must exist; None: all.

    Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION.
    """
    with connect(bootstrap_server) as connected:
        found = read_cluster(connected, sections, topics)
    if topics is not None:
        known = found.topics or {}
        for name in topics:
            if name not in known:
                raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"expected topics that exist, got {name!r}")
        found = found._replace(topics={name: known[name] for name in topics})
    if ACLS in sections and found.acls is None:
        note("this cluster has no authorizer, so the section acls is left out")
    if found.unknown_acls:
        click.echo(f"note: {unknown_acls(found.unknown_acls)}", err=True)
    if USERS in sections and found.users is None:
        note("this cluster stores no SCRAM credentials, so the section users is left out")
    document = cluster_document(found)
    if as_json:
        print_json(document)
    else:
        click.echo(yaml_text(document), nl=False)


file_argument = file_and_prune("Remove the contents of the cluster that the file does not list.")


@cluster.command()
@file_argument
@exit_code_option
@json_option
def diff(path: Path, bootstrap_server: str, prune: bool, exit_code: bool, as_json: bool) -> int:
    """Show what `kbroker cluster apply` would change.

    The broker validates topics, configs and quotas, if this user may alter them.
    """
    wanted = read_cluster_file(path)
    with connect(bootstrap_server) as connected:
        plan = plan_changes(connected, wanted, prune=prune)
        with _corrections(plan):
            plan.check(is_patient=True)
    _show(plan, as_json)
    return EXIT_DIFFERENT if exit_code and plan.steps else 0


@cluster.command()
@file_argument
@dry_run_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of removals.")
@json_option
def apply(path: Path, bootstrap_server: str, prune: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Give a cluster the topics, ACLs and quotas of a file.

    The command shows the difference, lets the broker validate it, and then makes only these changes: topics,
    partitions, configs, ACLs, quotas. It removes nothing without --prune; with it, the sections that the file leaves
    out stay as they are. Users are compared only: a file has no passwords.

    \b
    topics:
      - {name: orders, partitions: 6, configs: {retention.ms: 86400000}}
    acls:
      - {principal: User:alice, operation: Read, resource: Topic, name: orders}
    quotas:
      - {entity: {user: alice}, quotas: {producer_byte_rate: 1 MiB/s}}
    users:
      - {user: alice, mechanism: SCRAM-SHA-512}
    """
    wanted = read_cluster_file(path)
    with connect(bootstrap_server) as connected:
        plan = plan_changes(connected, wanted, prune=prune)
        with _corrections(plan):
            plan.check()
        if not as_json:
            _show(plan, False)
        removals = plan.removals
        if removals and not yes and not dry_run:
            if as_json:
                raise click.UsageError(f"expected --yes beside --json for {counted(len(removals), 'removal')}")
            click.confirm(f"Make these changes, with {counted(len(removals), 'removal')}?", abort=True, err=True)
        if not dry_run:
            _apply(plan)
    if as_json:
        _show(plan, True, applied=not dry_run)
    elif plan.steps:
        click.echo(f"{'could make' if dry_run else 'made'} {counted(len(plan.changes), 'change')}")


def _corrections(plan: Plan) -> AbstractContextManager[None]:
    return corrections("topic", [c.key for c in plan.changes if c.kind == "config" and c.after is not None])


def _apply(plan: Plan) -> None:
    done = 0
    try:
        for step in plan.apply():
            done += len(step.changes)
    except (KafkaError, BrokerConnectionError) as failure:
        text = f"{failure.message} ({done} of {counted(len(plan.changes), 'change')} were made)"
        if isinstance(failure, KafkaError):
            raise KafkaError(failure.error, text) from failure
        raise BrokerConnectionError(failure.address, text) from failure


def _show(plan: Plan, as_json: bool, **fields: bool) -> None:
    """Print a plan, with its notes on stderr."""
    if as_json:
        print_json({**fields, "changes": [change._asdict() for change in plan.changes], "notes": [*plan.notes]})
        return
    for change in plan.changes:
        if change.kind == "acl":  # the name of a rule already includes the permission
            texts = [None if text is None else "" for text in (change.before, change.after)]
            print_difference(f"acl {change.name}", *texts)
        else:
            kind = "topic" if change.kind == "config" else change.kind
            key = f" {change.key}" if change.key else ""
            print_difference(f"{kind} {change.name}:{key}", change.before, change.after)
    for text in plan.notes:
        click.echo(printable(f"note: {text}"), err=True)
    if not plan.steps:
        click.echo("nothing to change")
