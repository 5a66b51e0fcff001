"""Packages and programs that the measurements of run.py need, checked together before the first one."""

import importlib.util
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

INSTALL = "pip install -r bench/requirements.txt"
CLIENTS = {"kafka", "producer", "transactions", "coordination", "another build"}  # measure with librdkafka
KAFKA = {"kafka", "transactions", "durable", "codecs", "spread", "latency", "encrypted", "coordination", "share"}


@dataclass(frozen=True)
class Lack:
    """Missing prerequisite: its name, the measurements that need it, and the command that installs it.

    Without a required prerequisite nothing is measured; without another one only its rows are omitted.
    """

    name: str
    needed_by: tuple[str, ...]
    install: str
    is_required: bool = True

    def __str__(self) -> str:
        left_out = "" if self.is_required else "; left out: " + ", ".join(self.needed_by)
        of = f" ({', '.join(self.needed_by)})" if self.needed_by and self.is_required else ""
        return f"needs {self.name}{of}: {self.install}{left_out}"


def has_java(program: str) -> bool:
    """Return whether a program of the JDK, or Maven, is in JAVA_HOME or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return (home is not None and Path(home, "bin", program).exists()) or shutil.which(program) is not None


def missing(measures: Iterable[str], plot: bool = False) -> list[Lack]:
    """Return the missing prerequisites of the measurements, required ones first."""
    wanted = set(measures)
    found = []

    def check(is_there: bool, name: str, users: set[str], install: str, is_required: bool = True) -> None:
        if not is_there and wanted & users:
            found.append(Lack(name, tuple(sorted(wanted & users)), install, is_required))

    check(any(map(shutil.which, ("cc", "gcc", "clang"))), "a C compiler", wanted, "on Debian, apt-get install gcc")
    check(importlib.util.find_spec("confluent_kafka") is not None, "confluent-kafka", CLIENTS, INSTALL)
    if plot and importlib.util.find_spec("matplotlib") is None:
        found.append(Lack("matplotlib", ("--plot",), INSTALL))
    check(has_java("java"), "Java 17", KAFKA, "on Debian, apt-get install openjdk-17-jre-headless", is_required=False)
    check(has_java("mvn"), "Maven", KAFKA, "on Debian, apt-get install maven", is_required=False)
    check(shutil.which("openssl") is not None, "openssl", {"encrypted"}, "on Debian, apt-get install openssl", False)
    check(shutil.which("go") is not None, "Go", {"kfake"}, "see https://go.dev/dl", is_required=False)
    return found
