"""ApiVersions: the APIs that this broker serves.

The native handlers send ``encode_bodies``; ``handle`` returns the same from Python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.common.errors import Errors
from kbroker.metadata.features import FinalizedFeatures
from kbroker.protocol import codec
from kbroker.requests.context import ApiContext, Body, RequestContext

KEY = 18
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

FEATURES_FROM, ZERO_LEVELS_FROM = 3, 4  # versions of the request

Ranges = Mapping[int, tuple[int, int]]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Return the advertised ranges; from v3 a client with an invalid software name gets INVALID_REQUEST (KIP-511)."""
    return respond(ctx.api_versions(), ctx.features.finalized, body, request.api_version)


def respond(ranges: Ranges, finalized: FinalizedFeatures, body: Body, version: int) -> Body:
    """Return the response body for a request of a served version."""
    if version >= 3:
        words = (body["ClientSoftwareName"], body["ClientSoftwareVersion"])
        if not all(_SOFTWARE.fullmatch(word) for word in words):
            return {"ErrorCode": int(Errors.INVALID_REQUEST), "ApiKeys": []}
    return response(ranges, finalized, version)


def response(ranges: Ranges, finalized: FinalizedFeatures, version: int) -> Body:
    """Return the body that advertises these ranges, and the features.

    Clients of version 3 cannot read a feature whose minimum level is 0.
    """
    rows = [{"ApiKey": key, "MinVersion": low, "MaxVersion": high} for key, (low, high) in sorted(ranges.items())]
    body: Body = {"ErrorCode": 0, "ApiKeys": rows}
    if version < FEATURES_FROM:
        return body
    return {
        **body,
        "SupportedFeatures": [
            {"Name": name, "MinVersion": low, "MaxVersion": high}
            for name, (low, high) in finalized.supported.items()
            if low > 0 or version >= ZERO_LEVELS_FROM
        ],
        "FinalizedFeaturesEpoch": finalized.epoch,
        "FinalizedFeatures": [
            {"Name": name, "MinVersionLevel": level, "MaxVersionLevel": level}
            for name, level in finalized.levels.items()
            if level > 0
        ],
    }


def unsupported(ranges: Ranges) -> bytes:
    """Return the version-0 body for an unknown version: error 35 and the range of ApiVersions itself."""
    low, high = ranges[KEY]
    rows = [{"ApiKey": KEY, "MinVersion": low, "MaxVersion": high}]
    return codec.encode_response(KEY, 0, {"ErrorCode": int(Errors.UNSUPPORTED_VERSION), "ApiKeys": rows})


class Encoded(NamedTuple):
    """A response's body, and the position of throttle_time_ms in it (None where its version has none)."""

    data: bytes
    throttle_at: int | None


def encode_bodies(ranges: Ranges, finalized: FinalizedFeatures) -> tuple[dict[int, Encoded], dict[int, Encoded]]:
    """Return, by version, the normal bodies and those for a bad software name (which exist from v3)."""
    low, high = ranges[KEY]
    invalid = {"ErrorCode": int(Errors.INVALID_REQUEST), "ApiKeys": []}
    return (
        {version: _encode(version, response(ranges, finalized, version)) for version in range(low, high + 1)},
        {version: _encode(version, invalid) for version in range(max(low, 3), high + 1)},
    )


def _encode(version: int, body: Body) -> Encoded:
    data = codec.encode_response(KEY, version, body)
    if version == 0:
        return Encoded(data, None)
    other = codec.encode_response(KEY, version, {**body, "ThrottleTimeMs": -1})
    return Encoded(data, next(at for at, (a, b) in enumerate(zip(data, other, strict=True)) if a != b))
