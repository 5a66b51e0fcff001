"""Descendants of a process on this machine."""

from pathlib import Path


def processes(parent: int) -> dict[int, str]:
    """Return all descendants of a process with their command lines."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(stat[1]), []).append(int(folder.name))
    found: dict[int, str] = {}
    waiting = [parent]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            try:
                found[pid] = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            waiting.append(pid)
    return found
