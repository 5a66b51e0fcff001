"""Broker keys about SASL, TLS and principals. The keys in LISTENER_KEYS can be set for a single listener.

``listener.name.<listener in lower case>.<key>`` overrides ``<key>``. The keys of a mechanism exist only with that
prefix, for example ``listener.name.sasl_ssl.plain.sasl.jaas.config``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.common.configs.config_accepted import NO_CONNECTION
from kbroker.common.configs.config_def import ConfigKey, Validator, between, key, one_of
from kbroker.common.security.scram import MECHANISMS

LISTENER_PREFIX = "listener.name."
SASL_MECHANISMS = ("PLAIN", *MECHANISMS)

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _not_super_users(value: bool | int | float | str) -> str | None:
    from kbroker.common.security.acls import super_users  # imported only where the key is set

    try:
        super_users(str(value))
    except ValueError as error:
        return str(error)
    return None


LISTENER_KEYS: tuple[ConfigKey, ...] = (
    key("sasl.enabled.mechanisms", "list", (),
        "Mechanisms of SASL listeners, in the order in which clients get them. A SASL listener needs at least one; "
        "GSSAPI, Kafka's default, is not supported.", one_of(*SASL_MECHANISMS)),
    key("connections.max.reauth.ms", "long", 0,
        "Milliseconds for which a SASL authentication is valid. If a client has not renewed it by then, its next "
        "request closes the connection. 0: the authentication is valid as long as the connection exists.", between(0)),
    key("sasl.server.max.receive.size", "int", 524_288,
        "Largest frame in bytes before a SASL client is authenticated; a larger frame closes the connection.",
        between(1)),
    key("ssl.keystore.type", "string", "PEM", "Format of the broker's key and certificates.", one_of("PEM")),
    key("ssl.keystore.location", "string", None,
        "PEM file with the broker's private key and its certificates, the broker's own first.", importance="high"),
    key("ssl.keystore.key", "password", None,
        "The broker's private key as PEM text, instead of ssl.keystore.location.",
        importance="high"),
    key("ssl.keystore.certificate.chain", "password", None,
        "The broker's certificates as PEM text; used with ssl.keystore.key.", importance="high"),
    key("ssl.key.password", "password", None, "Password of the private key, if it is encrypted.", importance="high"),
    key("ssl.truststore.type", "string", "PEM",
        "Format of the CA certificates for client certificates.",
        one_of("PEM")),
    key("ssl.truststore.location", "string", None,
        "PEM file with the CA certificates for client certificates. Unset: those of the system.", importance="high"),
    key("ssl.truststore.certificates", "password", None,
        "The CA certificates for client certificates as PEM text, instead of ssl.truststore.location.",
        importance="high"),
    key("ssl.client.auth", "string", "none",
        "Whether TLS clients send a certificate. required: the broker refuses clients without one; requested: "
        "clients without one are ANONYMOUS. For a SASL_SSL listener only listener.name.NAME.ssl.client.auth has an "
        "effect.", one_of("required", "requested", "none")),
    key("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "Versions of TLS.", one_of("TLSv1.2", "TLSv1.3")),
    key("ssl.cipher.suites", "list", (),
        "Cipher suites of TLS 1.2, by OpenSSL's names; empty: AES-GCM and ChaCha20-Poly1305 with ECDHE or DHE.",
        importance="low"),
    key("ssl.endpoint.identification.algorithm", "string", "https",
        "Check of the names in certificates of the controllers that this broker connects to: https, or empty for none.",
        importance="low", dynamic="per-broker"),
    key("ssl.principal.mapping.rules", "string", "DEFAULT",
        "Rules that map a certificate's distinguished name to a user name. DEFAULT uses the whole name, "
        "RULE:pattern/replacement/[LU] a part; the first rule that matches applies.", importance="low"),
)  # fmt: skip

SECURITY_KEYS: tuple[ConfigKey, ...] = (
    *LISTENER_KEYS,
    key("delegation.token.secret.key", "password", None,
        "Secret from which the broker derives the secrets of delegation tokens. Unset or empty: delegation tokens "
        "are disabled. Tokens created with another key are invalid."),
    key("delegation.token.max.lifetime.ms", "long", 604_800_000,
        "Milliseconds after which a delegation token can no longer be renewed.", between(1)),
    key("delegation.token.expiry.time.ms", "long", 86_400_000,
        "Milliseconds for which a delegation token is valid, unless it is renewed.", between(1)),
    key("delegation.token.expiry.check.interval.ms", "long", 3_600_000,
        "Milliseconds between two removals of expired delegation tokens. The broker refuses an expired token even "
        "before its removal.", between(1), importance="low"),
    key("connection.failed.authentication.delay.ms", "int", 100,
        "Milliseconds by which the response to a failed authentication is delayed; must be less than "
        "connections.max.idle.ms.", between(0), importance="low"),
    key("authorizer.class.name", "string", "",
        f"{STANDARD_AUTHORIZER}: the broker checks requests against ACLs. Empty: every client may perform every "
        "operation.",
        one_of("", STANDARD_AUTHORIZER)),
    key("super.users", "string", None,
        "Principals that may perform every operation, separated by semicolons: User:admin;User:CN=ops,O=example.",
        Validator("User:name, separated by semicolons", _not_super_users)),
    key("allow.everyone.if.no.acl.found", "boolean", False,
        "Whether every client may perform every operation on a resource without ACLs."),
    key("security.inter.broker.protocol", "string", "PLAINTEXT", NO_CONNECTION),
)  # fmt: skip

JAAS_CONFIG = key(
    "sasl.jaas.config", "password", None,
    "Users of PLAIN: org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=\"password\" ... ;",
)  # fmt: skip

_BY_NAME: Mapping[str, ConfigKey] = {row.name: row for row in LISTENER_KEYS}
_OF_MECHANISM: Mapping[str, ConfigKey] = {
    f"{mechanism.lower()}.{row.name}": row
    for mechanism in SASL_MECHANISMS
    for row in (JAAS_CONFIG, _BY_NAME["connections.max.reauth.ms"])
}


def security_key(name: str) -> ConfigKey | None:
    """Return the row of a key with a listener's prefix, or None if there is no such key."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    rest = name[len(LISTENER_PREFIX) :]
    for table in (_OF_MECHANISM, _BY_NAME):
        for suffix, row in table.items():
            if rest.endswith("." + suffix) and len(rest) > len(suffix) + 1:
                return row
    return None
