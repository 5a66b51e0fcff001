"""`kbroker groups reset`: move the offsets of groups, with the rules and options of Kafka's own tool."""

import re
from datetime import datetime, timezone

import click

from kbroker.cli.name_completion import group_names
from kbroker.cli.options import bootstrap_option, connect, json_option, wall_clock
from kbroker.cli.output import note, print_json, print_table
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.groups import SHARE, WITH_OFFSETS, Groups
from kbroker.client.offset_reset import ResetTo, keep_between_ends, plan_reset
from kbroker.client.share_offsets import alter_share_offsets, share_offsets
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition

Offsets = dict[TopicPartition, int]

INT64 = click.IntRange(-(2**63), 2**63 - 1)
DURATION = re.compile(  # as java.time.Duration reads it: no months or years, a sign before the whole and each part
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


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
@click.option("--share", is_flag=True, help="Make groups that do not exist share groups.")
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
    wanted = topic_partitions(topics)
    to, value = ResetTo.CURRENT, 0
    if to_datetime is not None:
        to, value = ResetTo.TIMESTAMP, datetime_ms(to_datetime)
    elif by_duration is not None:
        to, value = ResetTo.TIMESTAMP, max(0, wall_clock().wall_ms() - duration_ms(by_duration))
    elif to_offset is not None:
        to, value = ResetTo.OFFSET, to_offset
    elif shift_by is not None:
        to, value = ResetTo.SHIFT_BY, shift_by
    elif to_earliest or to_latest:
        to = ResetTo.EARLIEST if to_earliest else ResetTo.LATEST
    plan = None if from_file is None else read_plan(from_file, names)
    with connect(bootstrap_server) as cluster:
        rows = _reset(cluster, names, wanted, to, value, plan, execute, share)
    if export:
        _print_csv(rows, one_group=len(names) == 1)
    elif as_json:
        print_json({"executed": execute, "offsets": rows})
    else:
        print_table(["GROUP", "TOPIC", "PARTITION", "OFFSET", "NEW"], [list(row.values()) for row in rows])
    if not execute:
        note("no offset was changed; add --execute to commit the new offsets")


def _reset(
    cluster: Cluster,
    names: tuple[str, ...],
    wanted: dict[str, list[int] | None],
    to: ResetTo,
    value: int,
    plan: dict[str, Offsets] | None,
    execute: bool,
    makes_share_groups: bool,
) -> list[dict[str, str | int | None]]:
    """Plan for every group, then commit for every group: if one cannot be reset, none is changed."""
    groups, admin = Groups(cluster), Admin(cluster)
    places = [place for topic, indexes in wanted.items() for place in _places(cluster, topic, indexes)]
    if not names:
        names = tuple(g.group_id for g in groups.list_groups() if g.group_type in WITH_OFFSETS)
    planned: dict[str, Offsets] = {}
    shared: set[str] = set()
    rows: list[dict[str, str | int | None]] = []
    for name in dict.fromkeys(names):
        kind = _inactive_kind(groups, name)
        if kind == SHARE or (kind is None and makes_share_groups):
            shared.add(name)
            known = share_offsets(groups, name)
            committed = {tp: found.offset for tp, found in known.items() if found.offset is not None}
        else:
            committed = {tp: found.offset for tp, found in groups.committed(name).items()}
        if plan is not None:
            planned[name] = keep_between_ends(admin, plan.get(name, {}))
        else:
            planned[name] = plan_reset(admin, committed, places or committed, to, value)
        for (topic, index), offset in sorted(planned[name].items()):
            old = committed.get((topic, index))
            rows.append({"group": name, "topic": topic, "partition": index, "offset": old, "new_offset": offset})
    if execute:
        for name, offsets in planned.items():
            if name in shared:
                alter_share_offsets(groups, name, offsets)
            else:
                groups.commit(name, offsets)
    return rows


def _places(cluster: Cluster, topic: str, indexes: list[int] | None) -> list[TopicPartition]:
    """Return the partitions of a topic, or the named ones, which must exist. Raises: KafkaError."""
    known = [p.partition for p in cluster.topic(topic).partitions]
    for index in indexes or ():
        if index not in known:
            message = f"topic {topic!r}: expected a partition from 0 to {len(known) - 1}, got {index}"
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, message)
    return [(topic, index) for index in (known if indexes is None else indexes)]


