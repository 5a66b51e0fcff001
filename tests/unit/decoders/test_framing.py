"""Schema ids before the bytes of a value and in headers."""

from uuid import UUID

import pytest

from kbroker.client.schema_registry import SchemaId
from kbroker.decoders.decoded import Place, UndecodableError
from kbroker.decoders.framing import Framed, framed, message_indexes, reference

GUID = UUID("89791762-2336-41ef-8a0c-6e1b1d2c3f4a")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\0\0\0\0\x07abc", Framed(SchemaId("id", "7"), b"abc")),
        (b"\0\0\0\0\0\0\0\0\x07abc", Framed(SchemaId("globalId", "7"), b"abc")),
        (b"\x01" + GUID.bytes + b"abc", Framed(SchemaId("guid", str(GUID)), b"abc")),
        (b"", None),
        (b"\0\0\0\x07", None),
        (b"\0\0\0\0\0", None),
        (b"\0\0\0\0\0\0\0\0", None),
        (b"\x01" + GUID.bytes[:15], None),
        (b"abcdefgh", None),
    ],
)
def test_in_front(data: bytes, found: Framed | None) -> None:
    assert framed(data, Place()) == found


def test_in_headers() -> None:
    """Headers of the key do not apply to the value, and malformed headers are ignored."""
    number = b"\0" * 7 + b"\x05"
    headers = [
        *(
            ("apicurio.value.globalId", number),
            ("apicurio.value.encoding", b"JSON"),
            ("apicurio.key.contentId", number),
        ),
        *(("apicurio.protobuf.type.key", b"shop.Key"), ("other", None)),
    ]
    assert framed(b"abc", Place(headers=headers)) == Framed(SchemaId("globalId", "5"), b"abc", is_json=True)
    key = framed(b"abc", Place(is_key=True, headers=headers))
    assert key == Framed(SchemaId("contentId", "5"), b"abc", type_name="shop.Key")
    assert framed(b"abc", Place(headers=[("apicurio.value.globalId", b"5")])) is None
    confluent = [("__value_schema_id", b"\x01" + GUID.bytes + b"\x00")]
    assert framed(b"\0\0\0\0\x07", Place(headers=confluent)) == Framed(
        SchemaId("guid", str(GUID)), b"\0\0\0\0\x07", b"\x00"
    )


def test_message_indexes() -> None:
    assert message_indexes(b"\0abc") == ([0], b"abc")
    assert message_indexes(b"\x04\x02\x04abc") == ([1, 2], b"abc")
    for data in (b"", b"\x04\x02", b"\x80", b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f", b"\x01"):
        with pytest.raises(UndecodableError):
            message_indexes(data)


def test_references_of_apicurio() -> None:
    assert reference(b"\x05\x0a\x03a.Babc") == ("a.B", b"abc")
    for data in (b"", b"\0abc", b"\x05\x0a\x04a.Babc", b"\x05\x0b\x03a.B", b"\x05\x0a\x03\xff\xff\xffabc", b"\x02\x02"):
        assert reference(data) is None
