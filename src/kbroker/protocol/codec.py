"""Messages of the Kafka protocol as dicts: typed Python interface of the wire tables and their codec.

A body is a dict with Kafka's field names. Arrays are lists, structs are dicts, a uuid is ``uuid.UUID`` (16 bytes are
accepted too when encoding), ``bytes`` are bytes and ``records`` a memoryview of the decoded buffer (bytes-like when
encoding). Decoding fills every field of the table; fields that the version lacks have their default. Encoding uses the
default for missing keys, and rejects unknown keys and values that the version cannot carry. Text that is not UTF-8 is
decoded to surrogate escapes, which encode to the same bytes.

Malformed bytes, a body that cannot be encoded, and an unknown API or version are a ProtocolError; data without a
contiguous buffer, or a position outside it, a TypeError, BufferError or ValueError. Functions are safe from any thread;
buffers and bodies must not change during a call.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.protocol._decoder import MAX_ELEMENTS, MAX_STRING_BYTES, decode, decode_from
from kbroker.protocol._encoder import encode, error_counts
from kbroker.protocol.schema import (
    ApiSchema,
    api,
    api_by_name,
    apis,
    carries_throttle_time,
    data_plan,
    data_versions,
    header_plan,
    request_plan,
    response_plan,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ApiSchema",
    "Body",
    "RequestHeader",
    "api",
    "api_by_name",
    "apis",
    "carries_throttle_time",
    "data_versions",
    "decode_data",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "decode_response_frame",
    "decode_versioned",
    "encode_data",
    "encode_request",
    "encode_request_frame",
    "encode_request_header",
    "encode_response",
    "encode_response_frame",
    "encode_versioned",
    "error_counts",
    "key_version",
    "request_header_version",
    "response_header_version",
]

Body = dict[str, Any]

_API_VERSIONS = 18


class RequestHeader(NamedTuple):
    """Header of a request. ``client_id``: empty when the client sent null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


def request_header_version(key: int, version: int) -> int:
    """Return 2 for a flexible request version, else 1.

    Raises: ProtocolError: unknown API.
    """
    return 2 if api(key).is_flexible(version) else 1


def response_header_version(key: int, version: int) -> int:
    """Return 1 for a flexible response version, else 0; always 0 for ApiVersions, whose reader has no version yet.

    Raises: ProtocolError: unknown API.
    """
    return 1 if key != _API_VERSIONS and api(key).is_flexible(version) else 0


def decode_request_header(data: Buffer, offset: int = 0) -> tuple[RequestHeader, int]:
    """Decode the header of a request frame (without its size prefix).

    Returns: the header and the position of the body.

    Raises: ProtocolError: it is incomplete or malformed, or the API is unknown (the start of its body is then unknown
    too).
    """
    try:
        key, version = struct.unpack_from(">hh", memoryview(data), offset)
    except struct.error:
        raise ProtocolError("frame too short for a request header") from None
    plan = header_plan("RequestHeader", request_header_version(key, version))
    header, end = decode_from(plan, data, offset)
    return RequestHeader(key, version, header["CorrelationId"], header["ClientId"] or ""), end


def encode_request_header(key: int, version: int, correlation_id: int, client_id: str | None = "") -> bytes:
    """Encode a request header in the header version of `version` of the API."""
    return encode(
        header_plan("RequestHeader", request_header_version(key, version)),
        {
            "RequestApiKey": key,
            "RequestApiVersion": version,
            "CorrelationId": correlation_id,
            "ClientId": client_id,
        },
    )


def decode_request(key: int, version: int, data: Buffer, offset: int = 0, *, max_elements: int = MAX_ELEMENTS) -> Body:
    """Decode a request body; bytes after it are ignored, as in Kafka.

    Args:
        key: api key.
        version: api version.
        data: the frame, or the body alone.
        offset: start of the body.
        max_elements: maximum number in all its arrays together; an element may cost 100 times its bytes in the frame.

    Raises: ProtocolError: unknown API or version, too many elements, or bytes that are not such a body.
    """
    return decode(request_plan(key, version), data, offset, max_elements)


