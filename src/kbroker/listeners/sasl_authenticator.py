"""SASL authentication and re-authentication: ApiVersions, SaslHandshake, the tokens of the mechanism.

Kafka's order and responses. After SaslHandshake version 0 tokens travel without Kafka's headers (KIP-43); from version
1 in SaslAuthenticate requests (KIP-152), whose response has the session's lifetime (KIP-368).
Source: ``SaslServerAuthenticator``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping

from kbroker._core.clock import BaseClock
from kbroker.apis import api17_sasl_handshake, api18_api_versions, api36_sasl_authenticate
from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.limited_log import RateLimitedLogger
from kbroker.common.loggers import get_logger
from kbroker.metadata.features import FinalizedFeatures
from kbroker.network.transport.authentication import Outcome, Step
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from kbroker.security.mechanisms import Mechanism, MechanismFactory, SaslAuthenticationError, SaslError

logger = get_logger(__name__)

MIN_REAUTHENTICATION_MS = 1000  # minimum interval; earlier ones are rejected
MAX_ELEMENTS = 1000

#: Returns the response body for an unexpected request; None if its API has none.
ErrorBody = Callable[[int, int, Body, Errors], Body | None]
ApiVersions = Callable[[], Mapping[int, tuple[int, int]]]


class _State(enum.Enum):
    INITIAL = enum.auto()  # ApiVersions or SaslHandshake
    HANDSHAKE = enum.auto()  # after the response of ApiVersions
    TOKENS = enum.auto()  # in SaslAuthenticate requests
    BARE_TOKENS = enum.auto()
    OTHER_MECHANISM = enum.auto()  # a re-authentication requested it; the next frame is rejected
    COMPLETE = enum.auto()
    FAILED = enum.auto()


class SaslListener:
    """Shared state of the connections of a SASL listener (``network.transport.authentication.Authentication``).

    Args:
        mechanisms: factories of exchanges by the name of the mechanism, in the order shown to clients.
        api_versions: the versions in the response of ApiVersions; ``features``: the features in it.
        error_body: see ErrorBody.
        clock: the broker's.
        max_reauth_ms: by mechanism, lifetime of an authentication; 0: that of the connection.
        max_receive_bytes: maximum size of a frame during authentication.
        failure_delay_ms: delay of the response to a failure.
    Threads: any.
    """

    def __init__(
        self,
        mechanisms: Mapping[str, MechanismFactory],
        *,
        api_versions: ApiVersions,
        features: Callable[[], FinalizedFeatures],
        error_body: ErrorBody,
        clock: BaseClock,
        max_reauth_ms: Mapping[str, int] | None = None,
        max_receive_bytes: int = 524288,
        failure_delay_ms: int = 100,
    ) -> None:
        self.mechanisms = dict(mechanisms)
        self.api_versions = api_versions
        self.features = features
        self.error_body = error_body
        self.clock = clock
        self.max_reauth_ms = dict(max_reauth_ms or {})
        self.max_receive_bytes = max_receive_bytes
        self.failure_delay_ms = failure_delay_ms
        self.log = RateLimitedLogger(logger, clock)

    def begin(self, remote_host: str, remote_port: int) -> SaslAuthenticator:
        """Create the authenticator of a new connection."""
        return SaslAuthenticator(self, f"{remote_host}:{remote_port}")


class SaslAuthenticator:
    """Authentication and re-authentications of one connection. Threads: one at a time."""

    def __init__(self, listener: SaslListener, client: str) -> None:
        self._listener = listener
        self._client = client
        self._state = _State.INITIAL
        self._name = ""
        self._exchange: Mechanism | None = None
        self._previous: tuple[str, str] | None = None  # mechanism and principal of the previous authentication
        self._principal = ""
        self._is_token_authenticated = False
        self._can_renew = False  # a SaslAuthenticate of this exchange had version 1 or later
        self._lifetime_ms = 0
        self._renewed_ms: int | None = None
        self._refusal = ""

    @property
    def _what(self) -> str:
        return "authentication" if self._previous is None else "re-authentication"

    def begin_again(self) -> bool:
        """Begin a re-authentication if sessions end, at most once a second; return whether it has begun."""
        if self._state is not _State.COMPLETE or self._lifetime_ms == 0:
            return False
        now_ms = self._listener.clock.now_ms()
        if self._renewed_ms is not None and now_ms - self._renewed_ms < MIN_REAUTHENTICATION_MS:
            return False
        self._renewed_ms = now_ms
        self._previous = self._name, self._principal
        self._state = _State.HANDSHAKE
        self._exchange = None
        return True

    def receive(self, frame: bytes) -> Step:
        """Process the next frame; no input of a client raises an exception."""
        try:
            if self._state is _State.BARE_TOKENS:
                return self._bare_token(frame)
            if self._state is _State.OTHER_MECHANISM:
                return self._failed(self._refusal)
            if self._state is _State.TOKENS:
                return self._token(frame)
            if self._state in (_State.INITIAL, _State.HANDSHAKE):
                return self._kafka_request(frame)
        except ProtocolError as error:
            return self._closed(error.message)
        return self._closed("a frame after the end of the authentication")

    # ------------------------------------------------------------ before the tokens

    def _kafka_request(self, frame: bytes) -> Step:
        if len(frame) < 8:
            return self._closed("invalid request: the client may use another security protocol, or not be Kafka's")
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key not in (api17_sasl_handshake.KEY, api18_api_versions.KEY):
            return self._closed(f"unexpected request of api key {key} during SASL handshake")
        if key == api18_api_versions.KEY:
            if self._state is not _State.INITIAL:
                return self._closed("unexpected ApiVersions")
            if version not in _range(key):
                body = api18_api_versions.unsupported(self._listener.api_versions())
                return Step(Outcome.CONTINUE, struct.pack(">i", correlation_id) + body)
        elif not codec.api(key).request_versions[0] <= version <= codec.api(key).request_versions[1]:
            return self._closed(f"unsupported version {version} of SaslHandshake")
        header, at = codec.decode_request_header(frame)
        body_in = codec.decode_request(key, version, frame, at, max_elements=MAX_ELEMENTS)
        if key == api18_api_versions.KEY:
            listener = self._listener
            response = api18_api_versions.respond(listener.api_versions(), listener.features(), body_in, version)
            software = None
            if response["ErrorCode"] == 0:
                self._state = _State.HANDSHAKE
                if version >= 3:
                    software = body_in["ClientSoftwareName"], body_in["ClientSoftwareVersion"]
            return Step(Outcome.CONTINUE, _encode(key, version, correlation_id, response), client_software=software)
        return self._handshake(version, header.correlation_id, body_in["Mechanism"])

    def _handshake(self, version: int, correlation_id: int, name: str) -> Step:
        listener = self._listener
        factory = listener.mechanisms.get(name)
        error = Errors.NONE if factory is not None else Errors.UNSUPPORTED_SASL_MECHANISM
        body = {"ErrorCode": int(error), "Mechanisms": list(listener.mechanisms)}
        response = _encode(api17_sasl_handshake.KEY, version, correlation_id, body)
        if factory is None:
            return self._failed(f"Unsupported SASL mechanism {_shown(name)}", response)
        if self._previous is not None and name != self._previous[0]:
            self._refusal = (
                f"SASL mechanism '{name}' requested by client is not supported for re-authentication of mechanism "
                f"'{self._previous[0]}'"
            )
            self._state = _State.OTHER_MECHANISM
        else:
            self._name = name
            self._exchange = factory()
            self._state = _State.TOKENS if version >= 1 else _State.BARE_TOKENS
        return Step(Outcome.CONTINUE, response)

    # ------------------------------------------------------------ tokens

    def _token(self, frame: bytes) -> Step:
        header, at = codec.decode_request_header(frame)
        key, version = header.api_key, header.api_version
        if key != api36_sasl_authenticate.KEY:
            return self._illegal_request(header, frame, at)
        low, high = codec.api(key).request_versions
        if not low <= version <= high:
            return self._closed(f"version {version} of SaslAuthenticate is not supported")
        self._can_renew = self._can_renew or version > 0
        token = bytes(codec.decode_request(key, version, frame, at)["AuthBytes"])
        try:
            response, principal = self._evaluate(token)
        except SaslAuthenticationError as error:
            return self._refused(header, str(error))
        except SaslError as error:
            logger.debug("%s of %s: %s", self._what, self._client, error)
            text = f"Authentication failed during {self._what} due to invalid credentials with SASL mechanism"
            return self._refused(header, f"{text} {self._name}")
        body: Body = {"ErrorCode": 0, "ErrorMessage": "", "AuthBytes": response}  # not null: as Kafka
        if principal:
            self._complete(principal)
            body["SessionLifetimeMs"] = self._lifetime_ms
        return self._continued(_encode(key, version, header.correlation_id, body), principal)

    def _bare_token(self, frame: bytes) -> Step:
        try:
            response, principal = self._evaluate(frame)
        except SaslAuthenticationError as error:
            return self._failed(str(error))
        except SaslError as error:
            logger.debug("%s of %s: %s", self._what, self._client, error)
            self._failed(f"invalid credentials with SASL mechanism {self._name}")
            return Step(Outcome.CLOSE)
        if principal:
            self._complete(principal)
        return self._continued(response, principal)

    def _evaluate(self, token: bytes) -> tuple[bytes, str]:
        """Return the mechanism's token, and the principal, empty until it is known. Raises: as Mechanism.evaluate."""
        assert self._exchange is not None
        response = self._exchange.evaluate(token)
        user = self._exchange.user
        if user is None:
            return response, ""
        if "\0" in user:  # it would end the principal's text, which would name another user
            raise SaslAuthenticationError("Authentication failed: the user's name contains a NUL character")
        principal = f"User:{user}"
        if self._previous is not None and principal != self._previous[1]:
            before, now = self._previous[1].replace(":", ".", 1), principal.replace(":", ".", 1)
            raise SaslAuthenticationError(f"Cannot change principals during re-authentication from {before}: {now}")
        return response, principal

    def _complete(self, principal: str) -> None:
        assert self._exchange is not None
        self._state = _State.COMPLETE
        self._principal = principal
        self._lifetime_ms = self._listener.max_reauth_ms.get(self._name, 0)
        expiry_ms = self._exchange.token_expiry_ms
        self._is_token_authenticated = expiry_ms is not None
        if expiry_ms is not None:
            left_ms = max(expiry_ms - self._listener.clock.wall_ms(), 1)  # 0 would mean unlimited
            self._lifetime_ms = min(left_ms, self._lifetime_ms or left_ms)
        self._exchange = None
        self._previous = None

    def _continued(self, response: bytes, principal: str) -> Step:
        if principal:
            return Step(
                Outcome.COMPLETE,
                response,
                principal,
                self._lifetime_ms,
                is_token_authenticated=self._is_token_authenticated,
                is_renewable=self._can_renew,
            )
        return Step(Outcome.CONTINUE, response)

    # ------------------------------------------------------------ failures

    def _illegal_request(self, header: codec.RequestHeader, frame: bytes, at: int) -> Step:
        """Fail with an error in a response of the requested API, or without a response if it has none."""
        key, version = header.api_key, header.api_version
        text = f"Unexpected Kafka request of type {codec.api(key).name} during SASL authentication."
        body_in: Body = {}
        if key == api18_api_versions.KEY and version not in _range(key):
            version = 0  # the version of responses to unknown versions
        else:
            body_in = codec.decode_request(key, version, frame, at, max_elements=MAX_ELEMENTS)
        body = self._listener.error_body(key, version, body_in, Errors.ILLEGAL_SASL_STATE)
        return self._failed(text, None if body is None else _encode(key, version, header.correlation_id, body))

    def _refused(self, header: codec.RequestHeader, text: str) -> Step:
        body: Body = {
            "ErrorCode": int(Errors.SASL_AUTHENTICATION_FAILED),
            "ErrorMessage": text,
            "AuthBytes": b"",
        }
        return self._failed(text, _encode(header.api_key, header.api_version, header.correlation_id, body))

    def _failed(self, text: str, response: bytes | None = None) -> Step:
        self._listener.log.info("failed %s with %s (%s)", self._what, self._client, text)
        self._state = _State.FAILED
        self._exchange = None
        return Step(Outcome.FAILED, response)

    def _closed(self, text: str) -> Step:
        self._listener.log.warning("closing the connection of %s: %s", self._client, text)
        self._state = _State.FAILED
        self._exchange = None
        return Step(Outcome.CLOSE)


def error_body(find: Callable[[int, int], Callable[[Body, Errors, RequestContext], Body] | None]) -> ErrorBody:
    """Return an ErrorBody that uses the APIs' failure functions."""

    def make(key: int, version: int, body: Body, error: Errors) -> Body | None:
        failure = find(key, version)
        return None if failure is None else failure(body, error, RequestContext(key, version))

    return make


def _range(key: int) -> range:
    low, high = codec.api(key).advertised_versions
    return range(low, high + 1)


def _encode(key: int, version: int, correlation_id: int, body: Body) -> bytes:
    return codec.encode_response_frame(key, version, correlation_id, body)[4:]


def _shown(name: str) -> str:
    """Return the beginning of a client's name for a log, with a ? for each character that is not printable ASCII."""
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in name[:40])
