"""Limit of open files of this process: read it, raise it, and explain how to raise it."""

from __future__ import annotations

from kbroker.common.loggers import get_logger

logger = get_logger(__name__)

#: Highest limit that is requested: setrlimit fails above the system's own maximum.
MOST = 1 << 20


def open_files_limit() -> int | None:
    """Return the soft limit of open files of this process; None if unlimited."""
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit(wanted: int) -> None:
    """Raise the soft limit of open files towards ``wanted``, up to the hard limit; never lower it."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = min(wanted, MOST) if hard == resource.RLIM_INFINITY else min(wanted, MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError) as error:
        logger.debug("cannot raise the limit of open files: %s", error)


def more_open_files(needed: int | None = None) -> str:
    """Return a sentence for people: the limit expected, the limit found, the way to raise it.

    Args: ``needed`` descriptors; None if the number is unknown but above the limit.
    """
    limit = open_files_limit()
    found = "no limit" if limit is None else str(limit)
    expected = f"at least {needed}" if needed is not None else "more descriptors than there are"
    return (
        f"the limit of open files is too low: expected {expected}, found {found}; "
        f"raise it (ulimit -n, LimitNOFILE in a systemd unit, --ulimit nofile of a container)"
    )
