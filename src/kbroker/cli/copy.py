"""`kbroker copy`: topics of one cluster into another, with progress, resumed where it was stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kbroker.cli.name_completion import topic_names
from kbroker.cli.options import FILE, bootstrap_option, connect, connect_with, json_option, key_values
from kbroker.cli.output import print_json, print_table
from kbroker.cli.progress_display import ProgressDisplay
from kbroker.client.producer import CODECS
from kbroker.common.units import counted


@click.command()
@click.argument("topics", nargs=-1, metavar="TOPIC...", shell_complete=topic_names)
@bootstrap_option
@click.option("--to", "target_server", required=True, metavar="HOST:PORT[,...]", help="Brokers of the target cluster.")
@click.option(
    "--to-config",
    type=FILE,
    metavar="FILE",
    help="Properties file for the client of the target, as --command-config for the source.",
)
@click.option("--all", "is_all", is_flag=True, help="Copy all topics but internal ones.")
@click.option("--rename", "renames", multiple=True, metavar="OLD=NEW", help="Name of a topic's copy. Repeatable.")
@click.option("--prefix", default="", metavar="TEXT", help="Text before the names of the other copies.")
@click.option("--follow", is_flag=True, help="Continue with new records until Ctrl-C.")
@click.option("--read-uncommitted", is_flag=True, help="Copy records of aborted and open transactions too.")
@click.option("--no-configs", is_flag=True, help="Create topics with the target's default configs.")
@click.option("--append", "is_append", is_flag=True, help="Copy into topics that have other records.")
@click.option(
    "--id",
    "copy_id",
    metavar="NAME",
    help="Name under which the progress is stored, for several copies at once.  [default: source's id]",
)
@click.option(
    "--codec", type=click.Choice(list(CODECS)), default="none", show_default=True, help="Compression of the copies."
)
@click.option(
    "--transaction-records", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="N",
    help="Records after which a transaction is committed.",
)  # fmt: skip
@click.option(
    "--fetch-bytes", type=click.IntRange(min=1024), default=4 << 20, show_default=True, metavar="N",
    help="Size of a response of the source for a partition.",
)  # fmt: skip
@json_option
def copy(
    topics: tuple[str, ...],
    bootstrap_server: str,
    target_server: str,
    to_config: Path | None,
    is_all: bool,
    renames: tuple[str, ...],
    prefix: str,
    follow: bool,
    read_uncommitted: bool,
    no_configs: bool,
    is_append: bool,
    copy_id: str | None,
    codec: str,
    transaction_records: int,
    fetch_bytes: int,
    as_json: bool,
) -> None:
    """Copy topics to another cluster.

    Keys, values, headers, timestamps, partitions and the order in each partition stay; offsets do not. Each record is
    copied exactly once for consumers with read_committed: a copy that was stopped or killed continues where its last
    transaction ended, and a finished one with the records since.
    """
    from kbroker.client.admin import Admin
    from kbroker.client.topic_copy import TopicCopier

    if bool(topics) == is_all:
        raise click.UsageError(f"expected either TOPIC or --all, got {'both' if topics else 'neither'}")
    new_names = key_values(renames, "--rename")
    with connect(bootstrap_server) as source, connect_with(to_config, target_server, ("--to-config", "--to")) as target:
        names = topics or tuple(Admin(source).list_topics())
        if unknown := sorted(set(new_names) - set(names)):
            raise click.BadParameter(f"{unknown[0]} is not one of the topics to copy", param_hint="--rename")
        copier = TopicCopier(
            source,
            target,
            {name: new_names.get(name, prefix + name) for name in names},
            copy_id=copy_id,
            read_committed=not read_uncommitted,
            codec=codec,
            transaction_records=transaction_records,
            fetch_bytes=fetch_bytes,
            with_configs=not no_configs,
            is_append=is_append,
        )
        copier.prepare()
        begins = {part.source: part.begin for part in copier.parts}
        reached = dict(begins)
        total = None if follow else sum(part.end - part.begin for part in copier.parts)
        with ProgressDisplay(quiet=as_json or not sys.stderr.isatty()).step("copying", total, "offsets") as step:
            try:
                for positions in copier.run(is_endless=follow):
                    reached.update(positions)
                    step.at(sum(reached[place] - begins[place] for place in reached))
            except KeyboardInterrupt:
                if not follow:
                    raise
    rows = [
        {
            "topic": part.source[0],
            "partition": part.source[1],
            "copy": part.target[0],
            "from_offset": part.begin,
            "to_offset": reached[part.source],
        }
        for part in copier.parts
    ]
    if as_json:
        print_json([{**row, "created": row["copy"] in copier.made} for row in rows])
        return
    for name in copier.made:
        click.echo(f"created {name}")
    click.echo(f"copied {counted(sum(reached[p] - begins[p] for p in reached), 'offset')}")
    print_table(["TOPIC", "PARTITION", "COPY", "FROM", "TO"], [list(row.values()) for row in rows])
