"""Display of records' bytes as JSON, text and dumps, with limited sizes and without misleading characters."""

import json
import os

import pytest

from kbroker.decoders.record_text import DUMP_BYTES, LIST_BYTES, WHOLE_BYTES, dump, safe_text, shown


def test_null_and_empty_differ() -> None:
    assert shown(None) == ("null", "", 0, "")
    assert shown(b"") == ("empty", "", 0, "")


def test_json_is_indented_with_its_tokens_as_they_are() -> None:
    """Numbers keep their digits, and duplicate members are kept."""
    one = shown(b'{"b":1.50,"a":[1,{}, "x,y:{\\""],"b":12345678901234567890123,"e":1}')
    assert one.kind == "JSON"
    assert one.text == (
        '{\n  "b": 1.50,\n  "a": [\n    1,\n    {},\n    "x,y:{\\""\n  ],\n  "b": 12345678901234567890123,\n  "e": 1\n}'
    )
    assert json.loads(one.text)["b"] == 12345678901234567890123


@pytest.mark.parametrize("data", [b"{", b"[1,]", b'{"a":1}x', b'["\xff"]'])
def test_what_only_begins_like_json_is_not(data: bytes) -> None:
    assert shown(data).kind in ("text", "binary")


@pytest.mark.parametrize("data", [b"[" * 50_000, b"[" * 100_000 + b"]" * 100_000])
def test_arrays_nested_deep(data: bytes) -> None:
    """JSON where Python reads so many levels (3.14), else text."""
    one = shown(data)
    assert one.kind in ("JSON", "text")
    assert set(one.text) <= set("[ \n")
    assert len(one.text) <= LIST_BYTES


def test_text_in_utf_8() -> None:
    assert shown("Grüße\nund\tmehr\r\n".encode())[:2] == ("text", "Grüße\nund\tmehr\n")
    assert shown(b"a\x00b").kind == "binary"
    assert shown(b"a\x1b[31mred").kind == "binary"
    assert shown(b"\xff\xfe").kind == "binary"


@pytest.mark.parametrize("data", [b"ab\xff", b"ab\xc3", b'{"a":1}\xff'])
def test_bytes_after_a_text_are_not_left_out(data: bytes) -> None:
    """Only a text that is longer than the limit may end within a character."""
    assert shown(data).kind == "binary"
    assert shown(data[:3], 3, 3).kind in ("binary", "text")
    assert shown("abcé".encode(), 4).text == "abcé"


def test_text_that_turns_what_is_around_it_is_visible() -> None:
    assert shown("abc\u202edcb".encode()).text == "abc\\u202edcb"
    assert safe_text("a\nb\u2066") == "a\nb\\u2066"


@pytest.mark.parametrize("letter", ["é", "€", "😀"])
def test_a_long_text_is_cut_between_characters(letter: str) -> None:
    """A text is cut between characters, and its full size is stated."""
    for before in range(4):
        data = (" " * before + letter * (3 * LIST_BYTES)).encode()
        one = shown(data)
        assert one.kind == "text", before
        assert set(one.text.strip()) == {letter}
        assert len(one.text) <= LIST_BYTES
        assert one.size_bytes == len(data)
        assert "of" in one.note


def test_ten_megabytes() -> None:
    """A large value takes no more space than a small one, and the omitted size is stated."""
    binary = shown(os.urandom(10 << 20))
    assert (binary.kind, binary.size_bytes) == ("binary", 10 << 20)
    assert binary.note == f"the first {DUMP_BYTES} B of 10.0 MiB"
    assert len(binary.text) < 800
    whole = shown(b"[" + b"1," * (5 << 20) + b"1]", WHOLE_BYTES)
    assert (whole.kind, len(whole.text)) == ("JSON", WHOLE_BYTES)
    assert whole.note == "the beginning of 10.0 MiB"


@pytest.mark.parametrize(
    "document",
    ['{"a":[1.5e3,-Infinity,true,null],"b":"x\\u00fc\\n","c":{"d":"\u20ac"}}', '["' + "w" * 300 + '"]', "[-1, 2]"],
)
def test_a_long_document_is_json_wherever_it_is_cut(document: str) -> None:
    """The text shown is a prefix of the document, and keeps the part of a string before the cut."""
    data = document.encode()
    for limit in range(1, len(data)):
        one = shown(data, limit)
        assert one.kind == "JSON", limit
        assert one.note == f"the beginning of {len(data)} B"
        kept = data[:limit].decode(errors="ignore")
        assert "".join(kept.split()).startswith("".join(one.text.split()))
        assert len(one.text) <= limit
    assert shown(data[:-1] + b"}" * 100).kind == "text"


@pytest.mark.parametrize("data", [b'{"a" 1', b"[1 2", b"[tru, 1", b'["\x01', b"{1"])
def test_what_is_not_the_beginning_of_json(data: bytes) -> None:
    """An error before the cut makes the value text or binary."""
    assert shown(data + b', "more"' * 100, 64).kind in ("text", "binary")


def test_a_list_costs_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the beginning of a value is parsed; parsing whole values of 256 KiB would take half a second per page."""
    parsed: list[int] = []
    original = json.loads

    def loads(text: str) -> object:
        parsed.append(len(text))
        return original(text)

    monkeypatch.setattr(json, "loads", loads)
    assert shown(b"[" + b"[]," * 80_000 + b"[]]").kind == "JSON"
    assert parsed == [LIST_BYTES]


def test_a_dump() -> None:
    assert dump(b"\x00kbroker\xff0123456789") == (
        "00000000  00 6b 62 72 6f 6b 65 72 ff 30 31 32 33 34 35 36  .kbroker.0123456\n"
        "00000010  37 38 39                                         789"
    )
