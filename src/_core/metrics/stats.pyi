from collections.abc import Hashable, Mapping
from typing import Literal, final

from kbroker._core.metrics.metric_config import _Unit

class StatSpec:
    @property
    def parts(self) -> tuple[tuple[Hashable, int, float], ...]: ...

@final
class WindowedSum(StatSpec):
    def __new__(cls) -> WindowedSum: ...

@final
class WindowedCount(StatSpec):
    def __new__(cls) -> WindowedCount: ...

@final
class Avg(StatSpec):
    def __new__(cls) -> Avg: ...

@final
class Max(StatSpec):
    def __new__(cls) -> Max: ...

@final
class Min(StatSpec):
    def __new__(cls) -> Min: ...

@final
class Rate(StatSpec):
    def __new__(
        cls, stat: StatSpec | None = None, unit: _Unit = "seconds", *, window_ms: int | None = None
    ) -> Rate: ...

@final
class SimpleRate(StatSpec):
    def __new__(cls) -> SimpleRate: ...

@final
class Meter(StatSpec):
    def __new__(
        cls, rate_name: Hashable, total_name: Hashable, stat: StatSpec | None = None, unit: _Unit = "seconds"
    ) -> Meter: ...

@final
class Percentiles(StatSpec):
    def __new__(
        cls,
        size_bytes: int,
        largest: float,
        percentiles: Mapping[Hashable, float],
        *,
        smallest: float = 0.0,
        bucketing: Literal["constant", "linear"] = "constant",
    ) -> Percentiles: ...

@final
class TokenBucket(StatSpec):
    def __new__(cls, unit: _Unit = "seconds") -> TokenBucket: ...

@final
class Value(StatSpec):
    def __new__(cls) -> Value: ...

@final
class CumulativeSum(StatSpec):
    def __new__(cls) -> CumulativeSum: ...

@final
class CumulativeCount(StatSpec):
    def __new__(cls) -> CumulativeCount: ...
