from typing import final

from kbroker._core.clock import BaseClock

@final
class ByteThrottle:
    """How many bytes a second the cleaners that were given it may read and write together.

    Args: `clock` whose time counts; `bytes_per_second` 0 or less, or more than any disk has: no limit.
    Threads: any. Source: ``Throttler``.
    """

    def __new__(cls, clock: BaseClock | None, bytes_per_second: float = ...) -> ByteThrottle: ...
    def set_rate(self, bytes_per_second: float) -> None:
        """Another rate from now on; who waits goes on at once."""
