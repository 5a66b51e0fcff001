"""Records as `kbroker consume` prints them, with names of headers that are not UTF-8."""

import json

from kbroker.cli.record_output import RecordPrinter
from kbroker.client.consumer import Record

RECORD = Record("t", 0, 7, 2, b"k", b"v\xff", [("a\udcff", b"1"), ("b", None)])


def test_lines_have_the_bytes_of_a_name() -> None:
    """Names of headers are printed as their bytes, like keys and values."""
    assert RecordPrinter("full", b":").line(RECORD) == b"t-0 offset 7 time 2 a\xff=1 b=null k:v\xff\n"
    assert RecordPrinter("%h %o", b":").line(RECORD) == b"a\xff=1,b=NULL 7"


def test_a_document_is_utf_8() -> None:
    """A document has a replacement character for bytes of a name that are not UTF-8."""
    line = RecordPrinter("value", b":", as_json=True).line(RECORD)
    assert line is not None
    document = json.loads(line.decode())
    assert document["headers"] == [{"name": "a\ufffd", "value": "1"}, {"name": "b", "value": None}]
