"""Consume, transform, produce: a program that crashes after each step and still writes each result exactly once.

    pip install kbroker confluent-kafka
    python examples/exactly_once.py

Each process ends as after a kill -9, and the next one continues. With a transaction around records and offsets, each
record is in the output once; without a transaction, some records are written twice.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter

from confluent_kafka import Consumer, Producer

from kbroker.testing import EmbeddedBroker

QUIET = {"log_level": 0}
SOURCE, SINK, GROUP, TRANSACTIONAL_ID = "orders", "invoices", "billing", "billing-1"
COUNT, BATCH = 20, 4
STEPS = ("begun", "produced", "offsets", "committed")  # a crash after each
IS_DONE, IS_CRASHED = 0, 9


def transform(order: bytes) -> bytes:
    return b"invoice for " + order


def live(bootstrap: str, crash_at: str, transactional: bool) -> int:
    """Run to the end of the input, or to a crash in the second batch; return the exit status."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "group.instance.id": "billing-1",  # the next process takes over the crashed one's partition at once
            **QUIET,
        }
    )
    consumer.subscribe([SOURCE])
    settings: dict[str, object] = {"bootstrap.servers": bootstrap, **QUIET}
    if transactional:
        settings["transactional.id"] = TRANSACTIONAL_ID
    producer = Producer(settings)
    if transactional:
        producer.init_transactions(30)  # aborts the transaction of a crashed process
    batches = 0

    def step(name: str) -> None:
        if name == crash_at and batches == 2:
            os._exit(IS_CRASHED)  # no abort, no leave, no flush

    while True:
        messages = consumer.consume(BATCH, 5)
        orders = [one for one in messages if one.error() is None]
        if not orders:
            if messages:  # the end of the partition
                consumer.close()
                return IS_DONE
            continue
        batches += 1
        if transactional:
            producer.begin_transaction()
        step("begun")
        for order in orders:
            producer.produce(SINK, transform(order.value() or b""))
        producer.flush(30)
        step("produced")
        positions = consumer.position(consumer.assignment())
        if transactional:
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
        step("offsets")
        if transactional:
            producer.commit_transaction(30)
        else:
            consumer.commit(offsets=positions, asynchronous=False)
        step("committed")


def run(transactional: bool) -> Counter[bytes]:
    """Run one process after another; return the number of times that each record is in the output."""
    with EmbeddedBroker() as broker:
        broker.create_topic(SOURCE)
        broker.create_topic(SINK)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        for number in range(COUNT):
            producer.produce(SOURCE, b"order %d" % number)
        assert producer.flush(30) == 0
        for crash_at in (*STEPS, "never"):
            command = [sys.executable, __file__, broker.bootstrap_servers, crash_at, str(int(transactional))]
            status = subprocess.run(command, check=False, timeout=120).returncode
            written, committed = len(broker.records(SINK)), len(broker.committed_records(SINK))
            how = "ended" if status == IS_DONE else f"crashed after '{crash_at}'"
            print(f"  {how}: {written} records written, {committed} of them committed")
            assert status in (IS_DONE, IS_CRASHED), f"the program failed with status {status}"
        return Counter(record.value or b"" for record in broker.committed_records(SINK))


def main() -> None:
    for transactional in (True, False):
        print("with a transaction:" if transactional else "without a transaction:")
        found = run(transactional)
        assert set(found) == {transform(b"order %d" % number) for number in range(COUNT)}
        repeated = sum(times > 1 for times in found.values())
        print(f"  {COUNT} orders, {len(found)} invoices, {repeated} of them written more than once")
        assert not (transactional and repeated)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        sys.exit(live(sys.argv[1], sys.argv[2], sys.argv[3] == "1"))
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
