"""Loggers of the standard library that load it when there is something to log: a start is 5 ms shorter.

Until ``logging`` is imported no level and no handler can be set, so messages below a warning would be dropped.
"""

from __future__ import annotations

import _thread
import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import logging

_names: set[str] = set()
_shows_lower_levels = False
_lock = _thread.allocate_lock()  # for the handlers of the root
LINE = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"  # Kafka's


class _LazyLogger:
    """Becomes the logger of its name at the first use that counts. Threads: any."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute in ("debug", "info") and "logging" not in sys.modules:
            return _drop
        method = getattr(of_name(self._name), attribute)
        if callable(method):
            setattr(self, attribute, method)
        return method


def _drop(message: object, *arguments: object, **options: object) -> None:
    """Log nothing."""


def get_logger(name: str) -> logging.Logger:
    """Return what does as ``logging.getLogger(name)``."""
    _names.add(name)
    return cast("logging.Logger", _LazyLogger(name))


def show_lower_levels() -> None:
    """Let messages below a warning reach standard error too where a logger's level lets them through.

    For a program, before its first thread: without it the standard library writes warnings alone, whatever the level.
    """
    global _shows_lower_levels
    _shows_lower_levels = True


def of_name(name: str | None) -> logging.Logger:
    """Return a logger of the standard library, which is loaded now; None: the root."""
    import logging

    if _shows_lower_levels:
        with _lock:
            root = logging.getLogger()
            if not root.handlers and logging.lastResort is not None:
                lower = logging.StreamHandler()
                lower.addFilter(lambda record: record.levelno < logging.WARNING)
                lower.setFormatter(logging.Formatter(LINE))
                root.addHandler(lower)
                root.addHandler(logging.lastResort)  # warnings stay as they are
    return logging.getLogger(name)


def log_from_info(name: str) -> None:
    """Let a logger write what is at least INFO, unless its level is set."""
    import logging

    logger = of_name(name)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def logs_debug(name: str) -> bool:
    """Return whether a logger writes debug messages; loads nothing where no one can have asked for them."""
    if "logging" not in sys.modules:
        return False
    import logging

    return logging.getLogger(name).isEnabledFor(logging.DEBUG)


def names() -> list[str]:
    """The names asked for so far: ``logging`` itself may not know them yet."""
    return sorted(_names)
