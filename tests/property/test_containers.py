"""The containers of C structs compared with set, sorted list, dict, bytes and list."""

from hypothesis import given
from hypothesis import strategies as st

from tests.native.containers import Bytes, NumberHeap, Numbers, NumberTable, places_before

SMALL = st.integers(0, 40)


@given(st.lists(st.tuples(st.booleans(), SMALL, st.integers(0, 3))))
def test_table_is_a_set_of_pairs(steps: list[tuple[bool, int, int]]) -> None:
    table, model = NumberTable(), set()
    for adds, number, h in steps:
        pair = (number, h * 16)
        if adds and pair not in model:
            table.add(*pair)
            model.add(pair)
        elif not adds and pair in model:
            table.remove(*pair)
            model.remove(pair)
        assert len(table) == len(model)
        assert table.has(*pair) == (pair in model)
    assert sorted(table.numbers()) == sorted(number for number, _ in model)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "raise", "take"]), SMALL, st.integers(-9, 9))))
def test_heap_is_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    """The top is always a smallest key after any additions, removals and raised keys."""
    heap, model = NumberHeap(41), dict[int, int]()
    for step, number, key in steps:
        if step == "add" and number not in model:
            heap.add(number, key)
            model[number] = key
        elif step == "remove":
            heap.remove(number)
            model.pop(number, None)
        elif step == "raise" and number in model and key >= model[number]:
            heap.raise_to(number, key)
            model[number] = key
        elif step == "take" and model:
            taken = heap.take_top()
            assert taken is not None
            assert taken[0] == min(model.values()) == model.pop(taken[1])
        top = heap.top()
        assert (top is None) == (not model)
        assert top is None or top[0] == min(model.values()) == model[top[1]]


@given(st.lists(st.integers(0, 2**64 - 1) | SMALL), st.integers(0, 2**64 - 1))
def test_latest_index_is_a_dict(keys: list[int], seed: int) -> None:
    """The index returns the last position of each key before a position, with any seed."""
    model: dict[int, int] = {}
    expected = []
    for index, key in enumerate(keys):
        expected.append(model.get(key, -1))
        model[key] = index
    assert places_before(keys, seed) == expected


@given(st.lists(st.binary(max_size=200) | st.integers(0, 300)))
def test_buffer_is_a_byte_string(steps: list[bytes | int]) -> None:
    """The bytes stay the same when the buffer grows, and a reservation changes none."""
    buffer, model = Bytes(), b""
    for step in steps:
        if isinstance(step, bytes):
            buffer.put(step)
            model += step
        else:
            assert buffer.reserve(step) >= step
        assert buffer.content == model
    assert buffer.reserve(1 << 60) == -1
    assert buffer.content == model
    buffer.free()
    assert buffer.content == b""
    buffer.put(b"again")
    assert buffer.content == b"again"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40))))
def test_array_is_a_list(steps: list[tuple[bool, int]]) -> None:
    """Items are added and removed at the end, several at a time, without access outside the memory."""
    array, model = Numbers(), list[int]()
    for adds, number in steps:
        if adds:
            for item in range(number):
                array.add(item * number)
                model.append(item * number)
        else:
            array.drop(number)
            del model[max(len(model) - number, 0) :]
        assert array.content == model
