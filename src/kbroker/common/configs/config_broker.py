"""Broker keys about listeners, threads, limits, topics, producers and groups; ours begin with ``kbroker.``."""

from __future__ import annotations

import os

from kbroker.common.configs.config_def import (
    INT32_MAX,
    INT64_MAX,
    MOST_THREADS,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Dynamic,
    Importance,
    Validator,
    between,
    one_of,
)

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, PASSWORD = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.SHORT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
    ConfigType.PASSWORD,
)
LEAST_SEGMENT_BYTES = 1 << 20  # what segment.bytes of a topic may be; with less the topic could not be made
HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
CLUSTER_WIDE = Dynamic.CLUSTER_WIDE


def _key(
    name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str,
    importance: Importance = MEDIUM, dynamic: Dynamic = Dynamic.READ_ONLY, default_doc: str = "",
) -> ConfigKey:  # fmt: skip
    return ConfigKey(name, kind, default, doc, validator, importance, dynamic, default_doc=default_doc)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# A network thread takes no GIL and feeds several cores; more of them than half the cores only wake each other.
# Requests/s with one thread against three on two cores: ApiVersions 1.8 times, Produce 1.4 (16 connections).
_NETWORK_THREADS = min(3, max(1, usable_cores() // 2))


NETWORK_KEYS: tuple[ConfigKey, ...] = (
    _key("listeners", LIST, ("PLAINTEXT://127.0.0.1:9092",), None,
         "Addresses to bind, NAME://host:port with commas between them; port 0 takes a free one, an "
         "empty host binds all. A change needs a restart.",
         HIGH),
    _key("advertised.listeners", LIST, None, None,
         "Addresses told to clients, by listener name. Unset: those of listeners, port 0 replaced by the real port.",
         HIGH),
    _key("listener.security.protocol.map", LIST,
         ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"), None,
         "Security protocol of each listener name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.", LOW),
    _key("num.network.threads", INT, _NETWORK_THREADS, between(1, MOST_THREADS),
         "Network threads of each listener; listener.name.NAME.num.network.threads of one.", HIGH, CLUSTER_WIDE,
         default_doc="`3`, or half of the machine's cores where that is less"),
    _key("num.io.threads", INT, 8, between(1, MOST_THREADS), "Threads that handle requests.", HIGH, CLUSTER_WIDE),
    _key("background.threads", INT, 10, between(1),
         "Accepted; background work of the log has one thread.", HIGH, CLUSTER_WIDE),
    _key("queued.max.requests", INT, 500, between(1),
         "Requests that may wait before the network threads stop reading.", HIGH),
    _key("queued.max.request.bytes", LONG, -1, None,
         "Bytes of requests held in memory at once; 0 or less: no limit, else at least socket.request.max.bytes."),
    _key("socket.request.max.bytes", INT, 104_857_600, between(1),
         "Largest request in bytes; a larger one closes.", HIGH),
    _key("socket.send.buffer.bytes", INT, 102_400, None, "SO_SNDBUF of connections; -1: the system's choice.", HIGH),
    _key("socket.receive.buffer.bytes", INT, 102_400, None, "SO_RCVBUF of connections; -1: the system's choice.", HIGH),
    _key("socket.listen.backlog.size", INT, 50, between(1), "Connections that may wait to be accepted."),
    _key("connections.max.idle.ms", LONG, 600_000, None, "Idle connections are closed after this many milliseconds."),
    _key("max.connections", INT, INT32_MAX, between(0),
         "Connections at once; above, new ones wait. listener.name.NAME.max.connections limits one listener.",
         MEDIUM, CLUSTER_WIDE),
    _key("max.connections.per.ip", INT, INT32_MAX, between(0),
         "Connections at once from one address; one more is closed. 0 needs overrides.", MEDIUM, CLUSTER_WIDE),
    _key("max.connections.per.ip.overrides", STRING, "", None,
         "address:count, with commas; wins over max.connections.per.ip.",
         MEDIUM, CLUSTER_WIDE),
    _key("max.connection.creation.rate", INT, INT32_MAX, between(0),
         "New connections per second; above, the acceptor waits up to a quota window. Also limits each listener that "
         "has no rate of its own.", MEDIUM, CLUSTER_WIDE),
    _key("inter.broker.listener.name", STRING, None, None,
         "With several listeners, this one is not held to max.connections and max.connection.creation.rate of the "
         "broker: a door that stays open. Unset: the one named PLAINTEXT."),
    _key("request.timeout.ms", INT, 30_000, None, "How long a client waits for a response, in milliseconds.", HIGH),
    _key("fetch.max.bytes", INT, 57_671_680, between(1024), "Largest answer to a Fetch request in bytes."),
    _key("max.incremental.fetch.session.cache.slots", INT, 1000, between(0), "Fetch sessions kept at once."),
    _key("fetch.purgatory.purge.interval.requests", INT, 1000, None,
         "Finished fetches after which watch lists are purged."),
    _key("producer.purgatory.purge.interval.requests", INT, 1000, None, "The same for produce requests."),
)  # fmt: skip

SERVER_KEYS: tuple[ConfigKey, ...] = (
    _key("node.id", INT, 1, between(0), "Number of this broker.", HIGH),
    _key("broker.id", INT, -1, None, "Old name of node.id; used when node.id is not set.", HIGH),
    _key("broker.rack", STRING, None, None, "Rack told to clients."),
    _key("process.roles", LIST, ("broker", "controller"), None, "Accepted; this broker is both.", HIGH),
    _key("auto.create.topics.enable", BOOLEAN, True, None,
         "Whether a Metadata request may create the topics it names.", HIGH),
    _key("delete.topic.enable", BOOLEAN, True, None, "Whether topics can be deleted.", HIGH),
    _key("num.partitions", INT, 1, between(1), "Partitions of a topic created without a count."),
    _key("default.replication.factor", INT, 1, between(1),
         "Replication factor of topics created without one; there is one broker."),
    _key("transaction.max.timeout.ms", INT, 900_000, between(1), "Longest transaction in milliseconds.", HIGH),
    _key("transactional.id.expiration.ms", INT, 604_800_000, between(1),
         "How long an idle transactional id is kept.", HIGH),
    _key("transaction.state.log.num.partitions", INT, 50, between(1), "Partitions of __transaction_state.", HIGH),
    _key("transaction.state.log.replication.factor", SHORT, 1, between(1), "Accepted; there is one broker.", HIGH),
    _key("transaction.state.log.min.isr", INT, 1, between(1), "Accepted; there is one broker.", HIGH),
    _key("transaction.state.log.segment.bytes", INT, 104_857_600, between(LEAST_SEGMENT_BYTES),
         "Segment size of __transaction_state.", HIGH),
    _key("offsets.topic.num.partitions", INT, 50, between(1), "Partitions of __consumer_offsets.", HIGH),
    _key("offsets.topic.replication.factor", SHORT, 1, between(1), "Accepted; there is one broker.", HIGH),
    _key("offsets.topic.segment.bytes", INT, 104_857_600, between(LEAST_SEGMENT_BYTES),
         "Segment size of __consumer_offsets.", HIGH),
    _key("offsets.retention.minutes", INT, 10_080, between(1),
         "How long the offsets of an empty group are kept.", HIGH),
    _key("offsets.retention.check.interval.ms", LONG, 600_000, between(1),
         "How often expired offsets are looked for.", HIGH),
    _key("offset.metadata.max.bytes", INT, 4096, None, "Longest note of an offset commit.", HIGH),
    _key("group.initial.rebalance.delay.ms", INT, 3000, None, "How long a new group waits for more members."),
    _key("group.min.session.timeout.ms", INT, 6000, None, "Shortest session timeout a member may ask for."),
    _key("group.max.session.timeout.ms", INT, 1_800_000, None, "Longest session timeout a member may ask for."),
    _key("group.max.size", INT, INT32_MAX, between(1), "Members of one group at most."),
    _key("controlled.shutdown.enable", BOOLEAN, True, None, "Accepted; there is one broker."),
    _key("quota.window.num", INT, 11, between(1), "Windows of the client quotas that are remembered.", LOW),
    _key("quota.window.size.seconds", INT, 1, between(1), "Length of a client quota window in seconds.", LOW),
    _key("controller.quota.window.num", INT, 11, between(1),
         "Windows of the controller mutation quotas that are remembered.", LOW),
    _key("controller.quota.window.size.seconds", INT, 1, between(1),
         "Length of a controller mutation quota window in seconds.", LOW),
    _key("metrics.num.samples", INT, 2, between(1), "Samples a metric is computed from.", LOW),
    _key("metrics.sample.window.ms", LONG, 30_000, between(1), "Length of a metric sample in milliseconds.", LOW),
)  # fmt: skip

OWN_KEYS: tuple[ConfigKey, ...] = (
    _key("kbroker.in.memory", BOOLEAN, False, None,
         "Keep everything in memory (a temporary folder removed at the end)."),
    _key("kbroker.request.batch.max", INT, 16, between(1, 1024),
         "Complete requests of one connection handed over at once; 1 is Kafka's exact behaviour."),
    _key("kbroker.poller", STRING, "auto", one_of("auto", "epoll", "kqueue", "selectors"),
         "How network threads wait for sockets: the system's own way (epoll, kqueue), or Python's selectors, which is "
         "what Windows has; auto takes the fastest there is."),
    _key("kbroker.python.threads", INT, 2, between(1, 64), "Threads for the requests that Python serves."),
    _key("kbroker.frame.timeout.ms", LONG, 30_000, between(1),
         "A request must be complete this long after its first byte."),
    _key("kbroker.nofile.limit", LONG, INT64_MAX, between(64),
         "The soft limit of open files is raised to this at start, as far as the hard limit allows."),
    _key("kbroker.control.listener", STRING, "", None,
         "host:port of the HTTP control port for tests, on the loopback interface; empty: none. Only kbroker serve "
         "opens it."),
    _key("kbroker.control.token", PASSWORD, None, None,
         "Token that clients of the control port must send; unset: a new one at each start, printed with the address."),
    _key("kbroker.control.virtual.clock", BOOLEAN, False, None,
         "With a control port: the broker's time stands still until it is advanced there."),
    _key("kbroker.metrics.listener", STRING, "", None,
         "host:port of the HTTP port with /metrics (Prometheus), /health and /ready; 127.0.0.1 unless a host is named, "
         "port 0 takes a free one; empty: none. It asks nobody for a password. Needs kbroker[metrics]."),
    _key("kbroker.metrics.entity.series", INT, 100, between(1, 10_000),
         "Series shown of one metric with a label that clients make up (user, client_id, ip, topic, partition); the "
         "largest are shown, the rest together as other."),
    _key("kbroker.quota.max.counters", INT, 5000, between(1),
         "Quota counters of one type for client ids that only a default quota names, at most, some 7 KB each; a "
         "further one takes the place of the one that was quiet the longest."),
    _key("kbroker.request.log.topic", STRING, "", None,
         "Internal topic that gets a record of every finished request, made at start (docs/request-log.md); empty: "
         "none."),
    _key("kbroker.request.log.partitions", INT, 1, between(1, 1000),
         "Partitions of that topic when it is made; a client's records are in one of them."),
    _key("kbroker.request.log.compression", STRING, "none", one_of("none", "lz4"),
         "compression.type of that topic when it is made."),
    _key("kbroker.request.log.dir", STRING, "", None,
         "Folder of rolling files with the same records; empty: none."),
    _key("kbroker.request.log.format", STRING, "json", one_of("json", "arrow"),
         "json: an object a request; arrow: Arrow IPC streams of many, for volume. Needs kbroker[arrow]."),
    _key("kbroker.request.log.sampling", DOUBLE, 1.0, between(0, 1),
         "Share of requests that is recorded; those that a quota delayed or refused always are."),
    _key("kbroker.request.log.buffer.bytes", LONG, 16_777_216, between(65_536, 1 << 30),
         "Memory for records that wait to be written, of all network threads; what finds no room is dropped, counted "
         "and told."),
    _key("kbroker.request.log.file.bytes", LONG, 134_217_728, between(65_536),
         "A file of the request log that has this many bytes is followed by a new one."),
    _key("kbroker.request.log.file.count", INT, 10, between(1),
         "Files of the request log that are kept; the oldest are deleted."),
    _key("kbroker.shutdown.timeout.ms", LONG, 5000, between(0),
         "How long an orderly stop may take at the end of the process."),
)  # fmt: skip

BROKER_KEYS = NETWORK_KEYS + SERVER_KEYS + OWN_KEYS
