"""`.ci/prerequisites`: missing packages are installed where that is allowed, and otherwise named with one command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "prerequisites"

pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="needs sh")


class Machine:
    """PATH with the given programs only, whose apt-get records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.asked = folder / "bin", folder / "asked"
        self.bin.mkdir()
        for name in ("basename", "cut", "id", "env", "sh", "true"):
            self.add(name, f'exec {shutil.which(name)} "$@"')

    def add(self, name: str, body: str) -> None:
        program = self.bin / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    def add_installer(self, user: int, installed: str = "") -> None:
        """Add `apt-get`, run as user ``user``, which creates the programs ``installed``."""
        self.add("id", f"echo {user}")
        made = " ".join(
            f"printf '#!/bin/sh\\n' > {self.bin}/{word}; chmod +x {self.bin}/{word};" for word in installed.split()
        )
        self.add(
            "apt-get",
            f'echo "$@" >> {self.asked}; case "$*" in *install*) {made} ;; esac; true'.replace("chmod", "/bin/chmod"),
        )

    def run(self, *words: str, **settings: str) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/sh", str(SCRIPT), *words],
            env={"PATH": str(self.bin), **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stdout == ""
        return done.returncode, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_said_where_all_is_there(machine: Machine) -> None:
    machine.add("c++", "")
    machine.add("python", f'exec {sys.executable} "$@"')
    assert machine.run("python") == (0, "")


def test_without_rights_one_command_names_every_package(machine: Machine) -> None:
    """A user without the right to install gets all packages in one line."""
    machine.add("id", "echo 1000")
    status, text = machine.run("python3", "kcat=kcat")
    assert status == 1
    assert text.splitlines()[-1] == (
        "on Debian and its like this installs it: sudo apt-get install -y g++ kcat python3 python3-venv python3-dev"
    )
    assert "kbroker needs kcat\n" in text


@pytest.mark.parametrize("user", [0, 1000])
def test_root_and_sudo_install(machine: Machine, user: int) -> None:
    """All packages are installed at once, and the prerequisites are checked again."""
    machine.add_installer(user, "c++ kcat")
    machine.add("sudo", 'shift; exec "$@"')
    machine.add("python", f'exec {sys.executable} "$@"')
    status, text = machine.run("python", "kcat=kcat")
    assert (status, text) == (
        0,
        "kbroker needs a C and C++17 compiler (c++ was not found)\nkbroker needs kcat\ninstalling g++ kcat\n",
    )
    assert machine.asked.read_text().splitlines() == ["update -qq", "install -y -qq --no-install-recommends g++ kcat"]


def test_a_sudo_that_asks_and_a_failed_installation_end_with_the_command(machine: Machine) -> None:
    machine.add_installer(1000)
    machine.add("python", f'exec {sys.executable} "$@"')
    machine.add("sudo", "exit 1")
    status, text = machine.run("python")
    assert (status, machine.asked.exists()) == (1, False)
    assert text.splitlines()[-1] == "on Debian and its like this installs it: sudo apt-get install -y g++"
    machine.add_installer(0)  # installs nothing
    status, text = machine.run("python")
    assert status == 1
    assert text.splitlines()[-1] == "on Debian and its like this installs it: apt-get install -y g++"
    assert machine.run("python", KBROKER_NO_INSTALL="1")[0] == 1
    assert machine.asked.read_text().count("install -y") == 1


def test_an_interpreter_of_no_package_has_no_command(machine: Machine) -> None:
    """The missing parts of an interpreter that apt-get does not have are named, and nothing is installed."""
    machine.add_installer(0)
    machine.add("c++", "")
    machine.add(
        "pypy3",
        'case "$2" in *ensurepip*) exit 1 ;; *Python.h*) echo /nowhere/Python.h ;; *%d.%d*) echo 3.11 ;; esac',
    )
    status, text = machine.run("pypy3")
    assert (status, text) == (
        1,
        "kbroker needs Python's venv module\nkbroker needs Python's headers (no /nowhere/Python.h)\n",
    )
    assert not machine.asked.exists()


def test_an_old_interpreter_is_no_package(machine: Machine) -> None:
    """Nothing is installed for an old interpreter: the message names the setting for another."""
    machine.add_installer(0)
    machine.add("c++", "")
    machine.add("old", 'case "$2" in *exit*) exit 1 ;; esac; echo 3.9')
    status, text = machine.run("old")
    assert (status, text) == (1, "kbroker needs Python 3.10 or later (old is 3.9; PYTHON=... names another)\n")
    assert not machine.asked.exists()
    assert os.access(SCRIPT, os.X_OK)
