"""Console sessions and Python snippets of the documentation, run and compared with the shown output."""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.testing import EmbeddedBroker
from tests.support.broker import BrokerProcess
from tests.support.closing import close_at_end
from tests.support.need import program
from tests.support.ports import free_run

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Parts that differ between runs: ports, process ids, times, cluster ids, temporary folders, tokens.
CHANGING = (
    (re.compile(r"token \S+"), "token T"),
    (re.compile(r"kbroker-\w{8}\b"), "FOLDER"),
    (re.compile(r'(cluster|"cluster_id":) "?[\w-]{22}"?'), r"\1 C"),
    (re.compile(r"\d{4,}"), "N"),
)


NC = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as one:
    one.sendall(sys.stdin.buffer.read())
    for piece in iter(lambda: one.recv(4096), b""):
        sys.stdout.buffer.write(piece)
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def steps(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console session, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def plain(lines: list[str]) -> list[str]:
    """Return lines without the parts that differ between runs."""
    for pattern, word in CHANGING:
        lines = [pattern.sub(word, line) for line in lines]
    return lines


class Session:
    """Shell in the project's folder that finds `python` and `kbroker`, and servers that end with it."""

    def __init__(self, folder: Path) -> None:
        for name, arguments in (("python", ""), ("kbroker", "-m kbroker")):
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            script.chmod(0o755)
        if shutil.which("nc") is None:
            script = folder / "nc"
            script.write_text(f"#!{sys.executable}\n{NC}")
            script.chmod(0o755)
        searched = os.pathsep.join(filter(None, sys.path))
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "KBROKER_CFG"))}
        self.environment = {**kept, "PATH": path, "PYTHONPATH": searched, "PYTHONUNBUFFERED": "1"}
        self.servers: list[subprocess.Popen[str]] = []

    def serve(self, command: str, lines: int) -> list[str]:
        """Start a server and return its first lines."""
        words = shlex.split(command.removesuffix(" &"))
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self.environment)
        self.servers.append(server)
        assert server.stdout is not None
        return [server.stdout.readline().rstrip("\n") for _ in range(lines)]

    def run(self, command: str, folder: Path = ROOT) -> list[str]:
        done = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            cwd=folder,
            env=self.environment,
            timeout=60,
            check=False,
        )
        return done.stdout.replace("\r\n", "\n").splitlines()

    def close(self) -> None:
        for server in self.servers:
            if server.poll() is None:
                server.kill()
            server.communicate(timeout=20)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return close_at_end(Session(tmp_path))


@pytest.mark.parametrize(("example", "port"), [("line_server", "7007"), ("http_like", "8008")])
def test_the_servers_of_embedding(session: Session, example: str, port: str) -> None:
    """The servers respond to nc and curl as the page shows."""
    program(*(["curl"] if example == "http_like" else []))
    (block,) = [one for one in blocks("embedding.md", "console") if f"examples/{example}.py" in one]
    (start, said), *others = steps(block.replace(port, str(free_run(1))))
    assert session.serve(start, len(said)) == said
    for command, printed in others:
        assert session.run(command) == printed, command


def test_the_control_port(session: Session) -> None:
    """Each route responds to curl as the page shows, and the page shows every route."""
    program("curl")
    sessions = [one for one in blocks("testing.md", "console") if "kbroker serve" in one or "$URL" in one]
    routes = set()
    for command, printed in [step for one in sessions for step in steps(one)]:
        if command.startswith("kbroker serve"):
            said = session.serve(command, len(printed))
            session.environment["URL"], session.environment["TOKEN"] = said[1].split()[2], said[1].split()[4]
        else:
            said = session.run(command)
            words = shlex.split(command)
            verb = words[words.index("-X") + 1] if "-X" in words else "GET"
            path = next(word for word in words if word.startswith("$URL")).removeprefix("$URL/")
            routes.add((verb, re.sub(r"(?<=^)(topics|groups|faults|held-markers|snapshots)/[^/]+", r"\1/*", path)))
        assert plain(said) == plain(printed), command
    assert session.servers[0].wait(20) == 0

    from kbroker.testing.control_routes import Routes

    table = Routes(EmbeddedBroker(), lambda: None).table
    assert set(table) - routes == set()


# Sessions of the page that need a live client, an exhausted quota, a registry or a shell.
PREPARED = (
    "kbroker completion",
    "kbroker groups",
    "kbroker transactions",
    "create more",
    "recover-metadata",
    "--registry",
)
COLUMNS = ((re.compile(r"(\bid |\.id=)[\w-]{22}\b"), r"\1I"), (re.compile(r" +"), " "))


