"""Tests of the histogram, whose buckets are Prometheus's."""

from concurrent.futures import ThreadPoolExecutor

from kbroker.metrics.families import Buckets
from kbroker.metrics.histogram import Histogram


def test_a_value_is_in_the_first_bucket_that_reaches_it() -> None:
    """A bucket includes its upper bound, and a last bucket counts the values above all bounds."""
    histogram = Histogram((1.0, 2.5))
    for value in (0.0, 1.0, 1.5, 2.5, 2.6, 1000.0):
        histogram.record(value)
    assert histogram.buckets() == Buckets((2, 2, 2), 1007.6)


def test_threads_lose_no_value() -> None:
    histogram = Histogram((1.0,))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [histogram.record(2.0) for _ in range(1000)], range(4)))  # type: ignore[func-returns-value]
    assert histogram.buckets() == Buckets((0, 4000), 8000.0)
