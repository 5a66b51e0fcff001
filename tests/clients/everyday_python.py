"""Everyday scenario on the clients for Python, with one line of JSON per step.

    python -m tests.clients.everyday_python CLIENT BOOTSTRAP TOPIC START_MS

``everyday.py`` describes the steps and their results, which programs in other languages share.
"""

import asyncio
import functools
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.clients.python_clients import ALL_CODECS, AioKafka, Client, Confluent, KafkaPython, Record

RECORDS, GROUP_PARTITIONS, PER_PHASE, TIMES = 10, 4, 10, 50
MEMBER: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 300}
Reads = list[tuple[int, int, str]]


class Member:
    """Member of a group for one thread."""

    consumer: Any

    def poll(self) -> Reads:
        """Wait briefly for records, and return the partition, offset and value of each."""
        raise NotImplementedError

    def assigned(self) -> list[int]:
        return sorted(place.partition for place in self.consumer.assignment())

    def commit(self) -> None:
        """Commit all polled records and wait for the response."""
        self.consumer.commit()

    def close(self) -> None:
        self.consumer.close()


class ConfluentMember(Member):
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        from confluent_kafka import Consumer

        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": 300,
                "log_level": 0,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> Reads:
        found = self.consumer.consume(100, 0.2)
        for message in found:
            assert message.error() is None, message.error()
        return [(m.partition(), m.offset(), m.value().decode()) for m in found]

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)


class KafkaPythonMember(Member):
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        from kafka import KafkaConsumer

        self.consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, **MEMBER)

    def poll(self) -> Reads:
        found = self.consumer.poll(1000).values()  # a shorter poll sometimes loses a response
        return [(m.partition, m.offset, m.value.decode()) for messages in found for m in messages]


class AioKafkaMember(Member):
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.consumer = self.loop.run_until_complete(self._open(bootstrap, topic, group))

    async def _open(self, bootstrap: str, topic: str, group: str) -> Any:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, **MEMBER)
        await consumer.start()
        return consumer

    def poll(self) -> Reads:
        found = self.loop.run_until_complete(self.consumer.getmany(timeout_ms=200)).values()
        return [(m.partition, m.offset, m.value.decode()) for messages in found for m in messages]

    def commit(self) -> None:
        self.loop.run_until_complete(self.consumer.commit())

    def close(self) -> None:
        self.loop.run_until_complete(self.consumer.stop())
        self.loop.close()


class Reader(threading.Thread):
    """Member that counts records after their commit."""

    def __init__(self, name: str, opened: Callable[[], Member], reads: list[tuple[str, int, int, str]]) -> None:
        super().__init__(name=name)
        self.opened = opened
        self.reads = reads
        self.assigned: list[int] = []
        self.failure: BaseException | None = None
        self.left = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            member = self.opened()
            try:
                while not self.left.is_set():
                    found = member.poll()
                    if found:
                        member.commit()
                        self.reads.extend((self.name, *one) for one in found)
                    self.assigned = member.assigned()
            finally:
                member.close()
        except BaseException as failure:
            self.failure = failure
            raise

    def leave(self) -> None:
        self.left.set()
        self.join(30)


