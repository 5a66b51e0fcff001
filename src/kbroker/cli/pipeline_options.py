"""Options of the commands of the pipeline: one table, and the functions that read their values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.options import F, Finite, bootstrap_option, decorators, json_option, key_values
from kbroker.common.topic_names import invalid_name_reason
from kbroker.common.units import parse_bytes
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from kbroker.spark.tables.table_place import TablePlace

    _ParamType = click.ParamType[Path]
else:
    _ParamType = click.ParamType  # not generic before click 8.2


class LocalPath(_ParamType):
    """A file, or its `file:` URI. A URI of another file system is wrong usage, and never a local folder of that name.

    Args: `exists`: the file must exist; `is_result`: the command writes it at its end, so it is wrong usage at once if
    its folder does not exist or is not writable.
    """

    name = "path"

    def __init__(self, *, exists: bool = False, is_result: bool = False) -> None:
        self._path = click.Path(exists=exists, dir_okay=False, writable=is_result, path_type=Path)
        self._is_result = is_result

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the local path of a path or a `file:` URI. Raises: BadParameter."""
        from kbroker.spark.locations import local_path

        try:
            path = self._path.convert(local_path(value), param, ctx)
        except PipelineError as error:
            self.fail(str(error), param, ctx)
        if self._is_result and not path.exists():
            if not path.parent.is_dir():
                self.fail(f"expected the folder {path.parent} for {path.name}, found none", param, ctx)
            if not os.access(path.parent, os.W_OK):
                self.fail(f"expected a folder in which files can be written, got {path.parent}", param, ctx)
        return path


FILE = LocalPath()
EXISTING_FILE = LocalPath(exists=True)
RESULT = LocalPath(is_result=True)
COUNT = click.IntRange(1)


