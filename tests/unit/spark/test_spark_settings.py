"""Settings and environment of a Spark session: on one host, on a cluster, and from the user."""

import os
import socket
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup import spark_settings
from kbroker.spark.setup.reachable import require_reachable
from kbroker.spark.setup.session import _environment
from kbroker.spark.setup.spark_settings import (
    TASK_PYTHON,
    chosen_settings,
    is_local,
    properties,
    require_master,
    shipped,
)


def chosen(
    given: dict[str, str] | None = None,
    defaults: dict[str, str] | None = None,
    master: str = "local[*]",
    jars: str = "",
) -> dict[str, str]:
    return chosen_settings(
        given or {}, defaults or {}, name="n", master=master, java_options="-Dx=1", jars=jars, more={}
    )


def test_what_the_user_says_comes_first() -> None:
    """Required settings override spark-defaults.conf, preferred ones do not; the user's settings override both."""
    defaults = {"spark.driver.memory": "3g", "spark.ui.enabled": "true", "spark.sql.session.timeZone": "CET"}
    found = chosen({"spark.ui.enabled": "maybe"}, defaults)
    assert (found["spark.ui.enabled"], found["spark.driver.memory"]) == ("maybe", "3g")
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert chosen()["spark.driver.memory"] == "1g"
    assert chosen({"spark.sql.session.timeZone": "CET"})["spark.sql.session.timeZone"] == "CET"


