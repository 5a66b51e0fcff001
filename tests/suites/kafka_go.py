"""kafka-go's tests against this broker.

    python tests/suites/kafka_go.py FOLDER [--run PATTERN]

The tests name the ports 9092 and, for SASL, 9093, which must be free. FAILS has the tests that may fail, with reasons;
the exit status is 1 if another test fails. The module is fetched by `go` and runs in a folder outside the repository.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kbroker.client.cluster import Cluster  # noqa: E402
from kbroker.client.users import Users  # noqa: E402
from tests.suites.go_tests import fetched, judged, run  # noqa: E402
from tests.support.broker import BrokerProcess  # noqa: E402

MODULE = "github.com/segmentio/kafka-go@v0.4.51"
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_adminplain="admin-secret";'
# as in the module's docker-compose.yml
SETTINGS = {
    "node.id": "1",
    "listeners": "PLAINTEXT://localhost:9092,SASL_PLAINTEXT://127.0.0.1:9093",
    "message.max.bytes": "200000000",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
PASSWORDS = {"SCRAM-SHA-256": "admin-secret-256", "SCRAM-SHA-512": "admin-secret-512"}
CREATED_AGAIN = "a Metadata request creates the topic again, and its response contains it"
FAILS = {
    "TestConn": "the following two",
    "TestConn/test_delete_topics": CREATED_AGAIN,
    "TestConn/test_delete_topics_with_an_invalid_topic": CREATED_AGAIN,
    "TestReaderReadCompactedMessage": "segment.bytes=200 is below the minimum of Kafka 4",
}
# Left out: three cases in which the suite calls a function that it has not set, so that its process ends, and a case in
# which two readers must have a partition each after one rebalance: Apache Kafka 4.3.1 fails it now and then too.
GROUP = "TestReaderConsumerGroup"
LEFT_OUT = f"^{GROUP}$/(verify_offset_committed|consumer_group_commits_on_close|consumer_group_rebalance$)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", default=".", help="pattern of tests, as for `go test -run`")
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    source = fetched(MODULE, folder / "kafka-go")
    data = folder / "data" / f"{time.time_ns():x}"
    try:
        with BrokerProcess(data, SETTINGS):
            with Cluster("localhost:9092") as cluster:
                for mechanism, password in PASSWORDS.items():
                    Users(cluster).set("adminscram", mechanism, password)
            options = [f"-run={chosen.run}", f"-skip={LEFT_OUT}", "./..."]
            results = run(source, folder / "kafka-go.log", options, {"KAFKA_VERSION": "3.7.0"})
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return judged(results, FAILS)


if __name__ == "__main__":
    sys.exit(main())
