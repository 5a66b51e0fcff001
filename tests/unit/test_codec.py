"""Codec: golden bytes where the protocol is odd, and what it refuses."""

import uuid

import pytest

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.protocol import codec


def test_flexible_request_header_keeps_the_old_client_id():
    """The client id of header 2 got a compact length, which no client sends."""
    frame = codec.encode_request_frame(
        18, 3, 7, "abc", {"ClientSoftwareName": "kb", "ClientSoftwareVersion": "1"}
    )
    assert frame == bytes.fromhex("00000014 0012 0003 00000007 0003 616263 00 03 6b62 02 31 00")
    header, end = codec.decode_request_header(frame, 4)
    assert header == (18, 3, 7, "abc")
    assert codec.decode_request(18, 3, frame, end) == {"ClientSoftwareName": "kb", "ClientSoftwareVersion": "1", "ClusterId": None, "NodeId": -1}
