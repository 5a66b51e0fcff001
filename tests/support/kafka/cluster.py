"""Several real Apache Kafka brokers on this machine that are one cluster in KRaft mode."""

import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from tests.support.kafka.broker import ApacheKafka, new_id
from tests.support.kafka.jars import classpath
from tests.support.ports import free_run

HEAP = "384m"
PORTS = 3  # of a broker: PLAINTEXT, CONTROLLER, one more
# A broker that was killed is missed after three seconds instead of nine; few partitions of internal topics start fast.
QUICK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "replica.lag.time.max.ms": "5000",
}


class KafkaCluster:
    """Brokers with node ids from 1, started together by `with`; all data is deleted at the end.

    Of two brokers the first alone is a controller, so the second can be killed; of three all are, and any can.

    Args:
        count: of brokers.
        settings: of each, laid over those of a cluster.
        protocol: of a further listener of each, such as SASL_SSL; "" for none.
        before: jars that come first in the class path.
        options: of each JVM; `{folder}` is the folder of its broker.
    """

    def __init__(
        self,
        count: int = 2,
        settings: Mapping[str, str] | None = None,
        *,
        protocol: str = "",
        heap: str = HEAP,
        before: str = "",
        options: tuple[str, ...] = (),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="apache-kafka-cluster-"))
        first = free_run(PORTS * count)
        self._ports = [first + PORTS * index for index in range(count)]
        voters = range(count if count > 2 else 1)
        shared = {
            "controller.quorum.voters": ",".join(f"{i + 1}@127.0.0.1:{self._ports[i] + 1}" for i in voters),
            "default.replication.factor": str(count),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "transaction.state.log.min.isr": "1",
            **QUICK,
        }
        cluster_id = new_id()
        self.brokers: list[ApacheKafka] = []
        for index, port in enumerate(self._ports):
            is_voter = index in voters
            folder = self.folder / str(index + 1)
            listeners = [f"PLAINTEXT://127.0.0.1:{port}"]
            if is_voter:
                listeners.append(f"CONTROLLER://127.0.0.1:{port + 1}")
            if protocol:
                listeners.append(f"{protocol}://127.0.0.1:{port + 2}")
            own = {
                "process.roles": "broker,controller" if is_voter else "broker",
                "node.id": str(index + 1),
                "listeners": ",".join(listeners),
                "inter.broker.listener.name": "PLAINTEXT",
            }
            self.brokers.append(
                ApacheKafka(
                    {**shared, **own, **(settings or {})},
                    port=port,
                    heap=heap,
                    folder=folder,
                    cluster_id=cluster_id,
                    before=before,
                    options=tuple(option.format(folder=folder) for option in options),
                )
            )

    @property
    def bootstrap(self) -> str:
        """All PLAINTEXT listeners."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def secured(self) -> str:
        """All listeners of `protocol`."""
        return ",".join(f"127.0.0.1:{port + 2}" for port in self._ports)

    def __enter__(self) -> "KafkaCluster":
        try:
            classpath()
            with ThreadPoolExecutor(len(self.brokers)) as pool:  # a voter waits for the others
                list(pool.map(ApacheKafka.start, self.brokers))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all brokers at once, and delete their data."""
        for broker in self.brokers:
            if broker.is_running:
                broker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
