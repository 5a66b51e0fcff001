"""Codec: golden bytes where the protocol is irregular, refused input, and the cost of hostile bytes."""

import struct
import time
import tracemalloc
import uuid
from typing import Any

import pytest

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.protocol import _decoder, codec


def test_flexible_request_header_keeps_the_old_client_id() -> None:
    """The client id of request header 2 has a 16-bit length, not a compact length."""
    body = {"ClientSoftwareName": "kb", "ClientSoftwareVersion": "1"}
    frame = codec.encode_request_frame(18, 3, 7, "abc", body)
    assert frame == bytes.fromhex("00000014 0012 0003 00000007 0003 616263 00 03 6b62 02 31 00")
    header, end = codec.decode_request_header(frame, 4)
    assert header == (18, 3, 7, "abc")
    decoded = codec.decode_request(18, 3, frame, end)
    assert {k: decoded[k] for k in body} == body


def test_old_request_header_has_no_tags() -> None:
    assert codec.encode_request_header(0, 8, -2, None) == bytes.fromhex("0000 0008 fffffffe ffff")
    assert codec.decode_request_header(bytes.fromhex("0000 0008 fffffffe ffff 00")) == ((0, 8, -2, ""), 10)


def test_api_versions_response_always_has_header_0() -> None:
    """Every ApiVersions response has header 0; clients disconnect if the body follows a tagged section."""
    assert [codec.response_header_version(18, v) for v in range(5)] == [0, 0, 0, 0, 0]
    frame = codec.encode_response_frame(18, 3, 9, {"ApiKeys": [{"ApiKey": 18, "MaxVersion": 4}]})
    assert frame == bytes.fromhex("00000013 00000009 0000 02 0012 0000 0004 00 00000000 00")
    correlation_id, body = codec.decode_response_frame(18, 3, frame[4:])
    assert (correlation_id, body["ApiKeys"][0]["MaxVersion"]) == (9, 4)


def test_other_flexible_responses_have_header_1() -> None:
    assert codec.response_header_version(3, 9) == 1
    assert codec.response_header_version(3, 8) == 0
    assert codec.encode_response_frame(12, 4, 1, {}) == bytes.fromhex("0000000c 00000001 00 00000000 0000 00")
    assert codec.encode_response_frame(12, 3, 1, {}) == bytes.fromhex("0000000a 00000001 00000000 0000")


@pytest.mark.parametrize("key", [17, 47])
def test_two_apis_never_become_flexible(key: int) -> None:
    """Requests of SaslHandshake and OffsetDelete have header 1 in every version."""
    api = codec.api(key)
    assert api.flexible_from is None
    assert {codec.request_header_version(key, v) for v in range(api.request_versions[1] + 1)} == {1}


def test_every_api_of_the_tables_is_listed() -> None:
    """The index has every API under the key of its table."""
    assert len(codec.apis()) == 84
    assert codec.api(0).advertised_versions == (0, 13)
    assert codec.api(0).request_versions == (3, 13)
    assert codec.api_by_name("Fetch") is codec.api(1)
    assert [a.name for a in codec.apis().values() if a.latest_version_unstable] == ["InitProducerId"]


def test_tagged_field_carries_two_lengths() -> None:
    """A tagged string has its own length inside the size of the field."""
    data = codec.encode_request(1, 12, {"ClusterId": "ab"})
    assert data.endswith(bytes.fromhex("01 00 03 03 6162"))
    assert codec.decode_request(1, 12, data)["ClusterId"] == "ab"


def test_tagged_default_is_not_sent() -> None:
    """A tagged struct with default values is omitted; old librdkafka cannot read such a struct."""
    leader = {"LeaderId": -1, "LeaderEpoch": -1}
    partition = {"Index": 1, "CurrentLeader": leader}
    with_it = codec.encode_response(0, 10, {"Responses": [{"Name": "t", "PartitionResponses": [partition]}]})
    without = codec.encode_response(0, 10, {"Responses": [{"Name": "t", "PartitionResponses": [{"Index": 1}]}]})
    assert with_it == without


