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
LEAST_SEGMENT_BYTES = 1 << 20  # minimum of segment.bytes: with less the topic could not be created
HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
CLUSTER_WIDE = Dynamic.CLUSTER_WIDE
ONE_BROKER = "Accepted without effect; there is one broker."


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


# A network thread takes no GIL and keeps several cores busy; more than half as many as cores only wake each other.
# Requests/s with one thread against three on two cores: ApiVersions 1.8 times, Produce 1.4 (16 connections).
_NETWORK_THREADS = min(3, max(1, usable_cores() // 2))


NETWORK_KEYS: tuple[ConfigKey, ...] = (
    _key("listeners", LIST, ("PLAINTEXT://127.0.0.1:9092",), None,
         "Addresses to listen on: NAME://host:port, separated by commas. Port 0 picks a free port; an empty host "
         "means all interfaces.",
         HIGH),
    _key("advertised.listeners", LIST, None, None,
         "Addresses that clients get, by listener name. Unset: those of listeners, with the real port for port 0.",
         HIGH),
    _key("listener.security.protocol.map", LIST,
         ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"), None,
         "Security protocol of each listener name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.", LOW),
    _key("num.network.threads", INT, _NETWORK_THREADS, between(1, MOST_THREADS),
         "Network threads of each listener; listener.name.NAME.num.network.threads sets those of one listener.",
         HIGH, CLUSTER_WIDE,
         default_doc="`3`, or half of the machine's cores if that is less"),
    _key("num.io.threads", INT, 8, between(1, MOST_THREADS), "Threads that handle requests.", HIGH, CLUSTER_WIDE),
    _key("background.threads", INT, 10, between(1),
         "Accepted without effect; one thread does the background work of the log.", HIGH, CLUSTER_WIDE),
    _key("queued.max.requests", INT, 500, between(1),
         "Requests that may wait for a handler before the network threads stop reading.", HIGH),
    _key("queued.max.request.bytes", LONG, -1, None,
         "Maximum bytes of requests in memory at once; 0 or less: no limit, else at least socket.request.max.bytes."),
    _key("socket.request.max.bytes", INT, 104_857_600, between(1),
         "Largest request in bytes; a larger one closes the connection.", HIGH),
    _key("socket.send.buffer.bytes", INT, 102_400, None, "SO_SNDBUF of connections; -1: the system's choice.", HIGH),
    _key("socket.receive.buffer.bytes", INT, 102_400, None, "SO_RCVBUF of connections; -1: the system's choice.", HIGH),
    _key("socket.listen.backlog.size", INT, 50, between(1),
         "Connections that may wait to be accepted, for each listener."),
    _key("connections.max.idle.ms", LONG, 600_000, None, "Milliseconds after which an idle connection is closed."),
    _key("max.connections", INT, INT32_MAX, between(0),
         "Maximum number of connections; further ones wait to be accepted. listener.name.NAME.max.connections limits "
         "one listener.",
         MEDIUM, CLUSTER_WIDE),
    _key("max.connections.per.ip", INT, INT32_MAX, between(0),
         "Maximum number of connections from one address; further ones are closed. 0 needs "
         "max.connections.per.ip.overrides.", MEDIUM, CLUSTER_WIDE),
    _key("max.connections.per.ip.overrides", STRING, "", None,
         "address:count, separated by commas; overrides max.connections.per.ip for these addresses.",
         MEDIUM, CLUSTER_WIDE),
    _key("max.connection.creation.rate", INT, INT32_MAX, between(0),
         "Maximum rate of new connections per second; above it the acceptor waits up to a quota window. Also limits "
         "each listener without its own rate.", MEDIUM, CLUSTER_WIDE),
    _key("inter.broker.listener.name", STRING, None, None,
         "With several listeners, this one is exempt from the broker's max.connections and "
         "max.connection.creation.rate, so that operators reach a broker whose limits are exhausted. Unset: the "
         "listener named PLAINTEXT."),
    _key("request.timeout.ms", INT, 30_000, None, "Milliseconds that a client waits for a response.", HIGH),
    _key("fetch.max.bytes", INT, 57_671_680, between(1024), "Largest response to a Fetch request in bytes."),
    _key("max.incremental.fetch.session.cache.slots", INT, 1000, between(0), "Maximum number of fetch sessions."),
    _key("fetch.purgatory.purge.interval.requests", INT, 1000, None,
         "Completed delayed fetches after which watch lists are purged."),
    _key("producer.purgatory.purge.interval.requests", INT, 1000, None,
         "Completed delayed produce requests after which watch lists are purged."),
)  # fmt: skip

SERVER_KEYS: tuple[ConfigKey, ...] = (
    _key("node.id", INT, 1, between(0), "Id of this broker.", HIGH),
    _key("broker.id", INT, -1, None, "Old name of node.id; used when node.id is not set.", HIGH),
    _key("broker.rack", STRING, None, None, "Rack of this broker, which clients get with the metadata."),
    _key("process.roles", LIST, ("broker", "controller"), None, "Accepted without effect; this broker is both.", HIGH),
    _key("auto.create.topics.enable", BOOLEAN, True, None,
         "Whether a Metadata request may create topics that do not exist.", HIGH),
    _key("delete.topic.enable", BOOLEAN, True, None, "Whether topics can be deleted.", HIGH),
    _key("num.partitions", INT, 1, between(1), "Partitions of a topic created without a count."),
    _key("default.replication.factor", INT, 1, between(1),
         "Replication factor of topics created without one; only 1, there is one broker."),
    _key("transaction.max.timeout.ms", INT, 900_000, between(1), "Longest transaction in milliseconds.", HIGH),
    _key("transactional.id.expiration.ms", INT, 604_800_000, between(1),
         "Milliseconds after which an unused transactional id is deleted.", HIGH),
    _key("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, between(1),
         "Milliseconds between two searches for transactions that timed out.", LOW),
    _key("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, between(1),
         "Milliseconds between two searches for transactional ids that expired.", LOW),
    _key("transaction.two.phase.commit.enable", BOOLEAN, False, None,
         "Whether producers may ask for transactions without a timeout, which another coordinator commits (KIP-939).",
         LOW),
    _key("add.partitions.to.txn.retry.backoff.ms", INT, 20, between(1),
         "Milliseconds after which the broker tries again to add partitions to a transaction whose id is busy.", HIGH),
    _key("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, between(0),
         "Milliseconds for which it tries.", HIGH),
    _key("transaction.state.log.load.buffer.size", INT, 5 * 1024 * 1024, between(1),
         "Bytes of __transaction_state that are read at once when it is loaded.", HIGH),
    _key("transaction.state.log.num.partitions", INT, 50, between(1), "Partitions of __transaction_state.", HIGH),
    _key("transaction.state.log.replication.factor", SHORT, 1, between(1), ONE_BROKER, HIGH),
    _key("transaction.state.log.min.isr", INT, 1, between(1), ONE_BROKER, HIGH),
    _key("transaction.state.log.segment.bytes", INT, 104_857_600, between(LEAST_SEGMENT_BYTES),
         "Segment size of __transaction_state.", HIGH),
    _key("offsets.topic.num.partitions", INT, 50, between(1), "Partitions of __consumer_offsets.", HIGH),
    _key("offsets.topic.replication.factor", SHORT, 1, between(1), ONE_BROKER, HIGH),
    _key("offsets.topic.segment.bytes", INT, 104_857_600, between(LEAST_SEGMENT_BYTES),
         "Segment size of __consumer_offsets.", HIGH),
    _key("offsets.retention.minutes", INT, 10_080, between(1),
         "Minutes after which the offsets of an empty group are deleted.", HIGH),
    _key("offsets.retention.check.interval.ms", LONG, 600_000, between(1),
         "Milliseconds between two searches for expired offsets.", HIGH),
    _key("offset.metadata.max.bytes", INT, 4096, None, "Maximum length of the metadata of an offset commit.", HIGH),
    _key("group.initial.rebalance.delay.ms", INT, 3000, None, "Milliseconds that a new group waits for more members."),
    _key("group.min.session.timeout.ms", INT, 6000, None, "Minimum session timeout of a member, in milliseconds."),
    _key("group.max.session.timeout.ms", INT, 1_800_000, None, "Maximum session timeout of a member, in milliseconds."),
    _key("group.max.size", INT, INT32_MAX, between(1), "Maximum number of members of one group."),
    _key("controlled.shutdown.enable", BOOLEAN, True, None, ONE_BROKER),
    _key("quota.window.num", INT, 11, between(1), "Number of windows over which client quotas measure a rate.", LOW),
    _key("quota.window.size.seconds", INT, 1, between(1), "Length of a client quota window in seconds.", LOW),
    _key("controller.quota.window.num", INT, 11, between(1),
         "Number of windows over which controller mutation quotas measure a rate.", LOW),
    _key("controller.quota.window.size.seconds", INT, 1, between(1),
         "Length of a controller mutation quota window in seconds.", LOW),
    _key("metrics.num.samples", INT, 2, between(1), "Samples a metric is computed from.", LOW),
    _key("metrics.sample.window.ms", LONG, 30_000, between(1), "Length of a metric sample in milliseconds.", LOW),
)  # fmt: skip

OWN_KEYS: tuple[ConfigKey, ...] = (
    _key("kbroker.in.memory", BOOLEAN, False, None,
         "Keep the data in a temporary folder, which is deleted when the broker stops."),
    _key("kbroker.request.batch.max", INT, 16, between(1, 1024),
         "Maximum number of requests of one connection that are handed over as one batch; 1 is Kafka's behaviour."),
    _key("kbroker.poller", STRING, "auto", one_of("auto", "epoll", "kqueue", "selectors"),
         "How network threads wait for sockets: epoll, kqueue, or Python's selectors, which work on Windows too; auto "
         "picks the fastest that the system has."),
    _key("kbroker.python.threads", INT, 2, between(1, 64),
         "Threads for requests whose handlers are written in Python."),
    _key("kbroker.frame.timeout.ms", LONG, 30_000, between(1),
         "Milliseconds after its first byte within which a request must arrive completely."),
    _key("kbroker.nofile.limit", LONG, INT64_MAX, between(64),
         "Soft limit of open files that the broker sets at start, up to the hard limit."),
    _key("kbroker.control.listener", STRING, "", None,
         "host:port of the HTTP control port for tests, on the loopback interface; empty: no control port. Only "
         "kbroker serve opens it."),
    _key("kbroker.control.token", PASSWORD, None, None,
         "Token that clients of the control port must send. Unset: a random one, printed at start with the address."),
    _key("kbroker.control.virtual.clock", BOOLEAN, False, None,
         "With a control port: the broker's clock advances only when a client of that port advances it."),
    _key("kbroker.metrics.listener", STRING, "", None,
         "host:port of the HTTP port with /metrics (Prometheus), /health and /ready, for which requests need no "
         "password, and what else kbroker.console.token protects. Without a host: 127.0.0.1; port 0 picks a free port, "
         "which DescribeConfigs shows; empty: no such port. Needs kbroker[metrics]."),
    _key("kbroker.console.token", PASSWORD, None, None,
         "Token of 16 characters at least that clients of the HTTP port send as Authorization: Bearer, to read more "
         "than /metrics, /health and /ready from other machines, and from this one too where there is an authorizer or "
         "every listener authenticates its clients. Unset: only this machine may, and not there."),
    _key("kbroker.console.edit", BOOLEAN, False, None,
         "Whether the pages at /console of the HTTP port can change quotas; else they only show."),
    _key("kbroker.metrics.entity.series", INT, 100, between(1, 10_000),
         "Maximum number of series of a metric with a label that clients choose (user, client_id, ip, topic, "
         "partition); the largest are shown, and the rest is combined under the label value other."),
    _key("kbroker.quota.max.counters", INT, 5000, between(1),
         "Maximum number of counters of one quota type for client ids that only a default quota matches, about 7 KB "
         "each; a further one replaces the counter that was idle longest."),
    _key("kbroker.request.log.topic", STRING, "", None,
         "Internal topic for a record of every finished request (docs/request-log.md), created at start; empty: no "
         "such topic."),
    _key("kbroker.request.log.partitions", INT, 1, between(1, 1000),
         "Partitions of that topic when it is created; the records of a client are in one of them."),
    _key("kbroker.request.log.compression", STRING, "none", one_of("none", "lz4"),
         "compression.type of that topic when it is created."),
    _key("kbroker.request.log.dir", STRING, "", None,
         "Folder of rolling files with the same records; empty: no files."),
    _key("kbroker.request.log.format", STRING, "json", one_of("json", "arrow"),
         "Format of the files. json: one object a request; arrow: Arrow IPC streams, which are smaller and need "
         "kbroker[arrow]."),
    _key("kbroker.request.log.sampling", DOUBLE, 1.0, between(0, 1),
         "Share of requests that is recorded; requests that a quota throttled or rejected are always recorded."),
    _key("kbroker.request.log.buffer.bytes", LONG, 16_777_216, between(65_536, 1 << 30),
         "Bytes for records that wait to be written, of all network threads together; further records are dropped, "
         "counted and logged."),
    _key("kbroker.request.log.file.bytes", LONG, 134_217_728, between(65_536),
         "Bytes of a file of the request log after which a new file is started."),
    _key("kbroker.request.log.file.count", INT, 10, between(1),
         "Maximum number of files of the request log; the oldest are deleted."),
    _key("kbroker.shutdown.timeout.ms", LONG, 5000, between(0),
         "Milliseconds that an orderly stop may take when the process ends."),
)  # fmt: skip

BROKER_KEYS = NETWORK_KEYS + SERVER_KEYS + OWN_KEYS
