"""`kbroker console`: the pages over connections to a broker, options, token, end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.client.acls import Acls
from kbroker.client.users import Users
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.metadata.topic_rules import NewTopic
from tests.integration.test_console_users import allow
from tests.support.console import SECURED, Browser, cluster_of, secret_of, words_of
from tests.support.console_pages import check_groups_and_access, check_pages
from tests.support.fixtures import fixture_of

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="secret";'


@contextmanager
def console(bootstrap: str, *options: str) -> Iterator[tuple[Browser, list[str], subprocess.Popen[str]]]:
    """Run the command; yield a browser, the printed lines and the process."""
    command = [sys.executable, "-m", "kbroker", "console", "-b", bootstrap, "--listen", "127.0.0.1:0", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KBROKER_")}
    environment["PYTHONUNBUFFERED"] = "1"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline()]
        found = re.search(r"at http://([^/]+)/console/", lines[0])
        assert found is not None, (lines, process.communicate())
        yield Browser(found[1]), lines, process
    finally:
        process.kill()
        process.communicate()


broker = fixture_of(Broker, topics={"orders": 3}, scope="module")


def test_the_pages_over_ordinary_connections(broker: Broker) -> None:
    """Every change is logged to standard error, and SIGTERM ends the command with status 0."""
    with console(broker.bootstrap_servers, "--edit") as (browser, _, process):
        check_pages(browser, "orders")
        check_groups_and_access(browser, "orders")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
    assert "console: the operator from 127.0.0.1: Create topic orders-made (topic: none -> orders-made;" in errors
    assert "Traceback" not in errors


def test_it_only_shows_without_edit(broker: Broker) -> None:
    with console(broker.bootstrap_servers) as (browser, _, _):
        page = browser.ask("topics")[1]
        assert "Create a topic" not in page
        assert "--edit is off" in words_of(browser.ask("topic-new")[1])


def test_credentials_need_a_token(tmp_path: Path) -> None:
    """With credentials, the command prints a token without which other users of the host have no access."""
    with Broker(SECURED) as made:
        made.context.topics.create(NewTopic("orders", 1))
        with cluster_of(made) as root:
            for user in ("root", "alice"):
                Users(root).set(user, "SCRAM-SHA-256", "secret", 4096)
            Acls(root).add([allow("alice", Operation.DESCRIBE, ResourceType.TOPIC, "orders")])
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=" + LOGIN.format("root")
        )
        address = made.bound_listeners[0].partition("://")[2]
        with console(address, "--command-config", str(config), "--edit") as (browser, _, process):
            assert process.stdout is not None
            token = process.stdout.readline().rpartition(" ")[2].strip()
            assert browser.ask("topics")[0] == 303
            assert browser.ask("sign-in", {"token": "wrong" * 5})[0] == 403
            assert browser.ask("sign-in", {"token": token})[0] == 303
            status, page = browser.ask("topics")
            assert (status, "orders" in page, "<bdi>root</bdi>" in page) == (200, True, True)
            assert secret_of(page)
            assert browser.apply("topic/partitions", {"topic": "orders", "partitions": "2"})[0] == 303
            alice = Browser(browser.address)
            assert alice.ask("sign-in", {"user": "alice", "password": "wrong"})[0] == 403
            assert alice.ask("sign-in", {"user": "unknown", "password": "secret"})[0] == 403
            assert alice.ask("sign-in", {"user": "alice", "password": "secret"})[0] == 303
            status, page = alice.ask("topics")
            assert (status, "orders" in page, "<bdi>alice</bdi>" in page) == (200, True, True)
            denied = alice.apply("topic/partitions", {"topic": "orders", "partitions": "3"})
            assert (denied[0], "No ACL allows User:alice the operation Alter" in denied[1]) == (403, True)
            assert browser.apply("topic/partitions", {"topic": "orders", "partitions": "3"})[0] == 303
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=20)
            assert "console: User:root from 127.0.0.1: Add partitions to topic orders (partitions: 2 -> 3)" in errors
            assert "console: User:alice signed in from 127.0.0.1" in errors
            assert "secret" not in errors


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-b", "127.0.0.1:1"], "127.0.0.1:1"),
        (["--listen", "8080"], "expected HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "expected HOST:PORT"),
        (["--token", "short"], "expected 16 to 1024 characters"),
        (["-b", "a:b:c"], "expected host:port"),
    ],
)
def test_wrong_options(options: list[str], why: str) -> None:
    command = [sys.executable, "-m", "kbroker", "console", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert why in done.stderr
    assert "Traceback" not in done.stderr
