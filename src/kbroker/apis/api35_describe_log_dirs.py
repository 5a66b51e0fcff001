"""DescribeLogDirs: the log folders and the sizes of the partitions in them."""

from __future__ import annotations

import shutil

from kbroker.common.errors import Errors
from kbroker.common.loggers import get_logger
from kbroker.log.log_dirs import IN_MEMORY, LogDirView
from kbroker.requests.cluster import is_replica
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

logger = get_logger(__name__)

UNKNOWN_BYTES = -1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Describe the named partitions, or all of them; unknown partitions are left out.

    A log folder that failed is reported as KAFKA_STORAGE_ERROR alone.
    """
    ctx.auth.require(request, checks.DESCRIBE_LOG_DIRS)
    wanted = None
    if body["Topics"] is not None:
        wanted = {(topic["Topic"], index) for topic in body["Topics"] for index in topic["Partitions"]}
    return {"ErrorCode": 0, "Results": [_result(ctx, view, wanted) for view in ctx.topics.describe_log_dirs()]}


def _result(ctx: ApiContext, view: LogDirView, wanted: set[tuple[str, int]] | None) -> Body:
    topics: dict[str, list[Body]] = {}
    total = usable = UNKNOWN_BYTES
    if not view.failure:
        total, usable = _volume_bytes(view.path)
        for (name, index), replicas in view.replicas.items():
            if (wanted is None or (name, index) in wanted) and is_replica(ctx, name, index):
                topics.setdefault(name, []).extend(
                    {
                        "PartitionIndex": index,
                        "PartitionSize": replica.size_bytes,
                        "OffsetLag": replica.offset_lag,
                        "IsFutureKey": replica.is_future,
                    }
                    for replica in replicas
                )
    return {
        "ErrorCode": int(Errors.KAFKA_STORAGE_ERROR if view.failure else Errors.NONE),
        "LogDir": view.path,
        "Topics": [{"Name": name, "Partitions": rows} for name, rows in topics.items()],
        "TotalBytes": total,
        "UsableBytes": usable,
        "IsCordoned": False,
    }


def _volume_bytes(path: str) -> tuple[int, int]:
    """Return the total and the free bytes of a folder's volume."""
    if path != IN_MEMORY:
        try:
            usage = shutil.disk_usage(path)
            return usage.total, usage.free
        except OSError as error:
            logger.warning("cannot read the size of the volume of %s: %s", path, error)
    return UNKNOWN_BYTES, UNKNOWN_BYTES
