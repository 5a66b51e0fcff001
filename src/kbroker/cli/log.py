"""`kbroker log`: print segment files, and verify or repair a data folder, without a broker."""

import os
from pathlib import Path
from typing import Any

import click

from kbroker.cli.options import FILE, FOLDER, CommandGroup, json_option
from kbroker.cli.output import binary_stdout, json_line, print_json, print_table, utf8
from kbroker.common.units import counted
from kbroker.log.checkpoints import uuid_to_text
from kbroker.log.tools.dump import describe, dump_file
from kbroker.log.tools.verify import Finding
from kbroker.log.tools.verify import verify as verify_folder
from kbroker.metadata.log.recovery import damage_of, recover

DAMAGED_STATUS = 3


@click.group(cls=CommandGroup)
def log() -> None:
    """Print, verify and repair log files, without a broker."""


@log.command()
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--print-data-log", is_flag=True, help="Print the records too, their keys and values as text.")
@click.option(
    "--cluster-metadata-decoder",
    is_flag=True,
    help="Print the records of a metadata log or of its snapshot, their values as JSON.",
)
@click.option(
    "--offsets-decoder", "topic", flag_value="offsets", help="Print the records of __consumer_offsets as JSON."
)
@click.option(
    "--transaction-log-decoder",
    "topic",
    flag_value="transaction-log",
    help="Print the records of __transaction_state as JSON.",
)
@click.option(
    "--share-group-state-decoder",
    "topic",
    flag_value="share-group-state",
    help="Print the records of __share_group_state as JSON.",
)
@click.option("--skip-record-metadata", is_flag=True, help="Print only the keys and values of records.")
@json_option
def dump(
    files: tuple[Path, ...],
    print_data_log: bool,
    cluster_metadata_decoder: bool,
    topic: str | None,
    skip_record_metadata: bool,
    as_json: bool,
) -> None:
    """Print the entries of segments, indexes and other files.

    The other files are producer snapshots, checkpoints and snapshots of the metadata log. Each entry is a line in the
    format of Kafka's own tool, with --json one document a line.
    """
    payload = None
    if cluster_metadata_decoder:
        from kbroker.metadata.records.record_json import record_json

        payload = record_json
    decode = None
    if topic is not None:
        from kbroker.log.tools.coordinator_records import RecordDecoder

        decode = RecordDecoder(topic)
    shows_records = print_data_log or cluster_metadata_decoder or topic is not None
    out = binary_stdout()
    try:
        for path in files:
            if not as_json and len(files) > 1:
                out.write(os.fsencode(f"{path}:\n"))
            for row in dump_file(path, records=shows_records, payload=payload, decode=decode):
                if skip_record_metadata and row["kind"] == "record":
                    row = {name: row[name] for name in ("kind", "key", "payload") if name in row}
                    if "payload" not in row:
                        continue
                out.write(json_line({"file": str(path), **row}) if as_json else utf8(describe(row)) + b"\n")
    finally:
        out.flush()


@log.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.option("--repair", is_flag=True, help="Cut out damaged parts, while no broker runs.")
@json_option
def verify(folder: Path, repair: bool, as_json: bool) -> None:
    """Check every file below DIR.

    DIR is a data folder, one of several, or the folder of one partition. The exit status is 3 if damage was found and
    not repaired. --repair saves the bytes that it cuts out beside the file.
    """
    findings = verify_folder(folder, repair=repair)
    findings += [Finding(path, 0, path.stat().st_size, -1, problem) for path, problem in damage_of(folder)]
    if as_json:
        print_json([_document(finding) for finding in findings])
    else:
        for f in findings:
            offset = f", records from offset {f.offset} on" if f.offset >= 0 else ""
            done = f"; {f.repair}" if f.repair else ""
            click.echo(f"{f.path} at byte {f.position}, {counted(f.size_bytes, 'byte')}{offset}: {f.problem}{done}")
        click.echo(counted(len(findings), "damaged place"))
    if any(not f.repair for f in findings):
        raise click.exceptions.Exit(DAMAGED_STATUS)


@log.command("recover-metadata")
@click.argument("folders", nargs=-1, required=True, type=FOLDER, metavar="DIR...")
@click.option(
    "--node-id",
    type=click.IntRange(0, 2**31 - 1),
    help="Node id of the broker that owns DIR, if meta.properties is lost too.",
)
@json_option
def recover_metadata(folders: tuple[Path, ...], node_id: int | None, as_json: bool) -> None:
    """Rebuild a lost or damaged metadata log.

    The log is in the first DIR. Name every folder of log.dirs, in that order, and stop the broker first. Topics, their
    ids and partitions come from the folders and their partition.metadata. The command keeps everything before the
    damage of a damaged log, renames the log, and prints what it cannot recover.
    """
    found = recover(folders[0], node_id, folders[1:])
    topics = [(one.name, one.partitions, uuid_to_text(one.topic_id)) for one in found.topics]
    aside = None if found.set_aside is None else str(found.set_aside)
    if as_json:
        rows = [{"topic": name, "partitions": count, "id": topic_id} for name, count, topic_id in topics]
        kept, lost, notes = found.kept, found.lost, found.notes
        print_json(
            {"file": str(found.path), "topics": rows, "kept": kept, "lost": lost, "notes": notes, "put_aside": aside}
        )
        return
    if topics:
        print_table(("TOPIC", "PARTITIONS", "ID"), topics)
    partitions = sum(count for _, count, _ in topics)
    click.echo(f"wrote {found.path}: {counted(len(topics), 'topic')}, {counted(partitions, 'partition')}")
    if aside is not None:
        kept_rows = ", ".join(f"{count} {table}" for table, count in found.kept.items()) or "nothing"
        click.echo(f"kept from the damaged metadata, now {aside}: {kept_rows}")
    for note in found.notes:
        click.echo(f"note: {note}")
    if found.lost:
        click.echo(f"not recovered: {'; '.join(found.lost)}")


def _document(finding: Any) -> dict[str, Any]:
    import dataclasses

    return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(finding).items()}
