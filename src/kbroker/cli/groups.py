"""`kbroker groups`: list, describe with lag, reset and delete, on any Kafka."""

from typing import Any

import click

from kbroker.cli.name_completion import group_names
from kbroker.cli.options import CommandGroup, bootstrap_option, connect, json_option
from kbroker.cli.output import fields, print_deleted, print_json, print_rows, print_table
from kbroker.cli.reset import reset
from kbroker.client.cluster import Cluster
from kbroker.client.group_lag import partition_lags
from kbroker.client.groups import (
    CLASSIC,
    CONSUMER,
    SHARE,
    STREAMS,
    WITH_OFFSETS,
    GroupDescription,
    GroupMember,
    Groups,
    Tasks,
)
from kbroker.common.errors import Errors
from kbroker.common.printable import printable
from kbroker.common.topic_names import TopicPartition

ROLES = ("active", "standby", "warmup")
TYPES = (CLASSIC, CONSUMER, SHARE, STREAMS)
STATES = (  # of all types, as Kafka's tool accepts them
    *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling", "NotReady"),
)


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe, reset and delete groups."""


groups.add_command(reset)


@groups.command("list")
@bootstrap_option
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    multiple=True,
    help="List only groups in this state, such as Stable. Repeatable.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(TYPES, case_sensitive=False),
    metavar="TYPE",
    multiple=True,
    help="List only groups of this type, such as classic. Repeatable.",
)
@json_option
def list_groups(bootstrap_server: str, states: tuple[str, ...], types: tuple[str, ...], as_json: bool) -> None:
    """List groups by name."""
    wanted_states, wanted_types = {s.lower() for s in states}, {t.lower() for t in types}
    with connect(bootstrap_server) as cluster:
        found = Groups(cluster).list_groups()
    rows = [
        {"group": g.group_id, "type": g.group_type, "protocol_type": g.protocol_type, "state": g.state or None}
        for g in found
        if (not wanted_states or g.state.lower() in wanted_states)
        and (not wanted_types or g.group_type.lower() in wanted_types)
    ]
    print_rows(["GROUP", "TYPE", "PROTOCOL", "STATE"], rows, as_json)


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=group_names)
@bootstrap_option
@click.option("--members", is_flag=True, help="Show members instead of partitions.")
@json_option
def describe(names: tuple[str, ...], bootstrap_server: str, members: bool, as_json: bool) -> None:
    """Show state, members, offsets and lag of groups.

    Without GROUP, shows all groups. In a consumer group (KIP-848), --members
    shows the epoch of each member, the protocol of the member, and its target
    assignment while that differs; in a share group (KIP-932), its epoch; in a
    streams group (KIP-1071), its process and tasks. The offset of a share
    group is the first one that is not delivered completely, and its lag does
    not count the completed records after it.
    """
    with connect(bootstrap_server) as cluster:
        found = _describe(cluster, names)
    if as_json:
        print_json(found)
        return
    for number, group in enumerate(found):
        if number:
            click.echo()
        head = (
            f"{group['group']}  state {group['state']}  type {group['type']}  assignor {group['assignor'] or '-'}  "
            f"coordinator {group['coordinator']}  members {len(group['members'])}{_epochs(group)}"
        )
        click.echo(printable(head))
        if members:
            _print_members(group)
        else:
            columns = ["topic", "partition", "offset", "end_offset", "lag", "member_id", "host", "client_id"]
            header = ["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "HOST", "CLIENT"]
            for row in group["partitions"]:
                if row.get("members", 1) > 1:
                    row["member_id"] = f"{row['members']} members"
            print_table(header, [[p[c] for c in columns] for p in group["partitions"]])


def _epochs(group: dict[str, Any]) -> str:
    return "" if group["epoch"] is None else f"  epoch {group['epoch']}  target epoch {group['target_epoch']}"


def _print_members(group: dict[str, Any]) -> None:
    if group["type"] == STREAMS:
        _print_streams_members(group)
        return
    header = ["MEMBER", "INSTANCE", "HOST", "CLIENT", "ASSIGNMENT"]
    rows = [
        [m["member_id"], m["instance_id"], m["host"], m["client_id"], _places(m["assignment"])]
        for m in group["members"]
    ]
    if group["epoch"] is not None:
        header += ["EPOCH", "PROTOCOL", "TARGET"]
        for row, m in zip(rows, group["members"], strict=True):
            is_there = m["target"] is None or m["target"] == m["assignment"]
            row += [m["epoch"], m["protocol"], "as assigned" if is_there else _places(m["target"])]
    print_table(header, rows)


def _print_streams_members(group: dict[str, Any]) -> None:
    header = ["MEMBER", "PROCESS", "HOST", "CLIENT", "EPOCH", "ACTIVE", "STANDBY", "WARMUP", "TARGET"]
    rows = []
    for m in group["members"]:
        tasks, target = ({role: _tasks(m[key][role]) for role in ROLES} for key in ("tasks", "target_tasks"))
        wanted = "as assigned" if target == tasks else " ".join(f"{role} {target[role]}" for role in ROLES)
        facts = [m[key] for key in ("member_id", "process", "host", "client_id", "epoch")]
        rows.append([*facts, *tasks.values(), wanted])
    print_table(header, rows)


def _tasks(tasks: list[dict[str, Any]]) -> str:
    return _places([{"topic": task["subtopology"], "partition": task["partition"]} for task in tasks])


def _places(places: list[dict[str, Any]]) -> str:
    parts: dict[str, list[int]] = {}
    for place in places:
        parts.setdefault(place["topic"], []).append(place["partition"])
    return " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in parts.items()) or "-"


def _describe(cluster: Cluster, names: tuple[str, ...]) -> list[dict[str, Any]]:
    client = Groups(cluster)
    if not names:
        names = tuple(g.group_id for g in client.list_groups() if g.group_type in (*WITH_OFFSETS, SHARE))
    found = []
    for name in names:
        group = client.describe(name)
        found.append(
            {
                "group": group.group_id,
                "type": group.group_type,
                "state": group.state,
                "protocol_type": group.protocol_type,
                "assignor": group.assignor or None,
                **fields(group, "coordinator epoch target_epoch"),
                "members": [
                    {
                        **fields(m, "member_id instance_id host client_id"),
                        "assignment": [{"topic": t, "partition": p} for t, p in m.assignment],
                        "target": None if m.target is None else [{"topic": t, "partition": p} for t, p in m.target],
                        **fields(m, "epoch protocol regex"),
                        **_tasks_of(m),
                    }
                    for m in group.members
                ],
                "partitions": _partitions(client, group),
            }
        )
    return found


def _partitions(client: Groups, group: GroupDescription) -> list[dict[str, Any]]:
    """Return the partitions with an offset or a member; of a share group, a member is named if it is the only one."""
    owners: dict[TopicPartition, list[GroupMember]] = {}
    for member in group.members:
        for tp in member.assignment:
            owners.setdefault(tp, []).append(member)
    rows = []
    for one in partition_lags(client, group.group_id, group.group_type, owners.keys()):
        sharing = owners.get(one.place, [])
        owner = sharing[-1] if sharing and (group.group_type != SHARE or len(sharing) == 1) else None
        rows.append(
            {
                **fields(one, "topic partition offset"),
                "end_offset": one.end,
                **fields(one, "lag metadata"),
                **{name: getattr(owner, name, None) for name in ("member_id", "host", "client_id")},
                **({"members": len(sharing)} if group.group_type == SHARE else {}),
            }
        )
    return rows


def _tasks_of(member: GroupMember) -> dict[str, Any]:
    """Return the fields of a member of a streams group; none for any other."""
    if member.tasks is None or member.target_tasks is None:
        return {}

    def rows(tasks: Tasks) -> dict[str, list[dict[str, Any]]]:
        return {
            role: [{"subtopology": one, "partition": partition} for one, partition in getattr(tasks, role)]
            for role in ROLES
        }

    return {"process": member.process, "tasks": rows(member.tasks), "target_tasks": rows(member.target_tasks)}


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@bootstrap_option
@click.option("--if-exists", is_flag=True, help="Do not fail for a group that does not exist.")
@json_option
def delete(names: tuple[str, ...], bootstrap_server: str, if_exists: bool, as_json: bool) -> None:
    """Delete groups that have no members, and their offsets.

    The command does not prompt for confirmation.
    """
    with connect(bootstrap_server) as cluster:
        missing = Errors.GROUP_ID_NOT_FOUND if if_exists else None
        print_deleted("group", names, Groups(cluster).delete, missing, as_json=as_json)
