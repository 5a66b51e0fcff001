"""Broker keys of Kafka with little or no effect: some are accepted and described, the others are rejected at run time.

Keys of features that kbroker does not have, such as tiered storage and replication, are accepted, so that tools that
set them can read them back. FIXED_NAMES are rejected: Kafka reads them at start only, or would apply a change that
kbroker cannot apply.
"""

from __future__ import annotations

from functools import partial

from kbroker.common.configs.config_def import INT64_MAX, ConfigKey, between, key

TIERED = "Accepted without effect; tiered storage is not supported."
NO_EFFECT = "Accepted without effect."
NO_REPLICATION = "Accepted without effect; kbroker does not replicate."
NO_CONNECTION = "Accepted without effect; kbroker connects to no other broker."
_NOT_SERVED = "Accepted without effect; Kerberos and bearer tokens are not supported."
_OWN_TLS = "Accepted without effect; OpenSSL provides TLS."

_cluster_wide = partial(key, importance="low", dynamic="cluster-wide")
_per_broker = partial(key, importance="low", dynamic="per-broker")


ACCEPTED_KEYS: tuple[ConfigKey, ...] = (
    _cluster_wide("num.replica.fetchers", "int", 1, NO_REPLICATION, between(1)),
    _cluster_wide("follower.fetch.last.tiered.offset.enable", "boolean", False, TIERED),
    _cluster_wide("remote.fetch.max.wait.ms", "int", 500, TIERED, between(1)),
    _cluster_wide("remote.list.offsets.request.timeout.ms", "long", 30_000, TIERED, between(1)),
    _cluster_wide("remote.log.index.file.cache.total.size.bytes", "long", 1_073_741_824, TIERED, between(1)),
    _cluster_wide("remote.log.manager.copier.thread.pool.size", "int", 10, TIERED, between(1)),
    _cluster_wide("remote.log.manager.expiration.thread.pool.size", "int", 10, TIERED, between(1)),
    _cluster_wide("remote.log.manager.follower.thread.pool.size", "int", 2, TIERED, between(1)),
    _cluster_wide("remote.log.manager.copy.max.bytes.per.second", "long", INT64_MAX, TIERED, between(1)),
    _cluster_wide("remote.log.manager.fetch.max.bytes.per.second", "long", INT64_MAX, TIERED, between(1)),
    _cluster_wide("remote.log.reader.threads", "int", 10, TIERED, between(1)),
    _cluster_wide("group.coordinator.cached.buffer.max.bytes", "int", 1_048_588, NO_EFFECT, between(512 * 1024)),
    _cluster_wide("share.coordinator.cached.buffer.max.bytes", "int", 1_048_588, NO_EFFECT, between(512 * 1024)),
    _per_broker("sasl.kerberos.kinit.cmd", "string", "/usr/bin/kinit", _NOT_SERVED),
    _per_broker("sasl.kerberos.min.time.before.relogin", "long", 60_000, _NOT_SERVED),
    _per_broker("sasl.kerberos.principal.to.local.rules", "list", ("DEFAULT",), _NOT_SERVED),
    _per_broker("sasl.kerberos.service.name", "string", None, _NOT_SERVED),
    _per_broker("sasl.kerberos.ticket.renew.jitter", "double", 0.05, _NOT_SERVED),
    _per_broker("sasl.kerberos.ticket.renew.window.factor", "double", 0.8, _NOT_SERVED),
    _per_broker("sasl.login.refresh.buffer.seconds", "short", 300, _NOT_SERVED),
    _per_broker("sasl.login.refresh.min.period.seconds", "short", 60, _NOT_SERVED),
    _per_broker("sasl.login.refresh.window.factor", "double", 0.8, _NOT_SERVED),
    _per_broker("sasl.login.refresh.window.jitter", "double", 0.05, _NOT_SERVED),
    _per_broker("sasl.mechanism.inter.broker.protocol", "string", "GSSAPI", NO_CONNECTION),
    _per_broker("ssl.keymanager.algorithm", "string", "SunX509", _OWN_TLS),
    _per_broker("ssl.protocol", "string", "TLSv1.3",
        "Accepted without effect; ssl.enabled.protocols sets the versions."),
    _per_broker("ssl.provider", "string", None, _OWN_TLS),
    _per_broker("ssl.secure.random.implementation", "string", None, _OWN_TLS),
    _per_broker("ssl.trustmanager.algorithm", "string", "PKIX", _OWN_TLS),
)  # fmt: skip

#: Keys that are described only while they are set.
RATE_KEYS: tuple[ConfigKey, ...] = (
    _cluster_wide("follower.replication.throttled.rate", "long", None, NO_REPLICATION, between(0)),
    _cluster_wide("leader.replication.throttled.rate", "long", None, NO_REPLICATION, between(0)),
    _cluster_wide("replica.alter.log.dirs.io.max.bytes.per.second", "long", None,
        "Bytes per second that moves of partitions between log folders copy; unset: no limit.", between(0)),
)  # fmt: skip

_READ_AT_START = """
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds auto.leader.rebalance.enable client.quota.callback.class
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms create.topic.policy.class.name delegation.token.expiry.check.interval.ms
    delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
    delete.records.purgatory.purge.interval.requests early.start.listeners group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.threads kafka.metrics.polling.interval.secs
    kafka.metrics.reporters leader.imbalance.check.interval.seconds
    metadata.max.idle.interval.ms metrics.recording.level num.replica.alter.log.dirs.threads offsets.commit.timeout.ms
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
    sasl.login.retry.backoff.ms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    sasl.server.callback.handler.class security.providers share.coordinator.append.linger.ms
    share.coordinator.state.topic.compression.codec share.coordinator.threads share.coordinator.write.timeout.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.allow.dn.changes
    ssl.allow.san.changes
"""

_NOT_APPLIED = """
    config.providers cordoned.log.dirs metric.reporters principal.builder.class sasl.jaas.config
    ssl.engine.factory.class ssl.keystore.password ssl.truststore.password
"""

#: Configs whose changes at run time Kafka accepts, like those of unknown configs, without applying them.
AUTHORIZER_NAMES = frozenset({"super.users", "allow.everyone.if.no.acl.found"})

#: Selector of replicas for consumers (KIP-392) and its only value that has an effect.
REPLICA_SELECTOR = "replica.selector.class"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

#: Names of Kafka's keys without a row here that cannot be changed at run time.
FIXED_NAMES = frozenset(_READ_AT_START.split() + _NOT_APPLIED.split())
