"""Limits of this process, lowered within a block: calls fail as on a full disk or in a busy process."""

import ctypes
import gc
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.compiled import SANITIZE


@contextmanager
def _lowered(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Refuse to open files (EMFILE); files that are already open can be used."""
    free = os.dup(0)
    os.close(free)
    with _lowered(resource.RLIMIT_NOFILE, free):
        yield


@contextmanager
def no_file_growth(size_bytes: int = 0) -> Iterator[None]:
    """Refuse to enlarge files (EFBIG) beyond a size, as on a full disk."""
    with _lowered(resource.RLIMIT_FSIZE, size_bytes):
        yield


@contextmanager
def no_mappings() -> Iterator[None]:
    """Refuse to map files (ENOMEM), as in a process with vm.max_map_count mappings; skip with a sanitizer."""
    if SANITIZE:
        pytest.skip("a sanitizer ends a process that has no mappings left")
    gc.collect()  # memory that is unmapped later would make room
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    page = mmap.PAGESIZE
    pages = 2 * int(Path("/proc/sys/vm/max_map_count").read_text())
    area = libc.mmap(None, pages * page, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    try:
        for at in range(area, area + pages * page, 2 * page):  # each page without rights (PROT_NONE) splits a mapping
            if libc.mprotect(at, page, 0) != 0:
                break
        else:
            raise AssertionError("vm.max_map_count was not reached")
        yield
    finally:
        libc.munmap(area, pages * page)