def test_the_command_line(session: Session, tmp_path: Path) -> None:
    """Each command prints what the page shows, with one broker for the whole page."""

    def shown(lines: list[str]) -> list[str]:
        for pattern, word in COLUMNS:
            lines = [pattern.sub(word, line).strip() for line in lines]
        return plain(lines)

    (quotas,), (properties,) = blocks("cli.md", "yaml"), blocks("cli.md", "properties")
    (tmp_path / "server.properties").write_text(properties)
    (tmp_path / "quotas.yaml").write_text(quotas)
    (tmp_path / "alice.txt").write_text("secret")
    sessions = [one for one in blocks("cli.md", "console") if not any(words in one for words in PREPARED)]
    assert len(sessions) >= 10
    with EmbeddedBroker({"num.partitions": 1}) as broker:
        session.environment["KBROKER_BOOTSTRAP"] = broker.bootstrap_servers
        for one in sessions[:-1]:
            if "kbroker produce" in one:  # the offsets of the session begin at 0
                broker.delete_topic("greetings")
                broker.create_topic("greetings", 3)
            for command, printed in steps(one):
                assert shown(session.run(f"{command} 2>&1", tmp_path)) == shown(printed), command
    for command, printed in steps(sessions[-1]):  # without a broker
        assert shown(session.run(f"{command} 2>&1", tmp_path)) == shown(printed), command


def test_snippets() -> None:
    """Python sessions print what the pages show; test_cimport runs those with the foreign package."""
    runner = doctest.DocTestRunner()
    ran = 0
    for page in DOCS.glob("*.md"):
        for block in blocks(page.name, "python"):
            if ">>> " in block and "foreign" not in block:
                runner.run(doctest.DocTestParser().get_doctest(block, {}, page.name, str(page), 0))
                ran += 1
    assert ran > 0
    assert runner.failures == 0


def test_the_programs_of_the_readme() -> None:
    """The Python programs run with the port of this test's broker; test_pytest_plugin runs the one for pytest."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    producing, embedding = [one for one in programs if "def test_" not in one]
    with EmbeddedBroker() as broker:
        printed = python(producing.replace("127.0.0.1:9092", broker.bootstrap_servers))
        assert "GETSUBSCRIPTIONS" in printed  # librdkafka logs the instance id that it receives for its metrics
        assert len(printed.splitlines()) == 1
        assert [record.value for record in broker.records("greetings")] == [b"hello"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", python(embedding))


def test_the_first_minute_of_the_readme(tmp_path: Path) -> None:
    """The first commands print what the README shows, except for the cluster id and the folder."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    _, (serve, ready), (produce, produced), (consume, *consumed) = [
        [line.removeprefix("$ ") for line in part.splitlines()] for part in re.split(r"^(?=\$ )", block, flags=re.M)[1:]
    ]
    settings = {"kbroker.metrics.listener": "127.0.0.1:0", "kbroker.console.edit": "true"}
    assert serve == "kbroker serve --set kbroker.metrics.listener=127.0.0.1:9400 --set kbroker.console.edit=true &"
    with BrokerProcess(tmp_path / "data", settings) as broker:
        shown = next(line for line in broker.tail().splitlines() if " ready: " in line)
        assert _form(shown) == _form(ready)
        environment = {**os.environ, "KBROKER_BOOTSTRAP": broker.bootstrap}
        for command, output in ((produce, [produced]), (consume, consumed)):
            words = command.replace("kbroker ", f"{sys.executable} -m kbroker ")
            done = subprocess.run(words, shell=True, env=environment, capture_output=True, text=True, timeout=60)
            assert done.stdout.splitlines() == output, done.stderr


def test_the_tour_of_the_readme(session: Session, tmp_path: Path) -> None:
    """The commands of the tour print its lines, over a `kill -9`, but for the order of lines at the start."""
    program("bash")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S) if "kill -9" in one]
    address = f"127.0.0.1:{free_run(1)}"
    del session.environment["PYTHONUNBUFFERED"]  # a line is one write: the broker and a command print at the same time
    session.environment |= {"KAFKA_LISTENERS": f"PLAINTEXT://{address}", "KBROKER_BOOTSTRAP": address}
    commands = "\n".join(command for command, _ in steps(block))
    printed = session.run(f"bash -mc {shlex.quote(commands + chr(10) + 'kill $!; wait')}", tmp_path)

    def lines(said: list[str]) -> list[str]:
        return sorted(re.sub(r"\d+ APIs", "x APIs", _form(line)) for line in said)

    assert lines(printed) == lines([line for _, output in steps(block) for line in output])


def _form(ready: str) -> str:
    """Return a ready line without ports, cluster id and folder."""
    return re.sub(r"(?<=:)\d+|(?<=cluster )\S+|(?<=data in )[^,]+", "x", ready)


def python(text: str) -> str:
    """Return the output of a program on both streams; the program must end with status 0."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
