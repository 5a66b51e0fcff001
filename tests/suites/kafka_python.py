"""kafka-python's integration tests against this broker, fetched and run in a folder outside the repository.

    python tests/suites/kafka_python.py FOLDER

FAILS has the tests that may fail, with reasons; the exit status is 1 if another test fails. The packages of the codecs
(python-snappy, lz4, zstandard) and pytest-timeout must be installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.support.broker import BrokerProcess  # noqa: E402
from tests.support.ports import free_run  # noqa: E402

VERSION = "3.0.12"
FAILS = {
    "test_ssl_handshake": "starts a Kafka itself, with certificates",
    "test_legacy_kafka_client_ssl": "starts a Kafka itself, with certificates",
}
SETTINGS = {
    "node.id": "0",  # test_create_partitions assigns partitions to node 0
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",  # test_group uses a session timeout of 3 s
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
SERVICE = """class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService(ExternalService):
    pass
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    source = folder / f"kafka_python-{VERSION}"
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "kafka-python"]
        subprocess.run([*download, "-d", str(folder), f"kafka-python=={VERSION}"], check=True)
        subprocess.run(["tar", "xzf", f"{source}.tar.gz", "-C", str(folder)], check=True)
        (source / "test" / "__init__.py").touch()
        (source / "test" / "service.py").write_text(SERVICE)
    (folder / "empty").mkdir(exist_ok=True)
    data = folder / f"data-{time.time_ns():x}"
    port = free_run(1)
    # test_describe_configs_broker_resource_returns_configs needs a configured address instead of a default
    broker = BrokerProcess(data, {**SETTINGS, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    broker.port = port
    broker.start()
    try:
        uri, root = f"kafka://{broker.bootstrap}", str(folder / "empty")
        where = {"KAFKA_URI": uri, "KAFKA_VERSION": "4.3.0", "KAFKA_ROOT": root}
        options = ["-p", "no:cacheprovider", "-p", "no:kbroker", "-W", "ignore", "-q", "--tb=short", "-rfEs"]
        pytest = [sys.executable, "-m", "pytest"]
        done = subprocess.run(
            [*pytest, "test/integration", "--timeout=60", "--timeout-method=signal", *options],
            cwd=source,
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **where},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        print(f"broker ended with {broker.stop() if broker.is_alive() else 'a crash'}")
        shutil.rmtree(data, ignore_errors=True)
    (folder / "kafka-python.log").write_text(done.stdout)
    summary = done.stdout.rpartition("short test summary info")[2]
    print(summary)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", summary, re.MULTILINE)
    for name in failed:
        print(f"{name}: {FAILS.get(name, 'UNEXPECTED')}")
    return int(not summary or any(name not in FAILS for name in failed))


if __name__ == "__main__":
    sys.exit(main())
