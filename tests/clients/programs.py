"""Clients of the shared scenario, and their programs, which are built once below build/clients."""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.clients.python_clients import AioKafka, Client, Confluent, KafkaPython, Record
from tests.support import need
from tests.support.broker import run_to_end
from tests.support.kafka import POM, SHORT_LIVED, ClassArchive, classpath, compiled, java_command
from tests.support.kafka.tools import TOOLS, Tools

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "clients"
FRAMEWORKS = HERE / "java" / "kafka-frameworks.xml"
FLINK, SPRING = HERE / "java" / "flink.xml", HERE / "java" / "spring.xml"


def made(name: str, inputs: Sequence[bytes], make: Callable[[Path], object]) -> Path:
    """Return a folder in build/clients that `make` has filled once for its inputs, under a lock between processes."""
    mark = hashlib.sha256(b"\0".join(inputs)).hexdigest()[:12]
    folder = BUILD / f"{name}-{mark}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / "made").touch()
    return folder


def contents(folder: Path) -> list[bytes]:
    """Return the names and the contents of the files of a folder."""
    return [part for path in sorted(folder.iterdir()) for part in (path.name.encode(), path.read_bytes())]


def node_folder() -> Path:
    """Return the folder of the Node programs with their packages, which are installed once."""
    need.program("node", "npm")

    def install(folder: Path) -> None:
        shutil.copytree(HERE / "node", folder)
        run_to_end(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)], seconds=300)

    return made("node", [*contents(HERE / "node"), run_to_end(["node", "--version"]).encode()], install)


# Two thirds of the CPU of a build from nothing, which takes longer than the programs run
UNOPTIMIZED = "-ldflags=-s -w", "-gcflags=all=-N -l"


def go_program(folder: str = "go") -> Path:
    """Return the Go program of a folder, which is built once."""
    need.program("go")

    def build(into: Path) -> None:
        done = subprocess.run(
            ["go", "build", *UNOPTIMIZED, "-o", str(into / "program"), "."],
            cwd=HERE / folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
        )
        assert done.returncode == 0, f"go build failed:\n{done.stdout}\n{done.stderr}"

    return made(folder, [*contents(HERE / folder), run_to_end(["go", "version"]).encode()], build) / "program"


