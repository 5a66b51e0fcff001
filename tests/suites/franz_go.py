"""franz-go's own tests, and the tests of Kafka that its kfake carries, against our broker.

    python tests/suites/franz_go.py FOLDER [--run PATTERN] [--records 50000] [--kgo] [--kafka]

The first part is the client's package kgo: those of its tests that talk to a broker share one of ours. The second are
tests of Kafka's own clients, which franz-go has in Go for kfake: the package `kfake` beside this file takes kfake's
place and starts a broker of ours for each. What may fail is in FAILS, with its reason; exit status 1 if anything else
does. Both are fetched by `go mod download` and run in a folder outside the repository; KBROKER_TEST_BOOTSTRAP=host:port
runs them against any broker.
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
# Their broker in CI is Kafka with its defaults; the tests count records, not rebalances.
SETTINGS = {"node.id": "1", "group.initial.rebalance.delay.ms": "0"}
FAILS = {
    "TestDescribeProducersAfterCommit": "a producer is listed until its id expires, by Apache Kafka 4.3.1 too",
    "TestGroupMaxSize848": "a heartbeat of version 1 without a member id, which Apache Kafka refuses as well",
    "TestFenceBeforeProducerCommit": "InitProducerId answers CONCURRENT_TRANSACTIONS first, as in Kafka",
}
# What does not run: what looks at requests inside kfake.
LEFT_OUT = "^(TestAssignConsumeFromEnd|TestFetchOutOfRangeResetLatest|Test848SessionTimeout)$"


def options(pattern: str) -> list[str]:
    """Return the options of `go test` for both packages."""
    return ["-parallel=4", f"-run={pattern}", f"-skip={LEFT_OUT}"]


def kgo(folder: Path, pattern: str, records: int) -> dict[str, str]:
    """The tests of the client against one broker."""
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
    """Kafka's tests in Go, each against its own broker."""
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
    parser.add_argument("--run", default=".", help="which tests, as `go test -run` takes it")
    parser.add_argument("--records", type=int, default=50_000, help="of each chain of groups (theirs: 500,000)")
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
