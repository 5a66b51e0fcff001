"""librdkafka's test suite against this broker, fetched, built and run in a folder outside the repository.

    python tests/suites/librdkafka.py FOLDER [-j 3] [--only 0001 0045] [--sasl] [--protocol consumer]

Each file of tests that use a broker runs alone against one of the brokers, of which there are as many as jobs. A failed
file is repeated without other load, since many tests measure time. librdkafka_left_out.txt has the tests that may fail,
with reasons; the exit status is 1 if another test fails. `--sasl` runs the files that test more with authentication,
with clients that authenticate. `--protocol consumer` runs consumers in groups of the consumer protocol (KIP-848), with
its own list of tests that may fail. Needs npm, a C compiler and the headers that README.md lists.
"""

import argparse
import concurrent.futures
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.support.broker import BrokerProcess  # noqa: E402
from tests.support.kafka import classpath, java_command, program  # noqa: E402

PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
SHARE_GROUPS = "0155"  # tests of share groups (KIP-932) begin with this number
# Other settings are the defaults, as in librdkafka's harness: several tests count the rebalances of two consumers that
# join within group.initial.rebalance.delay.ms.
SETTINGS = {
    "node.id": "1",
    "num.partitions": "4",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
# Topics that some tests create with three replicas get one replica; the tests are otherwise unchanged.
ONE_REPLICA = [
    (r"(create_topic_wait_exists\([^;]*), 3, 5000\)", r"\1, 1, 5000)"),
    (r"(Test::create_topic\(NULL, topic\.c_str\(\), 1), 3\)", r"\1, 1)"),
]
# Tests for --sasl: authorized operations, changed passwords, and reauthentication of a connection.
SASL_FILES = ["0081", "0135", "0142"]
SASL_CLIENT = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "testuser",
    "sasl.password": "testpass",
}
SASL_SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_testuser="testpass";'
    ),
    "connections.max.reauth.ms": "10000",
}
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
}
# With an authorizer these tests wait for the propagation of ACLs, or start Kafka's scripts, and exceed their time
# limit.
LONGER = {"0081": "2", "0119": "2"}
LEFT_OUT = {"classic": "librdkafka_left_out.txt", "consumer": "librdkafka_left_out_consumer.txt"}
Place = tuple[str, str]  # number and scenario
RESULT = re.compile(r"\|\S* (\d{4}\w+) +\| +(PASSED|FAILED|SKIPPED) ")


def run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def patch(file: Path, changes: list[tuple[str, str]]) -> int:
    text = file.read_text(encoding="utf-8")
    total = 0
    for old, new in changes:
        text, count = re.subn(old, new, text)
        total += count
    file.write_text(text, encoding="utf-8")
    return total


def built(folder: Path) -> Path:
    """Fetch and build missing parts, and return the folder of the test runner."""
    source = folder / "package" / "deps" / "librdkafka"
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(["npm", "pack", PACKAGE], cwd=folder, check=True, capture_output=True, text=True)
        run(["tar", "xzf", packed.stdout.strip().splitlines()[-1]], folder)
    if not (source / "src" / "librdkafka.so").exists():
        run(["./configure", "--disable-gssapi"], source)
        run(["make", "-j2", "libs"], source)
    tests = source / "tests-one-replica"
    if not (tests / "test-runner").exists():
        shutil.copytree(source / "tests", tests, dirs_exist_ok=True)
        for file in (*tests.glob("[01]*.c"), *tests.glob("[01]*.cpp")):
            patch(file, ONE_REPLICA)
        run(["make", "-j2", "-C", str(tests), "build"], source)
    return tests


def table(tests: Path) -> dict[str, tuple[str, str]]:
    """Return the scenario and flags of each test that uses a broker, from the table in test.c."""
    whole = re.search(r"struct test tests\[\] = \{(.*?)\n\};", (tests / "test.c").read_text(), re.DOTALL)
    assert whole is not None
    rows = {}
    for entry in whole.group(1).split("_TEST(")[1:]:
        name, flags = (part.strip() for part in entry.split(",")[:2])
        if name < SHARE_GROUPS and "LOCAL" not in flags and "MANUAL" not in flags:
            rows[name] = ("noautocreate" if "noautocreate" in entry else "default", flags)
    return rows


