"""The checkpoint of a stream, in which Spark keeps offsets, on a disk or in a store.

Spark writes it through its own Hadoop client, and kbroker reads the stream's id from it as it reads a table. Spark
includes HDFS; S3 needs Hadoop's jars of 100 MB and more, which are optional.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kbroker.spark.errors import PipelineError
from kbroker.spark.session_kind import is_connect
from kbroker.spark.tables.delta_table import CHECKPOINT, TableError
from kbroker.spark.tables.table_place import TablePlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Options of a store of S3's protocol: the names of delta-rs, and those of Hadoop's client.
_S3A = {
    "aws_endpoint_url": "fs.s3a.endpoint",
    "aws_region": "fs.s3a.endpoint.region",
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
}
_BY_HOST = "aws_virtual_hosted_style_request"
HADOOP_AWS = "org.apache.hadoop:hadoop-aws"
METADATA = "metadata"
OFFSETS, COMMITS = "offsets", "commits"  # folders with a file for each planned batch, and for each completed one
STATE = "state"
VERIFIES_EMPTY = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"


def place_of_checkpoint(given: str | os.PathLike[str] | None, table: TablePlace) -> TablePlace:
    """Return the place of the checkpoint of a stream into a table: the given one, else a folder inside the table.

    Raises: TableError when none is given for a table in a store that Spark cannot write on its own; PipelineError for a
    URI of an unknown store.
    """
    if given is not None:
        place = TablePlace.of(given, table.storage_options)
        if place.is_local and os.path.isfile(place.uri):
            raise PipelineError(f"{place} is a file: expected a folder for Spark's offsets")
        return place
    if table.is_local or table.uri.startswith("hdfs://"):
        return table.within(CHECKPOINT)
    raise TableError(
        f"{table} is in a store that Spark alone cannot write to: name a folder of this machine, or one in HDFS, for "
        f"its offsets with --checkpoint, or {table.spark_uri}/{CHECKPOINT} if Spark has the jars of that store"
    )


def require_checkpoint(spark: SparkSession, place: TablePlace) -> None:
    """Set the options of a checkpoint's store for Spark's Hadoop client, unless the user has; check its jars.

    Raises: PipelineError when Spark has no client of that store. Behind Spark Connect the start of the stream fails.
    """
    if place.is_local:
        return
    for name, value in hadoop_settings(place).items():
        if spark.conf.get(f"spark.hadoop.{name}", None) is None and spark.conf.get(name, None) is None:
            spark.conf.set(name, value)
    if is_connect(spark):
        return
    jvm: Any = spark._jvm
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(urlsplit(place.spark_uri).scheme, hadoop)
    except Exception as error:
        if type(error).__module__ != "py4j.protocol":
            raise
        raise PipelineError(no_client(place, jvm.org.apache.hadoop.util.VersionInfo.getVersion())) from error


def no_client(place: TablePlace, version: str) -> str:
    """Return the sentence for a store that Spark cannot write to. Args: `version` of Spark's Hadoop."""
    package = f"{HADOOP_AWS}:{version}" if place.spark_uri.startswith("s3a:") else "GROUP:ARTIFACT:VERSION"
    return (
        f"Spark keeps offsets in the checkpoint {place.spark_uri} by Hadoop's client, and has none for that store: "
        f"give it the jars (--conf spark.jars.packages={package}), or name a folder of this machine or in HDFS with "
        "--checkpoint"
    )


def hadoop_settings(place: TablePlace) -> dict[str, str]:
    """Return the settings of Hadoop's client for the store of a place, from its options and the environment."""
    if not place.spark_uri.startswith("s3a:"):
        return {}
    known = {name.lower(): value for name, value in {**os.environ, **place.storage_options}.items()}
    found = {setting: known[name] for name, setting in _S3A.items() if known.get(name)}
    if "fs.s3a.endpoint" in found and known.get(_BY_HOST, "false").lower() != "true":
        found["fs.s3a.path.style.access"] = "true"
    return found


def last_batch(place: TablePlace, folder: str) -> int:
    """Return the highest number of a batch in a folder of a checkpoint, OFFSETS or COMMITS; -1 before the first."""
    names = [path.rpartition("/")[2] for path, _ in place.listed(folder)]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def verifies_empty(place: TablePlace) -> str | None:
    """Return the value of VERIFIES_EMPTY for the start of a stream; None: Spark's own.

    A process that is killed while Spark writes the offsets of its first batch leaves a temporary file, for which Spark
    4.2 would refuse each later start, as if the checkpoint were that of another query.
    """
    from pyarrow import fs

    folders = [fs.FileSelector(folder, allow_not_found=True) for folder in (OFFSETS, COMMITS, STATE)]
    names = [info.base_name for folder in folders for info in place.filesystem().get_file_info(folder)]
    return "false" if names and all(name.startswith(".") for name in names) else None


def stream_id(place: TablePlace) -> str | None:
    """Return Spark's id of the stream of a checkpoint; None before its first start. Raises: OSError."""
    try:
        return str(json.loads(place.read(METADATA))["id"])
    except FileNotFoundError:
        return None
