"""Security of each listener, made from the configuration: TLS contexts, SASL mechanisms and their users."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError, ConfigValue
from kbroker.common.limited_log import RateLimitedLogger, RepeatedFailures
from kbroker.common.listeners import Listener
from kbroker.common.loggers import get_logger, log_from_info
from kbroker.common.security import scram
from kbroker.common.security.jaas import PLAIN_MODULE, parse_jaas
from kbroker.common.security.pem import normal_pem, pem_file, reason_of
from kbroker.common.security.tls_peers import sent_other_bytes
from kbroker.handlers.api_table import KafkaApis
from kbroker.listeners import sasl_authenticator
from kbroker.listeners.sasl_authenticator import SaslListener, error_body
from kbroker.metadata.features import Features
from kbroker.network.transport._security import TlsServer
from kbroker.network.transport.authentication import ListenerSecurity
from kbroker.security.credentials import ScramCredentials
from kbroker.security.delegation_tokens import DelegationTokens
from kbroker.security.mechanisms import PLAIN, SUPPORTED, MechanismFactory, PlainMechanism, ScramMechanism
from kbroker.security.principal_mapper import PrincipalMapper

logger = get_logger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# for TLS 1.2: forward secrecy and authenticated encryption, since CBC with a MAC leaks by its timing (Lucky 13)
_DEFAULT_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20:!aNULL"
_WITHOUT_TLS = "; the bytes are not TLS: is security.protocol=PLAINTEXT used with a listener with TLS?"
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def listener_security(
    config: BrokerConfig,
    apis: KafkaApis,
    credentials: ScramCredentials,
    clock: BaseClock,
    tokens: DelegationTokens | None,
    features: Features,
) -> dict[str, ListenerSecurity]:
    """Return TLS and SASL by the name of each listener that has either.

    Args: ``tokens``: delegation tokens with which SCRAM clients may log in too.
    Raises: ConfigError for settings that are missing, contradictory or unreadable.
    """
    found = {}
    if any(listener.has_tls or listener.has_sasl for listener in config.listeners):
        for name in (__name__, sasl_authenticator.__name__):
            log_from_info(name)  # Kafka's Selector reports failed authentications at INFO, its default level
    log = RateLimitedLogger(logger, clock)
    broken = RateLimitedLogger(get_logger("kbroker.network.tls"), clock)
    failures = RepeatedFailures(clock)
    for listener in config.listeners:
        tls = _tls(config, listener, log, broken, failures) if listener.has_tls else None
        sasl = _sasl(config, listener, apis, credentials, clock, tokens, features) if listener.has_sasl else None
        if tls is not None or sasl is not None:
            found[listener.name] = ListenerSecurity(tls, sasl)
    return found


# ---- SASL


def _sasl(
    config: BrokerConfig,
    listener: Listener,
    apis: KafkaApis,
    credentials: ScramCredentials,
    clock: BaseClock,
    tokens: DelegationTokens | None,
    features: Features,
) -> SaslListener:
    find_token = None if tokens is None else tokens.find
    names = config.listener_value(listener.name, "sasl.enabled.mechanisms")
    if not isinstance(names, tuple) or not names:
        reason = f"The listener {listener.name} needs a SASL mechanism"
        raise ConfigError("sasl.enabled.mechanisms", "", reason, ", ".join(SUPPORTED))
    factories: dict[str, MechanismFactory] = {}
    max_reauth_ms = {}
    for name in names:
        if name == PLAIN:
            factories[name] = partial(PlainMechanism, _plain_users(config, listener.name))
        else:
            factories[name] = partial(ScramMechanism, scram.MECHANISMS[name], credentials.find, find_token=find_token)
        own = config.listener_value(listener.name, f"{name.lower()}.connections.max.reauth.ms")
        common = config.listener_value(listener.name, "connections.max.reauth.ms")
        max_reauth_ms[name] = _whole(common if own is None else own)
    return SaslListener(
        factories,
        api_versions=apis.ranges,
        features=lambda: features.finalized,
        error_body=error_body(_failures(apis)),
        clock=clock,
        max_reauth_ms=max_reauth_ms,
        max_receive_bytes=_whole(config.listener_value(listener.name, "sasl.server.max.receive.size")),
        failure_delay_ms=config.integer("connection.failed.authentication.delay.ms"),
    )


def _failures(apis: KafkaApis) -> Callable[[int, int], Callable[..., dict[str, object]] | None]:
    def find(key: int, version: int) -> Callable[..., dict[str, object]] | None:
        entry = apis.find(key, version)
        return None if entry is None else entry.failure

    return find


def _plain_users(config: BrokerConfig, listener: str) -> Mapping[str, str]:
    key = f"listener.name.{listener.lower()}.plain.sasl.jaas.config"
    line = config.listener_value(listener, "plain.sasl.jaas.config")
    allowed = f'{PLAIN_MODULE} required user_alice="password" ... ;'
    if not isinstance(line, str) or not line.strip():
        raise ConfigError(key, "", f"The listener {listener} serves PLAIN and has no users", allowed)
    try:
        entry = parse_jaas(line)
    except ValueError as error:
        raise ConfigError(key, "[hidden]", str(error), allowed) from None
    if entry.module != PLAIN_MODULE:
        raise ConfigError(key, "[hidden]", f"Login module {entry.module} is not served", PLAIN_MODULE)
    return entry.users()


def _whole(value: ConfigValue) -> int:
    assert isinstance(value, int)
    return value


# ---- TLS


def _tls(
    config: BrokerConfig,
    listener: Listener,
    log: RateLimitedLogger,
    broken: RateLimitedLogger,
    failures: RepeatedFailures,
) -> TlsServer:
    def text(name: str) -> str:
        value = config.listener_value(listener.name, name)
        return value if isinstance(value, str) else ""

    def words(name: str) -> tuple[str, ...]:
        value = config.listener_value(listener.name, name)
        return value if isinstance(value, tuple) else ()

    def on_failure(host: str, port: int, error: BaseException, was_ready: bool) -> None:
        if was_ready:
            broken.debug("closing the connection of %s:%d: %s", host, port, error)
            return
        hint = _WITHOUT_TLS if sent_other_bytes(error) else ""
        log.info("failed authentication with %s:%d (SSL handshake failed: %s)%s", host, port, error, hint)

    def on_refusal(error: BaseException) -> None:
        message = "listener %s: connections are closed, TLS cannot begin: %s"
        failures.log(listener.name, logger.error, message, listener.name, error)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    wanted = [_VERSIONS[word] for word in words("ssl.enabled.protocols")]
    if not wanted:
        raise ConfigError("ssl.enabled.protocols", "", "A version is needed", ", ".join(_VERSIONS))
    context.minimum_version, context.maximum_version = min(wanted), max(wanted)
    ciphers = ":".join(words("ssl.cipher.suites")) or _DEFAULT_CIPHERS
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise ConfigError("ssl.cipher.suites", ciphers, "No such cipher", "names that OpenSSL supports") from None
    _load_keys(context, listener.name, text)
    context.verify_mode = _CLIENT_AUTH[_client_auth(config, listener)]
    if context.verify_mode != ssl.CERT_NONE:
        _load_trust(context, partial(config.listener_value, listener.name))
    if listener.has_sasl:
        return TlsServer(context, None, on_failure, on_refusal)
    rules = text("ssl.principal.mapping.rules")
    try:
        mapper = PrincipalMapper(rules)
    except ValueError as error:
        allowed = "DEFAULT, RULE:pattern/replacement/[LU], with commas between"
        raise ConfigError("ssl.principal.mapping.rules", rules, str(error), allowed) from None
    return TlsServer(context, mapper.principal_of, on_failure, on_refusal)


def _client_auth(config: BrokerConfig, listener: Listener) -> str:
    """Return ssl.client.auth of a listener; with SASL the broker's value is ignored, as in Kafka (KIP-684)."""
    found = config.listener_value(listener.name, "ssl.client.auth")
    assert isinstance(found, str)
    if not listener.has_sasl or config.has_own_value(listener.name, "ssl.client.auth"):
        return found
    if found != "none":
        logger.warning(
            "ssl.client.auth=%s applies to SSL listeners only: clients of %s need no certificate; to change that, set "
            "listener.name.%s.ssl.client.auth",
            found,
            listener.name,
            listener.name.lower(),
        )
    return "none"


