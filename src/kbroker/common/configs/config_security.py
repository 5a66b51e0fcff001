"""Broker keys about SASL, TLS and principals. Those of LISTENER_KEYS can be set for one listener alone.

``listener.name.<listener in lower case>.<key>`` overrides ``<key>``. The keys of a mechanism exist with that prefix
only, for example ``listener.name.sasl_ssl.plain.sasl.jaas.config``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.common.configs.config_def import (
    ConfigKey,
    ConfigType,
    ConfigValue,
    Importance,
    Validator,
    between,
    one_of,
)
from kbroker.common.security.scram import MECHANISMS

BOOLEAN, STRING, INT, LONG, LIST, PASSWORD = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
    ConfigType.PASSWORD,
)
HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
LISTENER_PREFIX = "listener.name."
SASL_MECHANISMS = ("PLAIN", *MECHANISMS)

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _not_super_users(value: bool | int | float | str) -> str | None:
    from kbroker.common.security.acls import super_users  # where the key is set

    try:
        super_users(str(value))
    except ValueError as error:
        return str(error)
    return None


def _key(
    name: str, kind: ConfigType, default: ConfigValue, validator: Validator | None, doc: str,
    importance: Importance = MEDIUM,
) -> ConfigKey:  # fmt: skip
    return ConfigKey(name, kind, default, doc, validator, importance)


LISTENER_KEYS: tuple[ConfigKey, ...] = (
    _key("sasl.enabled.mechanisms", LIST, (), one_of(*SASL_MECHANISMS),
         "Mechanisms of SASL listeners, in the order that clients get. A SASL listener needs at least one; GSSAPI, "
         "Kafka's default, is not supported."),
    _key("connections.max.reauth.ms", LONG, 0, between(0),
         "Milliseconds that a SASL authentication is valid. A client must renew it by then, or its next request closes "
         "the connection. 0: it is valid as long as the connection."),
    _key("sasl.server.max.receive.size", INT, 524_288, between(1),
         "Largest frame in bytes before a SASL client is authenticated; a larger one closes the connection."),
    _key("ssl.keystore.type", STRING, "PEM", one_of("PEM"), "Format of the broker's key and certificates."),
    _key("ssl.keystore.location", STRING, None, None,
         "PEM file with the broker's private key and its certificates, the broker's own first.", HIGH),
    _key("ssl.keystore.key", PASSWORD, None, None, "The private key itself, in PEM; instead of ssl.keystore.location.",
         HIGH),
    _key("ssl.keystore.certificate.chain", PASSWORD, None, None,
         "The certificates themselves, in PEM; with ssl.keystore.key.", HIGH),
    _key("ssl.key.password", PASSWORD, None, None, "Password of the private key, if it is encrypted.", HIGH),
    _key("ssl.truststore.type", STRING, "PEM", one_of("PEM"), "Format of the certificates that sign those of clients."),
    _key("ssl.truststore.location", STRING, None, None,
         "PEM file with the certificates that sign those of clients. Unset: the system's.", HIGH),
    _key("ssl.truststore.certificates", PASSWORD, None, None,
         "The certificates themselves, in PEM; instead of ssl.truststore.location.", HIGH),
    _key("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"),
         "Whether TLS clients send a certificate. required: the broker refuses clients without one; requested: they "
         "are ANONYMOUS."),
    _key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), one_of("TLSv1.2", "TLSv1.3"), "Versions of TLS."),
    _key("ssl.cipher.suites", LIST, (), None, "Ciphers of TLS 1.2 by OpenSSL's names; empty: Python's choice.", LOW),
    _key("ssl.principal.mapping.rules", STRING, "DEFAULT", None,
         "How a certificate's distinguished name becomes a user name: DEFAULT uses all of it, "
         "RULE:pattern/replacement/[LU] a part; the first rule that matches applies.", LOW),
)  # fmt: skip

SECURITY_KEYS: tuple[ConfigKey, ...] = (
    *LISTENER_KEYS,
    _key("delegation.token.secret.key", PASSWORD, None, None,
         "Secret from which the broker makes those of delegation tokens. Unset or empty: there are none. With another "
         "key the tokens that were made before do not count."),
    _key("delegation.token.max.lifetime.ms", LONG, 604_800_000, between(1),
         "Milliseconds after which a delegation token cannot be renewed any more."),
    _key("delegation.token.expiry.time.ms", LONG, 86_400_000, between(1),
         "Milliseconds that a delegation token counts, unless it is renewed."),
    _key("delegation.token.expiry.check.interval.ms", LONG, 3_600_000, between(1),
         "Milliseconds between two rounds that remove expired delegation tokens. An expired token is refused, "
         "removed or not.", LOW),
    _key("connection.failed.authentication.delay.ms", INT, 100, between(0),
         "Milliseconds by which the response to a failed authentication is delayed; less than "
         "connections.max.idle.ms.", LOW),
    _key("authorizer.class.name", STRING, "", one_of("", STANDARD_AUTHORIZER),
         f"{STANDARD_AUTHORIZER}: requests are checked against ACLs. Empty: every client may do everything."),
    _key("super.users", STRING, None, Validator("User:name, with semicolons between", _not_super_users),
         "Principals that may do everything, with semicolons between: User:admin;User:CN=ops,O=example."),
    _key("allow.everyone.if.no.acl.found", BOOLEAN, False, None,
         "Whether every client may do everything with a resource about which there is no ACL."),
    _key("security.inter.broker.protocol", STRING, "PLAINTEXT", None,
         "Accepted without effect; there is one broker."),
)  # fmt: skip

JAAS_CONFIG = _key(
    "sasl.jaas.config", PASSWORD, None, None,
    "Users of PLAIN: org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=\"password\" ... ;",
)  # fmt: skip

_BY_NAME: Mapping[str, ConfigKey] = {key.name: key for key in LISTENER_KEYS}
_OF_MECHANISM: Mapping[str, ConfigKey] = {
    f"{mechanism.lower()}.{key.name}": key
    for mechanism in SASL_MECHANISMS
    for key in (JAAS_CONFIG, _BY_NAME["connections.max.reauth.ms"])
}


def security_key(name: str) -> ConfigKey | None:
    """The row of a key with a listener's prefix, or None if there is no such key."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    rest = name[len(LISTENER_PREFIX) :]
    for table in (_OF_MECHANISM, _BY_NAME):
        for suffix, key in table.items():
            if rest.endswith("." + suffix) and len(rest) > len(suffix) + 1:
                return key
    return None
