"""Open descriptors of a process, from /proc."""

import os


def descriptors(pid: int | None = None) -> set[tuple[str, str]]:
    """Return number and target of each descriptor, of this process by default: another file at a number is another one.

    A descriptor that is closed meanwhile, such as that of the listing, is not among them.
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
