"""Limits of this process, lowered for the length of a block: calls that a full disk or a busy process would refuse."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


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
    """No file can be opened (EMFILE); those that are open can be used."""
    free = os.dup(0)
    os.close(free)
    with _lowered(resource.RLIMIT_NOFILE, free):
        yield


@contextmanager
def no_file_growth() -> Iterator[None]:
    """No file can become larger (EFBIG), as on a full disk."""
    with _lowered(resource.RLIMIT_FSIZE, 0):
        yield