@pytest.mark.parametrize(
    "tags",
    [
        "02 19 01 ff 14 00",  # tag 25 before tag 20
        "02 14 00 14 01 ff",  # a duplicate tag
        "01 8080808008 00",  # the tag number exceeds its maximum (below)
    ],
)
def test_unknown_tags_are_skipped_by_size(tags: str) -> None:
    """Unknown tags of a newer client are skipped in any order and if duplicate, as in Kafka."""
    data = bytes.fromhex("00000000 0000") + bytes.fromhex(tags)
    if "8080808008" in tags:
        with pytest.raises(ProtocolError):
            codec.decode_response(12, 4, data)
    else:
        assert codec.decode_response(12, 4, data) == {"ThrottleTimeMs": 0, "ErrorCode": 0}


def test_an_unknown_tag_inside_an_element_does_not_shift_what_follows() -> None:
    """The bytes of the tag are those of a whole tagged section, so that only its size leads to the next element."""
    plain = codec.encode_request(3, 9, {"Topics": [{"Name": "a"}, {"Name": "b"}]})
    assert plain[:7] == bytes.fromhex("03 02 61 00 02 62 00")
    tagged = bytes.fromhex("03 02 61 01 19 02 00 00 02 62 00") + plain[7:]
    assert codec.decode_request(3, 9, tagged) == codec.decode_request(3, 9, plain)


def test_known_tag_must_fill_its_size() -> None:
    """A tagged value must end exactly at the size of its field."""
    data = codec.encode_request(1, 12, {"ClusterId": "ab"})
    assert data[-4:-2] == b"\x03\x03"
    for size in (2, 4):
        with pytest.raises(ProtocolError):
            codec.decode_request(1, 12, data[:-4] + bytes([size]) + data[-3:] + b"\x00" * (size - 3))


def test_null_struct_is_one_byte() -> None:
    """A nullable struct outside the tagged section begins with a presence byte."""
    assert codec.encode_request(75, 0, {"Cursor": None}) == bytes.fromhex("01 000007d0 ff 00")
    data = codec.encode_request(75, 0, {"Cursor": {"TopicName": "t", "PartitionIndex": 3}})
    assert data == bytes.fromhex("01 000007d0 01 02 74 00000003 00 00")
    assert codec.decode_request(75, 0, data)["Cursor"] == {"TopicName": "t", "PartitionIndex": 3}


def test_consumer_protocol_with_its_version() -> None:
    """Group metadata of a newer version is read as the newest known version."""
    data = codec.encode_versioned("ConsumerProtocolSubscription", 0, {"Topics": ["t"], "UserData": None})
    assert data == bytes.fromhex("0000 00000001 0001 74 ffffffff")
    newer = b"\x00\x09" + codec.encode_data("ConsumerProtocolSubscription", 3, {"Topics": ["t"], "RackId": "r"})
    version, body = codec.decode_versioned("ConsumerProtocolSubscription", newer + b"more")
    assert (version, body["RackId"]) == (9, "r")
    assert codec.encode_versioned("ConsumerProtocolAssignment", 0, {}) == bytes.fromhex("0000 00000000 ffffffff")
    for bad in (b"", b"\x00", b"\xff\xff\x00\x00\x00\x00"):
        with pytest.raises(ProtocolError):
            codec.decode_versioned("ConsumerProtocolAssignment", bad)


def test_absent_fields_have_their_defaults() -> None:
    """A field that the version lacks has its own copy of the default value."""
    body = codec.decode_request(11, 0, codec.encode_request(11, 0, {"GroupId": "g"}))
    assert (body["RebalanceTimeoutMs"], body["GroupInstanceId"], body["Protocols"]) == (-1, None, [])
    first, second = (codec.decode_request(1, 4, codec.encode_request(1, 4, {})) for _ in range(2))
    assert first["ForgottenTopicsData"] == []
    assert first["ForgottenTopicsData"] is not second["ForgottenTopicsData"]
    assert first["ReplicaState"] is not second["ReplicaState"]


