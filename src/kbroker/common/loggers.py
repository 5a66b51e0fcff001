"""Loggers of the standard library that load it when there is something to log: a start is 5 ms shorter.

Until ``logging`` is imported no level and no handler can be set, so messages below a warning would be dropped.
"""

from __future__ import annotations

import sys

from kbroker.common.light_typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import logging

_names: set[str] = set()


class _LazyLogger:
    """Becomes the logger of its name at the first use that counts. Threads: any."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute in ("debug", "info") and "logging" not in sys.modules:
            return _drop
        import logging

        method = getattr(logging.getLogger(self._name), attribute)
        if callable(method):
            setattr(self, attribute, method)
        return method


def _drop(message: object, *arguments: object, **options: object) -> None:
    """Log nothing."""


def get_logger(name: str) -> logging.Logger:
    """Return what does as ``logging.getLogger(name)``."""
    _names.add(name)
    return cast("logging.Logger", _LazyLogger(name))


def logs_debug(name: str) -> bool:
    """Whether a logger writes debug messages; loads nothing where no one can have asked for them."""
    if "logging" not in sys.modules:
        return False
    import logging

    return logging.getLogger(name).isEnabledFor(logging.DEBUG)


def names() -> list[str]:
    """The names asked for so far: ``logging`` itself may not know them yet."""
    return sorted(_names)
