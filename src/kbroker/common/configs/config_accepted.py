"""Broker keys of Kafka with little or no effect: some are accepted and described, the others refused at run time.

Keys of tiered storage, of replication and of group protocols that kbroker does not have are accepted, so that tools
which set them read them back. FIXED_NAMES are refused: Kafka reads them at start only, or would apply a change that
kbroker cannot apply.
"""

from __future__ import annotations

from kbroker.common.configs.config_def import (
    INT64_MAX,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Dynamic,
    Importance,
    Validator,
    between,
)

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.SHORT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)
TIERED = "Accepted without effect; tiered storage is not supported."
GROUPS = "Accepted without effect; groups of this kind are not supported."
GROUP_ASSIGNMENT_MAX_MS = 15_000  # group.share.max.assignment.interval.ms, and that of streams groups
ONE_BROKER = "Accepted without effect; there is one broker."


def _key(name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, validator, Importance.LOW, Dynamic.CLUSTER_WIDE)


ACCEPTED_KEYS: tuple[ConfigKey, ...] = (
    _key("num.replica.fetchers", INT, 1, between(1), ONE_BROKER),
    _key("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, None, TIERED),
    _key("remote.fetch.max.wait.ms", INT, 500, between(1), TIERED),
    _key("remote.list.offsets.request.timeout.ms", LONG, 30_000, between(1), TIERED),
    _key("remote.log.index.file.cache.total.size.bytes", LONG, 1_073_741_824, between(1), TIERED),
    _key("remote.log.manager.copier.thread.pool.size", INT, 10, between(1), TIERED),
    _key("remote.log.manager.expiration.thread.pool.size", INT, 10, between(1), TIERED),
    _key("remote.log.manager.follower.thread.pool.size", INT, 2, between(1), TIERED),
    _key("remote.log.manager.copy.max.bytes.per.second", LONG, INT64_MAX, between(1), TIERED),
    _key("remote.log.manager.fetch.max.bytes.per.second", LONG, INT64_MAX, between(1), TIERED),
    _key("remote.log.reader.threads", INT, 10, between(1), TIERED),
    _key("group.share.assignment.interval.ms", INT, 1000, between(0), GROUPS),
    _key("group.streams.assignment.interval.ms", INT, 1000, between(0), GROUPS),
    _key("group.coordinator.cached.buffer.max.bytes", INT, 1_048_588, between(512 * 1024), "Accepted without effect."),
    _key("share.coordinator.cached.buffer.max.bytes", INT, 1_048_588, between(512 * 1024), GROUPS),
    _key(
        "transaction.partition.verification.enable",
        BOOLEAN,
        True,
        None,
        "Whether a partition takes transactional records only once it is in the producer's transaction; producers of "
        "transaction.version 2 add it by writing.",
    ),
)

_NOT_SERVED = "Accepted without effect; Kerberos and bearer tokens are not supported."
_OWN_TLS = "Accepted without effect; OpenSSL provides TLS."


def _of_one(name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, validator, Importance.LOW, Dynamic.PER_BROKER)


ACCEPTED_KEYS += (
    _of_one("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", None, _NOT_SERVED),
    _of_one("sasl.kerberos.min.time.before.relogin", LONG, 60_000, None, _NOT_SERVED),
    _of_one("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), None, _NOT_SERVED),
    _of_one("sasl.kerberos.service.name", STRING, None, None, _NOT_SERVED),
    _of_one("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, None, _NOT_SERVED),
    _of_one("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, None, _NOT_SERVED),
    _of_one("sasl.login.refresh.buffer.seconds", SHORT, 300, None, _NOT_SERVED),
    _of_one("sasl.login.refresh.min.period.seconds", SHORT, 60, None, _NOT_SERVED),
    _of_one("sasl.login.refresh.window.factor", DOUBLE, 0.8, None, _NOT_SERVED),
    _of_one("sasl.login.refresh.window.jitter", DOUBLE, 0.05, None, _NOT_SERVED),
    _of_one("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", None, ONE_BROKER),
    _of_one("ssl.endpoint.identification.algorithm", STRING, "https", None, ONE_BROKER),
    _of_one("ssl.keymanager.algorithm", STRING, "SunX509", None, _OWN_TLS),
    _of_one(
        "ssl.protocol", STRING, "TLSv1.3", None, "Accepted without effect; ssl.enabled.protocols sets the versions."
    ),
    _of_one("ssl.provider", STRING, None, None, _OWN_TLS),
    _of_one("ssl.secure.random.implementation", STRING, None, None, _OWN_TLS),
    _of_one("ssl.trustmanager.algorithm", STRING, "PKIX", None, _OWN_TLS),
)

#: Keys that are described only while they are set.
RATE_KEYS: tuple[ConfigKey, ...] = (
    _key("follower.replication.throttled.rate", LONG, None, between(0), ONE_BROKER),
    _key("leader.replication.throttled.rate", LONG, None, between(0), ONE_BROKER),
    _key("replica.alter.log.dirs.io.max.bytes.per.second", LONG, None, between(0),
         "Bytes per second that moves of partitions between log folders copy; unset: no limit."),
)  # fmt: skip

_READ_AT_START = """
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds auto.leader.rebalance.enable
    broker.heartbeat.interval.ms broker.session.timeout.ms client.quota.callback.class controller.listener.names
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
    controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
    controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
    controller.quorum.retry.backoff.ms controller.quorum.voters controller.socket.timeout.ms
    create.topic.policy.class.name delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
    delegation.token.max.lifetime.ms delegation.token.secret.key delete.records.purgatory.purge.interval.requests
    early.start.listeners group.coordinator.append.linger.ms group.coordinator.background.threads
    group.coordinator.threads group.share.assignors
    group.share.delivery.count.limit group.share.heartbeat.interval.ms group.share.max.assignment.interval.ms
    group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
    group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
    group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
    group.share.min.assignment.interval.ms group.share.min.delivery.count.limit group.share.min.heartbeat.interval.ms
    group.share.min.partition.max.record.locks group.share.min.record.lock.duration.ms
    group.share.min.session.timeout.ms group.share.partition.max.record.locks group.share.record.lock.duration.ms
    group.share.session.timeout.ms group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
    group.streams.max.assignment.interval.ms group.streams.max.heartbeat.interval.ms
    group.streams.max.session.timeout.ms group.streams.max.size group.streams.max.standby.replicas
    group.streams.min.assignment.interval.ms group.streams.min.heartbeat.interval.ms
    group.streams.min.session.timeout.ms group.streams.num.standby.replicas group.streams.session.timeout.ms
    initial.broker.registration.timeout.ms kafka.metrics.polling.interval.secs kafka.metrics.reporters
    leader.imbalance.check.interval.seconds log.dir.failure.timeout.ms max.request.partition.size.limit
    metadata.log.dir metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
    metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes
    metadata.max.retention.ms metrics.recording.level num.replica.alter.log.dirs.threads offsets.commit.timeout.ms
    offsets.load.buffer.size offsets.topic.compression.codec remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.task.interval.ms
    remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
    remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
    remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
    remote.log.reader.max.pending.tasks remote.log.storage.manager.class.name remote.log.storage.manager.class.path
    remote.log.storage.manager.impl.prefix remote.log.storage.system.enable replica.fetch.backoff.ms
    replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
    replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.selector.class
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
    replication.quota.window.size.seconds sasl.client.callback.handler.class sasl.login.callback.handler.class
    sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.max.ms
    sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class security.providers
    share.coordinator.append.linger.ms share.coordinator.load.buffer.size
    share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.compression.codec
    share.coordinator.state.topic.min.isr share.coordinator.state.topic.num.partitions
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
    share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.allow.dn.changes
    ssl.allow.san.changes telemetry.max.bytes
"""

_NOT_APPLIED = """
    config.providers cordoned.log.dirs metric.reporters principal.builder.class sasl.jaas.config
    ssl.engine.factory.class ssl.keystore.password ssl.truststore.password
"""

#: Kafka takes these at run time, as configs that it does not know, and follows what they are at the start.
AUTHORIZER_NAMES = frozenset({"super.users", "allow.everyone.if.no.acl.found"})

#: Names of Kafka's keys that have no row here and cannot be changed at run time.
FIXED_NAMES = frozenset(_READ_AT_START.split() + _NOT_APPLIED.split())
