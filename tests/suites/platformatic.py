"""Tests of @platformatic/kafka that use a broker, against this broker.

    python tests/suites/platformatic.py FOLDER [--files 'consumer|admin'] [--source REPOSITORY] [--seconds 300]

The docker-compose.yml of the tests has a broker, a broker with SASL and a cluster of three. Brokers in this process
replace them, with free ports in a copy of the tests. The files whose path matches --files run one after the other.
FAILS has the tests that may fail, and LEFT_OUT the files that are skipped, with reasons; the exit status is 1 if
another test fails. The npm package has no tests, so they are fetched from the repository, or from a clone that --source
names. Needs git, and Node with npm.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from kbroker.testing import EmbeddedBroker, EmbeddedCluster  # noqa: E402
from tests.support.ports import free_run  # noqa: E402

SOURCE, VERSION = "https://github.com/platformatic/kafka.git", "v1.34.0"
#: Packages that the tests import besides the client's own dependencies.
PACKAGES = (
    "@swc-node/register@1", "typescript@5", "@watchable/unpromise@1", "fast-jwt@6", "hwp@0.4", "lz4-napi@2",
    "prom-client@15", "semver@7", "snappy@7",
)  # fmt: skip
#: Settings of docker-compose.yml, where the image ignores the KAFKA_CFG_ names.
SETTINGS: dict[str, object] = {
    "num.partitions": 1,
    "default.replication.factor": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "offsets.topic.num.partitions": 50,
    "transaction.state.log.num.partitions": 50,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.heartbeat.interval.ms": 100,
}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
#: Ports of the tests, with offsets from the first port here; 9003 has Kerberos, 9010 is one below the cluster's.
PORTS = {9001: 0, 9002: 1, 9010: 1, 9011: 2, 9012: 3, 9013: 4}
CHANGES = [
    (r"broker\.port \+ 10000", "broker.port + 10"),
    (r"import krb, .* from 'kerberos'", "const krb: any = null\ntype KerberosClient = any"),  # built in C with krb5
]
#: Other tests need no broker, or Confluent's Schema Registry.
FOLDERS = ("test/clients", "test/network")
_NO_OAUTH = "the broker has no OAUTHBEARER"
_NO_KERBEROS = "the broker has no GSSAPI"
_NO_NETWORK = "the network must drop packets to 192.0.2.1; without a route the error is different"
_CONNECT = "connection.test.ts: Connection.connect should"
_SASL = f"{_CONNECT} connect to SASL protected broker using SASL"
LEFT_OUT = {"sasl-gssapi.test.ts": _NO_KERBEROS, "sasl-oauthbearer.test.ts": _NO_OAUTH}
FAILS = {
    f"{_SASL}/GSSAPI": _NO_KERBEROS,
    f"{_SASL}/GSSAPI using a custom implementation": _NO_KERBEROS,
    f"{_SASL}/OAUTHBEARER": _NO_OAUTH,
    f"{_SASL}/OAUTHBEARER using a custom implementation": _NO_OAUTH,
    f"{_CONNECT} handle connection timeout": _NO_NETWORK,
    "base.test.ts: metadata should handle connection failures to non-existent broker": _NO_NETWORK,
    "base.test.ts: metadata should only fetch missing topics if requested to": (
        "expects that two topics are created in different milliseconds"
    ),
    "admin.test.ts: describeConfigs should include documentation and synonyms if requested (TOPIC resource type)": (
        "expects Kafka's text about cleanup.policy"
    ),
    "admin.test.ts: describeLogDirs should describe log directories for topics and support diagnostic channels": (
        "expects the log folder of the container image"
    ),
    "producer.test.ts: send should handle errors from ConnectionPool.get": (
        "counts connections: Kafka responds to the first Metadata of a new topic with UNKNOWN_TOPIC_OR_PARTITION, "
        "so the client sends another one; this broker responds with the topic"
    ),
}
RESULT = re.compile(r"^ *(ok|not ok) \d+ - (.*?)(?: # (?:SKIP|TODO).*)?$")


def fetched(folder: Path, source: str, ports: dict[int, int]) -> Path:
    """Return a fresh copy of the tests with the ports of the brokers."""
    clone, copy = folder / "clone", folder / "platformatic"
    if not clone.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", "--depth", "1", "--branch", VERSION, source, str(clone)], check=True)
        install = ["npm", "install", "--silent", "--no-save", "--no-package-lock", "--ignore-scripts"]
        subprocess.run([*install, "--omit=dev"], cwd=clone, check=True)
        subprocess.run([*install, *PACKAGES], cwd=clone, check=True)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(clone, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "node_modules"))
    (copy / "node_modules").symlink_to(clone / "node_modules")
    for file in copy.glob("test/**/*.ts"):
        text = file.read_text(encoding="utf-8")
        for old, new in (*CHANGES, *((rf"\b{theirs}\b", str(ours)) for theirs, ours in ports.items())):
            text = re.sub(old, new, text)
        file.write_text(text, encoding="utf-8")
    return copy


def listener(port: int, name: str = "PLAINTEXT") -> dict[str, object]:
    return {"listeners": f"{name}://127.0.0.1:{port}", "advertised.listeners": f"{name}://localhost:{port}"}


def sasl(port: int) -> dict[str, object]:
    """Return the settings of the broker with SASL, whose second listener is for the test that creates users."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return {
        **SETTINGS,
        "listeners": f"SASL://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{port + 10}",
        "advertised.listeners": f"SASL://localhost:{port},PLAINTEXT://localhost:{port + 10}",
        "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": f'{plain} username="admin" password="admin" user_admin="admin";',
        "connections.max.reauth.ms": 5000,
        **AUTHORIZER,
        "super.users": "User:admin;User:ANONYMOUS",
    }


