"""`kbroker groups reset`: move the offsets of groups, with the rules and options of Kafka's own tool."""

import contextlib

import click

from kbroker.cli.name_completion import group_names
from kbroker.cli.options import bootstrap_option, connect, json_option, wall_clock
from kbroker.cli.output import note, print_json, print_table
from kbroker.client import offset_reset
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.groups import WITH_OFFSETS, Groups
from kbroker.client.offset_reset import (
    GroupReset,
    Offsets,
    ResetTo,
    Selection,
    parse_offsets,
    plan_group_reset,
    topic_partitions,
)
from kbroker.common.errors import KafkaError
from kbroker.common.java.java_duration import parse_duration_ns

LAST_MS = 2**63 - 1
INT64 = click.IntRange(-(2**63), LAST_MS)


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=group_names)
@bootstrap_option
@click.option("--all-groups", is_flag=True, help="Reset all classic and consumer groups.")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:0,1,...]", help="Reset only these partitions. Repeatable."
)
@click.option("--all-topics", is_flag=True, help="Reset all partitions with a committed offset.")
@click.option("--to-earliest", is_flag=True, help="To the log start offset.")
@click.option("--to-latest", is_flag=True, help="To the end offset.")
@click.option("--to-current", is_flag=True, help="To the committed offset; to the end offset where none is committed.")
@click.option(
    "--to-offset",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="To this offset, or the nearest that the log has.",
)
@click.option("--shift-by", type=INT64, metavar="N", help="Forward by this many offsets, back if negative.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record at or after this time: ISO 8601, UTC if it names no zone.",
)
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="To the first record within this ISO 8601 duration before now."
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False),
    help="To the offsets of a CSV file: topic,partition,offset or group,topic,partition,offset.",
)
@click.option("--dry-run", is_flag=True, help="Show the new offsets; change nothing. This is the default.")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@click.option("--share", is_flag=True, help="Create groups that do not exist as share groups.")
@click.option("--export", is_flag=True, help="Print CSV that --from-file reads.")
@json_option
def reset(
    names: tuple[str, ...],
    bootstrap_server: str,
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    from_file: str | None,
    dry_run: bool,
    execute: bool,
    share: bool,
    export: bool,
    as_json: bool,
) -> None:
    """Move the offsets of groups that have no members.

    These are committed offsets, and the start offsets of share groups.

    The command shows the new offsets; only --execute commits them. It needs exactly one rule (--to-..., --shift-by,
    --by-duration or --from-file), and --topic or --all-topics unless --from-file names the partitions.
    """
    rules = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-current": to_current,
        "--to-offset": to_offset is not None,
        "--shift-by": shift_by is not None,
        "--to-datetime": to_datetime is not None,
        "--by-duration": by_duration is not None,
        "--from-file": from_file is not None,
    }
    if sum(rules.values()) != 1:
        raise click.UsageError(f"expected exactly one of {', '.join(rules)}, got {sum(rules.values())}")
    if bool(names) == all_groups:
        raise click.UsageError(f"expected either GROUP or --all-groups, got {'both' if all_groups else 'neither'}")
    if from_file is not None and (topics or all_topics):
        raise click.UsageError("expected --from-file without --topic and --all-topics: the file names the partitions")
    if from_file is None and bool(topics) == all_topics:
        raise click.UsageError(f"expected either --topic or --all-topics, got {'both' if topics else 'neither'}")
    if execute and dry_run:
        raise click.UsageError("expected only one of --dry-run and --execute, got both")
    if export and as_json:
        raise click.UsageError("expected only one of --export and --json, got both")
    try:
        wanted = topic_partitions(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--topic") from None
    to, value = ResetTo.CURRENT, 0
    if to_datetime is not None:
        to, value = ResetTo.TIMESTAMP, datetime_ms(to_datetime)
    elif by_duration is not None:
        to, value = ResetTo.TIMESTAMP, time_before_ms(wall_clock().wall_ms(), by_duration)
    elif to_offset is not None:
        to, value = ResetTo.OFFSET, to_offset
    elif shift_by is not None:
        to, value = ResetTo.SHIFT_BY, shift_by
    elif to_earliest or to_latest:
        to = ResetTo.EARLIEST if to_earliest else ResetTo.LATEST
    plan = None if from_file is None else read_plan(from_file, names)
    with connect(bootstrap_server) as cluster:
        groups = Groups(cluster)
        planned = _planned(groups, names, wanted, to, value, plan, share)
        shown = [] if execute else planned
        try:
            for one in planned if execute else ():
                try:
                    one.apply(groups)
                except (KafkaError, BrokerConnectionError):
                    with contextlib.suppress(KafkaError, BrokerConnectionError):
                        shown += [part] if (part := one.applied(groups)).after else []
                    raise
                shown.append(one)
        finally:  # after a failure no other place has the previous offsets of the changed partitions
            if shown or not planned:
                rows = _rows(shown)
                if export:
                    _print_csv(rows, one_group=len(names) == 1)
                elif as_json:
                    print_json({"executed": execute, "offsets": rows})
                else:
                    print_table(["GROUP", "TOPIC", "PARTITION", "OFFSET", "NEW"], [list(row.values()) for row in rows])
    if not execute:
        note("no offset was changed; add --execute to commit the new offsets")


def _planned(
    groups: Groups,
    names: tuple[str, ...],
    wanted: Selection,
    to: ResetTo,
    value: int,
    plan: dict[str, Offsets] | None,
    makes_share_groups: bool,
) -> list[GroupReset]:
    """Return the plans of all groups, made before the first commit: if a group cannot be reset, none is changed."""
    if not names:
        names = tuple(g.group_id for g in groups.list_groups() if g.group_type in WITH_OFFSETS)
    return [
        plan_group_reset(
            groups,
            name,
            wanted,
            to,
            value,
            exact=None if plan is None else plan.get(name, {}),
            makes_share_group=makes_share_groups,
        )
        for name in dict.fromkeys(names)
    ]


def _rows(resets: list[GroupReset]) -> list[dict[str, str | int | None]]:
    return [
        {"group": one.group_id, "topic": tp[0], "partition": tp[1], "offset": one.before.get(tp), "new_offset": offset}
        for one in resets
        for tp, offset in sorted(one.after.items())
    ]


def read_plan(path: str, names: tuple[str, ...]) -> dict[str, Offsets]:
    """Read the offsets of a CSV file by group. Raises: BadParameter."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            found = parse_offsets(file, names)
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path}: expected UTF-8 text, found other bytes", param_hint="--from-file") from None
    except ValueError as error:
        raise click.BadParameter(f"{path}, {error}", param_hint="--from-file") from None
    for name in names:
        if name not in found:
            message = f"{path}: expected rows of group {name!r}, found none"
            raise click.BadParameter(message, param_hint="--from-file")
    return found


def datetime_ms(text: str, option: str = "--to-datetime", others: str = "") -> int:
    """Return an ISO 8601 time in ms since 1970; UTC without a zone, as in Kafka's tool. Raises: BadParameter."""
    try:
        return offset_reset.datetime_ms(text)
    except ValueError as error:
        message = str(error).replace("expected ", f"expected {others}", 1)
        raise click.BadParameter(message, param_hint=option) from None


def time_before_ms(now_ms: int, duration: str) -> int:
    """Return a time minus a duration, which is written as in Java; at least 0. Raises: BadParameter."""
    duration_ns = parse_duration_ns(duration)
    if duration_ns is None or abs(now_ms - duration_ns // 10**6) > LAST_MS:
        message = f"expected a duration such as P1DT2H30M, got {duration!r}"
        raise click.BadParameter(message, param_hint="--by-duration")
    return max(0, now_ms - duration_ns // 10**6)


def _print_csv(rows: list[dict[str, str | int | None]], one_group: bool) -> None:
    import csv
    import io

    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")  # a group's id may have commas
    for row in rows:
        cells = [row["group"], row["topic"], row["partition"], row["new_offset"]]
        writer.writerow(cells[one_group:])
    click.echo(lines.getvalue(), nl=False)
