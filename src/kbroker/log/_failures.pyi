KINDS: tuple[str, ...]

def take_failures(folder: str) -> list[tuple[str, str, int, int]]:
    """Take what failed in partitions of a log folder since the last call.

    Returns: (name of the partition's folder, "append", "read" or "sync", errno, count); errno 0: the partition itself
    refuses, or holds what is no batch.
    Threads: any.
    """
