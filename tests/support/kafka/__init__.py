"""Apache Kafka beside kbroker: jars from Maven, a broker, tools, Java classes, and clusters of brokers.

In a test: `with ApacheKafka() as kafka: ... kafka.bootstrap`. On the command line: `python -m tests.support.kafka
--help`.
"""

from tests.support.kafka.broker import COLLECTOR, ApacheKafka, StartError
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.jars import (
    POM,
    SHORT_LIVED,
    VERSION,
    ClassArchive,
    Unavailable,
    classpath,
    compiled,
    java_command,
    program,
)

__all__ = [
    "COLLECTOR", "POM", "SHORT_LIVED", "VERSION", "ApacheKafka", "ClassArchive", "KafkaCluster", "StartError",
    "Unavailable", "classpath", "compiled", "java_command", "program",
]  # fmt: skip
