"""Probes of transactions, with a transactional producer of librdkafka."""

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.loads.probes.groups import MEMBER, take
from bench.loads.probes.place import ANSWER_S, Place, Probe, expect

COMMITTED = {"isolation.level": "read_committed"}
EVERYTHING = {"isolation.level": "read_uncommitted"}


def producer(place: Place, name: str) -> Producer:
    made = Producer(place.config({"transactional.id": name, "transaction.timeout.ms": 30_000}))
    made.init_transactions(ANSWER_S)
    return made


def visibility(place: Place) -> None:
    """A read_committed consumer reads the records of committed transactions, and none of an aborted one."""
    topic = place.create("transactions")
    sender = producer(place, topic)
    for number, commits in enumerate((True, False, True)):
        sender.begin_transaction()
        for n in range(5):
            sender.produce(topic, b"%d-%d" % (number, n), partition=0)
        if commits:
            sender.commit_transaction(ANSWER_S)
        else:
            sender.flush(ANSWER_S)
            sender.abort_transaction(ANSWER_S)
    wanted = [b"%d-%d" % (number, n) for number in (0, 2) for n in range(5)]
    found = place.values(topic, COMMITTED)
    expect(found == wanted, f"read_committed reads {len(found)} records: {found[:12]}")
    expect(len(place.values(topic, EVERYTHING)) == 15, "read_uncommitted does not read all")


def offsets(place: Place) -> None:
    """A read, a write and an offset commit in one transaction: the group's offset applies only after the commit."""
    source, target = place.create("source"), place.create("target")
    place.send(source, [b"%d" % n for n in range(10)])
    consumer = Consumer(place.config({"group.id": source, **MEMBER, **COMMITTED}))
    sender = producer(place, target)
    try:
        consumer.subscribe([source])
        for half, commits, committed in ((5, True, 5), (5, False, 5)):
            values = take(consumer, half)
            sender.begin_transaction()
            for value in values:
                sender.produce(target, value, partition=0)
            places = consumer.position(consumer.assignment())
            sender.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), ANSWER_S)
            (sender.commit_transaction if commits else sender.abort_transaction)(ANSWER_S)
            (found,) = consumer.committed([TopicPartition(source, 0)], timeout=ANSWER_S)
            expect(found.offset == committed, f"the group's offset is {found.offset} instead of {committed}")
        expect(len(place.values(target, COMMITTED)) == 5, "other records than the committed ones are read")
    finally:
        consumer.close()


PROBES = [
    Probe("transactions: commit, abort, read_committed", visibility, 90),
    Probe("transactions: a group's offsets in them", offsets, 90, short=False),
]
