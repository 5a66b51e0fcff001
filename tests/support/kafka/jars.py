"""Jars of Apache Kafka, fetched by Maven, and the commands that run classes from them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import uuid
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[3]
VERSION = "4.3.1"
BUILD = ROOT / "build" / "kafka"
POM = Path(__file__).with_name("pom.xml")
MAVEN_TIMEOUT_S = 900
# A tool or a broker of a test runs for seconds, in which a second compiler and a parallel collector save no time.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
SHORT_LIVED = ("-Xmx512m", *QUICK_START)


class Unavailable(Exception):
    """Apache Kafka cannot run on this machine; the message names the missing program."""


def program(name: str) -> str:
    """Return the path of `java`, `javac` or `mvn`, first from JAVA_HOME. Raises: Unavailable if it is not installed."""
    home = os.environ.get("JAVA_HOME")
    inside = Path(home, "bin", name) if home else None
    found = str(inside) if inside is not None and inside.exists() else shutil.which(name)
    if found is None:
        packages = {"java": "openjdk-17-jre-headless", "javac": "openjdk-17-jdk-headless", "mvn": "maven"}
        raise Unavailable(f"needs {name}; on Debian: apt-get install {packages[name]}")
    return found


def run_maven(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Maven in half of its CPU time, without the second compiler. Raises: Unavailable if it is not installed."""
    options = " ".join((*QUICK_START, os.environ.get("MAVEN_OPTS", "")))
    return subprocess.run(
        [program("mvn"), "-q", "-B", *words],
        env={**os.environ, "MAVEN_OPTS": options},
        capture_output=True,
        text=True,
        timeout=MAVEN_TIMEOUT_S,
        check=False,
    )


def classpath(version: str = VERSION, pom: Path = POM) -> str:
    """Return the class path of a version; Maven runs only if a jar is missing on this machine.

    Safe in several processes at once. Raises: Unavailable if Maven is missing or fails.

    Args:
        pom: file with the dependencies; `kafka.version` is set for it.
    """
    folder = BUILD / version
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"classpath-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            known = kept.read_text(encoding="utf-8").strip()
            if all(Path(jar).exists() for jar in known.split(os.pathsep)):
                return known
        fresh = folder / "classpath.new"
        done = run_maven(
            *("-f", str(pom), f"-Dkafka.version={version}", "dependency:build-classpath", f"-Dmdep.outputFile={fresh}")
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise Unavailable(f"Maven did not fetch the dependencies of {pom.name} with Apache Kafka {version}: {said}")
        fresh.replace(kept)
        return kept.read_text(encoding="utf-8").strip()


class ClassArchive:
    """Archive of the classes that a program loads, with which a JVM starts in half the CPU time.

    The first JVM of the program that is not ended by SIGKILL writes the archive, for which it takes as much CPU time
    as four starts with the archive save, or more.

    Args:
        name: of the program. jars: the first jars of the class path, before any folder.
        version: of Apache Kafka.
        is_read_at_once: the run that writes the archive starts the program many times. Otherwise the archive is
            written in the second run of this clone, since no start of the first run would read it.
    """

    _new: ClassVar[set[Path]] = set()  # programs that started for the first time in this process

    def __init__(self, name: str, jars: str, version: str = VERSION, *, is_read_at_once: bool = False) -> None:
        mark = hashlib.sha256((jars + program("java")).encode()).hexdigest()[:12]
        self._path = BUILD / version / f"{name}-{mark}.jsa"
        self._started = None if is_read_at_once else self._path.with_suffix(".started")

    @classmethod
    def of_node(cls, version: str = VERSION) -> ClassArchive:
        """Return the archive that a node of Apache Kafka writes and that its tools and clients read."""
        return cls("classes", classpath(version), version, is_read_at_once=True)

    def exists(self) -> bool:
        """Return whether the archive was written."""
        return self._path.exists()

    def is_due(self) -> bool:
        """Return whether the JVM of this run writes the archive."""
        if self._started is not None and not self._started.exists():
            self._started.parent.mkdir(parents=True, exist_ok=True)
            self._started.touch()
            self._new.add(self._started)
        return self._started not in self._new and not self.exists()

    def options(self, written: Path | None = None) -> tuple[str, ...]:
        """Return the JVM options that read the archive, or if it is due, write it into a file at the JVM's end."""
        if self.exists():
            return f"-XX:SharedArchiveFile={self._path}", "-Xlog:disable"
        return () if written is None or not self.is_due() else (f"-XX:ArchiveClassesAtExit={written}", "-Xlog:disable")

    def keep(self, written: Path) -> None:
        """Store the archive that a JVM has written into a file."""
        if written.exists() and not self.exists():
            part = self._path.with_suffix(f".{uuid.uuid4().hex}")
            shutil.copy(written, part)
            part.replace(self._path)


def java_command(
    main: str,
    *arguments: str,
    options: Sequence[str] = SHORT_LIVED,
    log_level: str = "warn",
    before: str = "",
    classes: Path | None = None,
    pom: Path = POM,
    version: str = VERSION,
) -> list[str]:
    """Return the command that runs a class with Kafka's jars, or with the jars of another `pom`.

    Args:
        main: a class, or the path of a single source file, which `java` compiles.
        options: of the virtual machine; with those of SHORT_LIVED first, the archive of classes is used if it exists.
        before: jars at the beginning of the class path.
        classes: jar of compiled classes at the end of the class path, after the jars of the archive.
        version: of Apache Kafka.
    """
    parts = (before, classpath(version, pom), "" if classes is None else str(classes))
    quiet = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    if tuple(options[: len(SHORT_LIVED)]) == SHORT_LIVED and pom == POM and not before:
        options = (*options, *ClassArchive.of_node(version).options())
    return [program("java"), *options, quiet, "-cp", os.pathsep.join(filter(None, parts)), main, *arguments]


def compiled(*sources: Path, pom: Path = POM) -> Path:
    """Compile Java sources against Kafka's jars unless they are unchanged; return the jar of their classes.

    `pom` names other jars. Safe in several processes at once. Raises: Unavailable without javac; RuntimeError if a
    source does not compile.
    """
    jars = classpath(pom=pom)
    inputs = [VERSION.encode(), pom.read_bytes(), *(source.read_bytes() for source in sources)]
    mark = hashlib.sha256(b"\0".join(inputs)).hexdigest()[:16]
    jar = BUILD / VERSION / "classes" / f"{sources[0].stem}-{mark}.jar"
    if not jar.exists():
        part = jar.with_suffix(f".{uuid.uuid4().hex}")
        quick = (f"-J{option}" for option in QUICK_START)
        command = [program("javac"), *quick, "-Xlint:all", "-Werror", "-proc:none", "-d", str(part), "-cp", jars]
        done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            shutil.rmtree(part, ignore_errors=True)
            raise RuntimeError(f"javac of {sources[0].name} failed:\n{done.stdout}{done.stderr}")
        made = part.with_suffix(f"{part.suffix}.zip")
        with zipfile.ZipFile(made, "w") as archive:
            for path in sorted(part.rglob("*.class")):
                archive.write(path, path.relative_to(part))
        shutil.rmtree(part)
        with contextlib.suppress(FileExistsError):  # another process was faster; class archives depend on its time
            os.link(made, jar)
        made.unlink()
    return jar