def run(source: Path, file: Path, log: Path, seconds: float) -> dict[str, str]:
    """Run a file of tests, and return "ok", "not ok" or "skip" by name."""
    modern = os.popen("node --version").read().strip() >= "v22"
    options = [] if modern else ["--import", "@swc-node/register/esm-register"]
    command = ["node", *options, "--test", "--test-reporter=tap", str(file.relative_to(source))]
    try:
        done = subprocess.run(
            command, cwd=source, env={**os.environ, "KAFKA_VERSION": "8.1.0"}, timeout=seconds, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode() + f"\nnot ok 0 - not within {seconds:g} s\n"
    with log.open("a", encoding="utf-8") as opened:
        opened.write(f"==== {file}\n{output}")
    results = {}
    for line in output.splitlines():
        if found := RESULT.match(line):
            results[found[2]] = "skip" if " # SKIP" in line else found[1]
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", default=".")
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--seconds", type=float, default=300, help="time for a file")
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    first = free_run(16)
    source = fetched(folder, chosen.source, {theirs: first + ours for theirs, ours in PORTS.items()})
    log = folder / "platformatic.log"
    log.unlink(missing_ok=True)
    results: dict[str, str] = {}
    with contextlib.ExitStack() as running:
        running.enter_context(EmbeddedBroker({**SETTINGS, **listener(first)}))
        running.enter_context(EmbeddedBroker(sasl(first + 1)))
        running.enter_context(EmbeddedCluster(3, {**SETTINGS, **AUTHORIZER, **listener(first + 2)}))
        for file in sorted(path for name in FOLDERS for path in (source / name).glob("**/*.test.ts")):
            if file.name in LEFT_OUT or not re.search(chosen.files, str(file.relative_to(source))):
                continue
            found = run(source, file, log, chosen.seconds)
            words = list(found.values())
            print(f"  {file.name}", {word: words.count(word) for word in sorted(set(words))}, flush=True)
            results.update({f"{file.name}: {name}": word for name, word in found.items()})
    failed = sorted(name for name, word in results.items() if word == "not ok")
    print({word: sum(one == word for one in results.values()) for word in ("ok", "not ok", "skip")})
    for name in failed:
        print(f"{name}: {FAILS.get(name, 'UNEXPECTED')}")
    return int(not results or any(name not in FAILS for name in failed))


if __name__ == "__main__":
    sys.exit(main())
