"""DescribeLogDirs: the log folder and how large the partitions in it are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kbroker.common.errors import Errors
from kbroker.common.loggers import get_logger
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

logger = get_logger(__name__)

IN_MEMORY = "memory"  # the folder's name where logs are kept in memory
UNKNOWN_BYTES = -1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe the partitions named, or all when none is; unknown partitions are left out.

    A log folder that failed is reported as KAFKA_STORAGE_ERROR alone.
    """
    ctx.auth.require(request, checks.DESCRIBE_LOG_DIRS)
    path = folder_path(ctx)
    if Path(path) in ctx.topics.offline_dirs:
        return {"ErrorCode": 0, "Results": [_result(path, Errors.KAFKA_STORAGE_ERROR)]}
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
    result = _result(path, Errors.NONE)
    result["Topics"] = [{"Name": name, "Partitions": list(rows.values())} for name, rows in topics.items()]
    result["TotalBytes"], result["UsableBytes"] = _volume_bytes(path)
    return {"ErrorCode": 0, "Results": [result]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """No folder."""
    return {"ErrorCode": int(error), "Results": []}


def folder_path(ctx: ApiContext) -> str:
    """The one log folder, as reported to clients."""
    return IN_MEMORY if ctx.config.boolean("kbroker.in.memory") else os.path.abspath(ctx.config.log_dir)


def _result(path: str, error: Errors) -> Body:
    return {
        "ErrorCode": int(error),
        "LogDir": path,
        "Topics": [],
        "TotalBytes": UNKNOWN_BYTES,
        "UsableBytes": UNKNOWN_BYTES,
        "IsCordoned": False,
    }


def _volume_bytes(path: str) -> tuple[int, int]:
    """The bytes of the volume of a folder: all, and those left."""
    if path != IN_MEMORY:
        try:
            usage = shutil.disk_usage(path)
            return usage.total, usage.free
        except OSError as error:
            logger.warning("cannot read the size of the volume of %s: %s", path, error)
    return UNKNOWN_BYTES, UNKNOWN_BYTES


def _partition(log: Any, index: int) -> Body | None:
    if log is None or log.is_closed:
        return None
    return {"PartitionIndex": index, "PartitionSize": log.size_bytes, "OffsetLag": 0, "IsFutureKey": False}
