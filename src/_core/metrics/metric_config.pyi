from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, final

_RecordingLevel: TypeAlias = Literal["INFO", "DEBUG", "TRACE"]
_Unit: TypeAlias = Literal["nanoseconds", "microseconds", "milliseconds", "seconds", "minutes", "hours", "days"]

LARGEST_WINDOW_MS: Final[int]
LARGEST_SAMPLES: Final[int]
LEVELS: Final[tuple[str, ...]]
UNITS: Final[tuple[str, ...]]

@final
class Quota:
    def __new__(cls, bound: float, is_upper: bool = True) -> Quota: ...
    @property
    def bound(self) -> float: ...
    @property
    def is_upper(self) -> bool: ...
    @staticmethod
    def upper(bound: float) -> Quota: ...
    @staticmethod
    def lower(bound: float) -> Quota: ...
    def acceptable(self, value: float) -> bool: ...
    def __hash__(self) -> int: ...

@final
class MetricConfig:
    def __new__(
        cls,
        samples: int = 2,
        window_ms: int = 30_000,
        *,
        event_window: int | None = None,
        quota: Quota | None = None,
        record_level: _RecordingLevel = "INFO",
        tags: Mapping[str, str] | None = None,
    ) -> MetricConfig: ...
    @property
    def samples(self) -> int: ...
    @property
    def window_ms(self) -> int: ...
    @property
    def event_window(self) -> int | None: ...
    @property
    def quota(self) -> Quota | None: ...
    @property
    def record_level(self) -> _RecordingLevel: ...
    @property
    def tags(self) -> Mapping[str, str]: ...
    def replace(
        self,
        *,
        samples: int = ...,
        window_ms: int = ...,
        event_window: int | None = ...,
        quota: Quota | None = ...,
        record_level: _RecordingLevel = ...,
        tags: Mapping[str, str] | None = ...,
    ) -> MetricConfig: ...
    def __hash__(self) -> int: ...
