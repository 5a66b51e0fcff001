"""What the tests of EmbeddedBroker speak to it with: librdkafka, and one connection byte by byte."""

from __future__ import annotations

import socket
import struct

import confluent_kafka as ck

from kbroker.protocol import codec
from kbroker.protocol.records import build_batch


def producer(broker, **settings):
    quiet = {"log_level": 0, "socket.timeout.ms": 3000, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10}
    return ck.Producer({"bootstrap.servers": broker.bootstrap_servers, **quiet, **settings})


def produce(client, *values, topic="t"):
    """Send values and return the error of each, None where it was acknowledged."""
    ends = []
    for value in values:
        client.produce(topic, value, partition=0, on_delivery=lambda error, _: ends.append(error))
    assert client.flush(20) == 0
    return ends


def values(broker, topic="t"):
    return [record.value for record in broker.records(topic)]


class Raw:
    """One connection that speaks the protocol in the open."""

    def __init__(self, broker, client_id="raw"):
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self.client_id = client_id
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.asked = []

    def send(self, key, version, body):
        self.asked.append((key, version))
        self.socket.sendall(codec.encode_request_frame(key, version, len(self.asked), self.client_id, body))

    def exactly(self, size):
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:  # closed with something unread
                part = b""
            if not part:
                raise EOFError
            data += part
        return data

    def receive(self):
        """The next response. Raises: EOFError when the broker has closed."""
        key, version = self.asked.pop(0)
        (size,) = struct.unpack(">i", self.exactly(4))
        return codec.decode_response_frame(key, version, self.exactly(size))[1]

    def ask(self, key, version, body):
        self.send(key, version, body)
        return self.receive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def a_produce(value=b"v", acks=-1, size=1):
    records = build_batch([(None, value)] * size)
    part = {"Index": 0, "Records": records}
    return {"Acks": acks, "TimeoutMs": 1000, "TopicData": [{"Name": "t", "PartitionData": [part]}]}


def a_fetch(offset=0, max_wait_ms=0, **more):
    part = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
    topics = [{"Topic": "t", "Partitions": [part]}]
    return {"MaxWaitMs": max_wait_ms, "MinBytes": 1, "MaxBytes": 1 << 20, "Topics": topics, **more}


def row_of(response, inner="Partitions"):
    (topic,) = response["Responses"]
    (row,) = topic[inner]
    return row
