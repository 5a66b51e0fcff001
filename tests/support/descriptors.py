"""Open file descriptors of a process, from /proc."""

import os


def descriptors(pid: int | None = None) -> set[tuple[str, str]]:
    """Return the number and target of each descriptor of a process, by default this one.

    A descriptor that is closed during the listing, such as that of the listing itself, is left out.
    """
    found = set()
    for entry in os.scandir(f"/proc/{pid or 'self'}/fd"):
        try:
            found.add((entry.name, os.readlink(entry.path)))
        except FileNotFoundError:
            continue
    return {(number, target) for number, target in found if not target.endswith("/fd")}


def socket_count(pid: int | None = None) -> int:
    """Return the number of open sockets; log files are opened and closed at any time."""
    return sum(target.startswith("socket:") for _, target in descriptors(pid))
