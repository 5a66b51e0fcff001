"""ApiVersions: what this broker serves. The native handlers send ``encode_bodies``; ``handle`` is the same in
Python."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.common.errors import Errors
from kbroker.common.light_typing import NamedTuple
from kbroker.protocol import codec
from kbroker.server.context import ApiContext, Body, RequestContext

KEY = 18
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

#: Lowest and highest level of each feature of Kafka 4.3; the highest is in force. What is not built stays at 0, so that
#: clients rely on nothing of it: neither share and streams groups (KIP-932, KIP-1071) nor eligible leader replicas
#: (KIP-966).
FEATURES: Mapping[str, tuple[int, int]] = {
    "eligible.leader.replicas.version": (0, 0),
    "group.version": (0, 1),
    "kraft.version": (0, 0),
    "metadata.version": (7, 30),  # 3.3-IV3 to 4.3-IV0
    "share.version": (0, 0),
    "streams.version": (0, 0),
    "transaction.version": (0, 2),
}
FEATURES_EPOCH = 0  # rises with every change of a level in force, of which there was none
FEATURES_FROM, ZERO_LEVELS_FROM = 3, 4  # versions of the request

Ranges = Mapping[int, tuple[int, int]]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return the advertised ranges; from v3 a client with a strange name gets INVALID_REQUEST (KIP-511)."""
    return respond(ctx.api_versions(), body, request.api_version)


def respond(ranges: Ranges, body: Body, version: int) -> Body:
    """The response body for a request of a served version."""
    if version >= 3:
        words = (body["ClientSoftwareName"], body["ClientSoftwareVersion"])
        if not all(_SOFTWARE.fullmatch(word) for word in words):
            return {"ErrorCode": int(Errors.INVALID_REQUEST), "ApiKeys": []}
    return response(ranges, version)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """No ranges."""
    return {"ErrorCode": int(error), "ApiKeys": []}


def response(ranges: Ranges, version: int) -> Body:
    """The body that advertises these ranges, and the features.

    Clients that ask in version 3 cannot read a feature that may be of level 0.
    """
    rows = [{"ApiKey": key, "MinVersion": low, "MaxVersion": high} for key, (low, high) in sorted(ranges.items())]
    body: Body = {"ErrorCode": 0, "ApiKeys": rows}
    if version < FEATURES_FROM:
        return body
    levels = FEATURES.items()
    return {
        **body,
        "SupportedFeatures": [
            {"Name": name, "MinVersion": low, "MaxVersion": high}
            for name, (low, high) in levels
            if low > 0 or version >= ZERO_LEVELS_FROM
        ],
        "FinalizedFeaturesEpoch": FEATURES_EPOCH,
        "FinalizedFeatures": [
            {"Name": name, "MinVersionLevel": high, "MaxVersionLevel": high} for name, (_, high) in levels if high > 0
        ],
    }


def unsupported(ranges: Ranges) -> bytes:
    """The version-0 body for a version we do not know: error 35 and the range of ApiVersions itself."""
    low, high = ranges[KEY]
    rows = [{"ApiKey": KEY, "MinVersion": low, "MaxVersion": high}]
    return codec.encode_response(KEY, 0, {"ErrorCode": int(Errors.UNSUPPORTED_VERSION), "ApiKeys": rows})


class Encoded(NamedTuple):
    """A response's body, and the position of throttle_time_ms in it (None where its version has none)."""

    data: bytes
    throttle_at: int | None


def encode_bodies(ranges: Ranges) -> tuple[dict[int, Encoded], dict[int, Encoded]]:
    """Return, by version, the normal bodies and those for a bad software name (which exist from v3)."""
    low, high = ranges[KEY]
    invalid = {"ErrorCode": int(Errors.INVALID_REQUEST), "ApiKeys": []}
    return (
        {version: _encode(version, response(ranges, version)) for version in range(low, high + 1)},
        {version: _encode(version, invalid) for version in range(max(low, 3), high + 1)},
    )


def _encode(version: int, body: Body) -> Encoded:
    data = codec.encode_response(KEY, version, body)
    if version == 0:
        return Encoded(data, None)
    other = codec.encode_response(KEY, version, {**body, "ThrottleTimeMs": -1})
    return Encoded(data, next(at for at, (a, b) in enumerate(zip(data, other, strict=True)) if a != b))