def _url(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return the URL; refuse an empty one, as of an unset variable, with which the job would run on this machine."""
    if value is not None and not value.strip():
        raise click.BadParameter("expected a URL, got an empty one", context, option)
    if value is not None and context.params.get({"master": "remote", "remote": "master"}[str(option.name)]) is not None:
        raise click.UsageError("expected only one of --master and --remote, got both", context)
    return value


def _key_values(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    return key_values(words, option.opts[0])


def _as_of(context: click.Context, option: click.Parameter, word: str | None) -> str | None:
    if word is None or word.isdecimal():
        return word
    try:
        datetime.fromisoformat(word.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(f"expected a version or a time such as 2026-01-31T12:00, got {word!r}") from None
    return word


def _dates(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the days; refuse any other form than that in tables, which would match nothing."""
    for word in words:
        try:
            day = datetime.strptime(word, "%Y-%m-%d").strftime("%Y-%m-%d")
        except ValueError:
            day = ""
        if word != day:
            raise click.BadParameter(f"expected a day such as 2026-01-31, got {word!r}")
    return words


def _topic(context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """Require the name of one topic: to Spark's sources "a,b" names two, and a table records one."""
    if name is not None and invalid_name_reason(name) is not None:
        raise click.BadParameter(f"expected the name of one topic: up to 249 of A-Z a-z 0-9 . _ -, got {name!r}")
    return name


def _memory(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return a size that the JVM accepts; None stays None. Raises: BadParameter."""
    if value is not None and re.fullmatch(r"[1-9][0-9]*[kmgt]", value, re.IGNORECASE | re.ASCII) is None:
        raise click.BadParameter(f"expected a size with the unit k, m, g or t, such as 2g, got {value!r}")
    return value


def _no_spark(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(f"{context.info_name} runs in this process, without Spark: omit {option.opts[0]}")


#: Names (the first one is its key in `options`) and click's settings of each option.
_TABLE: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    # Spark
    (("--master",), {"metavar": "URL", "callback": _url,
     "help": "Spark master, in Spark's own form.  [default: that of spark-defaults.conf, or local[*]]"}),
    (("--remote",), {"metavar": "sc://HOST[:PORT]", "callback": _url,
     "help": "Spark Connect server, instead of a master."}),
    (("--conf", "settings"), {"multiple": True, "metavar": "KEY=VALUE", "callback": _key_values,
     "help": "Setting of Spark. Repeatable."}),
    (("--properties-file",), {"type": EXISTING_FILE, "metavar": "FILE",
     "help": "File with settings of Spark, in place of spark-defaults.conf, as for spark-submit."}),
    (("--py-env",), {"type": EXISTING_FILE, "metavar": "ARCHIVE",
     "help": "Python environment for Spark's executors, packed by venv-pack or conda-pack."}),
    (("--driver-memory",), {"metavar": "SIZE", "callback": _memory,
     "help": "Memory of Spark's JVM, such as 2g.  [default: that of spark-defaults.conf, or 1g]"}),
    (("--verbose", "-v"), {"is_flag": True, "help": "Show Spark's log and stack traces."}),
    (("--quiet", "-q"), {"is_flag": True, "help": "Print only errors to stderr."}),
    # tables
    (("--storage-option", "storage"), {"multiple": True, "metavar": "NAME=VALUE", "callback": _key_values,
     "help": "Option of TABLE's object store, as delta-rs names it; else from the environment. Repeatable."}),
    (("--as-of",), {"metavar": "VERSION|TIME", "callback": _as_of,
     "help": "Read an earlier state of TABLE: a version, or a time such as 2026-01-31T12:00 (UTC)."}),
    (("--date", "dates"), {"multiple": True, "metavar": "YYYY-MM-DD", "callback": _dates,
     "help": "Read only this day. Repeatable."}),
    (("--retention",), {"type": Finite(0), "default": 168, "show_default": True,
     "help": "Hours after which files that a compaction replaced are deleted, and earlier versions with them; at least "
     "24."}),
    (("--short-retention",), {"is_flag": True,
     "help": "Allow a --retention below 24. Use it only while no other job uses TABLE."}),
    (("--buckets",), {"type": click.IntRange(1, 99), "default": 8, "show_default": True,
     "help": "Number of buckets for a new table."}),
    # logs and topics
    (("--topic",), {"metavar": "NAME", "callback": _topic,
     "help": "Topic to read instead of files, such as __request_log."}),
    (("--format", "log_format"), {"type": click.Choice(["auto", "json", "arrow"]), "default": "auto",
     "show_default": True, "help": "Format of the records; naming it saves time."}),
    (("--connector",), {"type": click.Choice(["kbroker", "kafka"]), "default": "kbroker", "show_default": True,
     "help": "Spark's source for the topic; kafka is the official one, and needs `kbroker pipeline jars`."}),
    (("--option", "more"), {"multiple": True, "metavar": "NAME=VALUE", "callback": _key_values,
     "help": "Option of the source. Repeatable."}),
    (("--max-per-batch",), {"metavar": "COUNT|SIZE",
     "help": "Maximum number of records of a topic, or maximum size of files such as 100MB, per batch."}),
    (("--checkpoint",), {"metavar": "DIR",
     "help": "Folder or URI for Spark's offsets; by default inside a TABLE on a disk or in HDFS."}),
    (("--follow",), {"is_flag": True, "help": "Run until stopped, rather than until all records are read."}),
    (("--interval",), {"type": Finite(0), "default": 10, "show_default": True, "help": "Seconds between batches."}),
    (("--watermark",), {"type": Finite(0), "default": 10, "show_default": True,
     "help": "Minutes from the end of an hour until it is closed, by the time of the rows."}),
    # views
    (("--top",), {"type": COUNT, "default": 20, "show_default": True, "help": "Number of rows to show."}),
    # quotas
    (("--samples",), {"type": COUNT, "default": 11, "show_default": True, "help": "quota.window.num of the broker."}),
    (("--window-seconds",), {"type": COUNT, "default": 1, "show_default": True,
     "help": "quota.window.size.seconds of the broker."}),
    (("--throttled-below",), {"type": click.FloatRange(0, 100, min_open=True), "default": 1.0, "show_default": True,
     "metavar": "PERCENT", "help": "Maximum share of throttled seconds, of those in which an entity sends anything."}),
    (("--by",), {"type": click.Choice(["user,client-id", "user", "client-id"]), "default": "user,client-id",
     "show_default": True, "help": "Entities for which quotas are recommended."}),
    (("--outliers",), {"type": click.IntRange(0), "default": 5, "show_default": True,
     "help": "Maximum number of separate quotas of each type."}),
    (("--io-threads",), {"type": COUNT, "metavar": "N", "help": "num.io.threads of the broker, for the headroom."}),
    (("--network-threads",), {"type": COUNT, "metavar": "N",
     "help": "num.network.threads of the broker, for the headroom."}),
    (("--listeners",), {"type": COUNT, "default": 1, "show_default": True,
     "help": "Number of listeners of the broker, for the headroom."}),
]  # fmt: skip
_OPTIONS = {names[0]: (names, settings) for names, settings in _TABLE}


def options(*names: str) -> Callable[[F], F]:
    """Return several options of the table as one decorator, in the order of the help."""
    return decorators(*map(option, names))


def option(name: str, **changed: Any) -> Callable[[F], F]:
    """Return an option of the table as a decorator. Args: `changed`: settings that differ for a command."""
    names, settings = _OPTIONS[name]
    return click.option(*names, **{**settings, **changed})


table_argument = click.argument("table", metavar="TABLE")
logs_argument = click.argument("logs", nargs=-1, metavar="[LOG]...")
progress_options = decorators(options("--quiet"), json_option)
spark_options = decorators(
    options("--master", "--remote", "--conf", "--properties-file", "--py-env", "--driver-memory", "--verbose"),
    progress_options,
)
#: Options about where Spark runs: commands that run without Spark reject them as wrong usage, with the reason.
no_spark_options = decorators(
    *(
        click.option(name, hidden=True, expose_value=False, callback=_no_spark)
        for name in ("--master", "--remote", "--py-env", "--properties-file")
    )
)
retention_options = options("--retention", "--short-retention")
source_options = decorators(bootstrap_option, options("--connector", "--option"))
kept_options = decorators(retention_options, options("--storage-option", "--checkpoint"))
stream_options = decorators(
    options("--buckets"),
    source_options,
    options("--follow", "--interval", "--max-per-batch", "--watermark"),
    kept_options,
)
log_options = decorators(
    click.argument("logs", nargs=-1, required=True, metavar="TABLE|LOG..."),
    options("--date", "--as-of", "--storage-option", "--top"),
)
table_options = decorators(table_argument, options("--date", "--as-of", "--storage-option"))
window_options = options("--samples", "--window-seconds")
recommend_options = options(
    "--throttled-below", "--by", "--outliers", "--io-threads", "--network-threads", "--listeners"
)


def place_of(table: str, common: dict[str, Any]) -> TablePlace:
    """Return the place of TABLE, with `--storage-option` and `--as-of`. Raises: PipelineError for an unknown store."""
    from kbroker.spark.tables.table_place import TablePlace

    return TablePlace.of(table, common.get("storage"), common.get("as_of"))


def retention_of(common: dict[str, Any]) -> dict[str, Any]:
    """Return `--retention` and `--short-retention` as the arguments of jobs. Raises: PipelineError."""
    from kbroker.spark.tables.compaction import require_retention

    found = {"retention_ms": int(common["retention"] * 3_600_000), "short_retention": common["short_retention"]}
    require_retention(found["retention_ms"], short=found["short_retention"])
    return found


def max_per_batch_of(text: str | None, topic: str | None) -> int | None:
    """Return `--max-per-batch`: records of a topic, or bytes of files; None without it. Raises: BadParameter."""
    if text is None:
        return None
    hint = "'--max-per-batch'"
    if topic is not None and text.strip()[-1:].isalpha():
        raise click.BadParameter(f"expected a number of records such as 1e6, got {text!r}", param_hint=hint)
    try:
        number = parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=hint) from None
    if not 1 <= number < 1 << 63:
        raise click.BadParameter(f"expected at least 1, and less than 2^63, got {text!r}", param_hint=hint)
    return int(number)
