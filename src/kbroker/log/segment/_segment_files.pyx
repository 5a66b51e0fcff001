"""The files of a partition's folder: interrupted replacements are finished or dropped before the log is read.

Source: ``LogLoader.removeTempFilesAndCollectSwapFiles`` and the code after it.
"""
import os
import re

from libc.stdint cimport INT64_MAX, int64_t
from kbroker.log._posix cimport io_sync_directory
from kbroker.protocol._batch_format cimport BATCH_HEADER_BYTES

SEGMENT_NAME = re.compile(r"(\d{20})\.log\Z")
SNAPSHOT_NAME = re.compile(r"(\d{20})\.snapshot\Z")
SEGMENT_FILES = (".log", ".index", ".timeindex", ".txnindex")


def end_of_batches(path: str) -> int:
    """Return the offset after the last batch of a segment file, by its headers, or its base when it is empty."""
    end = int(os.path.basename(path)[:20])
    with open(path, "rb") as file:
        while len(header := file.read(BATCH_HEADER_BYTES)) == BATCH_HEADER_BYTES:
            end = int.from_bytes(header[:8], "big") + int.from_bytes(header[23:27], "big") + 1
            file.seek(int.from_bytes(header[8:12], "big") + 12 - BATCH_HEADER_BYTES, os.SEEK_CUR)
    return end


def finish_swaps(directory: str) -> None:
    """Let compacted segments whose .log has the suffix .swap, which are complete, replace the segments they were made
    from.

    This can be repeated after another stop: the log is the last to get its name. Indexes without such a log are
    dropped.
    """
    names = sorted(os.listdir(directory))
    for name in names:
        if not (name.endswith(".log.swap") and SEGMENT_NAME.match(name.removesuffix(".swap"))):
            continue
        base = int(name[:20])
        end = end_of_batches(os.path.join(directory, name))
        for old in names:                       # oldest first: a record is removed before the one that supersedes it
            if SEGMENT_NAME.match(old) and base < int(old[:20]) < end:
                for suffix in (*SEGMENT_FILES, ".snapshot"):
                    remove_if_there(os.path.join(directory, old[:20] + suffix))
        for suffix in (".index", ".timeindex", ".txnindex"):    # missing: it already has its final name
            swap = os.path.join(directory, name[:20] + suffix + ".swap")
            if os.path.exists(swap):
                os.replace(swap, swap.removesuffix(".swap"))
        sync_directory(directory)
        os.replace(os.path.join(directory, name), os.path.join(directory, name.removesuffix(".swap")))


cdef int remove_if_there(str path) except -1:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    return 0


cdef int sync_directory(str directory) except -1:
    cdef bytes path = os.fsencode(directory)
    cdef int rc = io_sync_directory(<const char *>path)
    if rc != 0:
        raise OSError(-rc, os.strerror(-rc), directory)
    return 0


def tidy_folder(directory: str) -> tuple[list[int], list[int]]:
    """Finish or drop interrupted work; return the bases of the segments and the offsets of the snapshots."""
    names = os.listdir(directory)
    if any(name.endswith(".swap") for name in names):
        finish_swaps(directory)
        names = os.listdir(directory)
    bases: list[int] = []
    snapshots: list[int] = []
    for name in names:
        if name.endswith((".cleaned", ".deleted", ".tmp", ".swap")):
            os.unlink(os.path.join(directory, name))
        elif match := SEGMENT_NAME.match(name):
            if int(match[1]) <= INT64_MAX:
                bases.append(int(match[1]))
        elif match := SNAPSHOT_NAME.match(name):
            if int(match[1]) <= INT64_MAX:
                snapshots.append(int(match[1]))
    known = set(bases)
    for name in names:
        if name.endswith((".index", ".timeindex", ".txnindex")) and name[:20].isdigit() and int(name[:20]) not in known:
            os.unlink(os.path.join(directory, name))
    return sorted(bases), sorted(snapshots)


cdef int remove_segment(str directory, int64_t base) except -1:
    for suffix in SEGMENT_FILES:
        remove_if_there(os.path.join(directory, f"{base:020d}{suffix}"))
    return 0


cdef int remove_snapshot(str directory, int64_t offset) except -1:
    return remove_if_there(os.path.join(directory, f"{offset:020d}.snapshot"))
