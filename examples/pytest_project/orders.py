"""Program under test, which sums the orders of each customer."""

from collections import Counter

from confluent_kafka import Consumer, Producer


def place(bootstrap: str, topic: str, customer: str, amount: int) -> None:
    """Write an order; return when it is stored."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(topic, key=customer, value=str(amount))
    if producer.flush(30):
        raise TimeoutError(f"the order of {customer} was not acknowledged")


def totals(bootstrap: str, topic: str, count: int) -> Counter[str]:
    """Return the totals by customer of the next ``count`` orders."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "totals", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: Counter[str] = Counter()
    try:
        for _ in range(count):
            message = consumer.poll(30)
            if message is None:
                raise TimeoutError("no order within 30 s")
            found[message.key().decode()] += int(message.value())
    finally:
        consumer.close()
    return found
