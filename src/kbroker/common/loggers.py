"""Loggers that import the standard library's ``logging`` with the first message: a start is 5 ms shorter.

Until ``logging`` is imported, no level and no handler can be set, so messages below WARNING are dropped.
"""

from __future__ import annotations

import _thread
import sys
from typing import TYPE_CHECKING, Any, cast

from kbroker.common.printable import printable

if TYPE_CHECKING:
    import logging

_names: set[str] = set()
_writes_lines = False
_lock = _thread.allocate_lock()  # guards the handlers of the root
LINE = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"  # Kafka's format


class _LazyLogger:
    """Placeholder that becomes the logger of its name at the first message that may be written. Threads: any."""

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
    """Return an object with the methods of ``logging.getLogger(name)``."""
    _names.add(name)
    return cast("logging.Logger", _LazyLogger(name))


def write_lines() -> None:
    """Write messages of all levels to standard error as lines in Kafka's form, if a logger's level allows them.

    A program calls this before its first thread; without it, the standard library writes only the texts of warnings.
    """
    global _writes_lines
    _writes_lines = True


def of_name(name: str | None) -> logging.Logger:
    """Import ``logging`` and return its logger of this name; None: the root."""
    import logging

    if _writes_lines:
        with _lock:
            root = logging.getLogger()
            if not root.handlers:
                logging.addLevelName(logging.WARNING, "WARN")
                logging.addLevelName(logging.CRITICAL, "FATAL")
                handler = logging.StreamHandler()
                handler.setFormatter(_formatter())
                root.addHandler(handler)
    return logging.getLogger(name)


def _formatter() -> logging.Formatter:
    """Return a formatter of lines that no name from a client can end, colour or reverse."""
    import logging

    class OneLine(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:
            record.message = printable(record.message)
            return super().formatMessage(record)

        def formatException(self, ei: Any) -> str:
            return "\n".join(map(printable, super().formatException(ei).split("\n")))

    return OneLine(LINE)


def log_from_info(name: str) -> None:
    """Make a logger write messages from INFO on, unless its level is set."""
    import logging

    logger = of_name(name)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def logs_debug(name: str) -> bool:
    """Return whether a logger writes debug messages; does not import ``logging`` if no level can have been set."""
    if "logging" not in sys.modules:
        return False
    import logging

    return logging.getLogger(name).isEnabledFor(logging.DEBUG)


def names() -> list[str]:
    """Return the names of all loggers requested so far, which ``logging`` itself may not have yet."""
    return sorted(_names)
