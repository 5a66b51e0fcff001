"""`kbroker storage` and Apache Kafka's kafka-storage: the same checks, texts, exit statuses and files."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.cli import run
from tests.support.formatted import files, without_ids
from tests.support.kafka.tools import run_tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMBINED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:19093",
}
STATIC = {**COMBINED, "controller.quorum.voters": "1@127.0.0.1:19093", "controller.quorum.bootstrap.servers": ""}
BROKER = {**COMBINED, "process.roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:19092"}
CONTROLLER = {**COMBINED, "process.roles": "controller", "listeners": "CONTROLLER://:19093", "node.id": "7"}
STOCK = {
    **COMBINED,
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
}
IDS = ("JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A", "07R5amHmR32VDA6jHkGbTA")
USER = "SCRAM-SHA-256=[name=alice,password=alice-secret,salt=MWx2NHBkbnc0ZndxN25vdGN4bTB5eTFrN3E=]"
SALTED = 'SCRAM-SHA-512=[name=bob,iterations=8192,salt="N3E=",saltedpassword="YCE="]'

#: Properties, and the options after --config and --cluster-id; `@` is the folder of the test.
FORMATTED: Sequence[tuple[Mapping[str, str], str]] = (
    (COMBINED, "--standalone"),
    (COMBINED, "-s -S " + USER),
    (COMBINED, '-s -S SCRAM-SHA-256=[name="",password=",salt=N3E=]'),
    (COMBINED, f"-s --add-scram {USER} --add-scram {SALTED}"),
    (COMBINED, "-N"),
    (COMBINED, f"-I 1@h:9093:{IDS[0]},2@[::1]:9094:{IDS[1]},17@localhost:1:{IDS[2]}"),
    (COMBINED, f"-I 1@h:9093:{IDS[0]},2@h:9093:{IDS[1]},9@h:9093:{IDS[2]}"),
    (COMBINED, f"-I 2@h:9093:{IDS[0]}"),
    (COMBINED, "-s -f group.version=0 --feature transaction.version=1"),
    (COMBINED, "-s -r 3.3"),
    (COMBINED, "-s -r 3.9-IV0"),
    (COMBINED, "-s -r 4.0.1"),
    (COMBINED, "-s -r 4.1 -f eligible.leader.replicas.version=0"),
    (COMBINED, "-s -f metadata.version=25"),
    (COMBINED, "-N -f kraft.version=1"),
    ({**COMBINED, "unstable.feature.versions.enable": "true"}, "-s -r 4.4-IV0"),
    ({**COMBINED, "unstable.feature.versions.enable": "true"}, "-s"),
    (STATIC, ""),
    (STATIC, "-r 4.2"),
    (STATIC, "--no-initial-controllers"),
    (BROKER, ""),
    (BROKER, "-N"),
    (CONTROLLER, "-s"),
    (STOCK, "-s"),
    ({**COMBINED, "metadata.log.dir": "@/meta"}, "-s"),
    ({**COMBINED, "listeners": "A://:1,B://h:2,PLAINTEXT://:3", "controller.listener.names": "B,A"}, "-s"),
)
REFUSED: Sequence[tuple[Mapping[str, str], str]] = (
    (COMBINED, ""),
    (STATIC, "-s"),
    (STATIC, f"-I 1@h:9093:{IDS[0]}"),
    (STATIC, "-f kraft.version=1"),
    (BROKER, "-s"),
    (COMBINED, "-s -f kraft.version=0"),
    (COMBINED, "-s -f kraft.version=2"),
    (COMBINED, "-s -f group.version=7"),
    (COMBINED, "-s -f group.version=-1"),
    (COMBINED, "-s -f group.version"),
    (COMBINED, "-s -f group.version=x"),
    (COMBINED, "-s -f group.version=32768"),
    (COMBINED, "-s -f nope.version=1"),
    (COMBINED, "-s -f metadata.version=99"),
    (COMBINED, "-s -f metadata.version=31"),
    (COMBINED, "-s -f metadata.version=25 -r 4.0"),
    (COMBINED, "-s -f metadata.version=22 -f eligible.leader.replicas.version=1"),
    (COMBINED, "-s -r 5.0"),
    (COMBINED, "-s -r 4"),
    (COMBINED, "-s -r 4.4"),
    (COMBINED, "-s -r 3.2"),
    (COMBINED, "-s -r 3.4 -S " + USER),
    (COMBINED, "-s -S SCRAM-SHA-256"),
    (COMBINED, "-s -S SCRAM-SHA-1=[name=a,password=b]"),
    (COMBINED, "-s -S SCRAM-SHA-256=name=a,password=b]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a,password=b"),
    (COMBINED, "-s -S SCRAM-SHA-256=[password=b]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a,saltedpassword=YCE=]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a,salt=N3E=,saltedpassword=Y]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a,password=b,salt=%]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a,password=b,iterations=4095]"),
    (COMBINED, "-s -S SCRAM-SHA-512=[name=a,password=b,iterations=16385]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a,password=b,iterations=x]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name=a,password=b,zeta=1,alpha=2]"),
    (COMBINED, "-s -S SCRAM-SHA-256=[name]"),
    (COMBINED, "-I ,"),
    (COMBINED, "-I 1"),
    (COMBINED, "-I x@h"),
    (COMBINED, "--initial-controllers=-1@h"),
    (COMBINED, "-I 1@"),
    (COMBINED, "-I 1@[::1:9093"),
    (COMBINED, "-I 1@h"),
    (COMBINED, "-I 1@[::1]9093"),
    (COMBINED, "-I 1@h:9093"),
    (COMBINED, f"-I 1@h:x:{IDS[0]}"),
    (COMBINED, f"-I 1@h:65536:{IDS[0]}"),
    (COMBINED, "-I 1@h:1:short"),
    (COMBINED, f"-I 1@h:1:{IDS[0]},1@g:1:{IDS[1]}"),
    ({**COMBINED, "controller.quorum.bootstrap.servers": ""}, "-s"),
    ({**COMBINED, "node.id": ""}, "-s"),
    ({**COMBINED, "node.id": "-1"}, "-s"),
    ({**COMBINED, "controller.listener.names": ""}, "-s"),
    ({**COMBINED, "controller.listener.names": "CONTROLLER,OTHER"}, "-s"),
    ({**COMBINED, "controller.listener.names": "CONTROLLER,PLAINTEXT"}, "-s"),
    ({**COMBINED, "process.roles": "broker,other"}, "-s"),
    ({**COMBINED, "controller.quorum.voters": "2@h:1"}, ""),
    ({**COMBINED, "controller.quorum.voters": "2@h:1,3@g:1"}, ""),
    ({**COMBINED, "controller.quorum.voters": "1@h"}, ""),
    ({**COMBINED, "controller.quorum.voters": "1@h@i"}, ""),
    ({**COMBINED, "controller.quorum.voters": "x@h:1"}, ""),
    ({**BROKER, "controller.quorum.voters": "1@h:1"}, ""),
    ({**BROKER, "listeners": COMBINED["listeners"]}, ""),
    ({**CONTROLLER, "listeners": COMBINED["listeners"]}, "-s"),
)
#: Wrong usage, for which only the exit statuses are compared.
USAGE = (
    ("format",),
    ("format", "--cluster-id", "c"),
    ("format", "--config", "nothing.properties", "--cluster-id", "c"),
    ("format", "--nope"),
    ("info",),
    ("nothing",),
)


class Twins:
    """Both tools on the same paths, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.config = folder / "server.properties"

    def configure(self, properties: Mapping[str, str]) -> None:
        lines = {"log.dirs": "@/data/b,@/data/a", **properties}
        text = "".join(f"{name}={value}\n" for name, value in lines.items() if value)
        self.config.write_text(text.replace("@/", f"{self.folder}/"))

    def kafka(self, *words: str) -> tuple[int, str, str]:
        """Return the status, the output and the message of a failure."""
        done = run_tool("kafka.tools.StorageTool", *words)
        lines = [line for line in done.stderr.splitlines() if line and not line.startswith("\t")]
        message = "" if done.returncode == 0 or not lines else lines[0]
        return (
            done.returncode,
            done.stdout,
            re.sub(r"^java\.lang\.\S+: |^org\.apache\.\S+: |requirement failed: ", "", message),
        )

    def ours(self, *words: str) -> tuple[int, str, str]:
        done = run(None, "storage", *words)
        return done.exit_code, done.stdout, done.stderr.partition("\nUsage:")[0].removeprefix("kbroker: ").strip()

    def folders(self) -> dict[str, bytes]:
        return files(*(path for path in (self.data, self.folder / "meta") if path.exists()))

    def clear(self) -> None:
        for path in (self.data, self.folder / "meta"):
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    return Twins(tmp_path)