def _inactive_kind(groups: Groups, name: str) -> str | None:
    """Return the type of a group, None if it does not exist. Raises: KafkaError NON_EMPTY_GROUP."""
    try:
        found = groups.describe(name)
    except KafkaError as failure:
        if failure.error is not Errors.GROUP_ID_NOT_FOUND:
            raise
        return None  # a group may be given its offsets before it first reads
    if found.is_active:
        message = f"group {name!r}: expected no members, found state {found.state}; stop its consumers first"
        raise KafkaError(Errors.NON_EMPTY_GROUP, message)
    return found.group_type


def topic_partitions(words: tuple[str, ...]) -> dict[str, list[int] | None]:
    """Return `TOPIC` or `TOPIC:0,1` words as partitions by topic; None for all of a topic."""
    found: dict[str, list[int] | None] = {}
    for word in words:
        topic, colon, listed = word.partition(":")
        indexes = listed.split(",")
        if not topic or (colon and not all(_is_number(index) for index in indexes)):
            raise click.BadParameter(f"expected TOPIC or TOPIC:0,1,..., got {word!r}", param_hint="--topic")
        before = found.get(topic, [])
        if not colon or before is None:
            found[topic] = None
        else:
            found[topic] = sorted({*before, *map(int, indexes)})
    return found


def read_plan(path: str, names: tuple[str, ...]) -> dict[str, Offsets]:
    """Read offsets by group from CSV rows `group,topic,partition,offset`; without the group if just one is named."""
    import csv

    found: dict[str, Offsets] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for number, cells in enumerate(csv.reader(file), 1):
            row = [cell.strip() for cell in cells]
            if not any(row):
                continue
            if len(row) == 3 and len(names) == 1:
                row.insert(0, names[0])
            if len(row) != 4 or not (_is_number(row[2]) and _is_number(row[3])):
                short = "topic,partition,offset or " if len(names) == 1 else ""
                message = (
                    f"{path}, line {number}: expected {short}group,topic,partition,offset, got {','.join(cells)!r}"
                )
                raise click.BadParameter(message, param_hint="--from-file")
            found.setdefault(row[0], {})[row[1], int(row[2])] = int(row[3])
    for name in names:
        if name not in found:
            message = f"{path}: expected rows of group {name!r}, found none"
            raise click.BadParameter(message, param_hint="--from-file")
    return found


def datetime_ms(text: str, option: str = "--to-datetime", others: str = "") -> int:
    """Return the milliseconds of an ISO 8601 time; UTC without a zone, as in Kafka's tool."""
    # Python 3.10 reads fractions of three or six digits and offsets with a colon only
    given = re.sub(r"([-+]\d\d)(\d\d)$", r"\1:\2", text.strip().replace("Z", "+00:00"))
    given = re.sub(r"\.(\d{1,6})\d*", lambda found: f".{found[1]:0<6}", given)
    try:
        time = datetime.fromisoformat(given)
    except ValueError:
        message = f"expected {others}a time such as 2026-01-31T12:00:00, got {text!r}"
        raise click.BadParameter(message, param_hint=option) from None
    found = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return max(0, found.days * 86_400_000 + found.seconds * 1000 + found.microseconds // 1000)


def duration_ms(text: str) -> int:
    """Return the milliseconds of an ISO 8601 duration of days, hours, minutes and seconds."""
    match = DURATION.fullmatch(text)
    if match is None or text[-1] in "PpTt":
        raise click.BadParameter(f"expected a duration such as P1DT2H30M, got {text!r}", param_hint="--by-duration")
    sign, days, _, hours, minutes, seconds, fraction = match.groups()
    whole = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    parts = int((fraction or "")[:3].ljust(3, "0")) * (-1 if (seconds or "").startswith("-") else 1)
    return (whole * 1000 + parts) * (-1 if sign == "-" else 1)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _print_csv(rows: list[dict[str, str | int | None]], one_group: bool) -> None:
    for row in rows:
        cells = [row["group"], row["topic"], row["partition"], row["new_offset"]]
        click.echo(",".join(map(str, cells[one_group:])))