class Everyday:
    """Steps of the scenario; a subclass has the administration and the members of one library."""

    client: Any
    kind: type[Client]
    member: Callable[[str, str, str], Member]
    package: str

    def __init__(self, bootstrap: str, topic: str, start_ms: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.start_ms = start_ms
        self.client = self.kind(bootstrap)

    def version(self) -> str:
        return str(importlib.import_module(self.package).__version__)

    def topics(self) -> list[str]:
        raise NotImplementedError

    def leaders(self, topic: str) -> list[int]:
        raise NotImplementedError

    def retention_ms(self, topic: str) -> str:
        raise NotImplementedError

    def set_retention_ms(self, topic: str, value: str) -> None:
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        return [self.topic, self.topic + "-time", self.topic + "-group"]

    def create(self) -> dict[str, Any]:
        for name, partitions in zip(self.names, (6, 1, GROUP_PARTITIONS), strict=True):
            self.client.create(name, partitions)
        return {"topics": self.names}

    def send(self, codec: str, partition: int, *, idempotent: bool) -> dict[str, Any]:
        note = "idempotent" if idempotent else codec
        records = [Record(f"{note} {n} ".encode() + b"abc " * 30) for n in range(RECORDS)]
        offsets = self.client.produce(self.topic, partition, records, codec=codec, idempotent=idempotent)
        return {"offsets": offsets}

    def read(self) -> dict[str, Any]:
        found = {p: self.client.consume(self.topic, p, RECORDS) for p in range(6)}
        return {"values": {str(p): [r.value.decode() for r in records] for p, records in found.items()}}

    def group(self) -> dict[str, Any]:
        topic = self.topic + "-group"
        reads: list[tuple[str, int, int, str]] = []
        members: dict[str, Reader] = {}
        held: list[dict[str, list[int]]] = []

        def until(what: str, condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 60
            while not condition():
                for one in members.values():
                    if one.failure is not None:
                        raise RuntimeError(f"{one.name}: {one.failure!r}") from one.failure
                if time.monotonic() > deadline:
                    where = {name: one.assigned for name, one in members.items()}
                    raise TimeoutError(f"{what}: {len(reads)} records read, members hold {where}")
                time.sleep(0.05)

        def join(name: str) -> None:
            members[name] = Reader(name, lambda: type(self).member(self.bootstrap, topic, topic), reads)

        def phase(number: int) -> None:
            share = GROUP_PARTITIONS // len(members)
            until("a share for each member", lambda: all(len(m.assigned) == share for m in members.values()))
            held.append({name: one.assigned for name, one in members.items()})
            for p in range(GROUP_PARTITIONS):
                numbers = range(number * PER_PHASE, (number + 1) * PER_PHASE)
                records = [Record(f"{p}-{n}".encode()) for n in numbers]
                self.client.produce(topic, p, records, codec="none", idempotent=False)
            until("all is read", lambda: len(reads) >= GROUP_PARTITIONS * PER_PHASE * (number + 1))

        try:
            join("a")
            phase(0)
            join("b")
            phase(1)
            members.pop("a").leave()
            phase(2)
        finally:
            for one in list(members.values()):
                one.leave()
        return {"reads": reads, "held": held}

    def by_time(self) -> dict[str, Any]:
        topic = self.topic + "-time"
        records = [Record(b"record %d" % n, self.start_ms + 10 * n) for n in range(TIMES)]
        self.client.produce(topic, 0, records, codec="gzip", idempotent=False)
        found = self.client.consume(topic, 0, TIMES - 18, self.start_ms + 171)
        return {"offset": found[0].offset, "values": [r.value.decode() for r in found]}

    def list(self) -> dict[str, Any]:
        found = self.topics()
        return {"topics": [name for name in self.names if name in found]}

    def describe(self) -> dict[str, Any]:
        return {"leaders": self.leaders(self.topic)}

    def configs(self) -> dict[str, Any]:
        before = self.retention_ms(self.topic)
        self.set_retention_ms(self.topic, "123456789")
        deadline = time.monotonic() + 20
        while (after := self.retention_ms(self.topic)) == before and time.monotonic() < deadline:
            time.sleep(0.1)
        return {"before": before, "after": after}

    def delete(self) -> dict[str, Any]:
        name = self.topic + "-time"
        self.client.delete(name)
        deadline = time.monotonic() + 20
        while name in self.topics():
            if time.monotonic() > deadline:
                return {"left": [name]}
            time.sleep(0.1)
        return {"left": []}

    def run(self) -> None:
        def codec(name: str) -> Callable[[], dict[str, Any]]:
            return lambda: self.send(name, ALL_CODECS.index(name), idempotent=False)

        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "version": lambda: {"version": self.version()},
            "create": self.create,
            **{name: codec(name) for name in ALL_CODECS},
            "idempotent": lambda: self.send("none", 5, idempotent=True),
            "read": self.read,
            "group": self.group,
            "by time": self.by_time,
            "list": self.list,
            "describe": self.describe,
            "configs": self.configs,
            "delete": self.delete,
        }
        for name, step in steps.items():
            try:
                said = step()
            except Exception as failure:
                said = {"error": repr(failure)}
            print(json.dumps({"step": name, **said}), flush=True)


class ConfluentEveryday(Everyday):
    kind, member = Confluent, ConfluentMember

    @functools.cached_property
    def _admin(self) -> Any:  # the client must outlive its results
        return self.client._admin()

    def version(self) -> str:
        import confluent_kafka

        return f"{confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}"

    def topics(self) -> list[str]:
        return list(self._admin.list_topics(timeout=20).topics)

    def leaders(self, topic: str) -> list[int]:
        from confluent_kafka import TopicCollection

        found = self._admin.describe_topics(TopicCollection([topic]))[topic].result(20)
        return [partition.leader.id for partition in found.partitions]

    def retention_ms(self, topic: str) -> str:
        from confluent_kafka.admin import ConfigResource, ResourceType

        (found,) = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return str(found.result(20)["retention.ms"].value)

    def set_retention_ms(self, topic: str, value: str) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        (done,) = self._admin.incremental_alter_configs([resource]).values()
        done.result(20)


class KafkaPythonEveryday(Everyday):
    kind, member, package = KafkaPython, KafkaPythonMember, "kafka"

    @staticmethod
    def _resource(topic: str, configs: dict[str, str] | None = None) -> Any:
        from kafka.admin import ConfigResource, ConfigResourceType

        return ConfigResource(ConfigResourceType.TOPIC, topic, configs)

    def topics(self) -> list[str]:
        with self.client._admin() as admin:
            return list(admin.list_topics())

    def leaders(self, topic: str) -> list[int]:
        with self.client._admin() as admin:
            (found,) = admin.describe_topics([topic])
        return [partition["leader_id"] for partition in found["partitions"]]

    def retention_ms(self, topic: str) -> str:
        with self.client._admin() as admin:
            found = admin.describe_configs([self._resource(topic)], config_filter="all")
        return str(found["topic"][topic]["retention.ms"]["value"])

    def set_retention_ms(self, topic: str, value: str) -> None:
        with self.client._admin() as admin:
            done = admin.alter_configs([self._resource(topic, {"retention.ms": value})])
        assert done == {"topic": {topic: "OK"}}, done


class AioKafkaEveryday(Everyday):
    kind, member, package = AioKafka, AioKafkaMember, "aiokafka"

    def _ask(self, act: Callable[[Any], Any]) -> Any:
        return self.client._with(self.client._admin, act)

    def topics(self) -> list[str]:
        return list(self._ask(lambda admin: admin.list_topics()))

    def leaders(self, topic: str) -> list[int]:
        (found,) = self._ask(lambda admin: admin.describe_topics([topic]))
        return [partition["leader"] for partition in sorted(found["partitions"], key=lambda p: p["partition"])]

    def _resource(self, topic: str, configs: dict[str, str] | None = None) -> Any:
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        return ConfigResource(ConfigResourceType.TOPIC, topic, configs)

    def retention_ms(self, topic: str) -> str:
        (response,) = self._ask(lambda admin: admin.describe_configs([self._resource(topic)]))
        ((error, _, _, _, entries),) = response.resources
        assert error == 0, error
        return str(next(entry[1] for entry in entries if entry[0] == "retention.ms"))

    def set_retention_ms(self, topic: str, value: str) -> None:
        (response,) = self._ask(lambda admin: admin.alter_configs([self._resource(topic, {"retention.ms": value})]))
        ((error, *_),) = response.resources
        assert error == 0, error


EVERYDAY = {kind.kind.name: kind for kind in (ConfluentEveryday, KafkaPythonEveryday, AioKafkaEveryday)}

if __name__ == "__main__":
    library, bootstrap, topic, start_ms = sys.argv[1:]
    EVERYDAY[library](bootstrap, topic, int(start_ms)).run()
