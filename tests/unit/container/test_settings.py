"""Settings of a container from its environment and files."""

from pathlib import Path

import pytest

from kbroker import serving
from kbroker.container import start
from kbroker.container.settings import environment_lines, properties_text


def test_names_of_variables() -> None:
    """Names follow Kafka's wrapper (full stops, underscores, hyphens), and other variables are ignored."""
    environ = {
        "KAFKA_VALID_PROPERTY": "Value",
        "KAFKA_VALID___PROPERTY__ALL_CASES": "All Cases Value",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "KAFKA_SSL_KEYSTORE_FILENAME": "a.pem",
        "KAFKA_CFG_NUM_PARTITIONS": "3",
        "SOME_VARIABLE": "Some Value",
        "KAFKA_A_KAFKA_B": "removed twice, as in Kafka",
    }
    assert environment_lines(environ) == [
        "valid.property=Value", "valid-property_all.cases=All Cases Value", "a.b=removed twice, as in Kafka",
    ]  # fmt: skip


def test_files_and_environment(tmp_path: Path) -> None:
    """The environment follows a mounted file; the defaults apply only if neither has a setting."""
    defaults, mounted = tmp_path / "defaults", tmp_path / "mounted"
    for folder, text in ((defaults, "default.config=1\n"), (mounted, "mounted.config=1")):
        folder.mkdir()
        (folder / "server.properties").write_text(text)
    environ = {"KAFKA_ENV_CONFIG": "env value"}
    assert properties_text(environ, mounted, defaults) == "mounted.config=1\nenv.config=env value\n"
    assert properties_text(environ, tmp_path, defaults) == "env.config=env value\n"
    assert properties_text({}, tmp_path, defaults) == "default.config=1\n"
    (mounted / "server.properties").write_text(" \n \n ")
    assert properties_text({}, mounted, defaults) == "default.config=1\n"


def test_words_of_a_start(tmp_path: Path) -> None:
    """A start accepts a file, --override and kafka-native's options, and derives listeners from the advertised ones."""
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nkbroker.in.memory=true\nzookeeper.connect=localhost:2181\n")
    words = [str(file), "-Dlog4j.configuration=x", "--override", "num.partitions=3"]
    words += ["-Dkafka.advertised.listeners=PLAINTEXT://[::1]:32768,BROKER://b:9093"]
    assert start.prepared(words, {"CLUSTER_ID": "x", "KAFKA_NUM_PARTITIONS": "9"}) == {
        "num.partitions": "3",
        "kbroker.in.memory": "true",
        "advertised.listeners": "PLAINTEXT://[::1]:32768,BROKER://b:9093",
        "listeners": "PLAINTEXT://0.0.0.0:32768,BROKER://0.0.0.0:9093",
        "log.dirs": start.DATA_DIR,
    }


@pytest.mark.parametrize("roles", ["broker,controller", "broker"])
def test_new_folders_are_formatted(roles: str, tmp_path: Path) -> None:
    """Folders are formatted once with the id of CLUSTER_ID; a combined node is its quorum's voter, a broker is not."""
    file = tmp_path / "server.properties"
    file.write_text(
        f"process.roles={roles}\nnode.id=9\ncontroller.listener.names=CONTROLLER\nlog.dirs={tmp_path / 'data'}\n"
        "controller.quorum.bootstrap.servers=controller:9093\n"
    )
    environ = {"CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw"}
    for _ in range(2):
        start.prepared([str(file)], environ)
    assert "cluster.id=5L6g3nShT-eMCtK--X86sw\n" in (tmp_path / "data" / "meta.properties").read_text()
    has_voters = any((tmp_path / "data" / "__cluster_metadata-0").glob("*.checkpoint"))
    assert has_voters == (roles == "broker,controller")
    with pytest.raises(serving.ServeError, match=r"Invalid cluster\.id"):
        start.prepared(
            [str(file), "--override", f"log.dirs={tmp_path / 'data'},{tmp_path / 'new'}"], {"CLUSTER_ID": "x" * 22}
        )


@pytest.mark.parametrize("words", [["a", "b"], ["--override", "x"], ["--override"], ["/no/such/file"]])
def test_wrong_words(words: list[str]) -> None:
    with pytest.raises(serving.OptionError):
        start.prepared(words, {})
