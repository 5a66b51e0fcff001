"""Access to the HTTP port beyond /metrics, /health and /ready: for this machine and holders of the token.

Programs of this machine need no token if they could also query the broker by Kafka's protocol without authentication:
if every listener authenticates its clients, or there is an authorizer, they need the token as well.

A foreign page in a browser on this machine must not read the port. Therefore a request without the token must come from
the loopback interface, name the port by an address or as localhost (a foreign name resolved to 127.0.0.1 is DNS
rebinding), come from no other site's page, and through no proxy.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from email.message import Message
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.limited_log import RateLimitedLogger
from kbroker.common.loggers import get_logger
from kbroker.observe.wrong_tokens import WrongTokens

logger = get_logger(__name__)

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class Refusal(NamedTuple):
    """Response to a refused request: status and sentence; ``retry_after_s``: delay before a retry, or 0."""

    status: int
    sentence: str
    retry_after_s: int = 0


class HttpAccess:
    """Access check of one port, except for /metrics, /health and /ready; mounted pages use it too.

    Args: ``token``: kbroker.console.token, None without one. ``clock`` of the log's rate limit.
        ``trusts_this_machine``: its programs need no token. ``setting``: name of the token's setting.
    Threads: any.
    """

    def __init__(
        self,
        token: str | None,
        clock: BaseClock,
        trusts_this_machine: bool = True,
        setting: str = "kbroker.console.token",
    ) -> None:
        self._setting = setting
        self._token = None if token is None else _hash(token)
        self._trusts_this_machine = trusts_this_machine
        self._wrong = WrongTokens(clock)
        self._log = RateLimitedLogger(logger, clock)

    @classmethod
    def configured(cls, config: BrokerConfig, clock: BaseClock) -> HttpAccess:
        """Return the check of a broker's configuration."""
        return cls(config.text("kbroker.console.token") or None, clock, is_open(config))

    @property
    def has_token(self) -> bool:
        """Return whether a token is configured."""
        return self._token is not None

    def refusal(self, peer: str, headers: Message | Mapping[str, str]) -> Refusal | None:
        """Return the reason to refuse a request, None if access is allowed.

        Args: ``peer``: address of the client. ``headers`` of the request, by name in lower case or in any case.
        """
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.token_refusal(peer, given)
        is_foreign = not is_loopback(peer)
        if (is_foreign or not self._trusts_this_machine) and self._token is not None:
            return Refusal(401, f"a token is needed: Authorization: Bearer and the value of {self._setting}")
        if is_foreign:
            return Refusal(403, f"only this machine may read this: there is no {self._setting}")
        if not self._trusts_this_machine:
            reason = "a broker with an authorizer, or with authentication on every listener, needs a token"
            return Refusal(403, f"{reason}: set {self._setting}, and send it")
        if not is_local_name(headers.get("host", "")):
            return Refusal(403, "the Host header must be an address or localhost, unless the token is sent")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refusal(403, "another site's page may not read this")
        if any(name in headers for name in _FORWARDED):
            return Refusal(401, "a token is needed: the request came through a proxy")
        return None

    def token_refusal(self, peer: str, given: str) -> Refusal | None:
        """Return the reason to refuse a client's token, None for the broker's token.

        The check takes the same time for each wrong token. An address with several wrong tokens must wait.
        """
        is_right = self._token is not None and hmac.compare_digest(_hash(given.strip()), self._token)
        refused = self._judge(peer, is_right, "tokens", f"the token is not the value of {self._setting}")
        if refused is not None and refused.status == 401:
            self._log.info("a request to the HTTP port from %s had a wrong token", peer)
        return refused

    def password_refusal(self, peer: str, is_right: bool | None = None) -> Refusal | None:
        """Return the reason to refuse a sign-in by user and password, None if they are right.

        Wrong passwords count as wrong tokens: an address with several of either must wait. Args: ``is_right``: None
        before the password is checked, which is costly: only an address that must wait is refused.
        """
        refused = self._judge(peer, is_right, "passwords", "user or password is wrong")
        if refused is not None and refused.status == 401:
            self._log.info("a sign-in at the HTTP port from %s had a wrong user or password", peer)
        return refused

    def _judge(self, peer: str, is_right: bool | None, kind: str, wrong: str) -> Refusal | None:
        wait_ms = self._wrong.wait_ms(peer, is_right)
        if wait_ms > 0:
            seconds = -(-wait_ms // 1000)
            return Refusal(429, f"too many wrong {kind}: try again in {seconds} seconds", seconds)
        return Refusal(401, wrong) if is_right is False else None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def is_open(config: BrokerConfig) -> bool:
    """Return whether a broker serves all requests of unauthenticated clients."""
    if config.text("authorizer.class.name"):
        return False
    return any(
        not listener.has_sasl
        and not (listener.has_tls and config.listener_value(listener.name, "ssl.client.auth") == "required")
        for listener in config.listeners
    )


def is_loopback(peer: str) -> bool:
    """Return whether an address belongs to the loopback interface, as IPv4, IPv6, or IPv4 in IPv6."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (address if mapped is None else mapped).is_loopback


def is_local_name(host: str) -> bool:
    """Return whether a Host header is an IP address or localhost, which foreign DNS cannot redirect here."""
    name = host.strip().lower()
    if name.startswith("["):
        name, bracket, rest = name[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return False
    else:
        name, _, rest = name.partition(":")
        rest = ":" + rest if rest else ""
    if rest not in ("", ":") and not (rest[1:].isascii() and rest[1:].isdigit()):
        return False
    if name in ("localhost", "localhost."):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
