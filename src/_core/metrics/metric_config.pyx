"""Configs of metrics (number and length of samples, quota), and the levels of recording."""
cimport cython
from libc.stdint cimport INT64_MAX, int32_t

from operator import index
from types import MappingProxyType

LARGEST_WINDOW_MS = 1 << 40                     # some 35 years: samples x window stays far below 2**63
LARGEST_SAMPLES = 100_000

LEVELS = ("INFO", "DEBUG", "TRACE")
UNITS = ("nanoseconds", "microseconds", "milliseconds", "seconds", "minutes", "hours", "days")


cdef int32_t level_number(object level) except -1:
    if level not in LEVELS:
        raise ValueError(f"recording level must be INFO, DEBUG or TRACE, got {level!r}")
    return LEVELS.index(level)


cdef int32_t unit_number(object unit) except -1:
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
    return UNITS.index(unit)


cdef const StatConfig *borrow_config(object config) except NULL:
    if not isinstance(config, MetricConfig):
        raise TypeError(f"config must be a MetricConfig, not {type(config).__name__}")
    return &(<MetricConfig>config).config


@cython.final
@cython.no_gc
cdef class Quota:
    """A bound on the value of a metric; the bound itself is still accepted.

    Made by ``Quota.upper`` and ``Quota.lower``; immutable; two are equal if bound and direction are. A bound is any
    float: the caller refuses a NaN or an infinity if it has no meaning as a quota.
    Source: ``Quota.java``.
    """

    def __cinit__(self, double bound, bint is_upper=True):
        self.bound = bound
        self.is_upper = is_upper

    @staticmethod
    def upper(double bound) -> Quota:
        """Return a quota that accepts values up to ``bound``."""
        return Quota.__new__(Quota, bound, True)

    @staticmethod
    def lower(double bound) -> Quota:
        """Return a quota that accepts values from ``bound`` upwards."""
        return Quota.__new__(Quota, bound, False)

    def acceptable(self, double value) -> bool:
        """Return whether ``value`` is within the bound; NaN never is."""
        return value <= self.bound if self.is_upper else value >= self.bound

    def __eq__(self, other):
        if not isinstance(other, Quota):
            return NotImplemented
        return self.bound == (<Quota>other).bound and self.is_upper == (<Quota>other).is_upper

    def __hash__(self):
        return hash((self.bound, bool(self.is_upper)))

    def __reduce__(self):
        return Quota, (self.bound, bool(self.is_upper))

    def __repr__(self):
        return f"Quota.{'upper' if self.is_upper else 'lower'}({self.bound!r})"


@cython.final
cdef class MetricConfig:
    """Immutable configuration of a metric; ``replace`` makes a changed copy.

    Args:
        samples: number of samples in the monitored window, 1 to 100,000.
        window_ms: length of ONE sample in milliseconds, 1 to 2**40; the whole window is ``samples`` times that.
        event_window: events after which a sample is complete whatever its age, >= 1; None means never.
        quota: the bound that is checked, or None.
        record_level: most detailed level that sensors of this config record: "INFO", "DEBUG" or "TRACE".
        tags: default tags of metric names made under this config.
    Raises: ValueError, TypeError for values outside these ranges.
    Threads: any. Source: ``MetricConfig.java``.
    """

    def __cinit__(self, samples=2, window_ms=30_000, *, event_window=None, quota=None, record_level="INFO", tags=None):
        samples, window_ms = index(samples), index(window_ms)
        if not 1 <= samples <= LARGEST_SAMPLES:
            raise ValueError(f"samples must be 1 to {LARGEST_SAMPLES}, got {samples}")
        if not 1 <= window_ms <= LARGEST_WINDOW_MS:
            raise ValueError(f"window_ms must be 1 to {LARGEST_WINDOW_MS}, got {window_ms}")
        if event_window is not None and not 1 <= index(event_window) <= INT64_MAX:
            raise ValueError(f"event_window must be 1 to {INT64_MAX} or None, got {event_window}")
        if quota is not None and not isinstance(quota, Quota):
            raise TypeError(f"quota must be a Quota or None, not {type(quota).__name__}")
        self.config.samples = samples
        self.config.window_ms = window_ms
        self.config.event_window = INT64_MAX if event_window is None else event_window
        self.quota = quota
        if quota is not None:
            self.config.bound = self.quota.bound
            self.config.quota_kind = QUOTA_UPPER if self.quota.is_upper else QUOTA_LOWER
        self.level = level_number(record_level)
        self.tags = MappingProxyType(dict(tags or {}))

    @property
    def samples(self) -> int:
        """Number of samples in the monitored window."""
        return self.config.samples

    @property
    def window_ms(self) -> int:
        """Length of one sample in milliseconds."""
        return self.config.window_ms

    @property
    def event_window(self):
        """Events after which a sample is complete, or None."""
        return None if self.config.event_window == INT64_MAX else self.config.event_window

    @property
    def record_level(self) -> str:
        """Most detailed level that is recorded."""
        return LEVELS[self.level]

    def replace(self, **changes) -> MetricConfig:
        """Return a copy with the named arguments of the constructor changed. Raises: TypeError, ValueError."""
        given = self._arguments()
        unknown = set(changes) - set(given)
        if unknown:
            raise TypeError(f"a MetricConfig has no {', '.join(sorted(unknown))}")
        given.update(changes)
        return MetricConfig(**given)

    def _arguments(self) -> dict:
        return {
            "samples": self.samples, "window_ms": self.window_ms, "event_window": self.event_window,
            "quota": self.quota, "record_level": self.record_level, "tags": dict(self.tags),
        }

    def __eq__(self, other):
        if not isinstance(other, MetricConfig):
            return NotImplemented
        return self._arguments() == (<MetricConfig>other)._arguments()

    def __hash__(self):
        return hash((
            self.samples, self.window_ms, self.event_window, self.quota, self.level, frozenset(self.tags.items())))

    def __repr__(self):
        return f"MetricConfig({', '.join(f'{k}={v!r}' for k, v in self._arguments().items())})"