def words_of(twins: Twins, options: str) -> list[str]:
    return ["format", "--config", str(twins.config), "--cluster-id", "abc", *options.split()]


def visible(output: str) -> str:
    """Return the output without the keys of users, which only Kafka prints."""
    return re.sub(r", (?:salt|storedKey|serverKey)=\[[-0-9, ]*\]", "", output)


@pytest.mark.parametrize(("properties", "options"), FORMATTED)
def test_formatted_folders_are_the_same(twins: Twins, properties: Mapping[str, str], options: str) -> None:
    """Both tools print the same lines and write the same files, except for times and random ids."""
    twins.configure(properties)
    words = words_of(twins, options)
    theirs, kafka_files = twins.kafka(*words), twins.folders()
    twins.clear()
    ours, our_files = twins.ours(*words), twins.folders()
    assert (ours[0], visible(ours[1]), ours[2]) == (0, visible(theirs[1]), "")
    assert theirs[0] == 0
    assert without_ids(our_files) == without_ids(kafka_files)
    assert our_files.keys() >= {"0/a/meta.properties", "0/b/meta.properties"}
    info = ("info", "--config", str(twins.config))
    assert twins.ours(*info) == twins.kafka(*info)
    for further in ([], ["--ignore-formatted"]):
        assert twins.ours(*words, *further) == twins.kafka(*words, *further)


