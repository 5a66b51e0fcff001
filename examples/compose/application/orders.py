"""Application that writes ten orders, reads them in a group, prints the total, and ends."""

import os

from confluent_kafka import Consumer, Producer

BOOTSTRAP = os.environ.get("KAFKA_BOOTSTRAP", "localhost:29092")
ORDERS = 10

producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})
for number in range(ORDERS):
    producer.produce("orders", key=f"customer-{number % 3}", value=str(number))
unsent = producer.flush(30)
if unsent:
    raise SystemExit(f"{unsent} orders were not acknowledged")

consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "billing", "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
total = read = 0
while read < ORDERS:
    message = consumer.poll(30)
    if message is None:
        raise SystemExit(f"read {read} of {ORDERS} orders")
    if message.error() is None:
        total, read = total + int(message.value()), read + 1
consumer.close()
print(f"read {read} orders, total {total}")
