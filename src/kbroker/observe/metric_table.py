"""Rows of the metric tables, and the families made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeAlias, TypeVar

from kbroker.metrics.families import Buckets, Family, Kind

Source = TypeVar("Source")
Series: TypeAlias = Iterable[tuple[tuple[str, ...], float | Buckets]]


@dataclass(frozen=True)
class Row(Generic[Source]):
    """One family of a table: its fields are those of ``Family``.

    Args: ``read`` returns the current series; a number or buckets are one series without labels.
    """

    group: str
    name: str
    help: str
    read: Callable[[Source], float | Buckets | Series]
    labels: tuple[str, ...] = ()
    kind: Kind = "gauge"
    bounds: tuple[float, ...] = ()
    combine: Literal["sum", "max"] = "sum"


def families(rows: Iterable[Row[Source]], source: Source) -> Iterable[Family]:
    """Yield the families of a table, whose values are read from ``source``."""
    for row in rows:
        collect = partial(_series, row.read, source)
        yield Family(row.group, row.name, row.kind, row.labels, row.help, collect, row.bounds, row.combine)


def registered(source: object) -> Series:
    """Return no series: those of the family are in the registry."""
    return ()


def _series(read: Callable[[Source], float | Buckets | Series], source: Source) -> Series:
    found = read(source)
    return [((), found)] if isinstance(found, (int, float, Buckets)) else found
