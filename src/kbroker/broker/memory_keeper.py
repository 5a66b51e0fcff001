"""Return of memory to the system after a burst of large requests.

The memory of large requests is in the allocator's arenas, and glibc returns only the end of an arena: one small block
above it keeps megabytes. Up to 4 MiB at the end stay too, in each thread's arena, since returning them at every request
would cost the next one page faults, as would an M_MMAP_THRESHOLD below 1 MiB. A trim returns all free memory:
60 MiB take 2 to 7 ms, also from 16 arenas; under a steady load, or above the idle level, there is about one a minute.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core import process_memory

LOOK_EVERY_MS = 5_000
#: The minimum change of the resident memory, in bytes, that is worth a scan of the arenas.
GROWN_BYTES = 4 << 20
#: Maximum number of checks skipped after a trim, reached under a steady load, which allocates returned memory again.
MOST_LEFT_OUT = 11


class MemoryKeeper:
    """Release of the allocator's free memory when the resident memory of the process has changed much.

    Args: ``resident_bytes`` measures it, ``release`` trims it. Threads: one at a time calls ``look``.
    """

    def __init__(
        self,
        resident_bytes: Callable[[], int] = process_memory.resident_bytes,
        release: Callable[[], None] = process_memory.release_free_memory,
    ) -> None:
        self._resident_bytes = resident_bytes
        self._release = release
        self._least = self._lowest = self._highest = resident_bytes()
        self._unchanged, self._patience = 0, 1
        self._left_out = 0
        self._leave_out = 0

    def look(self) -> None:
        """Trim after a change by GROWN_BYTES since the last trim, in either direction: memory may be free only now.

        Without a change, trim at the first look and then once a minute while the resident memory is GROWN_BYTES above
        the minimum that was found: memory that was in use at the last trim may have become free inside the arenas,
        which does not change the resident memory.
        """
        if self._leave_out > 0:
            self._leave_out -= 1
            return
        found = self._resident_bytes()
        self._lowest, self._highest = min(self._lowest, found), max(self._highest, found)
        if max(found - self._lowest, self._highest - found) < GROWN_BYTES:
            self._left_out = 0
            self._unchanged += 1
            if found - self._least < GROWN_BYTES or self._unchanged < self._patience:
                return
            self._patience = MOST_LEFT_OUT
        else:
            self._patience = 1
        self._unchanged = 0
        self._release()
        self._lowest = self._highest = self._resident_bytes()
        self._least = min(self._least, self._lowest)
        self._left_out = min(2 * self._left_out + 1, MOST_LEFT_OUT)
        self._leave_out = self._left_out
