"""Latest values of clients, and their bounds."""

from uuid import UUID

from kbroker.telemetry.otlp import Point
from kbroker.telemetry.series import SERIES_BYTES, ClientSeries, Value

ONE, TWO = UUID(int=1), UUID(int=2)


def gauge(name: str, value: float) -> Point:
    return Point(name, (), value, False, False)


def test_values() -> None:
    """A gauge is replaced, a delta is added, and a series that a push omits is kept."""
    series = ClientSeries(1 << 20)
    series.put(ONE, [gauge("g", 1), Point("d", (("k", "v"),), 2, True, True)], 10)
    series.put(ONE, [gauge("g", 5), Point("d", (("k", "v"),), 3, True, True)], 20)
    series.put(ONE, [Point("d", (("k", "v"),), 4, True, True)], 30)
    assert series.of(ONE) == {("g", ()): Value(5, False), ("d", (("k", "v"),)): Value(9, True)}
    assert series.pushed_ms(ONE) == 30
    assert series.of(TWO) == {}
    assert series.pushed_ms(TWO) is None


def test_a_client_has_a_maximum_number_of_series() -> None:
    """Excess series are dropped and counted; existing series are updated."""
    series = ClientSeries(1 << 20, max_client_series=2)
    series.put(ONE, [gauge("a", 1), gauge("b", 1), gauge("c", 1)], 0)
    series.put(ONE, [gauge("a", 2), gauge("c", 2)], 0)
    series.put(TWO, [gauge("c", 3)], 0)
    assert series.of(ONE) == {("a", ()): Value(2, False), ("b", ()): Value(1, False)}
    assert series.figures[::2] == (3, 2)
    assert series.of(TWO) == {("c", ()): Value(3, False)}


def test_all_clients_have_a_maximum_of_bytes() -> None:
    """The bytes of all clients are limited; a removed client frees its bytes."""
    series = ClientSeries(2 * (SERIES_BYTES + 1))
    series.put(ONE, [gauge("a", 1), gauge("b", 1)], 0)
    series.put(TWO, [gauge("a", 1)], 0)
    assert series.figures == (2, 2 * (SERIES_BYTES + 1), 1)
    series.remove(ONE)
    series.remove(ONE)
    assert series.figures == (0, 0, 1)
    series.put(TWO, [gauge("a", 1)], 0)
    assert series.of(TWO) == {("a", ()): Value(1, False)}
