"""Make a table of the layout before Delta a Delta table, where it lies: its Parquet files stay, their names are kept.

That layout named live files in `_manifest/`, one JSON file per hour, and in its table.json the stream that wrote them;
or Delta's own jars kept the table. The stream goes on with its checkpoint: what the checkpoint has committed is in the
table, and the batch after it comes again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kbroker._core.clock import BaseClock, SystemClock
from kbroker.spark import formatting as jobs
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.delta_table import (
    CHECKPOINT,
    LOG,
    OLD_MANIFEST,
    PLACE,
    DataFile,
    Stream,
    Table,
    TableError,
    TableInfo,
    properties_of,
)
from kbroker.spark.tables.file_writer import data_file, statistics

_MANIFEST = "_manifest"
_LEFT_OVER = ("_staging", "_lock", "_lock.owner")


def convert_table(
    path: Path,
    checkpoint: Path | None = None,
    *,
    clock: BaseClock | None = None,
    progress: jobs.Progress = jobs.silent,
) -> dict[str, Any]:
    """Convert the table at `path`, once; nothing of it is rewritten.

    Args: `checkpoint`: of the stream that filled it, if it is not inside the table.
    Returns: files, rows.
    Raises: TableError when it is no such table, or when it cannot be known which batches are whole.
    """
    if not (path / OLD_MANIFEST).exists():
        raise TableError(f"{path} is no table of an older kbroker: it has no {OLD_MANIFEST}")
    old = _json(path / OLD_MANIFEST)
    stream, batch = old["stream"], -1
    if stream is not None:
        place = checkpoint or path / CHECKPOINT
        batch = _committed(place, stream)
    info = _info(old)
    table = Table(path)
    if old.get("table_format") == "delta":
        files: list[DataFile] = []
        _describe(path, info)
    else:
        if (path / LOG).exists():  # of a conversion that was interrupted: the manifests say it all again
            shutil.rmtree(path / LOG)
        hours = list(_hours(path))
        files = _files(path, info.kind, hours, batch, stream, (clock or SystemClock()).wall_ms())
        progress(f"committing {jobs.counted(len(files), 'file')}")
        table.make(info)
        table.commit(files, None if stream is None else (stream, batch))
    if stream is not None:
        table.add_stream(stream, _source(old["source"]))
    shutil.rmtree(path / _MANIFEST)  # from here on it is a Delta table
    for name in _LEFT_OVER:
        left = path / name
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return {"files": len(files), "rows": sum(one.rows for one in files)}


def _info(old: dict[str, Any]) -> TableInfo:
    columns = old["schema"] if old["schema"] is not None else log_schema.spark_schema().jsonValue()
    return TableInfo(old["kind"], int(old["buckets"]), int(old["schema_version"]), columns)


def _source(text: str | None) -> Stream:
    """What a stream read: the old layout knew the topic's name, or that it was files."""
    return Stream(topic=text.removeprefix("topic ")) if text and text.startswith("topic ") else Stream()


def _describe(path: Path, info: TableInfo) -> None:
    """Of a table that Delta kept already only the description is new."""
    from deltalake import DeltaTable

    if (path / LOG).exists():
        found = DeltaTable(str(path))
        if found.metadata().partition_columns != list(PLACE):
            raise TableError(f"{path} has no partitions by {', '.join(PLACE)}")
        found.alter.set_table_properties(properties_of(info), raise_if_not_exists=False)
    else:
        Table(path).make(info)


def _committed(checkpoint: Path, stream: str) -> int:
    """The last batch that the stream's checkpoint has committed; -1 before the first."""
    try:
        found = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
    except FileNotFoundError:
        raise TableError(
            f"{checkpoint} is not the checkpoint that filled the table: name it with --checkpoint"
        ) from None
    if found != stream:
        raise TableError(f"{checkpoint} is the checkpoint of another stream than the one that filled the table")
    return max((int(one.name) for one in (checkpoint / "commits").glob("[0-9]*") if one.name.isdecimal()), default=-1)


def _hours(path: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((path / _MANIFEST).glob("date=*-hour=*.json")):
        yield _json(file)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return dict(found)
    except ValueError:
        raise TableError(f"{file} is damaged: restore it, or ingest the log again into a new table") from None


def _files(
    path: Path, kind: str, hours: list[dict[str, Any]], batch: int, stream: str | None, now_ms: int
) -> list[DataFile]:
    """The files of whole batches. The one after the last committed may lie in some hours only, and comes again."""
    import pyarrow.parquet as pq

    files = []
    for hour in hours:
        if stream is not None and hour["compacted_through"] > batch:
            raise TableError(
                f"{path}: batch {hour['compacted_through']} was compacted before it was committed: let the kbroker "
                "that wrote it end its `ingest` first"
            )
        for one in hour["files"]:
            if stream is not None and one["batch"] > batch:
                continue
            try:
                footer = pq.read_metadata(path / one["path"])
            except OSError as error:
                raise TableError(f"cannot read {path / one['path']}: {error}") from error
            row = {
                "path": one["path"],
                "date": hour["date"],
                "hour": hour["hour"],
                "bucket": one["bucket"],
                "rows": footer.num_rows,
                "size_bytes": one["size_bytes"],
                "stats": statistics(footer, kind),
            }
            files.append(data_file(row, kind, now_ms))
    return files