def _load_keys(context: ssl.SSLContext, listener: str, text: Callable[[str], str]) -> None:
    location, key, chain = (
        text("ssl.keystore.location"),
        text("ssl.keystore.key"),
        text("ssl.keystore.certificate.chain"),
    )
    if location and (key or chain):
        raise ConfigError("ssl.keystore.location", location, "Both a file and the key itself are given", "one of them")
    if not location and not (key and chain):
        reason = f"The listener {listener} needs a private key and certificates"
        allowed = "a PEM file, or ssl.keystore.key with ssl.keystore.certificate.chain"
        raise ConfigError("ssl.keystore.location", "", reason, allowed)
    password = text("ssl.key.password")
    what, shown = ("ssl.keystore.location", location) if location else ("ssl.keystore.key", "[hidden]")
    try:
        with _file(location) if location else pem_file(key, chain) as path:
            # even an empty password: without one, OpenSSL prompts on the terminal for that of an encrypted key
            context.load_cert_chain(path, password=lambda: password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(what, shown, reason_of(error), "a readable PEM file of key and certificates") from None


def _load_trust(context: ssl.SSLContext, value: Callable[[str], ConfigValue]) -> None:
    found = value("ssl.truststore.location"), value("ssl.truststore.certificates")
    location, given = (str(one or "") for one in found)
    if "" in found and not (location or given):  # for example, set by an empty environment variable
        allowed = "certificates, or no setting for the authorities of the system"
        key = "ssl.truststore.location" if found[0] == "" else "ssl.truststore.certificates"
        raise ConfigError(key, "", "An empty store trusts no client", allowed)
    if location and given:
        reason = "Both a file and the certificates themselves are given"
        raise ConfigError("ssl.truststore.location", location, reason, "one of them")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: the roots of trusted certificates may be absent
    try:
        if location:
            context.load_verify_locations(cafile=location)
        elif given:
            context.load_verify_locations(cadata=normal_pem(given))
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ValueError) as error:
        key, shown = ("ssl.truststore.location", location) if location else ("ssl.truststore.certificates", "[hidden]")
        raise ConfigError(key, shown, reason_of(error), "PEM certificates") from None


@contextmanager
def _file(location: str) -> Iterator[str]:
    with open(location, "rb"):  # its error is clearer than that of ssl
        pass
    yield location
