"""Requirements of a session, checked before its start: the error about a missing one is a sentence with the remedy."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import cli
from kbroker.spark.errors import PipelineError
from kbroker.spark.setup import java, session
from kbroker.spark.setup.jars import CONNECTOR, DELTA, Jar, connector_jars, delta_jars, fetch_jars

ROOT = Path(__file__).resolve().parents[2]


def program(folder: Path, name: str, text: str) -> Path:
    """Create a program of a few lines of shell."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the only folder of the PATH in an environment without Java."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def says(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2025-04-15' >&2"""


def test_no_java(no_java: Path) -> None:
    """The error without java on the PATH names the package to install."""
    with pytest.raises(PipelineError, match="there is none on the PATH: install Java 17 or later"):
        session.build_session()


def test_a_java_home_without_java(no_java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark prefers JAVA_HOME to the PATH, so a wrong JAVA_HOME is an error even with a valid java on the PATH."""
    program(no_java, "java", says("17.0.15"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(PipelineError, match=r"JAVA_HOME is \S+/gone, which has no bin/java"):
        session.build_session()


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_402", 8), ("11.0.22", 11), ("17", 17), ("17.0.15", 17), ("21.0.2", 21), ("25-ea", 25)],
)
def test_versions(no_java: Path, version: str, major: int) -> None:
    """Versions in old and new forms are read, and versions below 17 are rejected with number and place."""
    file = program(no_java, "java", says(version))
    assert java.java_version(file) == major
    if major >= 17:
        assert java.require_java() == file
    else:
        with pytest.raises(PipelineError, match=f"{file} is Java {major}, too old for Spark: install Java 17"):
            session.build_session()


@pytest.mark.parametrize(("text", "said"), [("exit 3", "exit status 3"), ("echo no idea; exit 0", "no idea")])
def test_a_java_that_is_none(no_java: Path, text: str, said: str) -> None:
    """A program called java that prints no version is not Java."""
    program(no_java, "java", text)
    with pytest.raises(PipelineError, match=rf"does not print its version \({said}\)"):
        java.require_java()


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "pandas", "deltalake"])
def test_a_missing_package(missing: str, tmp_path: Path) -> None:
    """Without the extra the error has the command that installs it, and no package of Spark is loaded."""
    text = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *more: None if name == {missing!r} else found(name, *more)\n"
        "from kbroker.spark.setup.session import build_session\n"
        "try: build_session()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "print(sorted({'pyspark', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == (
        f'PipelineError the pipeline needs {missing}, which is not installed: pip install "kbroker[spark]"\n[]\n'
    )


def test_another_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PySpark outside the tested versions is rejected by its number."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.1.3")
    with pytest.raises(PipelineError, match=r"needs PySpark 4.2 or 4.3, and 4.1.3 is installed"):
        session.require_packages()


def test_delta_lake_for_another_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta's jars call constructors that PySpark 4.3 lacks, which would end a thread and block the query."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.3.0")
    with pytest.raises(PipelineError, match=r"Delta Lake 4.4.0 need PySpark 4.2, and 4.3.0 is installed: pip install "):
        delta_jars()


def test_no_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with the connector is rejected before the JVM starts, with the command that fetches it."""
    monkeypatch.setenv("KBROKER_SPARK_JARS", str(tmp_path))
    monkeypatch.setattr(session, "require_spark", lambda: None)  # the machine may lack Java, which another test covers
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.2.0")
    with pytest.raises(
        PipelineError, match=r"the Kafka connector of Spark is missing .*: run `kbroker pipeline jars`$"
    ):
        session.build_session(connector=True)
    with pytest.raises(PipelineError, match=r"Delta Lake is missing .*: run `kbroker pipeline jars --delta`$"):
        session.build_session(delta=True)
    with pytest.raises(PipelineError, match=r"run `kbroker pipeline jars --into \S+`$"):
        connector_jars(tmp_path)


def test_a_damaged_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with another checksum is not used, and the error has both checksums."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.2.0")
    for jar in DELTA:
        (tmp_path / jar.file_name).write_bytes(b"rubbish")
    with pytest.raises(PipelineError, match=rf"delta-spark_4.2_2.13-4.4.0.jar has SHA-256 \w+, not {DELTA[0].sha256}"):
        delta_jars(tmp_path)


def test_fetching_without_maven(no_java: Path, tmp_path: Path) -> None:
    """The one line names the package, and the status is 1."""
    result = CliRunner().invoke(cli, ["pipeline", "jars", "--into", str(tmp_path / "jars")], prog_name="kbroker")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "kbroker: fetching jars needs Maven, and there is no mvn on the PATH: install it (on Debian: apt-get install "
        "maven)\n"
    )