def one(
    place: Place, tests: Path, broker: BrokerProcess, logs: Path, protocol: str, client: dict[str, str]
) -> dict[str, str]:
    """Run the tests of one file and scenario, and return the result by name of test."""
    number, scenario = place
    conf = logs / f"{broker.port}.conf"
    configs = {"metadata.broker.list": broker.bootstrap, "test.topic.random": "true", **client}
    configs["test.timeout.multiplier"] = LONGER.get(number, "1")
    conf.write_text("".join(f"{name}={value}\n" for name, value in configs.items()))
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "RDKAFKA_TEST_CONF": str(conf),
        "TEST_KAFKA_VERSION": "4.0.0",
        "TESTS": number,
        "TEST_SCENARIO": scenario,
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
        "BROKERS": broker.bootstrap,
        "KAFKA_PATH": str(logs.parent / "kafka"),
    }
    log = logs / f"{tests.name}-{protocol}-{number}-{scenario}.log"
    with log.open("wb") as output:
        command = ["timeout", "-k", "5", "900", "./test-runner", "-p1", "-L"]
        status = subprocess.run(command, cwd=tests, env=env, stdout=output, stderr=output, check=False).returncode
    results = dict(RESULT.findall(log.read_text(errors="replace")))
    if status != 0 and "FAILED" not in results.values():  # the runner ended early or was killed during a test
        begun = re.findall(r"Running test (\d{4}\w+)", log.read_text(errors="replace"))
        results[begun[-1] if begun else number] = f"FAILED (status {status})"
    return results


def tools(folder: Path, tests: Path) -> None:
    """Write Kafka's scripts that tests call, with Kafka's jars from Maven, and compile the tests' Java programs."""
    binaries = folder / "kafka" / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    commands = {name: shlex.join(java_command(main)) for name, main in TOOLS.items()}
    jars = classpath()
    commands["kafka-run-class"] = f'{program("java")} -cp "$CLASSPATH:{jars}"'
    for script, command in commands.items():
        file = binaries / f"{script}.sh"
        file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        file.chmod(0o755)
    java = tests / "java"
    run([program("javac"), "-nowarn", "-cp", jars, *(source.name for source in java.glob("*.java"))], java)


def left_out(protocol: str) -> dict[str, str]:
    lines = (HERE / LEFT_OUT[protocol]).read_text(encoding="utf-8").splitlines()
    return dict(line.split(None, 1) for line in lines if line[:1] not in ("", "#"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=3)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--sasl", action="store_true")
    parser.add_argument("--protocol", choices=LEFT_OUT, default="classic")
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    tests = built(folder)
    tools(folder, tests)
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    rows = table(tests)
    wanted = chosen.only or (SASL_FILES if chosen.sasl else None)
    settings, client = ({**SETTINGS, **SASL_SETTINGS}, SASL_CLIENT) if chosen.sasl else (SETTINGS, {})
    rows = {name: row for name, row in rows.items() if not wanted or any(name[:4] == one[:4] for one in wanted)}
    brokers: dict[str, list[BrokerProcess]] = {"default": [], "noautocreate": []}
    free: dict[str, queue.Queue[BrokerProcess]] = {scenario: queue.Queue() for scenario in brokers}
    for index in range(chosen.jobs + 1):
        scenario = "default" if index else "noautocreate"
        data = folder / "data" / f"{time.time_ns():x}-{index}"
        broker = BrokerProcess(data, {**settings, "auto.create.topics.enable": str(index > 0).lower()})
        broker.start()
        brokers[scenario].append(broker)
        free[scenario].put(broker)

    def borrow(place: Place) -> dict[str, str]:
        broker = free[place[1]].get()
        try:
            begun = time.monotonic()
            results = one(place, tests, broker, logs, chosen.protocol, client)
            ours = {name for name, row in rows.items() if row[0] == place[1]} | {place[0]}
            results = {name: found for name, found in results.items() if name in ours}
            print(*place, f"{time.monotonic() - begun:.0f} s", results, flush=True)
            return results
        finally:
            free[place[1]].put(broker)

    results: dict[str, str] = {}
    try:
        with concurrent.futures.ThreadPoolExecutor(chosen.jobs + 1) as pool:
            for found in pool.map(borrow, sorted({(name[:4], scenario) for name, (scenario, _) in rows.items()})):
                results.update(found)
        again = [name for name, result in results.items() if result.startswith("FAILED")]
        for place in sorted({(name[:4], rows.get(name, ("default", ""))[0]) for name in again}):
            print("again, alone:", *place)
            results.update(borrow(place))
    finally:
        for broker in (*brokers["default"], *brokers["noautocreate"]):
            print("broker ended with", broker.stop() if broker.is_alive() else "a crash")
            shutil.rmtree(broker.folder, ignore_errors=True)
    reasons = left_out(chosen.protocol)
    failed = sorted(name for name, result in results.items() if result.startswith("FAILED"))
    counts = {kind: sum(r.startswith(kind) for r in results.values()) for kind in ("PASSED", "FAILED", "SKIPPED")}
    print(counts, "skipped:", sorted(name for name, result in results.items() if result == "SKIPPED"))
    for name in failed:
        print(f"{name}: {results[name]}: {reasons.get(name, 'UNEXPECTED')}")
    print("left out, and passed:", sorted(name for name in reasons if results.get(name) == "PASSED"))
    return int(any(name not in reasons for name in failed))


if __name__ == "__main__":
    sys.exit(main())