def test_a_value_the_version_lacks_is_refused_unless_ignorable() -> None:
    """A value that the version lacks is refused unless the field is ignorable, so that no value is lost silently."""
    codec.encode_request(11, 4, {"Reason": "ignorable"})
    codec.encode_request(11, 4, {"GroupInstanceId": None})
    with pytest.raises(ProtocolError, match="GroupInstanceId does not exist in this version"):
        codec.encode_request(11, 4, {"GroupInstanceId": "static"})
    codec.encode_request(1, 14, {"ReplicaState": {"ReplicaId": -1}})
    with pytest.raises(ProtocolError, match="ReplicaState"):
        codec.encode_request(1, 14, {"ReplicaState": {"ReplicaId": 1}})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"Nope": 1}, "no field Nope"),
        ({"Topics": [{"Nope": 1}]}, "no field Nope"),
        ({"Topics": 5}, "Topics: expected list, got int"),
        ({"Topics": [5]}, "MetadataRequestTopic: expected dict, got int"),
        ({"Topics": [None]}, "None is not allowed"),
        ({"Topics": [{"Name": b"bytes"}]}, "Name: expected str, got bytes"),
        ({"Topics": [{"TopicId": "text"}]}, "TopicId: expected uuid.UUID or 16 bytes, got str"),
        ({"Topics": [{"TopicId": b"short"}]}, "TopicId: expected"),
        ({"AllowAutoTopicCreation": 2}, "AllowAutoTopicCreation: expected an integer from 0 to 1, got 2"),
        ({"AllowAutoTopicCreation": None}, "None is not allowed"),
    ],
)
def test_wrong_bodies_are_named(body: dict[str, Any], message: str) -> None:
    """An error of a wrong type or value names the field."""
    with pytest.raises(ProtocolError, match=message):
        codec.encode_request(3, 12, body)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**70, 1.5, "1", None])
def test_integers_must_fit(value: float | str | int | None) -> None:
    """An integer outside the range of its field is refused, not truncated."""
    expected = "an integer from -2147483648 to 2147483647, got" if isinstance(value, int) else "int, got"
    with pytest.raises(ProtocolError, match=f"MaxWaitMs: expected {expected}"):
        codec.encode_request(1, 4, {"MaxWaitMs": value})


def test_long_strings_of_old_versions_are_refused() -> None:
    """A string above 32,767 bytes is refused in versions with 16-bit lengths."""
    codec.encode_request(10, 0, {"Key": "x" * 32767})
    with pytest.raises(ProtocolError, match="Key: length 32768"):
        codec.encode_request(10, 0, {"Key": "x" * 32768})
    assert len(codec.encode_request(10, 3, {"Key": "x" * 32768})) == 32768 + 3 + 2


def test_a_string_is_read_up_to_kafkas_length() -> None:
    """A compact length allows 4 GiB; Kafka closes the connection at 32,768 bytes."""
    for size, fits in ((32_767, True), (32_768, False)):
        body = {"ClientSoftwareName": "a" * size, "ClientSoftwareVersion": "1"}
        data = codec.encode_request(18, 3, body)
        if fits:
            assert codec.decode_request(18, 3, data)["ClientSoftwareName"] == "a" * size
        else:
            with pytest.raises(ProtocolError, match="a string of 32768 bytes, of at most 32767"):
                codec.decode_request(18, 3, data)


def test_a_request_for_a_connection_has_no_string_that_no_broker_reads() -> None:
    """A request with a string that brokers refuse is an error before sending, instead of a closed connection."""
    frame = codec.encode_request_frame(10, 3, 1, "me", {"Key": "x" * 32_767})
    assert codec.decode_request(10, 3, frame[4:], 13) == {"Key": "x" * 32_767, "KeyType": 0, "CoordinatorKeys": []}
    for version, body in (
        (3, {"Key": "x" * 32_768}),
        (4, {"CoordinatorKeys": ["x", "\u00e9" * 16_384]}),
        (0, {"Key": "x" * 32_768}),
    ):
        with pytest.raises(ProtocolError, match="a string of 32768 bytes, of at most 32767"):
            codec.encode_request_frame(10, version, 1, "me", body)


@pytest.mark.parametrize("version", [5, 7])
def test_a_response_has_no_string_that_no_client_reads(version: int) -> None:
    """A long error message is cut at the end of a character; any other long string is refused."""
    topic = {"Name": "t", "ErrorCode": 17, "ErrorMessage": "x" * 32_766 + "\u00e9" + "y" * 100}
    data = codec.encode_response(19, version, {"Topics": [topic]})
    (row,) = codec.decode_response(19, version, data)["Topics"]
    assert row["ErrorMessage"] == "x" * 32_766
    assert codec.encode_response_frame(19, version, 1, {"Topics": [topic]}).endswith(data)
    topic["ErrorMessage"] = "x" * 32_767
    (row,) = codec.decode_response(19, version, codec.encode_response(19, version, {"Topics": [topic]}))["Topics"]
    assert row["ErrorMessage"] == "x" * 32_767
    with pytest.raises(ProtocolError, match="Name: a string of 32768 bytes, of at most 32767"):
        codec.encode_response(19, version, {"Topics": [{"Name": "x" * 32_768}]})


