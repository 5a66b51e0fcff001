"""Lock for a thread that takes it many times in a row while others wait for it."""

import threading


class FairLock:
    """Reentrant lock: a thread that releases it and takes it again waits for its turn behind the next waiting thread.

    Plain locks of Python would be taken again at once, before a waiting thread has woken.

    Threads: any; a context manager only.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()  # held by the waiting thread whose turn is next
        self._lock = threading.Lock()
        self._owner = 0  # id of the holding thread, or 0; only that thread can find its own id here
        self._depth = 0

    def __enter__(self) -> bool:
        thread = threading.get_ident()
        if self._owner != thread:
            with self._next:
                self._lock.acquire()
            self._owner = thread
        self._depth += 1
        return True

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = 0
            self._lock.release()
