"""`kbroker consume`: selection, format and decoding of records; `kbroker produce` with encoders."""

import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kbroker.cli.record_options import DECODERS, ENCODERS
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups
from kbroker.client.producer import Producer
from kbroker.decoders import encoders
from kbroker.decoders.decoders import NAMES
from kbroker.testing import EmbeddedBroker
from tests.support.cli import run

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Address of a broker with `orders` (two partitions, one record per hour), `order-lines` and `numbers`."""
    with EmbeddedBroker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        Admin(cluster).create_topics(
            [NewTopic("orders", 2), NewTopic("order-lines", 1), NewTopic("numbers", 1), NewTopic("encoded", 1)]
        )
        with Producer(cluster) as producer:
            for n in range(10):
                value = b'{"id": %d, "amount": %d.50, "who": "z\xc3\xb6e"}' % (n, 10 * n)
                headers = [("type", b"even" if n % 2 == 0 else b"odd"), ("none", None)]
                producer.send("orders", value, b"k%d" % n, partition=n % 2, headers=headers, timestamp_ms=n * HOUR_MS)
            producer.send("order-lines", b"\x81\xa1a\x01", None)
            producer.send("numbers", struct.pack(">q", -5), b"\0\0\0\x07")
            producer.send("numbers", None, b"\xff")
            producer.flush()
        yield broker.bootstrap_servers


def lines(bootstrap: str, *args: str, status: int = 0) -> list[str]:
    result = run(None, "consume", *args, env={"KBROKER_BOOTSTRAP": bootstrap})
    assert result.exit_code == status, result.output
    return result.stdout.splitlines() if status == 0 else result.stderr.splitlines()


def ids(bootstrap: str, *args: str) -> list[int]:
    return [json.loads(line)["id"] for line in lines(bootstrap, "orders", *args)]


def test_the_last_records_by_time(bootstrap: str) -> None:
    assert ids(bootstrap, "--last", "3") == [7, 8, 9]
    assert ids(bootstrap, "--last", "100", "-n", "2") == [0, 1]
    assert ids(bootstrap, "--last", "2", "--partition", "0") == [6, 8]


def test_ends(bootstrap: str) -> None:
    assert sorted(ids(bootstrap, "--from-beginning", "--end")) == list(range(10))
    assert sorted(ids(bootstrap, "--from-beginning", "--end-offset", "2")) == [0, 1, 2, 3]
    times = ("--timestamp", str(2 * HOUR_MS), "--end-timestamp", "1970-01-01T05:00:00")
    assert sorted(ids(bootstrap, *times)) == [2, 3, 4]
    assert sorted(ids(bootstrap, "--offset", "4", "--end-timestamp", str(99 * HOUR_MS))) == [8, 9]
    assert ids(bootstrap, "--end") == []


def test_several_topics(bootstrap: str) -> None:
    shown = ("--from-beginning", "--end", "--format", r"%t\n")
    assert set(lines(bootstrap, "orders", "numbers", *shown)) == {"orders", "numbers"}
    assert set(lines(bootstrap, "order.*", "--regex", *shown)) == {"orders", "order-lines"}
    assert lines(bootstrap, "nothing", "--regex", status=1) == ["kbroker: no topic matches nothing"]


def test_templates(bootstrap: str) -> None:
    one = ("--partition", "1", "--offset", "1", "-n", "1", "--format")
    assert lines(bootstrap, "orders", *one, r"%t/%p/%o %T %k=%K %S %h 100%% \x41\q\n") == [
        f"orders/1/1 {3 * HOUR_MS} k3=2 41 type=odd,none=NULL 100% A\\q"
    ]
    null = ("--partition", "0", "--offset", "1", "-n", "1", "--format")
    result = run(None, "consume", "numbers", *null, r"[%s] %S %R|%K\n", env={"KBROKER_BOOTSTRAP": bootstrap})
    assert result.stdout_bytes == b"[] -1 \xff\xff\xff\xff|1\n"


def test_grep_and_filter(bootstrap: str) -> None:
    every = ("--from-beginning", "--end")
    assert sorted(ids(bootstrap, *every, "--grep", "zö|nothing")) == list(range(10))
    assert ids(bootstrap, *every, "--grep", "^k3$") == [3]
    assert sorted(ids(bootstrap, *every, "--filter", "value.amount > `65` && headers.type == 'even'")) == [8]
    assert ids(bootstrap, *every, "--filter", "value.amount > `35`", "-n", "1", "--partition", "0") == [4]
    message = lines(bootstrap, "orders", *every, "--filter", "value[", status=2)[0]
    assert message.startswith("kbroker: Invalid value for --filter: expected a JMESPath expression")


def test_decoders(bootstrap: str) -> None:
    every = ("--from-beginning", "--end")
    assert lines(bootstrap, "order-lines", *every, "--decode", "msgpack") == ['{"a": 1}']
    numbers = ("numbers", *every, "--decode", "int64", "--decode-key", "int32")
    assert lines(bootstrap, *numbers, "--format", "key-value", "-n", "1") == ["7:-5"]
    first, second = (json.loads(line) for line in lines(bootstrap, *numbers, "--json"))
    assert [first[name] for name in ("key", "key_format", "value", "value_format")] == [7, "int32", -5, "int64"]
    assert (second["value"], second["key_base64"]) == (None, "/w==")
    assert second["key_problem"] == "expected 4 bytes for int32, got 1 byte"


def test_digits_stay_in_json(bootstrap: str) -> None:
    (line,) = lines(bootstrap, "orders", "--last", "1", "--json", "--decode", "json")
    assert '"value": {"id": 9, "amount": 90.50, "who": "zöe"}' in line


def test_a_record_that_does_not_fit_is_printed_as_it_is(bootstrap: str) -> None:
    arguments = ("consume", "numbers", "--from-beginning", "--end", "--decode", "json", "-n", "1")
    result = run(None, *arguments, env={"KBROKER_BOOTSTRAP": bootstrap})
    assert result.stdout_bytes == struct.pack(">q", -5) + b"\n"
    assert result.stderr.startswith("numbers-0 offset 0: the value is printed as it is: not JSON: ")


def test_kafkas_own_records(bootstrap: str) -> None:
    with Cluster(bootstrap) as cluster:
        Groups(cluster).commit("g", {("orders", 1): 3})
    found = lines(bootstrap, "__consumer_offsets", "--last", "1", "--decode", "auto", "--decode-key", "auto", "--json")
    document = json.loads(found[0])
    assert document["key"]["data"] == {"group": "g", "topic": "orders", "partition": 1}
    assert document["value"]["data"]["offset"] == 3


def test_a_group_commits_what_does_not_match_too(bootstrap: str) -> None:
    member = ("--group", "readers", "--from-beginning", "--timeout", "0.3")
    assert sorted(ids(bootstrap, *member, "--filter", "value.id < `2`")) == [0, 1]
    assert ids(bootstrap, *member) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a closed pipe is found by poll")
@pytest.mark.parametrize("group", [[], ["--group", "closed"]])
def test_a_closed_pipe_ends_the_wait_for_records(bootstrap: str, group: list[str]) -> None:
    """`kbroker consume TOPIC --from-beginning | head -1` ends without a further record."""
    command = [sys.executable, "-m", "kbroker", "consume", "order-lines", "--from-beginning", "-b", bootstrap, *group]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"\x81\xa1a\x01\n"
        reader.stdout.close()
        assert reader.wait(30) == 1
        assert reader.stderr.read() == b""


def test_the_help_names_every_decoder_and_encoder() -> None:
    assert DECODERS == NAMES
    assert ENCODERS == encoders.NAMES


def test_what_is_produced_encoded(bootstrap: str) -> None:
    """`produce` encodes keys and values; the text of `--null-value` is a null, and an invalid line is named."""
    environment = {"KBROKER_BOOTSTRAP": bootstrap}
    forms = ("-K", ":", "--encode", "int64", "--encode-key", "uuid", "--null-value", "-")
    key = "12345678-1234-5678-1234-567812345678"
    done = run(None, "produce", "encoded", *forms, input=f"{key}:-5\n{key}:-\n", env=environment)
    assert done.exit_code == 0, done.output
    every = ("encoded", "--from-beginning", "--end", "--format", "key-value")
    assert lines(bootstrap, *every, "--decode", "int64", "--decode-key", "uuid") == [f"{key}:-5", f"{key}:null"]
    wrong = run(None, "produce", "encoded", "--encode", "int64", input="5\nfive\n", env=environment)
    assert (wrong.exit_code, "line 2: the value: 'five' is not int64" in wrong.stderr) == (1, True)


@pytest.mark.parametrize(
    ("options", "bad", "reason"),
    [
        (("--encode", "int64"), "k=five", "line 3: the value: 'five' is not int64: .*"),
        ((), "five", "line 3: expected the separator '=', got 'five'"),
    ],
)
def test_lines_before_one_that_does_not_fit_are_sent(
    bootstrap: str, options: tuple[str, ...], bad: str, reason: str
) -> None:
    """An invalid line ends the command after the earlier records were sent; the message has their number."""
    topic = f"before-{len(options)}"
    done = run(None, "produce", topic, "-b", bootstrap, "-K", "=", *options, input=f"k=1\nk=2\n{bad}\nk=4\n")
    assert done.exit_code == 1
    assert re.fullmatch(f"kbroker: {reason}; sent the 2 records before it\n", done.stderr)
    decoder = ("--decode", "int64") if options else ()
    assert lines(bootstrap, topic, "--from-beginning", "--end", *decoder) == ["1", "2"]


def test_records_that_are_refused_before_a_line_that_does_not_fit_are_reported_too(bootstrap: str) -> None:
    """The message names the invalid line and the broker's error for the records before it."""
    created = run(None, "topics", "create", "narrow", "-b", bootstrap, "--config", "max.message.bytes=120")
    assert created.exit_code == 0, created.output
    done = run(None, "produce", "narrow", "-b", bootstrap, "-K", "=", input=f"k={'x' * 400}\nfive\n")
    assert done.exit_code == 1
    reason = "not all records before it were sent: MESSAGE_TOO_LARGE: partition narrow-0: "
    assert f"got 'five'; {reason}" in done.stderr
    assert lines(bootstrap, "narrow", "--from-beginning", "--end") == []
