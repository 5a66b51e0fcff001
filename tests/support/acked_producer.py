"""Producer in a separate process that outlives the broker and logs the acknowledged records.

    python -m tests.support.acked_producer BOOTSTRAP TOPIC PARTITIONS LOG_FILE CODEC [RECORDS_PER_TURN]

Values are "PARTITION:NUMBER:..." with the numbers 0, 1, 2, ... for each partition. Each event is one line of LOG_FILE:
`ack PARTITION NUMBER OFFSET`, `fail PARTITION NUMBER ERROR` or `error TEXT`. After its standard input is closed, the
process flushes the producer and writes a last line `sent PARTITION COUNT` for each partition.
"""

import os
import select
import sys
import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

RECORDS_PER_TURN = 40
# 1 MiB holds about a thousand records, and no codec makes noise smaller: a segment is rolled about every second
FILLER_BYTES = 900
NOISE = os.urandom(1 << 20)


def main() -> int:
    bootstrap, topic, partition_text, path, codec, *given = sys.argv[1:]
    per_turn = int(given[0]) if given else RECORDS_PER_TURN
    partitions = int(partition_text)
    fatal: list[str] = []
    with open(path, "w", buffering=1, encoding="utf-8") as log:

        def on_error(error: KafkaError) -> None:
            # the errors of a broker that is down are expected
            if error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
                fatal.append(str(error))
                log.write(f"error {error}\n")

        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "compression.type": codec,
            "linger.ms": 2, "batch.num.messages": 50, "message.timeout.ms": 300_000, "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "socket.timeout.ms": 10_000,
            "queue.buffering.max.messages": 3000, "topic.metadata.refresh.interval.ms": 2000, "error_cb": on_error,
            "log_level": 0,
        }  # fmt: skip
        producer = Producer(settings)

        def written(partition: int, number: int) -> Any:
            def report(error: KafkaError | None, message: Message) -> None:
                if error is None:
                    log.write(f"ack {partition} {number} {message.offset()}\n")
                else:
                    log.write(f"fail {partition} {number} {error}\n")

            return report

        sent = [0] * partitions
        while not select.select([sys.stdin], [], [], 0)[0] and not fatal:
            for _ in range(per_turn):
                for partition in range(partitions):
                    at = sent[partition] * 977 % (len(NOISE) - FILLER_BYTES)
                    value = f"{partition}:{sent[partition]}:".encode() + NOISE[at : at + FILLER_BYTES]
                    try:
                        producer.produce(
                            topic, value, partition=partition, on_delivery=written(partition, sent[partition])
                        )
                    except BufferError:
                        producer.poll(0.05)
                        continue
                    sent[partition] += 1
            producer.poll(0)
            time.sleep(0.03)  # about 1,300 records a second to each partition
        unsent = producer.flush(60)
        if unsent:
            log.write(f"error {unsent} records still unacknowledged after 60 s\n")
        for partition, count in enumerate(sent):
            log.write(f"sent {partition} {count}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