def java_program(name: str = "Everyday", pom: Path = POM, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a Java program, which is compiled once with the jars of a POM.

    Args: ``options`` are further options of the JVM.
    """
    need.program("java", "javac", "mvn")
    classes = compiled(HERE / "java" / f"{name}.java", pom=pom)
    return java_command(name, options=(*SHORT_LIVED, *options), classes=classes, log_level="error", pom=pom)


def archive_of(name: str, pom: Path = FRAMEWORKS) -> ClassArchive:
    """Return the class archive of a Java program."""
    need.program("java", "javac", "mvn")
    own = compiled(HERE / "java" / f"{name}.java", pom=pom)
    return ClassArchive(name, os.pathsep.join((classpath(pom=pom), str(own))))


def rocksdb_options() -> tuple[str, ...]:
    """Return JVM options that load RocksDB from build/clients.

    Otherwise RocksDB unpacks 15 MB into the temporary folder, and a killed JVM leaves the file there.
    """
    need.program("java", "javac", "mvn")
    name = {"x86_64": "librocksdbjni-linux64.so", "aarch64": "librocksdbjni-linux-aarch64.so"}.get(platform.machine())
    jars = [path for path in classpath(pom=FRAMEWORKS).split(os.pathsep) if Path(path).name.startswith("rocksdbjni-")]
    if name is None or platform.system() != "Linux" or not jars:
        return ()

    def unpack(folder: Path) -> None:
        with zipfile.ZipFile(jars[0]) as jar:
            jar.extract(name, folder)

    return (f"-Djava.library.path={made('rocksdb', [jars[0].encode()], unpack)}",)


def python_with(name: str) -> str:
    """Return an interpreter with the packages of NAME.txt, whose versions may conflict with those of the test suite."""
    requirements = HERE / f"{name}.txt"

    def install(folder: Path) -> None:
        run_to_end([sys.executable, "-m", "venv", "--without-pip", str(folder)], seconds=120)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
        run_to_end([*pip, "install", "-q", "--no-compile", "-r", str(requirements)], seconds=600)

    folder = made(name, [requirements.read_bytes(), sys.version.encode()], install)
    return str(folder / "bin" / "python")


class Kcat(Client):
    """kcat of Debian, on librdkafka 2.0.2, as an old client."""

    name = "kcat"
    can_administrate = False
    can_set_timestamps = False

    def __init__(self, bootstrap: str) -> None:
        need.program("kcat")
        super().__init__(bootstrap)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        command = ["kcat", "-P", "-b", self.bootstrap, "-t", topic, "-p", str(partition), "-z", codec]
        command += ["-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "linger.ms=20"]
        run_to_end(command, stdin="".join(r.value.decode() + "\n" for r in records))
        return None

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        start = "beginning" if from_ms is None else f"s@{from_ms}"
        command = ["kcat", "-C", "-q", "-b", self.bootstrap, "-t", topic, "-p", str(partition), "-o", start]
        output = run_to_end([*command, "-c", str(count), "-X", "check.crcs=true", "-f", "%o %T %s\n"])
        found = []
        for line in output.splitlines():
            offset, timestamp, value = line.split(" ", 2)
            found.append(Record(value.encode(), int(timestamp), int(offset)))
        return found


def json_lines(records: Sequence[Record]) -> bytes:
    lines = [json.dumps({"value": r.value.decode(), "timestamp_ms": r.timestamp_ms}) for r in records]
    return "".join(line + "\n" for line in lines).encode()


class Program(Client):
    """Client in another language, whose program prints one JSON value per command."""

    created: bool | None = None  # value of the command create
    command: Sequence[str]

    def run(self, command: str, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(run_to_end([*self.command, self.bootstrap, command, *arguments], stdin=stdin))

    def create(self, topic: str, partitions: int) -> None:
        assert self.run("create", topic, str(partitions)) is self.created

    def delete(self, topic: str) -> None:
        self.run("delete", topic)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        offsets: list[int] = self.run(
            "produce", topic, str(partition), codec, str(idempotent).lower(), stdin=json_lines(records)
        )
        return offsets


class Kafkajs(Program):
    """kafkajs, which is unmaintained and widely used, and consumes only in groups."""

    name = "kafkajs"
    codecs = ("none", "gzip")
    can_consume = False
    created = True

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.command = ["node", str(node_folder() / "client.js")]

    def offsets(self, topic: str, from_ms: int | None = None) -> dict[int, int]:
        """Return end offsets, or the offset of the first record not older than `from_ms`, by partition."""
        found = self.run("offsets", topic, *([] if from_ms is None else [str(from_ms)]))
        return {entry["partition"]: int(entry["offset"]) for entry in found}


class FranzGo(Program):
    """franz-go, which uses the newest version of each API, with topic ids."""

    name = "franz-go"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.command = [str(go_program())]

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        start = "beginning" if from_ms is None else str(from_ms)
        found = self.run("consume", topic, str(partition), str(count), start)
        return [Record(r["value"].encode(), r["timestamp_ms"], r["offset"]) for r in found]


class JavaConsole(Client):
    """Kafka's console producer, console consumer, kafka-topics and kafka-get-offsets."""

    name = "java-console"
    can_choose_partition = False
    can_set_timestamps = False

    def __init__(self, bootstrap: str) -> None:
        need.kafka_tools()
        super().__init__(bootstrap)
        self._tool = Tools(bootstrap)

    def create(self, topic: str, partitions: int) -> None:
        said = self._tool(TOOLS + "TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions))
        assert f"Created topic {topic}" in said

    def delete(self, topic: str) -> None:
        self._tool(TOOLS + "TopicCommand", "--delete", "--topic", topic)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        properties = ["--command-property", f"enable.idempotence={str(idempotent).lower()}"]
        self._tool(
            TOOLS + "ConsoleProducer",
            *("--topic", topic, f"--compression-codec={codec}", "--request-required-acks", "all", *properties),
            stdin="".join(r.value.decode() + "\n" for r in records),
        )
        return None

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        offset = "earliest"
        if from_ms is not None:
            said = self._tool(
                TOOLS + "GetOffsetShell", "--topic-partitions", f"{topic}:{partition}", "--time", str(from_ms)
            )
            offset = said.strip().rpartition(":")[2]
        output = self._tool(
            TOOLS + "consumer.ConsoleConsumer",
            *("--topic", topic, "--partition", str(partition), "--offset", offset, "--max-messages", str(count)),
            *(
                "--timeout-ms",
                "30000",
                "--formatter-property",
                "print.timestamp=true",
                "--formatter-property",
                "print.offset=true",
            ),
        )
        found = []
        for line in output.splitlines():
            kind_and_time, offset_text, value = line.split("\t", 2)
            timestamp_ms = int(kind_and_time.rpartition(":")[2])
            found.append(Record(value.encode(), timestamp_ms, int(offset_text.rpartition(":")[2])))
        return found


CLIENTS: dict[str, Any] = {
    client.name: client for client in (Confluent, KafkaPython, AioKafka, Kcat, Kafkajs, FranzGo, JavaConsole)
}


def make_client(name: str, bootstrap: str) -> Client:
    client: Client = CLIENTS[name](bootstrap)
    return client
