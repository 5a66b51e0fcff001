"""How the commands of the pipeline name a table: a folder or a URI, its store's options, and one of its versions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import Finite, decorators, key_values

if TYPE_CHECKING:
    from kbroker.spark.tables.table_place import TablePlace

table_argument = click.argument("table", metavar="TABLE")
storage_option = click.option(
    "--storage-option",
    "storage",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of TABLE's object store, as delta-rs names them; else from the environment. Repeatable.",
)
as_of_option = click.option(
    "--as-of",
    metavar="VERSION|TIME",
    callback=lambda context, parameter, word: _check_as_of(word),
    help="TABLE as it was: a version, or a time such as 2026-01-31T12:00 (UTC).",
)
retention_option = decorators(
    click.option(
        "--retention",
        type=Finite(0),
        default=168,
        show_default=True,
        help="Hours until files that a compaction replaced are deleted, and with them earlier versions; 24 at least.",
    ),
    click.option(
        "--short-retention", is_flag=True, help="Allow a --retention below 24: only while no other job uses TABLE."
    ),
)


def place_of(table: str, common: dict[str, Any]) -> TablePlace:
    """Where TABLE lies, as the options of a command say.

    Raises: PipelineError for a URI that is of no store.
    """
    from kbroker.spark.tables.table_place import TablePlace

    return TablePlace.of(table, key_values(common.get("storage", ()), "--storage-option"), common.get("as_of"))


def retention_of(common: dict[str, Any]) -> dict[str, Any]:
    """What the options of a command say of retention, as the jobs take it. Raises: PipelineError for one too short."""
    from kbroker.spark.tables.compaction import require_retention

    found = {"retention_ms": int(common["retention"] * 3_600_000), "short_retention": common["short_retention"]}
    require_retention(found["retention_ms"], short=found["short_retention"])
    return found


def _check_as_of(word: str | None) -> str | None:
    """Say at once what is neither a number nor a time."""
    if word is None or word.isdecimal():
        return word
    try:
        datetime.fromisoformat(word.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(f"expected a version or a time such as 2026-01-31T12:00, got {word!r}") from None
    return word
