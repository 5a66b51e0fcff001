"""Watch over the log directories of a member, which opens no log and so would not detect a failure on its own.

Source: ``LogDirFailureHandler``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kbroker.log.log_dir import LogDir
from kbroker.member.lifecycle import BrokerLifecycle

LOOK_EVERY_MS = 10_000


class DirectoryWatch:
    """Report of failed log directories to the controller. Threads: one at a time.

    Args: ``log_dirs``: those that were online at the start; ``home``: that of the metadata log; ``on_failure``: ends
    the broker, called with the reason if ``home`` fails.
    """

    def __init__(
        self, log_dirs: Sequence[LogDir], home: LogDir, lifecycle: BrokerLifecycle, on_failure: Callable[[str], None]
    ) -> None:
        self._log_dirs = [home, *(one for one in log_dirs if one is not home)]
        self._home = home
        self._lifecycle = lifecycle
        self._on_failure = on_failure

    def look(self) -> None:
        """Read each directory that is online, and report those that cannot be read."""
        for log_dir in self._log_dirs:
            if log_dir.is_offline:
                continue
            try:
                with os.scandir(log_dir.path) as entries:
                    next(entries, None)
            except OSError as error:
                if not log_dir.note_failure("reading it", error):
                    continue
                if log_dir is self._home:
                    self._on_failure(f"the folder of the metadata log has failed: {error}")
                else:
                    self._lifecycle.report_failed_directory(log_dir.directory_id)
