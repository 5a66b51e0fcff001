"""kafkajs' tests of ACLs against this broker, fetched and run in a folder outside the repository.

    python tests/suites/kafkajs.py FOLDER [--files 'acls|connection']

The files whose path matches --files, in upper or lower case, run one after the other against one broker with kafkajs'
users, a TLS listener and an authorizer. FAILS has the tests that may fail, with reasons; the exit status is 1 if
another test fails. Needs git, npm and the packages of tests/requirements.txt.
"""

import argparse
import json
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
from tests.support.certificates import Certificates  # noqa: E402
from tests.support.ports import free_run  # noqa: E402

SOURCE, VERSION = "https://github.com/tulios/kafkajs.git", "v2.2.4"
PACKAGES = ("jest@25", "jest-circus@25", "jest-extended@0.11", "execa@2", "uuid@3", "semver@6", "jsonwebtoken@9")
# One broker replaces kafkajs' three brokers, and has one port per protocol.
PORTS = {"PLAINTEXT": ("9092", "9095", "9098"), "SSL": ("9093", "9096", "9099"), "SASL_SSL": ("9094", "9097", "9100")}
CHANGES = [
    (r"replicationFactor: 2\b", "replicationFactor: 1"),
    (r"getHost = \(\) => 'localhost'", "getHost = () => '127.0.0.1'"),
]
USERS = {"test": "testtest", "bob": "bobbob", "alice": "alicealice"}
_NO_MESSAGE = "expects null without an error, as from Kafka 2.4; Apache Kafka 4.3.1 responds with an empty message"
FAILS = {
    "createAcls.spec.js: Broker > createAcls request": _NO_MESSAGE,
    "describeAcls.spec.js: Broker > describeAcls request": _NO_MESSAGE,
}


def settings(folder: Path, first_port: int) -> dict[str, str]:
    certificates = Certificates(folder / "certificates")
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{first_port + n}" for n, name in enumerate(PORTS)),
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
    }


def fetched(folder: Path, first_port: int) -> Path:
    """Return a fresh copy of the tests with the addresses of this broker."""
    clone, source = folder / "clone", folder / "kafkajs"
    if not clone.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", "--depth", "1", "--branch", VERSION, SOURCE, str(clone)], check=True)
        install = ["npm", "install", "--silent", "--no-save", "--no-package-lock", "--ignore-scripts"]
        subprocess.run([*install, *PACKAGES], cwd=clone, check=True)
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(clone, source, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    ports = [
        (rf"\b{port}\b", str(first_port + n)) for n, theirs in enumerate(PORTS.values()) for port in theirs
    ]  # fmt: skip
    for file in (*source.glob("src/**/*.spec.js"), source / "testHelpers" / "index.js"):
        text = file.read_text(encoding="utf-8")
        for old, new in (*CHANGES, *ports):
            text = re.sub(old, new, text)
        file.write_text(text, encoding="utf-8")
    return source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", default="acls")
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    first_port = free_run(3)
    source = fetched(folder, first_port)
    data, report = folder / f"data-{time.time_ns():x}", folder / "report.json"
    report.unlink(missing_ok=True)
    broker = BrokerProcess(data, settings(folder, first_port))
    broker.port = first_port
    broker.start()
    try:
        jest = ["node_modules/.bin/jest", "--runInBand", "--ci", "--forceExit", "--reporters=default", "--json"]
        with (folder / "kafkajs.log").open("w") as log:
            subprocess.run(
                [*jest, f"--outputFile={report}", f"--testPathPattern=src/(admin|broker)/.*({chosen.files})"],
                cwd=source, env={**os.environ, "NODE_ENV": "test", "KAFKA_VERSION": "2.4"},
                stdout=log, stderr=log, timeout=900, check=False,
            )  # fmt: skip
    finally:
        print(f"broker ended with {broker.stop() if broker.is_alive() else 'a crash'}")
        shutil.rmtree(data, ignore_errors=True)
    files = json.loads(report.read_text())["testResults"]
    tests = [(Path(file["name"]).name, test) for file in files for test in file["assertionResults"]]
    words = [test["status"] for _, test in tests]
    print({word: words.count(word) for word in sorted(set(words))}, "in", len(files), "files")
    failed = [f"{file}: {test['fullName']}" for file, test in tests if test["status"] == "failed"]
    failed += [f"{Path(file['name']).name}: {file['message']}" for file in files if not file["assertionResults"]]
    for name in failed:
        print(f"{name}: {FAILS.get(name, 'UNEXPECTED')}")
    return int(not tests or any(name not in FAILS for name in failed))


if __name__ == "__main__":
    sys.exit(main())
