"""Failures as shown by Spark: one sentence, without the frames of this package."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from kbroker.client.connection import BrokerConnectionError
from kbroker.common.errors import KafkaError
from kbroker.spark.errors import PipelineError

P = ParamSpec("P")
T = TypeVar("T")

EXPECTED = (PipelineError, KafkaError, BrokerConnectionError)


class SourceError(PipelineError):
    """A failure of ``format("kbroker")`` as Spark shows it."""


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with its expected failures replaced by SourceErrors without a cause; others are unchanged."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except EXPECTED as error:
            failure = _shown(error)
        raise failure

    return run


def plain_items(items: Iterator[T]) -> Iterator[T]:
    """Yield the items; replace an expected failure of the iterator by a SourceError without a cause."""
    try:
        yield from items
    except EXPECTED as error:
        failure = _shown(error)
    else:
        return
    raise failure


def offsets_held(begin: int, end: int) -> str:
    """Describe the offsets of a partition whose first one is `begin` and whose next one is `end`."""
    return f"offsets {begin} to {end - 1}" if end > begin else f"no records before offset {end}"


def _shown(error: BaseException) -> SourceError:
    what = f"broker {error}" if isinstance(error, BrokerConnectionError) else str(error)
    return SourceError(what)
