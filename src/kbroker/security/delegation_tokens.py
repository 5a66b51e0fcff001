"""Delegation tokens: created by authenticated users, for clients that log in with them instead of a password.

A token's secret is the HMAC-SHA-512 of its id under ``delegation.token.secret.key``; base64 of it is the password of
the SCRAM exchange, and the id is the user's name there.
Source: ``DelegationTokenControlManager``, ``DelegationTokenManager``, ``DelegationTokenCache``.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from base64 import b64encode
from collections.abc import Mapping
from typing import NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import DELEGATION_TOKENS_LEVEL
from kbroker.common.loggers import get_logger
from kbroker.common.security import scram
from kbroker.common.security.delegation_token import USER_TYPE, DelegationToken, Principal
from kbroker.log.checkpoints import random_uuid_text
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.record_forms import token_body
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

logger = get_logger(__name__)

HASH = "sha512"
LAST_MS = (1 << 63) - 1


class TokenLogin(NamedTuple):
    """Facts of a token for a SCRAM exchange: the client becomes the user ``owner``, until ``expiry_ms``."""

    credential: scram.Credential
    owner: str
    expiry_ms: int


class DelegationTokens:
    """The delegation tokens of a cluster, stored when a method that changes one returns.

    Args: ``secret_key``: not empty. ``max_lifetime_ms``: of a token, however often it is renewed. ``expiry_time_ms``:
    of a new or renewed token.
    Raises (methods that change a token): KafkaError with Kafka's code, KAFKA_STORAGE_ERROR when nothing was stored.
    Threads: any. Locks: the controller's during a change, then its own; ``find`` and ``all`` take none.
    """

    def __init__(
        self, controller: Controller, clock: BaseClock, secret_key: str, *, max_lifetime_ms: int, expiry_time_ms: int
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._secret_key = secret_key.encode()
        self._max_lifetime_ms = max_lifetime_ms
        self._expiry_time_ms = expiry_time_ms
        self.lock = threading.Lock()
        # Keyed by a digest of the secret, so that no look-up compares the secret itself byte by byte.
        self._ids = {_digest(self.hmac_of(token_id)): token_id for token_id in self._tokens}
        self._credentials: dict[tuple[str, str], scram.Credential] = {}

    @property
    def _tokens(self) -> Mapping[str, DelegationToken]:
        return self._controller.image.delegation_tokens

    def hmac_of(self, token_id: str) -> bytes:
        """Return the secret of a token."""
        return hmac.digest(self._secret_key, token_id.encode(), HASH)

    def all(self) -> list[DelegationToken]:
        """Return every token, the oldest first, including those that have expired since the last `sweep`."""
        return sorted(self._tokens.values(), key=lambda token: token.issue_ms)

    def find(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """Return the facts of a token for a login, None for an unknown id or an expired token.

        Also None if its owner is not a user: the client would become the user of that name, for whom nothing was
        checked when the token was created.
        """
        token = self._tokens.get(token_id)
        if token is None or token.owner.type != USER_TYPE or token.is_expired(self._clock.wall_ms()):
            return None
        credential = self._credentials.get((mechanism, token_id))
        if credential is None:  # 4096 iterations: once for each token in use, not for all at each start
            password = b64encode(self.hmac_of(token_id)).decode()
            credential = scram.Credential.from_password(
                scram.MECHANISMS[mechanism], password, scram.make_salt(), scram.MIN_ITERATIONS
            )
            with self.lock:
                if token_id in self._tokens:  # drops the credential of a token that was removed meanwhile
                    credential = self._credentials.setdefault((mechanism, token_id), credential)
        return TokenLogin(credential, token.owner.name, token.expiry_ms)

    def create(
        self, owner: Principal, requester: Principal, renewers: tuple[Principal, ...], lifetime_ms: int
    ) -> DelegationToken:
        """Create a token. Args: ``lifetime_ms``: 0 or less for the configured one, which is also the maximum.

        Raises: KafkaError.
        """
        now_ms = self._clock.wall_ms()
        asked_ms = lifetime_ms if lifetime_ms > 0 else self._max_lifetime_ms
        max_ms = _sum(now_ms, min(asked_ms, self._max_lifetime_ms))
        expiry_ms = min(max_ms, _sum(now_ms, self._expiry_time_ms))
        token = DelegationToken(random_uuid_text(), owner, requester, renewers, now_ms, max_ms, expiry_ms)

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            _check_level(image)
            return [_record(token)]

        self._controller.change(plan)
        return token

    def renew(self, secret: bytes, principal: Principal, period_ms: int) -> int:
        """Renew a token; return its new expiry. Args: ``period_ms``: 0 or less for the configured one.

        Raises: KafkaError for an unknown or expired token, or a principal that may not renew it.
        """
        now_ms = self._clock.wall_ms()
        expiry_ms = 0

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            nonlocal expiry_ms
            token = self._token_of(secret, image)
            if token.is_expired(now_ms):
                raise KafkaError(Errors.DELEGATION_TOKEN_EXPIRED)
            _check_renewer(token, principal)
            asked_ms = period_ms if period_ms > 0 else self._expiry_time_ms
            expiry_ms = min(token.max_ms, _sum(now_ms, min(asked_ms, self._expiry_time_ms)))
            return [_record(token._replace(expiry_ms=expiry_ms))]

        self._controller.change(plan)
        return expiry_ms

    def expire(self, secret: bytes, principal: Principal, period_ms: int) -> int:
        """Set a token to expire in ``period_ms``, or remove it if that is negative; return its new expiry.

        Raises: KafkaError as ``renew``; an expired token can be removed.
        """
        now_ms = self._clock.wall_ms()
        expiry_ms = now_ms

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            nonlocal expiry_ms
            token = self._token_of(secret, image)
            _check_renewer(token, principal)
            if period_ms < 0:
                return [_removal(token)]
            if token.is_expired(now_ms):
                raise KafkaError(Errors.DELEGATION_TOKEN_EXPIRED)
            expiry_ms = min(token.max_ms, _sum(now_ms, period_ms))
            return [_record(token._replace(expiry_ms=expiry_ms))]

        self._controller.change(plan, frees_space=period_ms < 0)
        return expiry_ms

    def sweep(self) -> None:
        """Remove the expired tokens; for a timer. After a failed write the next call tries again.

        No effect if the controllers are other nodes, which remove the tokens themselves.
        """
        if not self._controller.is_active:
            return
        now_ms = self._clock.wall_ms()
        expired: list[DelegationToken] = []

        def plan(image: MetadataImage) -> list[MetadataRecord]:
            expired[:] = [token for token in image.delegation_tokens.values() if token.is_expired(now_ms)]
            return [_removal(token) for token in expired]

        try:
            self._controller.change(plan, frees_space=True)
        except KafkaError as error:
            logger.warning("cannot remove %d expired delegation tokens: %s", len(expired), error)
            return
        for token in expired:
            logger.info("Delegation token expired for token: %s for owner: %s", token.token_id, token.owner)

    def concerns(self, delta: MetadataDelta) -> bool:
        """Return whether the delta changes a token."""
        return bool(delta.changed_tokens)

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Record the secret digests of changed tokens; discard the digests and the credentials of removed tokens."""
        for token_id, token in delta.changed_tokens.items():
            digest = _digest(self.hmac_of(token_id))
            if token is not None:
                self._ids[digest] = token_id
                continue
            self._ids.pop(digest, None)
            for mechanism in scram.MECHANISMS:
                self._credentials.pop((mechanism, token_id), None)

    def _token_of(self, secret: bytes, image: MetadataImage) -> DelegationToken:
        _check_level(image)
        token = image.delegation_tokens.get(self._ids.get(_digest(secret), ""))
        if token is None or not hmac.compare_digest(secret, self.hmac_of(token.token_id)):
            raise KafkaError(Errors.DELEGATION_TOKEN_NOT_FOUND)
        return token


def _record(token: DelegationToken) -> MetadataRecord:
    return metadata_record("DelegationTokenRecord", token_body(token))


def _removal(token: DelegationToken) -> MetadataRecord:
    return metadata_record("RemoveDelegationTokenRecord", {"TokenId": token.token_id})


def _check_level(image: MetadataImage) -> None:
    if image.level < DELEGATION_TOKENS_LEVEL:
        raise KafkaError(Errors.UNSUPPORTED_VERSION)


def _check_renewer(token: DelegationToken, principal: Principal) -> None:
    if not token.may_be_renewed_by(principal):
        raise KafkaError(Errors.DELEGATION_TOKEN_OWNER_MISMATCH)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, LAST_MS)
