"""Python process that resembles Windows: modules, functions and signals that Windows lacks are removed.

    python -m tests.support.no_posix FOLDER

The process imports every module of kbroker and sends a record through a broker with the portable poller. Modules that
other packages and the standard library import stay: only kbroker's own imports and calls are checked. Prints the
modules, then `done`.
"""

import contextlib
import importlib
import os
import pkgutil
import select
import selectors
import signal
import subprocess
import sys
import types
from pathlib import Path

MODULES = (
    "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty",
)  # fmt: skip
OS_NAMES = (
    "O_ASYNC", "O_CLOEXEC", "O_DIRECT", "O_DIRECTORY", "O_DSYNC", "O_NOATIME", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK",
    "O_PATH", "O_SYNC", "chown", "chroot", "eventfd", "fchdir", "fchmod", "fchown", "fdatasync", "fork", "forkpty",
    "fpathconf", "fstatvfs", "getegid", "geteuid", "getgid", "getgroups", "getloadavg", "getpgid", "getpriority",
    "getrandom", "getuid", "killpg", "lchown", "lockf", "memfd_create", "mkfifo", "mknod", "nice", "openpty",
    "pathconf", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate", "posix_spawn", "pread", "preadv", "pwrite",
    "pwritev", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sched_yield", "sendfile", "setgid",
    "setpriority", "setsid", "setuid", "statvfs", "sync", "sysconf", "ttyname", "uname", "wait", "wait3", "wait4",
    "writev", "readv",
)  # fmt: skip
SIGNALS = ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "pthread_sigmask")
SELECTORS = ("DevpollSelector", "EpollSelector", "KqueueSelector", "PollSelector")
LIST = "import tests.support.no_posix as n; n.import_all(); import sys; print(*sys.modules)"


def import_all() -> list[str]:
    """Import every module below kbroker; return their names."""
    names = ["kbroker"]
    for found in names:
        module = importlib.import_module(found)
        if hasattr(module, "__path__"):
            inside = [one.name for one in pkgutil.iter_modules(module.__path__, f"{found}.")]
            names += [name for name in inside if not name.endswith(".__main__")]
    return names


def stand_in_for_msvcrt() -> types.ModuleType:
    """Return a module that locks one byte at the file's position, as msvcrt.locking does."""
    import fcntl

    def locking(fd: int, mode: int, count: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, count, os.lseek(fd, 0, os.SEEK_CUR))

    module = types.ModuleType("msvcrt")
    vars(module).update(locking=locking, LK_NBLCK=2)
    return module


def take_away() -> None:
    """Make all later imports find a Python that resembles Windows."""
    others = subprocess.run([sys.executable, "-c", LIST], check=True, capture_output=True, text=True).stdout.split()
    for name in others:
        if not name.startswith(("kbroker", "tests", "__")):
            with contextlib.suppress(ImportError):  # the shared module of Cython's modules has no file
                importlib.import_module(name)
    sys.modules["msvcrt"] = stand_in_for_msvcrt()
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in (
        (os, OS_NAMES), (signal, SIGNALS), (select, ("epoll", "poll", "kqueue")), (selectors, SELECTORS),
    ):  # fmt: skip
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc, assignment]
    sys.platform = "win32"


def main() -> None:
    folder = Path(sys.argv[1])
    take_away()
    assert not [name for name in sys.modules if name.startswith("kbroker")]
    print(*import_all())

    from kbroker.client.cluster import Cluster
    from kbroker.client.producer import Producer
    from kbroker.log.folder_lock import FolderLock, FolderLockedError
    from kbroker.testing import EmbeddedBroker

    with EmbeddedBroker({"log.dirs": folder, "kbroker.poller": "selectors"}) as broker:
        broker.create_topic("t")
        with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
            producer.send("t", b"carried")
        try:
            FolderLock(folder)
        except FolderLockedError as error:
            print("locked:", error)
    with EmbeddedBroker({"log.dirs": folder, "kbroker.poller": "auto"}) as again:
        assert [record.value for record in again.records("t")] == [b"carried"]
    print("done")


if __name__ == "__main__":
    main()