def test_bytes_that_cannot_be_read() -> None:
    released = memoryview(b"ab")
    released.release()
    for value in (memoryview(b"abcd")[::2], released, "text"):
        with pytest.raises(ProtocolError, match=r"AuthBytes: expected contiguous bytes, got (memoryview|str)"):
            codec.encode_request(36, 0, {"AuthBytes": value})


def test_text_that_is_not_utf8_goes_through() -> None:
    """A string that is not UTF-8 is decoded and encoded without loss, so that Kafka's error 17 can be returned."""
    data = bytes.fromhex("0003 ff61fe")
    body = codec.decode_request(10, 0, data)
    assert body["Key"] == "\udcffa\udcfe"
    assert codec.encode_request(10, 0, body) == data
    with pytest.raises(ProtocolError, match="Key"):
        codec.encode_request(10, 0, {"Key": "\ud800"})


def test_negative_lengths_are_null() -> None:
    """Every negative length means null, as in Kafka, and is an error where null is not allowed."""
    assert codec.decode_request(3, 1, struct.pack(">i", -2))["Topics"] is None
    with pytest.raises(ProtocolError, match="null is not allowed"):
        codec.decode_request(3, 0, struct.pack(">i", -1))
    with pytest.raises(ProtocolError, match="null is not allowed"):
        codec.decode_request(10, 0, struct.pack(">h", -2))


def test_bytes_after_a_body_are_accepted() -> None:
    """Bytes after a valid body are ignored, as by Kafka."""
    assert codec.decode_response(12, 0, b"\x00\x03trailing")["ErrorCode"] == 3


def test_records_are_a_view_of_the_frame() -> None:
    topic = {"Topic": "t", "Partitions": [{"Records": b"abc" * 1000}]}
    data = codec.encode_response(1, 4, {"Responses": [topic]})
    records = codec.decode_response(1, 4, data)["Responses"][0]["Partitions"][0]["Records"]
    assert isinstance(records, memoryview)
    assert records == b"abc" * 1000
    assert records.obj is data
    wide = memoryview(data + bytes(-len(data) % 8)).cast("q")  # any buffer is read as bytes
    assert codec.decode_response(1, 4, wide)["Responses"][0]["Partitions"][0]["Records"] == b"abc" * 1000


def test_uuid_is_a_real_one() -> None:
    """A decoded UUID has all attributes of a regular UUID."""
    topic_id = uuid.uuid4()
    data = codec.encode_request(3, 12, {"Topics": [{"TopicId": topic_id, "Name": None}]})
    got = codec.decode_request(3, 12, data)["Topics"][0]["TopicId"]
    assert got == topic_id
    assert (hash(got), str(got), got.is_safe) == (hash(topic_id), str(topic_id), uuid.SafeUUID.unknown)
    by_bytes = codec.encode_request(3, 12, {"Topics": [{"TopicId": topic_id.bytes, "Name": None}]})
    assert by_bytes == data


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (3, -1), (3, 14), (3, 32767), (0, 2)])
def test_unknown_apis_and_versions_are_refused(key: int, version: int) -> None:
    """An unknown API key or version is a ProtocolError."""
    with pytest.raises(ProtocolError):
        codec.decode_request(key, version, b"")
    with pytest.raises(ProtocolError):
        codec.encode_response(key, version, {})


@pytest.mark.parametrize("data", ["", "00", "0003 000c 00000001", "0003 000c 00000001 7fff", "0003 000c 00000001 0000"])
def test_cut_headers_are_refused(data: str) -> None:
    """A short header, or a client id longer than the frame, is a ProtocolError."""
    with pytest.raises(ProtocolError):
        codec.decode_request_header(bytes.fromhex(data))