# Output of Maven 3.8.7 in these cases.
FAILURES = [
    (
        "[ERROR] Failed to execute goal on project jars: Could not resolve dependencies for project jars: "
        "Could not find artifact io.delta:delta-storage:jar:4.4.0 in central (address) -> [Help 1]",
        "Maven's registry has no io.delta:delta-storage:jar:4.4.0",
    ),
    (
        "[ERROR] Plugin P:2.8 or one of its dependencies could not be resolved: Failed to read artifact descriptor for "
        "P:jar:2.8: Could not transfer artifact P:pom:2.8 from/to m (place): transfer failed for place/p-2.8.pom: "
        "Connect to 127.0.0.1:1 [/127.0.0.1] failed: Connection refused (Connection refused) -> [Help 1]",
        "Maven cannot fetch P:pom:2.8 from place: Connection refused (Connection refused)",
    ),
    (
        "[ERROR] Plugin P:2.8 or one of its dependencies could not be resolved: Failed to read artifact descriptor for "
        "P:jar:2.8: Could not transfer artifact P:pom:2.8 from/to m (place): transfer failed for place/p-2.8.pom: "
        "Unknown host registry.invalid -> [Help 1]\n[ERROR]\n[ERROR] To see the full stack trace of the errors ...",
        "Maven cannot fetch P:pom:2.8 from place: Unknown host registry.invalid",
    ),
    ("[ERROR] Cannot access central (address) in offline mode and the artifact x has not been", "Maven is offline"),
    (
        "\x1b[0m[ERROR] The JAVA_HOME environment variable is not defined correctly",
        "Maven failed: The JAVA_HOME environment",
    ),
    ("", "Maven failed without a message"),
]


@pytest.mark.parametrize(("printed", "said"), FAILURES)
def test_what_maven_says(no_java: Path, tmp_path: Path, printed: str, said: str) -> None:
    """Each failure of Maven becomes one sentence, and no file is left."""
    program(no_java, "mvn", f"/bin/cat <<'END'\n{printed}\nEND\nexit 1")
    place = tmp_path / "jars"
    with pytest.raises(PipelineError) as caught:
        fetch_jars(CONNECTOR, place)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(place.iterdir()) == []


def test_a_registry_that_gives_something_else(no_java: Path, tmp_path: Path) -> None:
    """A file with another checksum is rejected and never stored in the folder."""
    give = 'for word; do case $word in -DoutputDirectory=*) place="${word#*=}";; esac; done; /bin/mkdir "$place"'
    names = " ".join(jar.file_name for jar in CONNECTOR)
    program(no_java, "mvn", f'{give}; for name in {names}; do echo rubbish > "$place/$name"; done')
    place = tmp_path / "jars"
    with pytest.raises(PipelineError, match="the registry gave another file than the pinned one"):
        fetch_jars(CONNECTOR, place)
    assert list(place.iterdir()) == []


def test_fetching_only_what_is_not_there(no_java: Path, tmp_path: Path) -> None:
    """A valid file is kept without Maven, and a damaged file is fetched again."""
    (tmp_path / "a-1.jar").write_bytes(b"contents\n")
    right = hashlib.sha256(b"contents\n").hexdigest()
    wanted = (Jar("g", "a", "1", right), Jar("g", "b", "1", right))
    (tmp_path / "b-1.jar").write_bytes(b"cut off")
    give = 'for word; do case $word in -DoutputDirectory=*) place="${word#*=}";; esac; done; /bin/mkdir "$place"'
    program(no_java, "mvn", f'{give}; echo contents > "$place/b-1.jar"')
    assert fetch_jars(wanted, tmp_path) == [tmp_path / "a-1.jar", tmp_path / "b-1.jar"]
    (no_java / "mvn").unlink()
    assert fetch_jars(wanted, tmp_path) == [tmp_path / "a-1.jar", tmp_path / "b-1.jar"]
    assert (tmp_path / "b-1.jar").read_bytes() == b"contents\n"
