"""The jars of Apache Kafka, fetched by Maven, and the commands that run classes from them."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VERSION = "4.3.1"
BUILD = ROOT / "build" / "kafka"
POM = Path(__file__).with_name("pom.xml")
MAVEN_TIMEOUT_S = 900
# A tool or a broker of a test runs for seconds: the second compiler and a parallel collector would only cost it time.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
SHORT_LIVED = ("-Xmx512m", *QUICK_START)


class Unavailable(Exception):
    """Apache Kafka cannot run on this machine; the text says what is missing."""


def program(name: str) -> str:
    """Return the path of `java`, `javac` or `mvn`, JAVA_HOME first. Raises: Unavailable if it is not installed."""
    home = os.environ.get("JAVA_HOME")
    inside = Path(home, "bin", name) if home else None
    found = str(inside) if inside is not None and inside.exists() else shutil.which(name)
    if found is None:
        packages = {"java": "openjdk-17-jre-headless", "javac": "openjdk-17-jdk-headless", "mvn": "maven"}
        raise Unavailable(f"needs {name}; on Debian: apt-get install {packages[name]}")
    return found


def classpath(version: str = VERSION, pom: Path = POM) -> str:
    """Return the class path of a version, asking Maven only when a jar is not on this machine.

    Safe in several processes at once. Raises: Unavailable if Maven or a jar cannot be had.

    Args:
        pom: the dependencies; `kafka.version` is set for it.
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
        command = [program("mvn"), "-q", "-B", "-f", str(pom), f"-Dkafka.version={version}"]
        command += ["dependency:build-classpath", f"-Dmdep.outputFile={fresh}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise Unavailable(f"Maven did not give what {pom.name} asks for, with Apache Kafka {version}: {said}")
        fresh.replace(kept)
        return kept.read_text(encoding="utf-8").strip()


def class_archive(version: str = VERSION) -> Path:
    """Return the path of the archive of the classes that a node of this version loads; the file may be missing."""
    mark = hashlib.sha256((classpath(version) + program("java")).encode()).hexdigest()[:12]
    return BUILD / version / f"classes-{mark}.jsa"


def read_archive(version: str = VERSION) -> tuple[str, ...]:
    """Return the options of a JVM that reads the archive of classes; none while there is no archive."""
    archive = class_archive(version)
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if archive.exists() else ()


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
    """Return the command that runs a class with Kafka's jars, or with those that another `pom` asks for.

    Args:
        main: a class, or the path of one source file, which `java` then compiles itself.
        options: of the virtual machine; those of SHORT_LIVED first: it reads the archive of classes, if there is one.
        before: jars that come first in the class path.
        classes: folder of compiled classes, which comes last: the jars of an archive are the first ones.
        version: of Apache Kafka.
    """
    parts = (before, classpath(version, pom), "" if classes is None else str(classes))
    quiet = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    if tuple(options[: len(SHORT_LIVED)]) == SHORT_LIVED and pom == POM and not before:
        options = (*options, *read_archive(version))
    return [program("java"), *options, quiet, "-cp", os.pathsep.join(filter(None, parts)), main, *arguments]


def compiled(*sources: Path, pom: Path = POM) -> Path:
    """Compile Java sources against Kafka's jars unless they have not changed since; return the folder of their classes.

    `pom` names other jars. Safe in several processes at once. Raises: Unavailable without javac; RuntimeError if
    a source is wrong.
    """
    jars = classpath(pom=pom)
    inputs = [VERSION.encode(), pom.read_bytes(), *(source.read_bytes() for source in sources)]
    mark = hashlib.sha256(b"\0".join(inputs)).hexdigest()[:16]
    folder = BUILD / VERSION / "classes" / f"{sources[0].stem}-{mark}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [program("javac"), "-Xlint:all", "-Werror", "-proc:none", "-d", str(part), "-cp", jars]
        done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            shutil.rmtree(part, ignore_errors=True)
            raise RuntimeError(f"javac of {sources[0].name} failed:\n{done.stdout}{done.stderr}")
        try:
            part.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(part, ignore_errors=True)
    return folder
