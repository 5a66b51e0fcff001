"""Delegation tokens of any Kafka cluster: list, create, renew and expire them (KIP-48, KIP-373)."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Body
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.delegation_token import DelegationToken, Principal
from kbroker.common.security.jaas import SCRAM_MODULE

CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
FIRST_WITH_OWNER = 3  # version of CreateDelegationToken
BROKERS_DEFAULT = -1  # lifetime or period: the broker's default
AT_ONCE = -1  # period of ExpireDelegationToken: expire now


class SecretToken(NamedTuple):
    """A token and its HMAC, which is the password of clients that log in with it."""

    token: DelegationToken
    hmac: bytes

    @property
    def secret(self) -> str:
        """Return the HMAC in base64, as clients and Kafka's tools take it."""
        return base64.b64encode(self.hmac).decode()

    @property
    def login(self) -> str:
        """Return the value of `sasl.jaas.config` of a client that logs in with this token."""
        return f'{SCRAM_MODULE} required username="{self.token.token_id}" password="{self.secret}" tokenauth="true";'


def hmac_of(text: str) -> bytes:
    """Return the HMAC that a base64 text encodes. Raises: ValueError."""
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"expected an HMAC in base64, got {text[:40]!r}") from None


class Tokens:
    """Requests about delegation tokens over a `Cluster`, which the caller owns.

    Raises (all methods): KafkaError with the broker's message, such as DELEGATION_TOKEN_AUTH_DISABLED, or
        DELEGATION_TOKEN_REQUEST_NOT_ALLOWED over a connection that is not authenticated or itself uses a token;
        BrokerConnectionError.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self, owners: Iterable[Principal] | None = None) -> Sequence[SecretToken]:
        """Return the tokens that the user may see, by owner and id; None: of all owners."""
        wanted = None if owners is None else [_principal(owner) for owner in owners]
        response = self._cluster.ask(DESCRIBE, {"Owners": wanted}, "describing delegation tokens")
        found = [
            _token(row, row["IssueTimestamp"], row["MaxTimestamp"], row["ExpiryTimestamp"])
            for row in response["Tokens"]
        ]
        return sorted(found, key=lambda one: (one.token.owner, one.token.token_id))

    def create(
        self, owner: Principal | None = None, renewers: Iterable[Principal] = (), lifetime_ms: int = BROKERS_DEFAULT
    ) -> SecretToken:
        """Create a token.

        Args:
            owner: the user that logs in with it; None for the user of this connection.
            renewers: principals that may renew it besides its owner.
            lifetime_ms: time until it cannot be renewed any more; the broker's maximum by default.

        Raises: KafkaError, such as UNSUPPORTED_VERSION for an owner before Kafka 3.3.
        """
        listed = [_principal(renewer) for renewer in renewers]

        def body(version: int) -> Body:
            fields: Body = {"Renewers": listed, "MaxLifetimeMs": lifetime_ms}
            if version >= FIRST_WITH_OWNER:
                named = {"PrincipalType": None, "PrincipalName": None} if owner is None else _principal(owner)
                return {**fields, **{f"Owner{key}": value for key, value in named.items()}}
            if owner is not None:
                raise KafkaError(
                    Errors.UNSUPPORTED_VERSION, "this broker is too old for tokens of other owners (Kafka 3.3)"
                )
            return fields

        response = self._cluster.ask(CREATE, body, "creating a delegation token")
        times = (response[f"{name}TimestampMs"] for name in ("Issue", "Max", "Expiry"))
        return _token({**response, "Renewers": listed}, *times)

    def renew(self, hmac: bytes, period_ms: int = BROKERS_DEFAULT) -> int:
        """Set a token to expire ``period_ms`` from now (-1: broker's default); return its expiry, in ms since 1970."""
        return self._change(RENEW, "RenewPeriodMs", hmac, period_ms, "renewing")

    def expire(self, hmac: bytes, period_ms: int = AT_ONCE) -> int:
        """Set a token to expire after a period, by default at once; return its expiry, in ms since 1970."""
        return self._change(EXPIRE, "ExpiryTimePeriodMs", hmac, period_ms, "expiring")

    def hmac(self, token_id: str) -> bytes:
        """Return the HMAC of a token that the user may see. Raises: KafkaError DELEGATION_TOKEN_NOT_FOUND."""
        for one in self.list():
            if one.token.token_id == token_id:
                return one.hmac
        text = f"expected the id of a delegation token that this user may see, got {token_id!r}"
        raise KafkaError(Errors.DELEGATION_TOKEN_NOT_FOUND, text)

    def _change(self, api_key: int, field: str, hmac: bytes, period_ms: int, doing: str) -> int:
        response = self._cluster.ask(api_key, {"Hmac": hmac, field: period_ms}, f"{doing} a delegation token")
        expiry_ms: int = response["ExpiryTimestampMs"]
        return expiry_ms


def _principal(one: Principal) -> Body:
    return {"PrincipalType": one.type, "PrincipalName": one.name}


def _token(row: Body, issue_ms: int, max_ms: int, expiry_ms: int) -> SecretToken:
    owner = Principal(row["PrincipalType"], row["PrincipalName"])
    name = row.get("TokenRequesterPrincipalName")
    requester = Principal(row["TokenRequesterPrincipalType"], name) if name else owner
    renewers = tuple(Principal(one["PrincipalType"], one["PrincipalName"]) for one in row["Renewers"])
    return SecretToken(
        DelegationToken(row["TokenId"], owner, requester, renewers, issue_ms, max_ms, expiry_ms), row["Hmac"]
    )
