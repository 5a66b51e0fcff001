"""The shared scenario in the words of each client library; programs are built once per session, in a scratch folder."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support import need
from tests.support.broker import run_to_end

HERE = Path(__file__).resolve().parent
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """A record to send, or one that was read."""

    value: bytes
    timestamp_ms: int = 0
    offset: int = -1


class Client:
    """What the scenario asks of a client; None in `abilities` means the reference client steps in."""

    name = ""
    codecs: Sequence[str] = ALL_CODECS
    can_administrate = True
    can_choose_partition = True
    can_set_timestamps = True
    can_disable_idempotence = True
    can_consume = True
    can_seek_by_time = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, topic: str, partitions: int) -> None:
        raise NotImplementedError

    def delete(self, topic: str) -> None:
        raise NotImplementedError

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        """Send records and wait for all acknowledgements; return their offsets where the client tells them."""
        raise NotImplementedError

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        """Read by assignment, from the beginning or from the first record not older than `from_ms`."""
        raise NotImplementedError


class Confluent(Client):
    """confluent-kafka, that is librdkafka; also the reference where another client lacks something."""

    name = "confluent-kafka"

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewTopic

        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)

    def delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(20)

    def topics(self) -> set[str]:
        return set(self._admin().list_topics(timeout=20).topics)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        offsets: list[int] = []
        failures: list[str] = []

        def report(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                failures.append(str(error))

        for record in records:
            producer.produce(
                topic, record.value, partition=partition, timestamp=record.timestamp_ms, on_delivery=report
            )
        assert producer.flush(30) == 0
        assert failures == []
        return sorted(offsets)

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        try:
            start = TopicPartition(topic, partition, OFFSET_BEGINNING)
            if from_ms is not None:
                [start] = consumer.offsets_for_times([TopicPartition(topic, partition, from_ms)], timeout=20)
            consumer.assign([start])
            found: list[Record] = []
            for _ in range(60):
                for message in consumer.consume(count - len(found), 0.5):
                    assert message.error() is None, message.error()
                    found.append(Record(message.value(), message.timestamp()[1], message.offset()))
                if len(found) >= count:
                    return found
            raise AssertionError(f"read {len(found)} of {count} records")
        finally:
            consumer.close()


class KafkaPython(Client):
    """kafka-python 3: pure Python, idempotent by default."""

    name = "kafka-python"

    def _admin(self) -> Any:
        from kafka import KafkaAdminClient

        return contextlib.closing(KafkaAdminClient(bootstrap_servers=self.bootstrap))

    def create(self, topic: str, partitions: int) -> None:
        from kafka.admin import NewTopic

        with self._admin() as admin:
            admin.create_topics([NewTopic(topic, partitions, 1)])

    def delete(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=20,
        )
        with contextlib.closing(producer):
            sent = [
                producer.send(topic, r.value, partition=partition, timestamp_ms=r.timestamp_ms or None) for r in records
            ]
            return [future.get(30).offset for future in sent]

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None, enable_auto_commit=False)
        with contextlib.closing(consumer):
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            if from_ms is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, consumer.offsets_for_times({place: from_ms})[place].offset)
            found: list[Record] = []
            for _ in range(60):
                for messages in consumer.poll(500).values():
                    found += [Record(m.value, m.timestamp, m.offset) for m in messages]
                if len(found) >= count:
                    return found[:count]
            raise AssertionError(f"read {len(found)} of {count} records")


class AioKafka(Client):
    """aiokafka: asyncio, old protocol versions."""

    name = "aiokafka"

    def _with(self, make: Callable[[], Any], act: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            thing = make()
            await thing.start()
            try:
                return await asyncio.wait_for(act(thing), 60)
            finally:
                await (thing.close() if hasattr(thing, "close") else thing.stop())

        return asyncio.run(run())

    def _admin(self) -> Any:
        from aiokafka.admin import AIOKafkaAdminClient

        return AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)

    def create(self, topic: str, partitions: int) -> None:
        from aiokafka.admin import NewTopic

        async def act(admin: Any) -> None:
            await admin.create_topics([NewTopic(topic, partitions, 1)])

        self._with(self._admin, act)

    def delete(self, topic: str) -> None:
        async def act(admin: Any) -> None:
            await admin.delete_topics([topic])

        self._with(self._admin, act)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        from aiokafka import AIOKafkaProducer

        def make() -> Any:
            return AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=20,
            )

        async def act(producer: Any) -> list[int]:
            sent = [
                await producer.send(topic, r.value, partition=partition, timestamp_ms=r.timestamp_ms or None)
                for r in records
            ]
            return [(await future).offset for future in sent]

        return self._with(make, act)

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        def make() -> Any:
            return AIOKafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False)

        async def act(consumer: Any) -> list[Record]:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            if from_ms is None:
                await consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, (await consumer.offsets_for_times({place: from_ms}))[place].offset)
            found = []
            while len(found) < count:
                message = await consumer.getone()
                found.append(Record(message.value, message.timestamp, message.offset))
            return found

        return self._with(make, act)


class Kcat(Client):
    """kcat, in Debian on librdkafka 2.0.2: the check with an old client."""

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
        run_to_end(command, stdin=b"".join(r.value + b"\n" for r in records))
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


class Kafkajs(Client):
    """kafkajs: unmaintained and everywhere; it consumes through groups only."""

    name = "kafkajs"
    codecs = ("none", "gzip")
    can_consume = False

    _folder: Path | None = None

    def __init__(self, bootstrap: str, scratch: Path) -> None:
        need.program("node", "npm")
        super().__init__(bootstrap)
        if Kafkajs._folder is None:
            folder = scratch / "node"
            shutil.copytree(HERE / "node", folder)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, f"npm ci failed:\n{done.stdout}\n{done.stderr}"
            Kafkajs._folder = folder

    def _run(self, command: str, *arguments: str, stdin: bytes = b"") -> Any:
        assert Kafkajs._folder is not None
        program = ["node", str(Kafkajs._folder / "client.js"), self.bootstrap, command, *arguments]
        return json.loads(run_to_end(program, stdin=stdin))

    def create(self, topic: str, partitions: int) -> None:
        assert self._run("create", topic, str(partitions)) is True

    def delete(self, topic: str) -> None:
        self._run("delete", topic)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        offsets: list[int] = self._run(
            "produce", topic, str(partition), codec, str(idempotent).lower(), stdin=json_lines(records)
        )
        return offsets

    def offsets(self, topic: str, from_ms: int | None = None) -> dict[int, int]:
        """End offsets, or those of the first record not older than `from_ms`."""
        found = self._run("offsets", topic, *([] if from_ms is None else [str(from_ms)]))
        return {entry["partition"]: int(entry["offset"]) for entry in found}


def json_lines(records: Sequence[Record]) -> bytes:
    lines = [json.dumps({"value": r.value.decode(), "timestamp_ms": r.timestamp_ms}) for r in records]
    return "".join(line + "\n" for line in lines).encode()


class FranzGo(Client):
    """franz-go: the newest versions of everything, topic ids included."""

    name = "franz-go"

    _program: Path | None = None

    def __init__(self, bootstrap: str, scratch: Path) -> None:
        need.program("go")
        super().__init__(bootstrap)
        if FranzGo._program is None:
            program = scratch / "franz-go-client"
            done = subprocess.run(
                ["go", "build", "-o", str(program), "."],
                cwd=HERE / "go",
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
            )
            assert done.returncode == 0, f"go build failed:\n{done.stdout}\n{done.stderr}"
            FranzGo._program = program

    def _run(self, command: str, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(run_to_end([str(FranzGo._program), self.bootstrap, command, *arguments], stdin=stdin))

    def create(self, topic: str, partitions: int) -> None:
        self._run("create", topic, str(partitions))

    def delete(self, topic: str) -> None:
        self._run("delete", topic)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        offsets: list[int] = self._run(
            "produce", topic, str(partition), codec, str(idempotent).lower(), stdin=json_lines(records)
        )
        return offsets

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        start = "beginning" if from_ms is None else str(from_ms)
        found = self._run("consume", topic, str(partition), str(count), start)
        return [Record(r["value"].encode(), r["timestamp_ms"], r["offset"]) for r in found]


class JavaConsole(Client):
    """Kafka's own console producer and consumer, kafka-topics and kafka-get-offsets: the strictest parser."""

    name = "java-console"
    can_choose_partition = False
    can_set_timestamps = False

    def __init__(self, bootstrap: str) -> None:
        need.program("java", "mvn")
        self._kafka = need.oracle("tools/kafka.sh")
        super().__init__(bootstrap)

    def _tool(self, name: str, *arguments: str, stdin: bytes | None = None) -> str:
        command = [str(self._kafka), "tool", f"org.apache.kafka.tools.{name}", "--bootstrap-server", self.bootstrap]
        return run_to_end([*command, *arguments], stdin=stdin, seconds=300)

    def create(self, topic: str, partitions: int) -> None:
        said = self._tool("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions))
        assert f"Created topic {topic}" in said

    def delete(self, topic: str) -> None:
        self._tool("TopicCommand", "--delete", "--topic", topic)

    def produce(
        self, topic: str, partition: int, records: Sequence[Record], *, codec: str, idempotent: bool
    ) -> list[int] | None:
        properties = ["--command-property", f"enable.idempotence={str(idempotent).lower()}"]
        self._tool(
            "ConsoleProducer",
            *("--topic", topic, f"--compression-codec={codec}", "--request-required-acks", "all", *properties),
            stdin=b"".join(r.value + b"\n" for r in records),
        )
        return None

    def consume(self, topic: str, partition: int, count: int, from_ms: int | None = None) -> list[Record]:
        offset = "earliest"
        if from_ms is not None:
            said = self._tool("GetOffsetShell", "--topic-partitions", f"{topic}:{partition}", "--time", str(from_ms))
            offset = said.strip().rpartition(":")[2]
        output = self._tool(
            "consumer.ConsoleConsumer",
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


CLIENTS = {client.name: client for client in (Confluent, KafkaPython, AioKafka, Kcat, Kafkajs, FranzGo, JavaConsole)}


def make_client(name: str, bootstrap: str, scratch: Path) -> Client:
    kind = CLIENTS[name]
    if issubclass(kind, Kafkajs | FranzGo):
        return kind(bootstrap, scratch)
    return kind(bootstrap)
