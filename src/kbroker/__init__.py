"""kbroker: a Kafka-compatible broker whose request pipeline is Kafka's own."""

__version__ = "0.1.0"
