"""Broker keys about listeners, threads, limits, topics, producers and groups; kbroker's own begin with ``kbroker.``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker._core.metrics.metric_config import LARGEST_SAMPLES, LARGEST_WINDOW_MS
from kbroker.common.configs.config_def import (
    INT32_MAX,
    INT64_MAX,
    MOST_THREADS,
    ConfigError,
    ConfigKey,
    between,
    key,
    one_of,
)
from kbroker.common.configs.config_quorum import check_inter_broker_listener
from kbroker.common.listeners import parse_http_address, parse_loopback
from kbroker.common.topic_names import invalid_name_reason
from kbroker.common.units import counted

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig


LEAST_SEGMENT_BYTES = 1 << 20  # minimum of segment.bytes: with less the topic could not be created


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


SAMPLES, WINDOW_SECONDS = between(1, LARGEST_SAMPLES), between(1, LARGEST_WINDOW_MS // 1000)

# A network thread takes no GIL and keeps several cores busy; more threads than half the cores wake each other.
# Requests/s with one thread against three on two cores: ApiVersions 1.8 times, Produce 1.4 (16 connections).
_NETWORK_THREADS = min(3, max(1, usable_cores() // 2))


NETWORK_KEYS: tuple[ConfigKey, ...] = (
    key("listeners", "list", ("PLAINTEXT://127.0.0.1:9092",), "Addresses to listen on: NAME://host:port, separated by "
        "commas. Port 0 picks a free port; an empty host means all interfaces.", importance="high"),
    key("advertised.listeners", "list", None,
        "Addresses that clients get, by listener name. Unset: the addresses of listeners, with the actual port for "
        "port 0.", importance="high"),
    key("listener.security.protocol.map", "list",
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "Security protocol of each listener name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.", importance="low"),
    key("num.network.threads", "int", _NETWORK_THREADS, "Network threads of each listener; "
        "listener.name.NAME.num.network.threads sets those of one listener.", between(1, MOST_THREADS),
        importance="high", dynamic="cluster-wide", default_doc="`3`, or half of the machine's cores if that is less"),
    key("num.io.threads", "int", 8, "Threads that handle requests.", between(1, MOST_THREADS), importance="high",
        dynamic="cluster-wide"),
    key("background.threads", "int", 10, "Accepted without effect; one thread does the background work of the log.",
        between(1), importance="high", dynamic="cluster-wide"),
    key("queued.max.requests", "int", 500,
        "Number of requests that may wait for a handler before the network threads stop reading.",
        between(1), importance="high"),
    key("queued.max.request.bytes", "long", -1,
        "Maximum bytes of requests in memory at once; 0 or less: no limit, otherwise at least "
        "socket.request.max.bytes."),
    key("socket.request.max.bytes", "int", 104_857_600,
        "Largest request in bytes; a larger request closes the connection.",
        between(1), importance="high"),
    key("socket.send.buffer.bytes", "int", 102_400,
        "SO_SNDBUF of connections; -1: the default of the system.",
        between(-1), importance="high"),
    key("socket.receive.buffer.bytes", "int", 102_400,
        "SO_RCVBUF of connections; -1: the default of the system.",
        between(-1), importance="high"),
    key("socket.listen.backlog.size", "int", 50,
        "Number of connections of each listener that may wait to be accepted.",
        between(1)),
    key("connections.max.idle.ms", "long", 600_000, "Milliseconds after which an idle connection is closed."),
    key("max.connections", "int", INT32_MAX, "Maximum number of connections; further ones wait to be accepted. "
        "listener.name.NAME.max.connections limits one listener.", between(0), dynamic="cluster-wide"),
    key("max.connections.per.ip", "int", INT32_MAX, "Maximum number of connections from one address; further ones are "
        "closed. 0 needs max.connections.per.ip.overrides.", between(0), dynamic="cluster-wide"),
    key("max.connections.per.ip.overrides", "string", "", "address:count, separated by commas; overrides "
        "max.connections.per.ip for these addresses.", dynamic="cluster-wide"),
    key("max.connection.creation.rate", "int", INT32_MAX,
        "Maximum rate of new connections per second; above it the acceptor waits, at most for one quota window. "
        "Also limits each listener without its own rate.", between(0), dynamic="cluster-wide"),
    key("inter.broker.listener.name", "string", None,
        "Listener that is exempt from the broker's max.connections and max.connection.creation.rate if there are "
        "several listeners, so that operators can reach a broker whose limits are exhausted. Unset: the listener "
        "named PLAINTEXT."),
    key("request.timeout.ms", "int", 30_000, "Milliseconds that a client waits for a response.", importance="high"),
    key("fetch.max.bytes", "int", 57_671_680, "Largest response to a Fetch request in bytes.", between(1024)),
    key("max.request.partition.size.limit", "int", 2000,
        "Largest number of partitions in a response to DescribeTopicPartitions.", between(1)),
    key("max.incremental.fetch.session.cache.slots", "int", 1000,
        "Maximum number of fetch sessions.", between(0)),
    key("fetch.purgatory.purge.interval.requests", "int", 1000,
        "Completed delayed fetches after which watch lists are purged."),
    key("producer.purgatory.purge.interval.requests", "int", 1000,
        "Completed delayed produce requests after which watch lists are purged."),
)  # fmt: skip

SERVER_KEYS: tuple[ConfigKey, ...] = (
    key("node.id", "int", 1, "Id of this broker.", between(0), importance="high"),
    key("broker.id", "int", -1, "Old name of node.id; used when node.id is not set.", importance="high"),
    key("broker.rack", "string", None,
        "Rack of this broker, which is part of the metadata for clients."),
    key("auto.create.topics.enable", "boolean", True, "Whether a Metadata request may create topics that do not exist.",
        importance="high"),
    key("delete.topic.enable", "boolean", True, "Whether topics can be deleted.", importance="high"),
    key("num.partitions", "int", 1,
        "Number of partitions of a topic that is created without one.", between(1)),
    key("default.replication.factor", "int", 1,
        "Replication factor of a topic that is created without one: at most the number of kbroker.brokers; with "
        "process.roles=broker, that of topics that the broker creates, by default the controller's.",
        between(1)),
    key("transaction.max.timeout.ms", "int", 900_000,
        "Maximum time-out of a transaction in milliseconds.", between(1),
        importance="high"),
    key("transactional.id.expiration.ms", "int", 604_800_000,
        "Milliseconds after which an unused transactional id is deleted.", between(1), importance="high"),
    key("transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10_000,
        "Milliseconds between two searches for timed-out transactions.", between(1), importance="low"),
    key("transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3_600_000,
        "Milliseconds between two searches for expired transactional ids.", between(1), importance="low"),
    key("transaction.two.phase.commit.enable", "boolean", False,
        "Whether producers may start transactions without a time-out, which an external coordinator commits "
        "(KIP-939).", importance="low"),
    key("transaction.partition.verification.enable", "boolean", True,
        "Whether a partition takes transactional records only once it is in the producer's transaction; producers of "
        "transaction.version 2 add it by writing.", importance="low", dynamic="cluster-wide"),
    key("add.partitions.to.txn.retry.backoff.ms", "int", 20,
        "Milliseconds between two attempts to add partitions to a transaction whose id is busy.",
        between(1), importance="high"),
    key("add.partitions.to.txn.retry.backoff.max.ms", "int", 100,
        "Maximum milliseconds of all these attempts (see add.partitions.to.txn.retry.backoff.ms).", between(0),
        importance="high"),
    key("transaction.state.log.load.buffer.size", "int", 5 * 1024 * 1024,
        "Bytes of __transaction_state that are read at once during its loading.", between(1), importance="high"),
    key("transaction.state.log.num.partitions", "int", 50, "Partitions of __transaction_state.", between(1),
        importance="high"),
    key("transaction.state.log.replication.factor", "short", 1,
        "Replication factor of __transaction_state when it is created: at most the number of kbroker.brokers; with "
        "process.roles=broker, as set, by default 3.", between(1), importance="high"),
    key("transaction.state.log.min.isr", "int", 1, "min.insync.replicas of __transaction_state when it is created.",
        between(1), importance="high"),
    key("transaction.state.log.segment.bytes", "int", 104_857_600, "Segment size of __transaction_state.",
        between(LEAST_SEGMENT_BYTES), importance="high"),
    key("offsets.topic.num.partitions", "int", 50, "Partitions of __consumer_offsets.", between(1), importance="high"),
    key("offsets.topic.replication.factor", "short", 1,
        "Replication factor of __consumer_offsets when it is created: at most the number of kbroker.brokers; with "
        "process.roles=broker, as set, by default 3.", between(1), importance="high"),
    key("offsets.topic.segment.bytes", "int", 104_857_600, "Segment size of __consumer_offsets.",
        between(LEAST_SEGMENT_BYTES), importance="high"),
    key("offsets.retention.minutes", "int", 10_080, "Minutes after which the offsets of an empty group are deleted.",
        between(1), importance="high"),
    key("offsets.retention.check.interval.ms", "long", 600_000,
        "Milliseconds between two searches for expired offsets.", between(1), importance="high"),
    key("offset.metadata.max.bytes", "int", 4096, "Maximum length of the metadata of an offset commit.",
        importance="high"),
    key("group.initial.rebalance.delay.ms", "int", 3000, "Milliseconds that a new group waits for more members."),
    key("group.min.session.timeout.ms", "int", 6000, "Minimum session timeout of a member, in milliseconds."),
    key("group.max.session.timeout.ms", "int", 1_800_000, "Maximum session timeout of a member, in milliseconds."),
    key("group.max.size", "int", INT32_MAX, "Maximum number of members of one group.", between(1)),
    key("controlled.shutdown.enable", "boolean", True,
        "Whether a stop is a controlled shutdown by the controllers. Without effect unless process.roles=broker."),
    key("quota.window.num", "int", 11, "Number of windows over which client quotas measure a rate.", SAMPLES,
        importance="low"),
    key("quota.window.size.seconds", "int", 1, "Length of a client quota window in seconds.",
        between(1, 1 << 30), importance="low"),  # ConnectionQuotas takes no larger one
    key("controller.quota.window.num", "int", 11,
        "Number of windows over which controller mutation quotas measure a rate.", SAMPLES, importance="low"),
    key("controller.quota.window.size.seconds", "int", 1, "Length of a controller mutation quota window in seconds.",
        WINDOW_SECONDS, importance="low"),
    key("metrics.num.samples", "int", 2,
        "Number of samples from which a metric is computed.", SAMPLES, importance="low"),
    key("metrics.sample.window.ms", "long", 30_000, "Length of a metric sample in milliseconds.",
        between(1, LARGEST_WINDOW_MS), importance="low"),
)  # fmt: skip

OWN_KEYS: tuple[ConfigKey, ...] = (
    key("kbroker.brokers", "int", 1,
        "Number of nodes of a cluster for tests in this process. They share one copy of the data, and nothing is "
        "replicated. More than one only with kbroker.in.memory.", between(1, 100)),
    key("kbroker.racks", "list", (),
        "Racks (broker.rack) of the nodes of kbroker.brokers, in the order of their ids; empty: none."),
    key("kbroker.in.memory", "boolean", False,
        "Whether the data is in a temporary folder, which the broker deletes when it stops."),
    key("kbroker.request.batch.max", "int", 16,
        "Maximum number of requests of one connection that are handed over as one batch; 1 is the behaviour of "
        "Kafka.", between(1, 1024)),
    key("kbroker.network.thread.helps", "boolean", True,
        "Whether a network thread executes requests itself while few wait for a handler; false is the behaviour of "
        "Kafka."),
    key("kbroker.poller", "string", "auto",
        "Mechanism with which network threads wait for sockets: epoll, kqueue, or Python's selectors (also on "
        "Windows). auto selects the fastest that the system has.", one_of("auto", "epoll", "kqueue", "selectors")),
    key("kbroker.python.threads", "int", 2,
        "Number of threads for requests whose handlers are written in Python.",
        between(1, 64)),
    key("kbroker.frame.timeout.ms", "long", 30_000,
        "Milliseconds after its first byte within which a request must have arrived completely.", between(1)),
    key("kbroker.nofile.limit", "long", INT64_MAX,
        "Soft limit of open files that the broker sets at start, up to the hard limit.", between(64)),
    key("kbroker.control.listener", "string", "", "host:port of the HTTP control port for tests, on the loopback "
        "interface; empty: no control port. Only kbroker serve opens it."),
    key("kbroker.control.token", "password", None,
        "Token that clients of the control port must send. Unset: a random token, which the broker prints at the "
        "start with the address."),
    key("kbroker.control.virtual.clock", "boolean", False,
        "With a control port: the broker's clock advances only when a client of that port advances it."),
    key("kbroker.metrics.listener", "string", "",
        "host:port of the HTTP port. It serves /metrics (Prometheus), /health and /ready without a password, and "
        "further pages under the rules of kbroker.console.token. Without a host: 127.0.0.1; port 0 picks a free "
        "port, which DescribeConfigs shows; empty: no HTTP port. Needs kbroker[metrics]."),
    key("kbroker.console.token", "password", None,
        "Token of at least 16 characters that clients of the HTTP port send as Authorization: Bearer for all pages "
        "but /metrics, /health and /ready. Clients on other machines always need it; clients on this machine need "
        "it if there is an authorizer or every listener authenticates its clients; browsers may sign in to /console as "
        "SCRAM users instead. Unset: those clients that need it have no access."),
    key("kbroker.console.edit", "boolean", False,
        "Whether the pages at /console of the HTTP port can change topics, configs, quotas and more; otherwise they "
        "are read-only."),
    key("kbroker.console.registry.url", "password", None,
        "URL of the Schema Registry by which the pages at /console decode messages, with USER:PASSWORD@ before the "
        "host if it needs them: Confluent's API, or Apicurio's if the path ends with /apis/registry/v2 or v3."),
    key("kbroker.console.registry.ca", "string", "",
        "File with the certificates (PEM) of the authorities that may sign the certificate of the Schema Registry; "
        "empty: those of the system."),
    key("kbroker.metrics.entity.series", "int", 100,
        "Maximum number of series of a metric with a label that clients choose (user, client_id, ip, topic, "
        "partition); the largest are shown, and the rest is combined under the label value other.", between(1, 10_000)),
    key("kbroker.quota.max.counters", "int", 5000,
        "Maximum number of counters of one quota type for client ids that no quota names, about 7 KB each; a further "
        "client id replaces the counter that has been idle the longest.", between(1)),
    key("kbroker.request.log.topic", "string", "",
        "Internal topic that gets a record of each finished request (docs/request-log.md), created at the start; "
        "empty: no such topic."),
    key("kbroker.request.log.partitions", "int", 1,
        "Number of partitions of the request log's topic when it is created; all records of one client are in the "
        "same partition.", between(1, 1000)),
    key("kbroker.request.log.compression", "string", "none",
        "compression.type of the request log's topic when it is created.",
        one_of("none", "lz4")),
    key("kbroker.request.log.dir", "string", "",
        "Folder of rolling files of the request log, with the same records as the topic; empty: no files."),
    key("kbroker.request.log.format", "string", "json",
        "Format of the request log's files. json: one object per request; arrow: Arrow IPC streams, which are "
        "smaller and need kbroker[arrow].", one_of("json", "arrow")),
    key("kbroker.request.log.sampling", "double", 1.0,
        "Share of requests that are recorded; requests that a quota throttled or rejected are always recorded.",
        between(0, 1)),
    key("kbroker.request.log.offsets", "boolean", False,
        "Whether records of Produce requests have the topic, partition and offsets of the records that they appended, "
        "so that `kbroker requests tail --decode` can print these."),
    key("kbroker.request.log.buffer.bytes", "long", 16_777_216,
        "Bytes of request log records that may wait to be written, of all network threads together; further records "
        "are dropped, counted and logged.", between(65_536, 1 << 30)),
    key("kbroker.request.log.file.bytes", "long", 134_217_728,
        "Size in bytes of a file of the request log at which a new file is started.", between(65_536)),
    key("kbroker.request.log.file.count", "int", 10,
        "Maximum number of files of the request log; the oldest are deleted.", between(1)),
    key("kbroker.shutdown.timeout.ms", "long", 5000,
        "Maximum milliseconds of a clean stop when the process ends.", between(0, INT32_MAX)),  # no wait is longer
)  # fmt: skip

BROKER_KEYS = NETWORK_KEYS + SERVER_KEYS + OWN_KEYS


def check_connections(config: BrokerConfig) -> None:
    """Check the limits of connections and their memory against each other. Raises: ConfigError."""
    request_max, queued = config.integer("socket.request.max.bytes"), config.integer("queued.max.request.bytes")
    if 0 < queued < request_max:
        reason = f"Must be 0 or less (no limit), or at least socket.request.max.bytes ({request_max})"
        raise ConfigError("queued.max.request.bytes", queued, reason)
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    delay_ms, idle_ms = config.integer(delay), config.integer(idle)
    if 0 <= idle_ms <= delay_ms:
        raise ConfigError("", delay_ms, f"{delay}={delay_ms} should be less than {idle}={idle_ms}")
    overrides = host_limits(config.text("max.connections.per.ip.overrides"))
    if config.integer("max.connections.per.ip") == 0 and not overrides:
        text = "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
        raise ConfigError("", 0, text)
    factor, brokers = config.integer("default.replication.factor"), config.integer("kbroker.brokers")
    if factor > brokers and not config.is_member:
        reason = "There is one broker" if brokers == 1 else f"There are {brokers} brokers"
        raise ConfigError("default.replication.factor", factor, reason, "1" if brokers == 1 else f"1 to {brokers}")
    if brokers > 1 and not config.boolean("kbroker.in.memory"):
        raise ConfigError("kbroker.brokers", brokers, "Several brokers are possible in memory only", "1")
    racks = config.words("kbroker.racks")
    if racks and brokers == 1:
        raise ConfigError("kbroker.racks", ",".join(racks), "There is one broker: set its broker.rack", "empty")
    if racks and len(racks) != brokers:
        raise ConfigError(
            "kbroker.racks",
            ",".join(racks),
            f"{counted(len(racks), 'rack')} for {counted(brokers, 'broker')}",
            "one for each",
        )


def host_limits(text: str) -> dict[str, int]:
    """Return the number of each host in a ``host:number,...`` text. Raises: ConfigError."""
    limits = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = word.rpartition(":")
        if not host.strip() or re.fullmatch("[0-9]{1,18}", number.strip()) is None:
            raise ConfigError("max.connections.per.ip.overrides", text, f"Not host:number: {word}", "host:number,...")
        limits[host.strip().strip("[]")] = int(number)
    return limits


def check_own(config: BrokerConfig) -> None:
    """Check the keys that begin with ``kbroker.``. Raises: ConfigError."""
    _check_address(config, "kbroker.control.listener", parse_loopback, "127.0.0.1:port")
    if config.boolean("kbroker.control.virtual.clock") and not config.text("kbroker.control.listener"):
        reason = "Without a control port (kbroker.control.listener) the clock would never advance"
        raise ConfigError("kbroker.control.virtual.clock", "true", reason, "false")
    topic = config.text("kbroker.request.log.topic")
    if topic and invalid_name_reason(topic) is not None:
        raise ConfigError("kbroker.request.log.topic", topic, "No topic can have this name", "a topic's name")
    _check_address(config, "kbroker.metrics.listener", parse_http_address, "host:port")
    token = config.text("kbroker.console.token")
    if token and re.fullmatch(r"[!-~]{16,1024}", token) is None:
        expected = "16 to 1024 characters of ASCII without spaces"
        raise ConfigError("kbroker.console.token", "[hidden]", "The token cannot be sent or is too short", expected)


def _check_address(config: BrokerConfig, name: str, parse: Callable[[str], object], allowed: str) -> None:
    address = config.text(name)
    if address:
        try:
            parse(address)
        except ValueError as error:
            raise ConfigError(name, address, str(error), allowed) from None


def check_listeners(config: BrokerConfig) -> None:
    """Check the addresses of the listeners, and that the protected one exists. Raises: ConfigError."""
    config.listeners  # noqa: B018  # parsing them is the check
    config.advertised_listeners  # noqa: B018
    name = config.text("inter.broker.listener.name").upper()
    if name:
        check_inter_broker_listener(config, name)
