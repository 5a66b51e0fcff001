"""Wall clock of a process, which a test sets ahead or back while the process runs: see `clock_jump.c`."""

import mmap
from pathlib import Path

from tests.support.preloaded import preloaded

SOURCE = Path(__file__).with_suffix(".c")


class ClockJump:
    """Control of the wall clock of processes started with ``wrapper``. Args: ``place``: folder for their files."""

    def __init__(self, place: Path) -> None:
        library, control = preloaded(SOURCE), place / "clock_jump.control"
        control.write_bytes(bytes(4096))
        self.wrapper = ("env", f"LD_PRELOAD={library}", f"CLOCK_JUMP={control}")
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)

    def set_ahead(self, seconds: int) -> None:
        """Set the difference from the real clock; a negative number sets the clock back."""
        self._map[:8] = seconds.to_bytes(8, "little", signed=True)