@pytest.mark.parametrize(("properties", "options"), REFUSED)
def test_refusals_are_the_same(twins: Twins, properties: Mapping[str, str], options: str) -> None:
    """Both tools refuse the options with the same exit status and sentence, and write nothing."""
    twins.configure(properties)
    words = words_of(twins, options)
    theirs = twins.kafka(*words)
    ours = twins.ours(*words)
    assert not twins.data.exists()
    assert theirs[0] == ours[0] == 1
    allowed = ours[2].partition(" (allowed: ")[0]
    assert (ours[1], allowed) == (theirs[1], theirs[2].partition(" (")[0] if "\t" in theirs[2] else theirs[2])


@pytest.mark.parametrize("words", USAGE)
def test_wrong_usage_has_the_same_status(twins: Twins, words: Sequence[str]) -> None:
    assert twins.kafka(*words)[0] == twins.ours(*words)[0] == 1


def test_options_that_exclude_each_other(twins: Twins) -> None:
    twins.configure(COMBINED)
    words = words_of(twins, "-s -N")
    theirs = run_tool("kafka.tools.StorageTool", *words)
    status, _, message = twins.ours(*words)
    assert status == theirs.returncode == 1
    assert message == "argument --no-initial-controllers/-N: not allowed with argument --standalone/-s"
    assert message in " ".join(theirs.stderr.split())


def test_faulty_folders(twins: Twins) -> None:
    """Both tools report folders that are missing, not formatted, of another node or cluster, or in legacy mode."""
    twins.configure(COMBINED)
    info, words = ("info", "--config", str(twins.config)), words_of(twins, "-s -g")
    first, second = twins.data / "a", twins.data / "b"

    def both(*arguments: str) -> tuple[int, str, str]:
        ours, theirs = twins.ours(*arguments), twins.kafka(*arguments)
        assert ours == theirs
        return ours

    assert both(*info)[0] == 1
    first.mkdir(parents=True)
    second.touch()
    assert "is not a directory" in both(*info)[1]
    second.unlink()
    second.mkdir()
    assert "is not formatted" in both(*info)[1]
    owner = "version=1\ncluster.id=abc\nnode.id=1\ndirectory.id=%s\n"
    (first / "meta.properties").write_text(owner % IDS[0])
    for text in (
        owner.replace("abc", "other") % IDS[1],
        owner.replace("node.id=1", "node.id=2") % IDS[1],
        owner % IDS[0],
        owner % "AAAAAAAAAAAAAAAAAAAABw",
    ):
        (second / "meta.properties").write_text(text)
        both(*info)
        assert both(*words)[0] == 1
    (first / "meta.properties").write_text("version=0\ncluster.id=abc\nbroker.id=1\n")
    (second / "meta.properties").write_text(owner % IDS[1])
    assert "formatted for legacy mode" in both(*info)[1]


def test_random_ids(twins: Twins) -> None:
    status, printed, _ = twins.ours("random-uuid")
    assert status == 0
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}\n", printed)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}\n", twins.kafka("random-uuid")[1])
