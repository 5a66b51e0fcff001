"""HDFS on this machine: a name node and a data node of Hadoop's own test cluster, in one JVM.

Maven fetches the test cluster's jar once, like the jars of Spark's connector; PySpark contains the rest of Hadoop.
"""

import os
import signal
import subprocess
from pathlib import Path

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.jars import Jar, fetch_jars
from kbroker.spark.setup.java import require_java
from kbroker.testing.waiting import wait_until
from tests.support import need
from tests.support.ports import free_run

MINICLUSTER = Jar(
    "org.apache.hadoop",
    "hadoop-client-minicluster",
    "3.5.0",
    "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
)
MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
START_S = 180
OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Hdfs:
    """Cluster of one node, which runs until `close`."""

    def __init__(self, folder: Path) -> None:
        from pyspark.find_spark_home import _find_spark_home

        try:
            java = require_java()
            (jar,) = fetch_jars([MINICLUSTER])
        except (PipelineError, OSError) as error:
            need.lack(str(error))
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_run(2)
        details, output = folder / "details.json", folder / "hdfs.log"
        jars = os.path.join(_find_spark_home(), "jars", "*")
        words = ("-nomr", "-format", "-datanodes", "1", "-nnport", str(self.port), "-writeDetails", str(details))
        settings = {
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "hdfs.minidfs.basedir": str(folder / "disk"),
            "dfs.namenode.edits.noeditlogchannelflush": "true",  # no fsync: no data outlives the test
        }
        options = [word for pair in settings.items() for word in ("-D", "=".join(pair))]
        call = [str(java), *OPTIONS, f"-Dtest.build.data={folder}", "-cp", f"{jar}{os.pathsep}{jars}", MAIN]
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [*call, *words, *options], cwd=folder, stdout=file, stderr=file, start_new_session=True
            )

        def is_up() -> bool:
            assert self._process.poll() is None, output.read_text()[-4000:]
            return details.exists() and details.stat().st_size > 0

        try:
            wait_until(is_up, START_S)
        except BaseException:
            self.close()
            raise

    @property
    def uri(self) -> str:
        """URI of the root folder."""
        return f"hdfs://127.0.0.1:{self.port}"

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # no data has to be kept
        self._process.wait()
