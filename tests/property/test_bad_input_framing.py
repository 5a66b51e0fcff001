"""The framer: settings that make no sense, and bytes that are no frames."""

from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.codec.framing import Framer
from kbroker._core.requests.memory_pool import MemoryPool
from tests.support.bad_input import BUFFERS, JUNK, at_any_pace, attempt, refused, storm

KINDS = st.sampled_from(["length-prefix", "delimiter", "raw"])
CALLS = {"feed": [st.one_of(JUNK, BUFFERS, st.binary(max_size=200))], "bytes_read": [], "is_partial": []}


@at_any_pace
@given(st.data())
def test_framer(data: st.DataObject) -> None:
    """A stream that was refused is refused again, and the pool gets back what frames were charged."""
    pool = MemoryPool(1000, 1000)
    settings = [st.one_of(KINDS, JUNK), st.one_of(st.integers(1, 60), JUNK), st.one_of(st.just(b"\r\n"), JUNK)]
    framer = attempt(lambda: Framer, data, [*settings, st.one_of(st.just(pool), st.none(), JUNK)], (BufferError,))
    if framer is None:
        framer = Framer("delimiter", 9, b"ab", pool)
    storm(data, framer, CALLS, (BufferError, MemoryError), longest=20)
    del framer
    assert pool.available_bytes == 1000


def test_settings() -> None:
    """A number is no delimiter, and only delimiter framing has one."""
    assert refused(Framer, "delimiter", None, 5) is TypeError
    assert refused(Framer, "delimiter", None, "\n") is TypeError
    assert refused(Framer, "delimiter") is ValueError
    assert refused(Framer, "raw", None, b"\n") is ValueError
    assert refused(Framer, "lines") is ValueError
    assert refused(Framer, ["raw"]) is TypeError
    assert refused(Framer, "raw", 2**31) is ValueError
    assert refused(Framer, "raw", 2**64) is ValueError
