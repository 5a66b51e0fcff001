"""Names of the options of source and sink, and messages for options that only the official connector has."""

from kbroker.client.security import PROPERTIES

TOPIC_CHOICES = ("assign", "subscribe", "subscribePattern")
READ_OPTIONS = (
    *TOPIC_CHOICES,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "maxOffsetsByTime",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    "columns",
    "endOffsetsMaxAgeMs",
    "kafka.isolation.level",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.metadata.max.age.ms",
)
WRITE_OPTIONS = (
    "topic",
    "kafka.acks",
    "kafka.compression.type",
    "kafka.enable.idempotence",
    "kafka.batch.size",
    "kafka.transactional.id",
    "kafka.transaction.timeout.ms",
)
CLIENT_SETTINGS = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.request.timeout.ms",
    "kafka.default.api.timeout.ms",
    "kafka.socket.connection.setup.timeout.ms",
)
SECURITY_SETTINGS = tuple(f"kafka.{name}" for name in PROPERTIES)
FROM_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode"})  # options of Spark, which passes them too

_SERIALIZERS = "is not supported: keys and values are bytes; cast the columns instead, and remove the option"
_NO_GROUP = "is not supported: the source uses no consumer group, progress is in Spark's checkpoint; remove it"
_PEM = "is not supported: certificates are PEM files, which have no password; convert the store and remove it"
_RETRIES = "is not supported: retries end after kafka.default.api.timeout.ms; set that and remove it"

_REFUSED = {
    "kafka.group.id": _NO_GROUP,
    "groupIdPrefix": _NO_GROUP,
    "kafka.enable.auto.commit": _NO_GROUP,
    "kafka.auto.offset.reset": "is not supported: set startingOffsets (new queries) or failOnDataLoss, and remove it",
    "kafka.key.deserializer": _SERIALIZERS,
    "kafka.value.deserializer": _SERIALIZERS,
    "kafka.key.serializer": _SERIALIZERS,
    "kafka.value.serializer": _SERIALIZERS,
    "kafka.interceptor.classes": "is not supported: there is no Java client to call it; remove it",
    "kafka.partitioner.class": "is not supported: keys go where Kafka's default puts them; give a column partition",
    "kafka.ssl.truststore.password": _PEM,
    "kafka.ssl.keystore.password": _PEM,
    "kafkaConsumer.pollTimeoutMs": _RETRIES,
    "fetchOffset.numRetries": _RETRIES,
    "fetchOffset.retryIntervalMs": _RETRIES,
    "useDeprecatedOffsetFetching": "is not supported: offsets are always looked up without a group; remove it",
    "kafka.sasl.kerberos.service.name": "is not supported: the SASL mechanisms are PLAIN and SCRAM; remove it",
    "kafka.sasl.login.callback.handler.class": "is not supported: the SASL mechanisms are PLAIN and SCRAM; remove it",
    "path": "is not an option of this source: name topics with subscribe, assign or subscribePattern (sink: topic)",
}
REFUSED = {name.lower(): f"{name} {why}" for name, why in _REFUSED.items()}
OF_ANOTHER_KIND = {
    **{name.lower(): (name, "is for reading; remove it from the writer") for name in READ_OPTIONS},
    **{name.lower(): (name, "is for writing; remove it from the reader") for name in WRITE_OPTIONS},
    "topic": ("topic", "is for writing; to read, name topics with subscribe"),
}
