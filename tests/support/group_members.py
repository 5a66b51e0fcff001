"""Members of a group in a separate process that outlives the broker and logs the acknowledged commits.

    python -m tests.support.group_members BOOTSTRAP TOPIC GROUP LOG_FILE [PROTOCOL PROTOCOL PROTOCOL]

Two members stay and a third joins and leaves repeatedly, so that a kill often happens during a rebalance; with `classic
classic consumer` the third converts the group to the other protocol, and back when it leaves. Each event is one line of
LOG_FILE: `read PARTITION FIRST LAST` for delivered offsets, `commit PARTITION OFFSET` for an acknowledged commit,
`error TEXT` for an unexpected error. The process ends when its standard input is closed.
"""

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

COMMIT_EVERY_S = 0.05
VISIT_S = 2.5  # longer than a session: each change of the protocol restarts the sessions of members that have ended
BY_THE_CLIENT = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200}  # chosen by the broker in the other protocol
# errors of a broker that is down and of a group in its next generation; any other error fails the test
EXPECTED = {
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE,
    KafkaError._WAIT_COORD, KafkaError._DESTROY, KafkaError._STATE, KafkaError._NO_OFFSET,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError._MAX_POLL_EXCEEDED,
}  # fmt: skip


class Log:
    """Log file that several threads write, one whole line at a time."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        with self._lock:
            self._file.write(text + "\n")


class Member:
    """Consumer and the offsets that it has read since its last commit.

    A consumer polls one record at a time: no partition can be revoked between the read of its last record and the
    commit, so no commit is older than a commit of the partition's next owner.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, log: Log, protocol: str) -> None:
        self.topic = topic
        self.log = log
        self.read: dict[int, tuple[int, int]] = {}
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "group.protocol": protocol, "max.poll.interval.ms": 6000,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20,
            "socket.timeout.ms": 5000, "topic.metadata.refresh.interval.ms": 2000, "error_cb": self.on_error,
            "log_level": 0, **(BY_THE_CLIENT if protocol == "classic" else {}),
        }  # fmt: skip
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_assign=self.on_change, on_revoke=self.on_change, on_lost=self.on_change)

    def on_error(self, error: KafkaError) -> None:
        if error.code() not in EXPECTED:
            self.log.write(f"error {error}")

    def on_change(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget the records of partitions that are assigned, revoked or lost.

        The other partitions stay assigned and are read from their position, so only a commit of this member can cover
        their records.
        """
        self.forget(partition.partition for partition in partitions)

    def forget(self, partitions: Iterable[int]) -> None:
        """Log the records that were read; records that are not committed are read again by the next owner."""
        for partition in partitions:
            if partition in self.read:
                first, last = self.read.pop(partition)
                self.log.write(f"read {partition} {first} {last}")

    def commit(self) -> None:
        """Commit the records that were read; the offsets of a refused commit are part of the next commit."""
        offsets = [TopicPartition(self.topic, partition, last + 1) for partition, (_, last) in self.read.items()]
        try:
            done = self.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as failure:
            self.on_error(failure.args[0])
            return
        for one in done or ():
            if one.error is None:
                self.forget([one.partition])
                self.log.write(f"commit {one.partition} {one.offset}")
            else:
                self.on_error(one.error)

    def run(self, stop: threading.Event, seconds: float = float("inf")) -> None:
        """Read and commit until the event is set or the time has passed."""
        end = time.monotonic() + seconds
        due = time.monotonic() + COMMIT_EVERY_S
        try:
            while not stop.is_set() and time.monotonic() < end:
                message = self.consumer.poll(COMMIT_EVERY_S)
                if message is not None:
                    error = message.error()
                    if error is not None:
                        self.on_error(error)
                    else:
                        partition, offset = message.partition(), message.offset()
                        assert partition is not None
                        assert offset is not None
                        self.read[partition] = (self.read.get(partition, (offset, offset))[0], offset)
                if self.read and time.monotonic() >= due:
                    self.commit()
                    due = time.monotonic() + COMMIT_EVERY_S
        finally:
            self.forget(list(self.read))
            self.consumer.close()


def main() -> int:
    bootstrap, topic, group, path, *given = sys.argv[1:]
    one, two, visitor = given or ("classic", "classic", "classic")
    stop = threading.Event()
    with open(path, "w", buffering=1, encoding="utf-8") as file:
        log = Log(file)

        def stay(protocol: str) -> None:
            Member(bootstrap, topic, group, log, protocol).run(stop)

        def come_and_go() -> None:
            while not stop.wait(0.2):
                Member(bootstrap, topic, group, log, visitor).run(stop, VISIT_S)

        threads = [threading.Thread(target=stay, args=[protocol]) for protocol in (one, two)]
        threads.append(threading.Thread(target=come_and_go))
        for thread in threads:
            thread.start()
        sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