def encode_request(key: int, version: int, body: Body) -> bytes:
    """Encode a request body.

    Raises: ProtocolError: unknown API or version, or a body that the version cannot carry.
    """
    return encode(request_plan(key, version), body)


def decode_response(key: int, version: int, data: Buffer, offset: int = 0) -> Body:
    """Decode a response body; see decode_request."""
    return decode(response_plan(key, version), data, offset)


def encode_response(key: int, version: int, body: Body, header: bytes = b"") -> bytes:
    """Encode a response body, after its header if one is given; see encode_request.

    No client reads a string of more than 32,767 bytes: an ErrorMessage is cut.
    Raises: ProtocolError, as encode_request, and for any other longer string.
    """
    return encode(response_plan(key, version), body, header, False, MAX_STRING_BYTES)


def encode_request_frame(
    key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    body: Body,
    longest_string: int = MAX_STRING_BYTES,
) -> bytes:
    """Encode a whole request as sent over a connection: size, header, body.

    Args: ``longest_string``: maximum in bytes; brokers close the connection for a string above the default.
    Raises: ProtocolError, as encode_request, and for a longer string.
    """
    header = encode_request_header(key, version, correlation_id, client_id)
    return encode(request_plan(key, version), body, header, True, longest_string)


def encode_response_frame(key: int, version: int, correlation_id: int, body: Body) -> bytes:
    """Encode a whole response as sent over a connection: size, header, body; see encode_response.

    Raises: ProtocolError.
    """
    if not -0x80000000 <= correlation_id <= 0x7FFFFFFF:
        raise ProtocolError(f"CorrelationId: expected an integer from {-(2**31)} to {2**31 - 1}, got {correlation_id}")
    header = struct.pack(">i", correlation_id) + bytes(response_header_version(key, version))
    return encode(response_plan(key, version), body, header, True, MAX_STRING_BYTES)


def decode_response_frame(key: int, version: int, data: Buffer, offset: int = 0) -> tuple[int, Body]:
    """Decode a response frame (without its size prefix); return its correlation id and body."""
    plan = header_plan("ResponseHeader", response_header_version(key, version))
    header, end = decode_from(plan, data, offset)
    correlation_id: int = header["CorrelationId"]
    return correlation_id, decode(response_plan(key, version), data, end)


def decode_data(name: str, version: int, data: Buffer) -> Body:
    """Decode a struct that is not an API message, such as ConsumerProtocolAssignment or AbortedTxn."""
    return decode(data_plan(name, version), data)


def encode_data(name: str, version: int, body: Body) -> bytes:
    """Encode a struct that is not an API message."""
    return encode(data_plan(name, version), body)


def key_version(key: Buffer) -> int:
    """Return the version with which the key of a record begins, the number of its kind. Raises: ProtocolError."""
    view = memoryview(key)
    if view.nbytes < 2:
        raise ProtocolError("record key without a version")
    version: int = struct.unpack_from(">h", view)[0]
    return version


def decode_versioned(name: str, data: Buffer, *, read_as: int | None = None) -> tuple[int, Body]:
    """Decode a struct that starts with its own int16 version, as embedded group metadata does.

    Args:
        name: name of the struct.
        data: the struct; bytes after it are ignored.
        read_as: the version to read, regardless of the version sent; None: the version sent, or the newest of the
            tables if that is newer.

    Returns: the version sent, and the struct.

    Raises: ProtocolError: incomplete, malformed, or of a version below the first.
    """
    view = memoryview(data)
    if view.nbytes < 2:
        raise ProtocolError(f"{name}: too short for its version")
    version: int = struct.unpack_from(">h", view)[0]
    wanted = min(version, data_versions(name)[1]) if read_as is None else read_as
    return version, decode(data_plan(name, wanted), data, 2)


def encode_versioned(name: str, version: int, body: Body) -> bytes:
    """Encode a struct after its int16 version."""
    return encode(data_plan(name, version), body, struct.pack(">h", version))
