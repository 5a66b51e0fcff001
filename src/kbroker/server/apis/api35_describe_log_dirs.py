"""DescribeLogDirs: the log folder and how large the partitions in it are."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from typing import Any

from kbroker.common.errors import Errors
from kbroker.server.context import ApiContext, Body, RequestContext

logger = logging.getLogger(__name__)

IN_MEMORY = "memory"  # the name of the folder that is none
UNKNOWN_BYTES = -1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Tell of the partitions asked for, of all when none is named; those that are not there are left out."""
    if body["Topics"] is None:
        wanted: Iterable[tuple[str, Iterable[int]]] = [(t.name, range(len(t.partitions))) for t in ctx.topics.all()]
    else:
        wanted = [(topic["Topic"], topic["Partitions"]) for topic in body["Topics"]]
    topics: dict[str, dict[int, Body]] = {}
    for name, indexes in wanted:
        for index in indexes:
            row = _partition(ctx.topics.partition(name, index), index)
            if row is not None:
                topics.setdefault(name, {})[index] = row
    path, total, usable = _folder(ctx)
    result = {
        "ErrorCode": 0,
        "LogDir": path,
        "Topics": [{"Name": name, "Partitions": list(rows.values())} for name, rows in topics.items()],
        "TotalBytes": total,
        "UsableBytes": usable,
        "IsCordoned": False,
    }
    return {"ErrorCode": 0, "Results": [result]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """No folder."""
    return {"ErrorCode": int(error), "Results": []}


def folder_path(ctx: ApiContext) -> str:
    """The one log folder as clients are told of it."""
    return IN_MEMORY if ctx.config.boolean("kbroker.in.memory") else os.path.abspath(ctx.config.log_dir)


def _folder(ctx: ApiContext) -> tuple[str, int, int]:
    """Path, and the bytes of its volume: all, and those left."""
    path = folder_path(ctx)
    if path == IN_MEMORY:
        return path, UNKNOWN_BYTES, UNKNOWN_BYTES
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        logger.warning("cannot tell the size of the volume of %s: %s", path, error)
        return path, UNKNOWN_BYTES, UNKNOWN_BYTES
    return path, usage.total, usage.free


def _partition(log: Any, index: int) -> Body | None:
    if log is None or log.is_closed:
        return None
    return {"PartitionIndex": index, "PartitionSize": log.size_bytes, "OffsetLag": 0, "IsFutureKey": False}
