from collections.abc import Hashable, Mapping
from typing import Literal, final

from kbroker._core.metric_config import Unit

class StatSpec:
    def __init__(self) -> None: ...
    @property
    def parts(self) -> tuple[tuple[Hashable, int, float], ...]: ...

@final
class WindowedSum(StatSpec):
    def __init__(self) -> None: ...

@final
class WindowedCount(StatSpec):
    def __init__(self) -> None: ...

@final
class Avg(StatSpec):
    def __init__(self) -> None: ...

@final
class Max(StatSpec):
    def __init__(self) -> None: ...

@final
class Min(StatSpec):
    def __init__(self) -> None: ...

@final
class Rate(StatSpec):
    def __init__(self, stat: StatSpec | None = None, unit: Unit = "seconds", *, window_ms: int | None = None) -> None: ...

@final
class SimpleRate(StatSpec):
    def __init__(self) -> None: ...

@final
class Meter(StatSpec):
    def __init__(
        self, rate_name: Hashable, total_name: Hashable, stat: StatSpec | None = None, unit: Unit = "seconds"
    ) -> None: ...

@final
class Percentiles(StatSpec):
    def __init__(
        self,
        size_bytes: int,
        largest: float,
        percentiles: Mapping[Hashable, float],
        *,
        smallest: float = 0.0,
        bucketing: Literal["constant", "linear"] = "constant",
    ) -> None: ...

@final
class TokenBucket(StatSpec):
    def __init__(self, unit: Unit = "seconds") -> None: ...

@final
class Value(StatSpec):
    def __init__(self) -> None: ...

@final
class CumulativeSum(StatSpec):
    def __init__(self) -> None: ...

@final
class CumulativeCount(StatSpec):
    def __init__(self) -> None: ...