def test_arguments_are_checked() -> None:
    """Invalid arguments are refused before the C code uses them."""
    with pytest.raises(ValueError, match="offset 5 is outside"):
        codec.decode_request(12, 0, b"abc", 5)
    with pytest.raises(ValueError, match="offset -1"):
        codec.decode_request(12, 0, b"abc", -1)
    with pytest.raises(TypeError):
        codec.decode_request(12, 0, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        codec.encode_request(12, 0, [])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _decoder.decode(None, b"")  # type: ignore[arg-type]


HOSTILE = {
    "array of 2^31 - 1": (3, 1, b"\x7f\xff\xff\xff" + bytes(100)),
    "compact array of 2^31 - 2": (3, 9, b"\xff\xff\xff\xff\x07" + bytes(100)),
    "compact array beyond 31 bits": (3, 9, b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "varint of 10 bytes": (3, 9, b"\xff" * 9 + b"\x01" + bytes(100)),
    "count above the bytes left": (3, 1, b"\x00\x00\x00\x40" + bytes(100)),
    "nested array of 2^31 - 1": (3, 0, b"\x00\x00\x00\x01\x7f\xff" + bytes(10)),
    "string beyond the frame": (10, 0, b"\x7f\xff" + bytes(100)),
    "bytes beyond the frame": (36, 0, b"\x7f\xff\xff\xff" + bytes(100)),
    "20 million tags, not there": (18, 3, b"\x02x\x02y\x80\xda\xc4\x09" + bytes(100)),
    "tag beyond the frame": (18, 3, b"\x02x\x02y\x01\x20\x7f" + bytes(100)),
    "50 million topics of nothing": (3, 1, struct.pack(">i", 50_000_000) + bytes(100_000_000)),
}


def test_a_count_above_the_bytes_left_is_refused_by_the_size_of_the_elements() -> None:
    """An element takes at least two bytes: 50 fit into 100, and 51 are refused before one is read."""
    assert len(codec.decode_request(3, 1, struct.pack(">i", 50) + bytes(100))["Topics"]) == 50
    with pytest.raises(ProtocolError, match="51 elements of at least 2 bytes, 100 left"):
        codec.decode_request(3, 1, struct.pack(">i", 51) + bytes(100))


def test_elements_of_all_arrays_are_counted() -> None:
    """The limit for the elements of a request includes nested elements."""
    body = {"Topics": [{"Name": "t", "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}] * 3}] * 2, "ReplicaId": -1}
    data = codec.encode_request(2, 1, body)
    assert len(codec.decode_request(2, 1, data, max_elements=8)["Topics"]) == 2
    with pytest.raises(ProtocolError, match="more than 7 array elements"):
        codec.decode_request(2, 1, data, max_elements=7)
    with pytest.raises(ValueError, match="max_elements"):
        codec.decode_request(2, 1, data, max_elements=-1)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_counts_cost_nothing(case: str) -> None:
    """A count above the bytes of a frame allocates no memory."""
    key, version, data = HOSTILE[case]
    tracemalloc.start()
    try:
        start = time.perf_counter()
        with pytest.raises(ProtocolError):
            codec.decode_request(key, version, data)
        assert time.perf_counter() - start < 0.1
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_20_million_tags_take_no_memory() -> None:
    """Tags of a flexible header create no objects before authentication (CVE-2026-111115)."""
    tags = b"\x80\xda\xc4\x09" + b"\x32\x00" * 20_000_000
    header = struct.pack(">hhih", 18, 3, 1, 0) + tags
    tracemalloc.start()
    try:
        assert codec.decode_request_header(header)[1] == len(header)
        assert _decoder.skip_tags(tags) == len(tags)
        assert codec.decode_request(18, 3, b"\x02x\x02y" + tags)["ClientSoftwareName"] == "x"
        # the last line's own input is 40 MB; no further memory of that size may be used
        assert tracemalloc.get_traced_memory()[1] < 2 * len(tags)
    finally:
        tracemalloc.stop()
    for bad in (b"", tags[:-1], b"\x01\x00\x05", b"\x80" * 5):
        with pytest.raises(ProtocolError):
            _decoder.skip_tags(bad)


def test_errors_are_complete_and_gap_free() -> None:
    """Every error code of Kafka exists with its text."""
    assert sorted(Errors) == list(range(-1, 137))
    assert all(e.message.endswith(".") for e in Errors)
    assert Errors.of(3) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert Errors.of(4711) is Errors.UNKNOWN_SERVER_ERROR
    assert (Errors.NOT_COORDINATOR.retriable, Errors.INVALID_TOPIC_EXCEPTION.retriable) == (True, False)
    assert sum(e.retriable for e in Errors) == 32
    error = KafkaError(Errors.INVALID_CONFIG)
    assert str(error) == "INVALID_CONFIG: The configuration is invalid."
    assert ProtocolError("no").error is Errors.INVALID_REQUEST
