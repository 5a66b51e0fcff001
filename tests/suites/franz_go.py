"""franz-go's tests, and the tests of Kafka in its kfake, against this broker.

    python tests/suites/franz_go.py FOLDER [--run PATTERN] [--records 50000] [--kgo] [--kafka]

The first part is the client's package kgo, whose tests share one broker. The second part is the tests of Kafka's
clients that franz-go has in Go for kfake: the package `kfake` beside this file replaces franz-go's, and starts a broker
for each test. FAILS has the tests that may fail, with reasons; the exit status is 1 if another test fails. Both are
fetched by `go mod download` and run in a folder outside the repository. KBROKER_TEST_BOOTSTRAP=host:port selects
another broker.
"""

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.suites.go_tests import fetched, judged, run  # noqa: E402
from tests.support.broker import SERVE, BrokerProcess  # noqa: E402

PACKAGE = "github.com/twmb/franz-go"
VERSION = "v1.22.2"
# franz-go's CI uses Kafka with its defaults; the tests count records, not rebalances.
SETTINGS = {"node.id": "1", "group.initial.rebalance.delay.ms": "0"}
FAILS = {
    "TestDescribeProducersAfterCommit": "a producer is listed until its id expires, by Apache Kafka 4.3.1 too",
    "TestGroupMaxSize848": "a heartbeat of version 1 without a member id, which Apache Kafka refuses too",
    "TestFenceBeforeProducerCommit": "InitProducerId responds with CONCURRENT_TRANSACTIONS first, as in Kafka",
}
# Tests that examine requests inside kfake are skipped.
LEFT_OUT = "^(TestAssignConsumeFromEnd|TestFetchOutOfRangeResetLatest|Test848SessionTimeout)$"


def options(pattern: str) -> list[str]:
    """Return the options of `go test` for both packages."""
    return ["-parallel=4", f"-run={pattern}", f"-skip={LEFT_OUT}"]


def kgo(folder: Path, pattern: str, records: int) -> dict[str, str]:
    """Run the tests of the client against one broker, and return their results."""
    source = fetched(f"{PACKAGE}@{VERSION}", folder / "franz-go")
    chosen = [*options(pattern), "./pkg/kgo"]
    settings = {"KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(records), "KGO_LOG_LEVEL": "none"}
    if foreign := os.environ.get("KBROKER_TEST_BOOTSTRAP"):
        return run(source, folder / "kgo.log", chosen, {**settings, "KGO_SEEDS": foreign})
    data = folder / "data" / f"{time.time_ns():x}"
    broker = BrokerProcess(data, SETTINGS)
    broker.start()
    try:
        return run(source, folder / "kgo.log", chosen, {**settings, "KGO_SEEDS": broker.bootstrap})
    finally:
        print("broker ended with", broker.stop() if broker.is_alive() else "a crash")
        shutil.rmtree(data, ignore_errors=True)


def kafka(folder: Path, pattern: str) -> dict[str, str]:
    """Run Kafka's tests in Go, each against its own broker, and return their results."""
    pin = re.search(r"franz-go/pkg/kfake (\S+)", (ROOT / "bench" / "loads" / "kfake" / "go.mod").read_text())
    assert pin is not None
    source = fetched(f"{PACKAGE}/pkg/kfake@{pin.group(1)}", folder / "kfake")
    place = folder / "kafka"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(HERE / "kfake", place)
    shutil.copytree(source / "kafka_tests", place / "kafka_tests")
    serve = "\n".join((sys.executable, *SERVE))
    return run(place, folder / "kafka.log", [*options(pattern), "./kafka_tests"], {"KBROKER_SERVE": serve})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", default=".", help="pattern of tests, as for `go test -run`")
    parser.add_argument(
        "--records", type=int, default=50_000, help="records of each chain of groups (franz-go's default: 500,000)"
    )
    parser.add_argument("--kgo", action="store_true", help="only the client's tests")
    parser.add_argument("--kafka", action="store_true", help="only Kafka's tests")
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, str] = {}
    if not chosen.kafka:
        results.update(kgo(folder, chosen.run, chosen.records))
    if not chosen.kgo:
        results.update(kafka(folder, chosen.run))
    return judged(results, FAILS)


if __name__ == "__main__":
    sys.exit(main())
