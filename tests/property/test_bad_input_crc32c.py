"""The checksum refuses what has no bytes."""

from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.codec.crc32c import _crc32c_by_table, crc32c
from tests.support.bad_input import JUNK, at_any_pace, attempt


@at_any_pace
@given(st.data())
def test_crc32c(data: st.DataObject) -> None:
    """TypeError without a buffer, BufferError for one with gaps, ValueError for a start beyond 32 bits."""
    for function in (crc32c, _crc32c_by_table):
        value = attempt(lambda function=function: function, data, [JUNK, JUNK], (BufferError,))
        assert value is None or 0 <= value < 2**32
