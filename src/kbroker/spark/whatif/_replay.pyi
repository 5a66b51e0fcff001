from typing import Any, Final

KINDS_BY_NAME: Final[dict[str, int]]
JUDGED: Final[int]
COUNTED: Final[int]
GIVEN_BACK: Final[int]
STRICT: Final[int]

# Columns are one-dimensional, contiguous buffers of the item type named: numpy arrays, array.array, memoryviews.
class Counters:
    def __new__(
        cls,
        *,
        samples: int = 11,
        window_ms: int = 1000,
        controller_samples: int = 11,
        controller_window_ms: int = 1000,
        expires: bool = True,
    ) -> Counters: ...
    def __len__(self) -> int: ...
    def add(self, quota_type: str, limit: float | None = None) -> int: ...
    def reset(self, number: int, limit: float) -> None: ...
    def run(
        self,
        counter: Any,  # int32
        time_ms: Any,  # int64
        value: Any,  # float64
        action: Any,  # int8
        request: Any,  # int32
        delay_ms: Any,  # int32, written
        served_ms: Any,  # int32, written
    ) -> None: ...
    def observe(self, number: int, time_ms: Any, value: Any, observed: Any) -> None: ...
    def throttled_seconds(self, number: int, time_ms: Any, value: Any, action: Any) -> int: ...
