"""Containers without an engine: the image's file system in namespaces, for tests that run as root.

A container has the parts that start scripts and clients can see: a root file system above the unchanged image, process
ids, a network with only the loopback interface, mapped ports, files put into it, programs executed in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support import need

ROOT = Path(__file__).resolve().parents[2]
PATH = "/opt/kbroker/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEADLINE_S = 60.0
CLONE_NEWNET = 0x40000000
# $1: folder of the container, $2: image, $3: its host name, $4: options of a read-only root, then mounts as HOST:INSIDE
# or tmpfs:INSIDE, then --, user:group, and the command
SETUP = """
set -e
folder=$1 image=$2 name=$3 options=$4
shift 4
mount --make-rprivate /
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
root=$folder/root
mount -t overlay overlay -o "lowerdir=$image,upperdir=$folder/upper,workdir=$folder/work" "$root"
hostname "$name"
echo "127.0.0.1 localhost $name" > "$root/etc/hosts"
busybox ip link set lo up
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
  mkdir -p "$root/${1#*:}"
  if [ "${1%%:*}" = tmpfs ]; then
    mount -t tmpfs -o mode=1777 tmpfs "$root/${1#*:}"
  else
    mount --bind "${1%%:*}" "$root/${1#*:}"
  fi
  shift
done
user=$2
shift 2
[ -z "$options" ] || mount -o "remount,$options" "$root"
exec chroot --userspec="$user" "$root" /bin/sh -c 'cd "$1"; shift; exec "$@"' sh "$WORKDIR" "$@"
"""


def require() -> None:
    """Skip the test, with the reason, if this machine cannot create namespaces."""
    need.program("unshare", "nsenter", "busybox", "strip")
    if os.geteuid() != 0:
        need.lack("needs root, for the namespaces of a container")
    if subprocess.run(["unshare", "-mnpuf", "true"], capture_output=True, check=False).returncode != 0:
        need.lack("this machine allows no namespaces, as in most containers")


def make_image(folder: Path) -> Path:
    """Create the file system of the image with the program that Containerfile runs."""
    subprocess.run([sys.executable, str(ROOT / ".ci" / "image" / "filesystem.py"), str(folder)], check=True)
    return folder


class Container:
    """Running container.

    Args:
        image: folder of its file system.
        folder: empty folder for the container's own files.
        command: the program, as in the exec form of CMD.
        env: the environment, besides the image's PATH.
        ports: ports inside, each mapped to a port of 127.0.0.1.
        user: user and group, as numbers.
        is_read_only: mount the root read-only.
        mounts: ``HOST:INSIDE`` folders; ``tmpfs:INSIDE``.
    """

    def __init__(
        self,
        image: Path,
        folder: Path,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        ports: Sequence[int] = (9092,),
        user: str = "1000:0",
        workdir: str = "/opt/kafka",
        hostname: str = "4f1c2d7e9a0b",
        is_read_only: bool = False,
        mounts: Sequence[str] = (),
    ) -> None:
        self.hostname = hostname
        self._env = {"PATH": PATH, "HOME": "/home/appuser", **(env or {})}
        self._user = user
        folder.mkdir(parents=True, exist_ok=True)
        self._log_file = folder.with_suffix(".log")
        words = ["unshare", "-mnpuf", "bash", "-c", SETUP, "setup", str(folder), str(image)]
        words += [self.hostname, "ro" if is_read_only else "", *mounts, "--", user, *command]
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                words, env={**self._env, "WORKDIR": workdir, "PATH": os.environ["PATH"] + ":" + PATH},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._ports: dict[int, _Mapping] = {}
        try:
            self._pid = self._first_process()
            if self._pid:
                self._ports = {port: _Mapping(self._pid, port) for port in ports}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the container and close its ports."""
        for mapping in self._ports.values():
            mapping.close()
        for child in self._children():  # process 1; the kernel drops --kill-child when a process changes its user
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """Return all output so far."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def mapped(self, port: int) -> int:
        """Return the port of 127.0.0.1 that leads to a port inside."""
        return self._ports[port].port

    def wait_for_log(self, pattern: str, timeout_s: float = DEADLINE_S) -> str:
        """Return the first line that contains the pattern; fail at the deadline, or once the container has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self._process.poll() is not None
            for line in self.log().splitlines():
                if re.search(pattern, line):
                    return line
            assert not has_ended, f"the container has ended with {self._process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"no line with {pattern}:\n{self.log()}"
            time.sleep(0.01)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Return the exit status of the container's command."""
        return self._process.wait(timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal to process 1, as `docker stop` and `docker kill` do."""
        os.kill(self._pid, number)

    def exec(
        self, *command: str, stdin: str = "", user: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the container, as `docker exec -i` does."""
        words = self.command_inside(*command, user=user)
        return subprocess.run(
            words, env={**self._env, **(env or {}), "PATH": f"{PATH}:{os.environ['PATH']}"},
            input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def command_inside(self, *command: str, user: str | None = None) -> list[str]:
        """Return the command on this machine that runs a program in the container."""
        user_id, _, group_id = (user or self._user).partition(":")
        words = ["nsenter", "-t", str(self._pid), "-m", "-n", "-p", "-u", "-r", "-w", "-S", user_id, "-G", group_id]
        return [*words, *command]

    def exit_status(self) -> int | None:
        """Return the exit status, or None while the container runs."""
        return self._process.poll()

    def run_beside(self, *command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a program of this machine in the container's network."""
        words = ["nsenter", "-t", str(self._pid), "-n", *command]
        return subprocess.run(
            words, env={**os.environ, **env}, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    def put(self, path: str, text: str, mode: int) -> None:
        """Write a file owned by root into the container, as `docker cp` does: complete under its name."""
        script = f"cat > {path}.new && chmod {mode:o} {path}.new && mv {path}.new {path}"
        done = self.exec("sh", "-c", script, stdin=text, user="0:0")
        assert done.returncode == 0, done.stderr

    def _first_process(self) -> int:
        """Return this machine's id of the container's process 1 once its root is mounted, or 0 if it has ended."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return 0
            for pid in self._children():
                with contextlib.suppress(OSError):
                    if os.path.realpath(f"/proc/{pid}/root") != "/":
                        return pid
            time.sleep(0.002)
        raise AssertionError("the container does not start")

    def _children(self) -> list[int]:
        with contextlib.suppress(OSError):
            return list(
                map(int, Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split())
            )
        return []


class _Mapping:
    """Port of 127.0.0.1 whose connections are forwarded to a port of a network namespace."""

    def __init__(self, pid: int, inside: int) -> None:
        self._inside = inside
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._run, name=f"mapped-{inside}", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _run(self) -> None:
        enter = ctypes.CDLL(None, use_errno=True).setns
        if enter(self._namespace, CLONE_NEWNET) != 0:  # the namespace of this thread only
            raise OSError(ctypes.get_errno(), "setns")
        os.close(self._namespace)
        with contextlib.suppress(OSError):
            while True:
                outer, _ = self._listening.accept()
                try:
                    inner = socket.create_connection(("127.0.0.1", self._inside))
                except OSError:
                    outer.close()
                    continue
                threading.Thread(target=_pump, args=(outer, inner), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes both ways until a side closes."""
    with one, other, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                data = source.recv(65536)
                if not data:
                    return
                key.data.sendall(data)


@contextlib.contextmanager
def image_in(folder: Path) -> Iterator[Path]:
    """Create the image in a folder, yield it and remove it."""
    require()
    try:
        yield make_image(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
