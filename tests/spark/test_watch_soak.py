"""`kbroker pipeline watch` for long: kill -9 in each phase, broker restarts, changed quotas, bounded state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.client.quotas import QuotaClient, QuotaEntity
from kbroker.spark.tables.delta_table import describe_table
from kbroker.spark.tables.log_reader import LogSource, good, read_log
from kbroker.spark.tables.table import read_table
from kbroker.spark.tables.table_stream import StreamOptions
from kbroker.spark.usage_views.throttles import throttles
from kbroker.spark.usage_views.usage import usage
from kbroker.spark.watch.live_page import write_live_page
from kbroker.spark.watch.views import throttles_of_views, usage_of
from kbroker.spark.watch.watch import Watched, watch
from kbroker.testing import EmbeddedBroker
from kbroker.testing.waiting import wait_until
from tests.spark.day import make_day, to_line
from tests.spark.processes import processes
from tests.spark.standalone import ROOT, environment
from tests.spark.watching import assert_equal_to_the_batch_jobs, closing_line, put, rows_of
from tests.support.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
#: Phases in which a run is killed, and the number of its batch. The first batch of a run reads, the second writes
#: minutes.
KILLS = (
    *(("computed", 1), ("computed", 2), ("written", 1), ("committed", 1), ("committed", 2)),
    *(("done", 1), ("done", 2), ("page", 1), ("compacted", 1)),
)


def kill_watch(logs: Path, table: Path, page: Path, phase: str = "", times: int = 1) -> int:
    words = [str(logs), str(table), str(page), *([phase, str(times)] if phase else [])]
    call = [sys.executable, "-m", "tests.spark.killed_watch", *words]
    done = subprocess.run(call, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{phase} {times}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode


def test_no_kill_loses_or_doubles_a_minute(spark: SparkSession, tmp_path: Path) -> None:
    """Each run has new records to read, and the page is complete at all times."""
    lines = list(make_day(2_000).lines())
    logs, table, page = tmp_path / "logs", tmp_path / "table", tmp_path / "page.html"
    part = len(lines) // len(KILLS) + 1
    killed = 0
    for number, (phase, times) in enumerate(KILLS):
        put(logs, number, lines[number * part : (number + 1) * part])
        killed += kill_watch(logs, table, page, phase, times) == -signal.SIGKILL
        assert not page.exists() or page.read_text().endswith("</html>\n")
    assert killed >= len(KILLS) - 1  # a phase such as a compaction may not occur
    put(logs, len(KILLS), [closing_line()])
    assert kill_watch(logs, table, page) == 0
    assert_equal_to_the_batch_jobs(spark, table, logs)
    assert page.read_text().endswith("</html>\n")


def test_a_broker_that_restarts_and_a_topic_that_grows(
    spark: SparkSession, start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """The stream continues after a kill of the broker, and reads added partitions."""
    broker = start_broker(group__initial__rebalance__delay__ms="0", log__retention__ms="-1")
    lines = [line for line, late in zip(make_day(2_000).lines(), make_day(2_000).late, strict=True) if not late]

    def send(some: list[str], partitions: int) -> None:
        with Cluster(broker.bootstrap) as cluster, Producer(cluster) as producer:
            for number, line in enumerate(some):
                producer.send("log", line.encode(), partition=number % partitions)

    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topics([NewTopic("log", 1, configs={"retention.ms": "-1"})])
    said: list[str] = []
    stopping = threading.Event()
    done: list[Watched] = []
    options = StreamOptions(buckets=1, follow=True, interval_ms=1_000, watermark_ms=3_600_000)
    source = LogSource.of_topic(broker.bootstrap, "log")

    def run() -> None:
        done.append(watch(spark, source, tmp_path / "t", options, progress=said.append, stopping=stopping.is_set))

    def read() -> int:
        return sum(int(line.split()[2].replace(",", "")) for line in said if "records; open" in line)

    watching = threading.Thread(target=run)
    watching.start()
    try:
        third = len(lines) // 3
        send(lines[:third], 1)
        wait_until(lambda: read() == third, 120)
        broker.kill()
        broker.start()
        send(lines[third : 2 * third], 1)
        wait_until(lambda: read() == 2 * third, 180)
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_partitions("log", 3)
        send([*lines[2 * third :], closing_line()], 3)
        wait_until(lambda: read() == len(lines) + 1, 180)
        wait_until(lambda: any("closed until 2026-01-04 23:00:00" in line for line in said), 120)
    finally:
        stopping.set()
        watching.join(120)
    assert len(done) == 1, said
    assert done[0].late == 0
    log = good(read_log(spark, source)).where("client_id is null or client_id != 'closing'")
    views = read_table(spark, tmp_path / "t")
    assert rows_of(usage_of(views)) == rows_of(usage(log).select(*usage_of(views).columns))
    held = throttles_of_views(views)
    assert rows_of(held) == rows_of(throttles(log).select(*held.columns))


def test_a_quota_that_changes(spark: SparkSession, tmp_path: Path) -> None:
    """The views of closed minutes equal the results of the batch jobs, under a limit, a lower limit and no limit."""
    slow = QuotaEntity.of({"client-id": "slow"})
    said: list[str] = []
    done: list[Watched] = []
    stopping = threading.Event()
    options = StreamOptions(buckets=1, follow=True, interval_ms=2_000, watermark_ms=30_000)
    with EmbeddedBroker({"kbroker.request.log.topic": "__request_log", "log.retention.ms": -1}) as broker:
        source = LogSource.of_topic(broker.bootstrap_servers, "__request_log")
        with Cluster(broker.bootstrap_servers, client_id="slow") as cluster, QuotaClient(cluster) as quotas:
            Admin(cluster).create_topics([NewTopic("t", 1)])

            def run() -> None:
                done.append(
                    watch(spark, source, tmp_path / "t", options, progress=said.append, stopping=stopping.is_set)
                )

            watching = threading.Thread(target=run)
            watching.start()
            try:
                for limit in (10_000.0, 5_000.0, None):
                    quotas.alter({slow: {"producer_byte_rate": limit}})
                    with Producer(cluster) as producer:
                        for _ in range(6):
                            producer.send("t", bytes(20_000), partition=0)
                            producer.flush()
                until = datetime.now(timezone.utc).replace(second=0, microsecond=0) + timedelta(minutes=1)

                def is_closed() -> bool:
                    cluster.fetch_metadata([])  # a minute is closed by later requests
                    found = [line.rpartition("closed until ")[2][:19] for line in said if "closed until" in line]
                    return any(one >= f"{until:%Y-%m-%d %H:%M:%S}" for one in found)

                wait_until(is_closed, 600)
            finally:
                stopping.set()
                watching.join(300)
        print("\n".join(said))
        closed = F.col("time") < F.lit(until)
        log = good(read_log(spark, source)).where(closed).cache()
        views = read_table(spark, tmp_path / "t").where(closed).cache()
        held = throttles_of_views(views)
        assert rows_of(held) == rows_of(throttles(log).select(*held.columns)), said
        assert rows_of(usage_of(views)) == rows_of(usage(log).select(*usage_of(views).columns)), said
        (row,) = [row for row in held.collect() if (row["client_id"], row["quota_type"]) == ("slow", "Produce")]
        assert (row["limit"], row["verdicts"] > 2) == (10_000.0, True), "the highest that was exceeded"
    assert done[0].late == 0


def children_rss_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants."""
    total = 0
    for one in (pid, *processes(pid)):
        try:
            total += int((Path("/proc") / str(one) / "statm").read_text().split()[1])
        except (OSError, ValueError):
            continue
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.parametrize("minutes", [int(os.environ.get("KBROKER_WATCH_MINUTES", "720"))])
def test_state_and_memory_are_bounded(spark: SparkSession, tmp_path: Path, minutes: int) -> None:
    """State and memory do not grow over hours of a log in which 40 entities open further connections."""
    logs, table, page = tmp_path / "logs", tmp_path / "table", tmp_path / "page.html"
    day = make_day(2_000)
    rows = [row for row, kind in zip(day.rows.to_pylist(), day.kinds, strict=True) if kind == 0]
    start = datetime(2026, 1, 2, tzinfo=timezone.utc)
    state: list[int] = []
    memory: list[float] = []
    said: list[str] = []
    stopping = threading.Event()

    def feed(number: int) -> None:
        lines = []
        for second in range(300):
            for one in range(4):
                row = dict(rows[(number * 1200 + second * 4 + one) % len(rows)])
                row["time"] = start + timedelta(seconds=300 * number + second, milliseconds=200 * one)
                row["connection"] = f"{row['connection']}-{number}-{second // 20}"
                lines.append(to_line(row))
        put(logs, number, lines)
        if number > 1:
            (logs / f"requests-{number - 2}.jsonl").unlink(missing_ok=True)

    def progress(line: str) -> None:
        said.append(line)
        if "records; open" in line:
            state.append(int(line.split("open: ")[1].split()[0].replace(",", "")))
            memory.append(children_rss_mb(os.getpid()))

    def read() -> int:
        return sum(int(line.split()[2].replace(",", "")) for line in said if "records; open" in line)

    done: list[Watched] = []
    options = StreamOptions(buckets=1, follow=True, interval_ms=1_000, watermark_ms=60_000)
    feed(0)

    def run() -> None:
        done.append(
            watch(
                spark, LogSource.of_files(logs, format="json"), table, options, progress=progress,
                refresh=lambda: write_live_page(spark, table, page, span_ms=86_400_000, every_ms=1_000),
                stopping=stopping.is_set,
            )
        )  # fmt: skip

    began = time.monotonic()
    watching = threading.Thread(target=run)
    watching.start()
    try:
        for number in range(1, minutes // 5):
            wait_until(lambda number=number: read() >= 1_200 * number or not watching.is_alive(), 300)  # type: ignore[misc]
            assert watching.is_alive(), said
            feed(number)
        wait_until(lambda: read() >= 1_200 * (minutes // 5), 300)
    finally:
        stopping.set()
        watching.join(300)
    third = len(state) // 3
    # a child of the JVM has its memory, too, until it executes a program: the median leaves such moments out
    first_mb, last_mb = median(memory[:third]), median(memory[-third:])
    print(
        f"{minutes} minutes of log in {time.monotonic() - began:.0f} s, {len(state)} batches; state rows: first third "
        f"up to {max(state[:third])}, last third up to {max(state[-third:])}; resident MB: {first_mb:.0f}, "
        f"{last_mb:.0f}; {done[0]}; table: {describe_table(table)}; page {page.stat().st_size} bytes"
    )
    assert max(state[-third:]) <= 1.2 * max(state[:third])
    assert last_mb <= 1.5 * first_mb  # the heap has reached its maximum later
    assert done[0].late == 0
