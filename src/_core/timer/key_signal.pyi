from typing import final

@final
class KeySignal:
    """Signal of events about watched keys, pairs of integers. Threads: any; one at a time in `wait` or `take`."""

    def __new__(cls) -> KeySignal: ...
    def watch(self, high: int, low: int) -> None:
        """Watch a key until its next event. Raises: MemoryError; OverflowError for numbers beyond int64."""
    def unwatch(self, high: int, low: int) -> None:
        """End the watch of a key, if it has had no event. Raises: OverflowError for numbers beyond int64."""
    def wait(self) -> list[tuple[int, int]]:
        """Wait for events; return their keys, whose watches end; [] once closed."""
    def take(self) -> list[tuple[int, int]]:
        """Return the keys that have had events, whose watches end, without waiting."""
    def close(self) -> None:
        """End the wait and all watches. Idempotent."""
    @property
    def watched(self) -> int: ...
