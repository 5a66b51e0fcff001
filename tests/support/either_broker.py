"""Combined node whose folder kbroker and Apache Kafka serve in turn, with one ``server.properties``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.support import wire
from tests.support.broker import BrokerProcess, ConfiguredBroker, wait_for
from tests.support.kafka.broker import ALONE, ApacheKafka, new_id
from tests.support.kafka.jars import VERSION
from tests.support.kafka.tool_server import storage_tool
from tests.support.ports import free_run

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
LONG_MS = "1000000"  # session of static members whose processes have ended


class KafkaNode(ApacheKafka):
    """Apache Kafka with a written file of properties and a formatted folder."""

    def __init__(self, folder: Path, port: int, properties: Path, version: str = VERSION) -> None:
        super().__init__(port=port, folder=folder, version=version)
        self._properties = properties

    def _formatted(self, output: IO[bytes]) -> Path:
        return self._properties


class EitherBroker:
    """Folder and the broker that serves it.

    Args:
        folder: of properties, data and logs.
        settings: laid over those of a combined node with an authorizer, SCRAM and delegation tokens.
        log_dirs: names of the data folders below ``folder``.
        version: of Apache Kafka.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        log_dirs: Sequence[str] = ("data",),
        version: str = VERSION,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._version = version
        self.port = free_run(3)
        self.log_dirs = [folder / name for name in log_dirs]
        self.path = folder / "server.properties"
        self.settings = {
            **ALONE,
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.port + 2},"
                f"CONTROLLER://127.0.0.1:{self.port + 1}"
            ),
            "listener.security.protocol.map": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
            ),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.port + 1}",
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "delegation.token.secret.key": "a key",
            "log.flush.start.offset.checkpoint.interval.ms": "200",  # a killed Kafka loses a later start offset
            "log.initial.task.delay.ms": "100",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
            "group.max.session.timeout.ms": LONG_MS,
            "group.consumer.max.session.timeout.ms": LONG_MS,
            "group.consumer.session.timeout.ms": LONG_MS,
            **(settings or {}),
        }
        self.write_properties()
        self.kafka = KafkaNode(folder / "kafka", self.port, self.path, version)
        self.kbroker = ConfiguredBroker(folder, self.port, self.path)
        self._running: ApacheKafka | BrokerProcess | None = None

    def write_properties(self, **changes: str) -> None:
        """Write server.properties; ``changes``: further settings, with _ for dots."""
        self.settings |= {name.replace("_", "."): value for name, value in changes.items()}
        lines = (f"{name}={value}\n" for name, value in self.settings.items() if value)
        self.path.write_text("".join(lines), encoding="utf-8")

    def __enter__(self) -> EitherBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kbroker.discard()
        self.kafka.stop()

    @property
    def bootstrap(self) -> str:
        """Address of the listener without security, whose clients are super users."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """Address of the listener with SCRAM."""
        return f"127.0.0.1:{self.port + 2}"

    @property
    def is_kafka(self) -> bool:
        """Return whether Apache Kafka serves the folder now."""
        return self._running is self.kafka

    def format_by_kafka(self, *options: str) -> None:
        """Format the folders with Apache Kafka's kafka-storage. Args: ``options`` that follow ``format``."""
        words = ("format", "-t", new_id(), "-c", str(self.path), *options)
        done = storage_tool(*words, version=self._version)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, broker: ApacheKafka | BrokerProcess) -> None:
        """Start one of the two brokers on the folder."""
        assert self._running is None
        broker.start()
        self._running = broker
        wait_for("the broker responds", lambda: wire.responses(self.bootstrap), 60)

    def stop(self) -> None:
        """Stop the broker as an operator does."""
        if isinstance(self._running, ApacheKafka):
            self._running.end()
        else:
            assert self.kbroker.stop() == 0, self.kbroker.tail()
        self._running = None

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        assert self._running is not None
        self._running.kill()
        self._running = None

    def switch(self, *, kills: bool = False) -> None:
        """Stop or kill the running broker and start the other one."""
        other = self.kbroker if self.is_kafka else self.kafka
        if kills:
            self.kill()
        else:
            self.stop()
        self.start(other)

    def tail(self) -> str:
        """Return the end of both logs."""
        return f"kbroker:\n{self.kbroker.tail()}\nKafka:\n{self.kafka.tail()}"