def test_lists_are_added_to() -> None:
    """Java options and jars of spark-defaults.conf are kept beside kbroker's."""
    defaults = {"spark.driver.extraJavaOptions": "-Da=b", "spark.jars": "a.jar"}
    found = chosen(defaults=defaults, jars="b.jar,c.jar")
    assert (found["spark.driver.extraJavaOptions"], found["spark.jars"]) == ("-Da=b -Dx=1", "a.jar,b.jar,c.jar")
    assert chosen(defaults=defaults)["spark.jars"] == "a.jar"


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[*]", True), ("local-cluster[2,1,1024]", True), ("spark://h:1", False), ("yarn", False)],
)
def test_what_suits_one_machine_is_for_one_machine(master: str, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback address and this interpreter are used on one host only; Spark decides the number of partitions."""
    for name in ("SPARK_LOCAL_IP", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/bin")
    assert is_local(master) is local
    found = chosen(master=master)
    assert "spark.sql.shuffle.partitions" not in found
    with _environment(master, found, None):
        assert os.environ.get("SPARK_LOCAL_IP") == ("127.0.0.1" if local else None)
        assert os.environ.get("PYSPARK_PYTHON") == (sys.executable if local else None)
        assert os.environ["PATH"] == ("/bin" if local else f"{os.path.dirname(sys.executable)}:/bin")
    assert os.environ["PATH"] == "/bin"
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize("master", ["local[2]", "spark://h:1"])
def test_a_python_that_was_named_is_taken(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable precedes the setting."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    given = chosen({"spark.pyspark.python": "/bin/sh"}, master=master)
    with _environment(master, given, None):
        assert os.environ["PYSPARK_PYTHON"] == "/bin/sh"
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with _environment(master, given, None):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert TASK_PYTHON not in given


@pytest.mark.parametrize("named", ["setting", "variable"])
def test_a_python_that_executors_alone_have(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run the executors' Python; the driver's subprocesses run this interpreter."""
    theirs = "./environment/bin/python"
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    given = chosen({"spark.pyspark.python": theirs} if named == "setting" else {}, master="spark://h:1")
    if named == "variable":
        monkeypatch.setenv("PYSPARK_PYTHON", theirs)
    with _environment("spark://h:1", given, None):
        assert (os.environ["PYSPARK_PYTHON"], given[TASK_PYTHON]) == (sys.executable, theirs)
    assert os.environ.get("PYSPARK_PYTHON") == (theirs if named == "variable" else None)


def test_a_python_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is added under the setting of the master, and tasks run the Python in it."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    archive = tmp_path / "env.tar.gz"
    with pytest.raises(PipelineError, match=r"there is no archive .*env\.tar\.gz: pack one with `venv-pack -o env"):
        shipped(archive, "yarn", {})
    archive.write_text("not an archive")
    with pytest.raises(PipelineError, match=r"env\.tar\.gz is not an archive of the kind that its name states"):
        shipped(archive, "yarn", {})
    with tarfile.open(archive, "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("bin/python"))
    found = shipped(archive, "spark://h:1", {"spark.archives": "other.zip"})
    assert found["spark.archives"] == f"other.zip,{archive}#kbroker_env"
    assert shipped(archive, "yarn", {})["spark.yarn.dist.archives"] == f"{archive}#kbroker_env"
    given = chosen(found, master="spark://h:1")
    with _environment("spark://h:1", given, None):
        assert (os.environ["PYSPARK_PYTHON"], given[TASK_PYTHON]) == (sys.executable, "./kbroker_env/bin/python")
    with pytest.raises(PipelineError, match="run this command's Python: leave --py-env out"):
        shipped(archive, "local[2]", {})
    (tmp_path / "env.tar").touch()
    with pytest.raises(PipelineError, match=r"Spark unpacks no env\.tar: expected one of \.tar\.gz"):
        shipped(tmp_path / "env.tar", "yarn", {})
    zipped = tmp_path / "env.zip"
    zipped.touch()
    with pytest.raises(PipelineError, match="is not an archive"):
        shipped(zipped, "yarn", {})
    with zipfile.ZipFile(zipped, "w") as files:
        files.writestr("bin/python", b"")
    assert shipped(zipped, "yarn", {})["spark.yarn.dist.archives"] == f"{zipped}#kbroker_env"


def test_a_properties_file_stands_in_place_of_spark_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, given or named in PYSPARK_SUBMIT_ARGS, replaces spark-defaults.conf for kbroker and Spark's launcher."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    (tmp_path / "spark-defaults.conf").write_text("spark.a 1\nspark.b 1\n")
    file = tmp_path / "my settings"
    file.write_text("spark.master  spark://h:7077 \nspark.a 2\n")
    wanted = {"spark.master": "spark://h:7077", "spark.a": "2"}
    assert spark_settings.spark_defaults(file) == wanted
    with _environment("spark://h:7077", chosen(master="spark://h:7077"), file):
        assert os.environ["PYSPARK_SUBMIT_ARGS"] == f"--properties-file '{file}' pyspark-shell"
        assert spark_settings.spark_defaults() == wanted
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ
    file.write_text("executor.memory 2g\n")
    with pytest.raises(PipelineError, match="has no setting of Spark's"):
        properties(file)


def test_spark_defaults_are_read_as_spark_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java properties are read, only Spark's are kept, and options of spark-submit override them."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert spark_settings.spark_defaults() == {}
    text = "# ours\nspark.master   spark://h:7077\nspark.driver.memory=2g\nother.name 1\n"
    (tmp_path / "spark-defaults.conf").write_text(text)
    assert spark_settings.spark_defaults() == {"spark.master": "spark://h:7077", "spark.driver.memory": "2g"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[3] --conf spark.a=b=c pyspark-shell")
    found = spark_settings.spark_defaults()
    assert (found["spark.master"], found["spark.a"]) == ("local[3]", "b=c")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    "url", ["spark://{}", "spark://127.0.0.1:1,{}", "sc://{}/;user_id=a", "k8s://{}", "k8s://https://{}"]
)
def test_an_address_that_answers(url: str, no_proxy: None) -> None:
    """One reachable address of several is enough, and any response, including a closed connection, is accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            with server.accept()[0] as connection:
                connection.recv(100)

        thread = threading.Thread(target=refuse)
        thread.start()
        require_reachable(url.format(f"127.0.0.1:{server.getsockname()[1]}"))
        thread.join()


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_place_that_says_nothing(scheme: str) -> None:
    """A host that accepts connections without a response is an error at once; Spark would wait for minutes."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(PipelineError, match=r"connected, but no response within 0\.05 s"),
    ):
        require_reachable(f"{scheme}://127.0.0.1:{server.getsockname()[1]}", answer_seconds=0.05)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("spark://127.0.0.1:1", "no Spark master responds at spark://127.0.0.1:1 (127.0.0.1:1: connection refused)"),
        ("sc://127.0.0.1:1", "no Spark Connect server responds at sc://127.0.0.1:1 ("),
        (
            "k8s://https://127.0.0.1:1",
            "no Kubernetes API server responds at k8s://https://127.0.0.1:1 (127.0.0.1:1: conn",
        ),
        ("spark://a..b:7077", "no Spark master responds at spark://a..b:7077 (a..b:7077: not a host name)"),
        ("spark://127.0.0.1", "expected spark://HOST:PORT, got spark://127.0.0.1"),
        ("spark://127.0.0.1:x", "expected spark://HOST:PORT, got spark://127.0.0.1:x"),
        ("sc://", "expected sc://HOST:PORT, got sc://"),
    ],
)
def test_an_address_that_does_not(url: str, said: str, no_proxy: None) -> None:
    """The error is raised at once, where Spark takes a minute."""
    began = time.monotonic()
    with pytest.raises(PipelineError) as caught:
        require_reachable(url)
    assert said in str(caught.value)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("url", ["local[*]", "yarn", "k8s://https://127.0.0.1:1", "local-cluster[1,1,512]"])
def test_other_masters_are_not_checked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes behind a proxy is not checked either."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    require_reachable(url)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[4]",
        "local[2, 3]",
        "local-cluster[2,1,1024]",
        "spark://a:7077,b:7077",
        "yarn",
        "k8s://a",
        "armada://a:50051",
    ],
)
def test_masters_of_spark(master: str) -> None:
    require_master(master)


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "local[0]", "spark:/a:7077", "a:7077", "YARN", "k8s://"])
def test_what_is_no_master_is_refused_before_spark_starts(master: str) -> None:
    """Spark itself refuses such a master only after its JVM has started."""
    with pytest.raises(PipelineError) as refused:
        require_master(master)
    assert str(refused.value).endswith(f", got {master!r}")
