"""Print values of Confluent's Avro, JSON Schema and Protobuf serializers in hexadecimal, one a line.

Usage: registry_producer.py REGISTRY
"""

import sys
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import struct_pb2, timestamp_pb2

AVRO = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}]}'
)
JSON = '{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object"}'


def main(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    order: dict[str, Any] = {"id": 7, "who": "Zoë"}
    serializers: list[tuple[str, Any, Any]] = [
        ("avro-orders", AvroSerializer(client, AVRO), order),
        ("json-orders", JSONSerializer(JSON, client), order),
        ("times", ProtobufSerializer(timestamp_pb2.Timestamp, client), timestamp_pb2.Timestamp(seconds=1)),
        ("lists", ProtobufSerializer(struct_pb2.ListValue, client), struct_pb2.ListValue()),
    ]
    for topic, serializer, value in serializers:
        print(serializer(value, SerializationContext(topic, MessageField.VALUE)).hex())


if __name__ == "__main__":
    main(sys.argv[1])
