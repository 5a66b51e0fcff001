"""Clients of a generated request log: their names, their activities, and the number of their requests before a time.

Everything follows from the seed and an entity's number, so that a part of the log can be generated without previous
parts: the number of an entity's previous requests is computed, not counted.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kbroker.spark.errors import PipelineError
from kbroker.spark.tables.delta_table import DEFAULT_BUCKETS, bucket_of

Array = Any  # numpy array

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
MAX_ENTITIES = 10_000_000
PRODUCER, CONSUMER, ADMIN = range(3)
BLOCK_ROWS = 200_000  # in the busiest hour
_SWING = 0.6  # relative amplitude of the daily variation of the request rate
_NOON_US = 15 * HOUR_US  # time of the highest rate
CLIENTS_OF_A_USER = 4


@dataclass(frozen=True)
class Shape:
    """Shape of the log to generate.

    `requests`: number of records. `entities`: pairs of user and client id. `hot_share`: share of the first entity,
    0..1; the shares of the others fall with their rank, by `skew` (Zipf's exponent). `days`: length; `start_us`: start,
    a full hour (microseconds since 1970). `breaching`: share of the entities that exceed their quotas.
    """

    requests: int
    entities: int = 1_000
    seed: int = 1
    days: float = 7.0
    hot_share: float = 0.3
    skew: float = 1.1
    breaching: float = 0.1
    start_us: int = 1_767_225_600_000_000  # 2026-01-01
    buckets: int = DEFAULT_BUCKETS

    def check(self) -> None:
        """Validate the shape. Raises: PipelineError for an impossible one."""
        if not 1 <= self.entities <= MAX_ENTITIES:
            raise PipelineError(f"expected 1 to {MAX_ENTITIES:,} entities, got {self.entities:,}")
        if self.requests < 1 or self.days <= 0 or self.seed < 0:
            raise PipelineError("expected at least one request, some time, and a seed from 0 on")
        if not 0 <= self.hot_share <= 1 or not 0 <= self.breaching <= 1:
            raise PipelineError("expected shares from 0 to 1")
        if self.start_us % HOUR_US:
            raise PipelineError("expected a time on the full hour to start at")

    @property
    def hours(self) -> int:
        """Number of hours that the log touches."""
        return math.ceil(self.days * 24 - 1e-9)

    @property
    def pieces(self) -> int:
        """Number of blocks of an hour, so that no block has many more than BLOCK_ROWS."""
        return max(1, math.ceil(self.requests / self.days / 24 * (1 + _SWING) / BLOCK_ROWS))

    @property
    def blocks(self) -> int:
        """Number of blocks, the parts that are generated independently of each other."""
        return self.hours * self.pieces

    def span_us(self, block: int) -> tuple[int, int]:
        """Return the begin and end of a block in microseconds since 1970."""
        hour, piece = divmod(block, self.pieces)
        begin = hour * HOUR_US
        end = min(int(self.days * DAY_US), begin + HOUR_US)
        ends = [begin + (end - begin) * part // self.pieces for part in (piece, piece + 1)]
        return self.start_us + ends[0], self.start_us + ends[1]

    def sent_before(self, time_us: int) -> float:
        """Return the number of requests before a time, with a higher rate by day than by night."""
        total = self.days * DAY_US
        passed = min(max(time_us - self.start_us, 0), total)
        return self.requests if passed >= total else self.requests * self._risen(passed) / self._risen(total)

    def _risen(self, passed_us: float) -> float:
        turn = 2 * math.pi / DAY_US
        quarter = DAY_US / 4  # the sine is highest a quarter day after it begins to rise
        first, last = (math.cos(turn * (at - _NOON_US + quarter)) for at in (0.0, passed_us))
        return passed_us + _SWING * (first - last) / turn


def mixed(*parts: Any) -> Array:
    """Return pseudo-random numbers computed from `parts` (splitmix64), which are arrays of one length or numbers."""
    found: Array = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for part in parts:
            found = found + np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found = found ^ (found >> np.uint64(31))
    return found


def chance(*parts: Any) -> Array:
    """Return the numbers of `mixed` scaled to the range from 0 to below 1."""
    return (mixed(*parts) >> np.uint64(11)).astype(np.float64) / float(2**53)


class Population:
    """Entities of a log by number; an entity with a lower number sends more. Threads: any."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        n, seed = shape.entities, shape.seed
        number = np.arange(n)
        self.share = _shares(shape)
        self._phase = _phases(shape, self.share, number)
        self.user = number % max(1, n // CLIENTS_OF_A_USER)
        role: Array = np.searchsorted([0.48, 0.97], chance(seed, 1, number), "right")
        role[0] = PRODUCER
        self.role = role.astype(np.int8)
        self.is_breaching = chance(seed, 2, number) < shape.breaching
        self.is_breaching[0] = shape.breaching > 0
        self.burst = (1 + mixed(seed, 3, number) % np.uint64(32)).astype(np.int64)  # requests of one burst
        self.size_bytes = np.exp(5.0 + 5.0 * chance(seed, 4, number))  # size of a typical batch: 150 bytes to 22 kB
        self.links = (1 + mixed(seed, 5, number) % np.uint64(4)).astype(np.int64)  # simultaneous connections
        self.phase = (mixed(seed, 6, number) % np.uint64(1 << 20)).astype(np.int64)

    def counts_before(self, time_us: int) -> Array:
        """Return the number of requests of each entity before a time, whose sum at the end is `requests`."""
        return np.floor(self.share * self.shape.sent_before(time_us) + self._phase).astype(np.int64)

    @functools.cached_property
    def names(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """User, principal and client id of each entity."""
        user = pc.binary_join_element_wise("team-", _digits(self.user, 6), "")
        client = pc.binary_join_element_wise("app-", _digits(range(self.shape.entities), 7), "")
        return user, pc.binary_join_element_wise(pa.scalar("User:"), user, ""), client

    @functools.cached_property
    def bucket(self) -> Array:
        """Bucket of each entity's rows in a table."""
        _, principal, client = self.names
        pairs = zip(principal.to_pylist(), client.to_pylist(), strict=True)
        return np.array([bucket_of(one, other, self.shape.buckets) for one, other in pairs], np.int32)


@functools.lru_cache(maxsize=1)
def population(shape: Shape) -> Population:
    """Return the entities of a log, cached because a task generates many blocks."""
    return Population(shape)


def _digits(numbers: Any, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers, pa.int64()).cast(pa.string()), width, "0")


def _shares(shape: Shape) -> Array:
    share = np.arange(1, shape.entities + 1, dtype=np.float64) ** -shape.skew
    if shape.entities > 1 and shape.hot_share > 0:
        share[1:] *= (1 - shape.hot_share) / share[1:].sum()
        share[0] = shape.hot_share
    return share / share.sum()


def _phases(shape: Shape, share: Array, number: Array) -> Array:
    """Return the phase of each entity's count, which makes the sum of all counts exact at the end."""
    whole = share * shape.requests
    rest = whole - np.floor(whole)
    phase = chance(shape.seed, 7, number)
    one_more = np.zeros(len(whole), bool)
    missing = shape.requests - int(np.floor(whole).sum())
    one_more[np.argsort(-(rest + phase * (rest > 0)), kind="stable")[:missing]] = True
    edge = 1 - rest
    phase = np.where(one_more, np.maximum(phase, edge + 1e-6), np.minimum(phase, edge - 1e-6))
    return phase.clip(0, 1 - 1e-9)
