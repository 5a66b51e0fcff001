from typing import final

from kbroker._core.clock import BaseClock

@final
class ByteThrottle:
    """Limit of the bytes that its users may read and write together.

    Args: `clock`: measures the time; `bytes_per_second`: 0 or less, or more than any disk has: no limit.
    Threads: any. Source: ``Throttler``.
    """

    def __new__(cls, clock: BaseClock | None, bytes_per_second: float = ...) -> ByteThrottle: ...
    def set_rate(self, bytes_per_second: float) -> None:
        """Change the rate; waiting threads continue at once."""
    def take(self, size_bytes: int) -> None:
        """Charge the bytes, and wait as long as the rate demands or until it is changed."""
