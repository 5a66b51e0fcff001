"""Loop of consume-transform-produce with librdkafka's transactions, across kills of the broker.

    python -m tests.support.transactional_load BOOTSTRAP TOPIC PARTITIONS WORKERS NOTES

Each worker has a transactional id and a group. Transaction n of a worker writes `worker:n:i` to every partition and
commits offset n + 1 for the group. The worker continues from the committed offset, as a consumer would. Every fifth
transaction is first aborted. Lines of NOTES are `commit WORKER N` for an acknowledged commit and `fatal WORKER TEXT`
for a producer that was replaced. The process ends when its standard input is closed.
"""

import sys
import threading

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.client import librdkafka_consumer

RECORDS = 3  # of a transaction in each partition
ABORTED_EACH = 5
PATIENCE_S = 60.0


class Worker(threading.Thread):
    """Worker with one transactional id. Threads: its own."""

    def __init__(self, number: int, bootstrap: str, topic: str, partitions: int, notes: "NoteFile") -> None:
        super().__init__(daemon=True)
        self.number = number
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.notes = notes
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.work()
            except KafkaException as failure:
                self.notes.write(f"fatal {self.number} {failure.args[0].name()}")

    def work(self) -> None:
        """Run transactions until one fails in a way that requires another producer. Raises: KafkaException."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"load-{self.number}",
                "transaction.timeout.ms": 30_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "linger.ms": 0,
                "metadata.recovery.strategy": "none",  # librdkafka 2.16 loses its coordinator when it bootstraps again
            }
        )
        how: dict[str, object] = {"metadata_recovery_strategy": "none", "reconnect_backoff_max_ms": 200}
        group = librdkafka_consumer(self.bootstrap, f"load-{self.number}", isolation_level="read_committed", **how)
        try:
            retried(lambda: producer.init_transactions(PATIENCE_S))
            number = self.committed(group)
            attempt = 0
            while not self.stopping.is_set():
                attempt += 1
                try:
                    self.transact(producer, group, number, is_aborted=attempt % ABORTED_EACH == 0)
                except KafkaException as failure:
                    if not failure.args[0].txn_requires_abort():
                        raise
                    retried(lambda: producer.abort_transaction(PATIENCE_S))
                    number = self.committed(group)
                    continue
                if attempt % ABORTED_EACH:
                    self.notes.write(f"commit {self.number} {number}")
                    number += 1
        finally:
            group.close()

    def transact(self, producer: Producer, group: Consumer, number: int, *, is_aborted: bool) -> None:
        producer.begin_transaction()
        for partition in range(self.partitions):
            for i in range(RECORDS):
                producer.produce(self.topic, f"{self.number}:{number}:{i}".encode(), partition=partition)
        if is_aborted:
            producer.flush(PATIENCE_S)
            retried(lambda: producer.abort_transaction(PATIENCE_S))
            return
        offsets = [TopicPartition(self.topic, self.number % self.partitions, number + 1)]
        retried(lambda: producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), PATIENCE_S))
        retried(lambda: producer.commit_transaction(PATIENCE_S))

    def committed(self, group: Consumer) -> int:
        """Return the committed offset, which is the next transaction's number, once a broker responds."""
        while True:
            try:
                (found,) = group.committed([TopicPartition(self.topic, self.number % self.partitions)], 10)
            except KafkaException as failure:
                if failure.args[0].fatal() or self.stopping.is_set():
                    raise
                continue
            if found.error is None:
                return max(0, int(found.offset))


def retried(call: "object") -> None:
    """Repeat a call while its error is retriable, as librdkafka's documentation requires. Raises: KafkaException."""
    assert callable(call)
    while True:
        try:
            call()
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if not error.retriable():
                raise
        else:
            return


class NoteFile:
    """File of lines for another process. Threads: any."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        with self._lock:
            self._file.write(f"{line}\n")


def main() -> None:
    bootstrap, topic, partitions, workers, path = sys.argv[1:]
    notes = NoteFile(path)
    running = [Worker(number, bootstrap, topic, int(partitions), notes) for number in range(int(workers))]
    for worker in running:
        worker.start()
    sys.stdin.read()
    for worker in running:
        worker.stopping.set()
    for worker in running:
        worker.join(PATIENCE_S)
    notes.write("done 0 0")


if __name__ == "__main__":
    main()
