"""`kbroker quotas` against a scripted broker: requests, output and errors."""

import json
import sys
from pathlib import Path

import pytest

from kbroker.client.quota_file import read_quota_file
from kbroker.common.errors import Errors
from kbroker.common.quotas import QuotaEntity
from tests.support.cli import printed, refusal, run
from tests.support.fake_broker import Body
from tests.support.quota_broker import ALTER, DESCRIBE, Key, QuotaBroker

ALICE: Key = (("user", "alice"),)
ALICE_ANY: Key = (("user", "alice"), ("client-id", None))
ANYBODY: Key = (("user", None),)

TABLE = """\
USER       CLIENT-ID  IP        QUOTA                        LIMIT
-          <default>  -         request_percentage          12.5 %
-          app        -         consumer_byte_rate        1000 B/s
-          -          10.0.0.1  connection_creation_rate      30/s
<default>  -          -         producer_byte_rate         1 MiB/s
alice      -          -         consumer_byte_rate         512 B/s
alice      -          -         producer_byte_rate         1 KiB/s
alice      <default>  -         producer_byte_rate          99 B/s
"""


def fill(broker: QuotaBroker) -> None:
    broker.quotas = {
        ALICE: {"producer_byte_rate": 1024.0, "consumer_byte_rate": 512.0},
        ALICE_ANY: {"producer_byte_rate": 99.0},
        ANYBODY: {"producer_byte_rate": 1048576.0},
        (("client-id", "app"),): {"consumer_byte_rate": 1000.0},
        (("client-id", None),): {"request_percentage": 12.5},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 30.0},
    }


# ---------------------------------------------------------------- list and describe


def test_list_shows_every_quota(broker: QuotaBroker) -> None:
    """Each quota is a row, and defaults precede names."""
    fill(broker)
    assert printed(broker, "quotas", "list").split("\n") == TABLE.split("\n")
    assert printed(broker, "quotas", "list", "--ip", "10.0.0.1").splitlines()[1:] == [
        "   -          -  10.0.0.1  connection_creation_rate   30/s"
    ]
    broker.quotas = {}
    assert printed(broker, "quotas", "list") == "USER  CLIENT-ID  IP  QUOTA  LIMIT\n"


def test_list_asks_the_broker_for_the_parts_named(broker: QuotaBroker) -> None:
    """Names match exactly and a -default option matches the default; `list` is not strict, `describe` is."""
    fill(broker)
    printed(broker, "quotas", "list", "--user", "alice", "--client-id-default")
    printed(broker, "quotas", "describe", "--user", "alice")
    assert [body for _, body in broker.asked(DESCRIBE)] == [
        {
            "Components": [
                {"EntityType": "user", "MatchType": 0, "Match": "alice"},
                {"EntityType": "client-id", "MatchType": 1, "Match": None},
            ],
            "Strict": False,
        },
        {"Components": [{"EntityType": "user", "MatchType": 0, "Match": "alice"}], "Strict": True},
    ]


def test_describe_one_entity(broker: QuotaBroker) -> None:
    """Only the exact entity is described, without the user's client ids, and an entity without quotas is empty."""
    fill(broker)
    assert json.loads(printed(broker, "quotas", "describe", "--user", "alice", "--json")) == [
        {"entity": {"user": "alice"}, "quotas": {"consumer_byte_rate": 512, "producer_byte_rate": 1024}}
    ]
    assert json.loads(printed(broker, "quotas", "describe", "--user", "bob", "--json")) == [
        {"entity": {"user": "bob"}, "quotas": {}}
    ]
    assert refusal(run(broker, "quotas", "describe"), 2) == (
        "expected an entity: --user, --client-id or both, or --ip, or a -default of these"
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--user", "a", "--user-default"], "expected only one of --user and --user-default, got both"),
        (["--user", ""], "Invalid value for --user: expected a name, got an empty one"),
        (["--ip", "10.0.0.1", "--user", "a"], "expected --ip alone, got it with a user or client-id"),
    ],
)
def test_entities_that_cannot_be_named(broker: QuotaBroker, args: list[str], text: str) -> None:
    """Invalid entities are wrong usage, found before a request is sent."""
    assert refusal(run(broker, "quotas", "list", *args), 2) == text
    assert broker.asked(DESCRIBE) == []


# ---------------------------------------------------------------- set and remove


def test_set(broker: QuotaBroker) -> None:
    """Several keys of one entity are sent in one request."""
    out = printed(
        *(broker, "quotas", "set", "--user", "alice", "--client-id-default"),
        *("producer_byte_rate=1048576", "request_percentage=0.5"),
    )
    assert out == "set producer_byte_rate, request_percentage of user alice, client-id <default>\n"
    ((version, body),) = broker.asked(ALTER)
    assert (version, body) == (
        1,
        {
            "Entries": [
                {
                    "Entity": [
                        {"EntityType": "user", "EntityName": "alice"},
                        {"EntityType": "client-id", "EntityName": None},
                    ],
                    "Ops": [
                        {"Key": "producer_byte_rate", "Value": 1048576.0, "Remove": False},
                        {"Key": "request_percentage", "Value": 0.5, "Remove": False},
                    ],
                }
            ],
            "ValidateOnly": False,
        },
    )


def test_set_dry_run_and_json(broker: QuotaBroker) -> None:
    """A dry run only validates the change, and its output begins with "could set"."""
    args = ("quotas", "set", "--ip", "10.0.0.1", "connection_creation_rate=5", "--dry-run")
    assert printed(broker, *args) == "could set connection_creation_rate of ip 10.0.0.1\n"
    assert json.loads(printed(broker, *args, "--json")) == {
        "altered": False,
        "entity": {"ip": "10.0.0.1"},
        "quotas": {"connection_creation_rate": 5},
    }
    assert [body["ValidateOnly"] for _, body in broker.asked(ALTER)] == [True, True]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["producer_byte_rate"], "Invalid value for KEY=NUMBER: expected KEY=NUMBER, got 'producer_byte_rate'"),
        (
            ["producer_byte_rate=fast"],
            "Invalid value for KEY=NUMBER: producer_byte_rate: expected bytes per second such as 1048576, 1MB "
            "(1,000,000) or 1MiB (1,048,576), got 'fast'",
        ),
        (["a=1", "a=2"], "duplicate a: give each quota once"),
    ],
)
def test_set_refuses_what_is_no_number(broker: QuotaBroker, words: list[str], text: str) -> None:
    """A limit that is not a number is wrong usage."""
    assert refusal(run(broker, "quotas", "set", "--user", "alice", *words), 2) == text
    assert broker.asked(ALTER) == []


def test_the_brokers_refusal_is_one_line(broker: QuotaBroker) -> None:
    """The line has the entity, the code's name and the broker's message."""
    broker.unknown_keys = {"speed"}
    result = run(broker, "quotas", "set", "--user", "alice", "speed=1")
    assert refusal(result, 1) == "INVALID_REQUEST: user alice: Invalid configuration key speed"


def test_a_broker_too_old_for_a_key_is_explained(broker: QuotaBroker) -> None:
    """INVALID_REQUEST for a key of newer brokers is explained by the broker's age."""
    broker.unknown_keys = {"controller_mutation_rate"}
    result = run(broker, "quotas", "set", "--user-default", "controller_mutation_rate=5")
    assert refusal(result, 1) == (
        "INVALID_REQUEST: user <default>: Invalid configuration key controller_mutation_rate (this broker is too old "
        "for it: controller_mutation_rate came with Kafka 2.7; leave it out or upgrade)"
    )


def test_a_broker_without_quota_requests_is_explained(broker: QuotaBroker) -> None:
    """Brokers before 2.6 have no quota requests, and the error names the first version that has them."""
    del broker.ranges[DESCRIBE]
    text = refusal(run(broker, "quotas", "list"), 1)
    assert text == (
        f"UNSUPPORTED_VERSION: {broker.bootstrap} supports no version of DescribeClientQuotas, this client "
        "versions 0-1: brokers have quota requests from Kafka 2.6 on"
    )


def test_remove(broker: QuotaBroker) -> None:
    """Named keys or all keys are removed; absent keys are reported, and no request is sent for them."""
    fill(broker)
    assert printed(broker, "quotas", "remove", "--user", "alice", "producer_byte_rate", "request_percentage") == (
        "removed producer_byte_rate of user alice\n"
    )
    assert broker.quotas[ALICE] == {"consumer_byte_rate": 512}
    assert printed(broker, "quotas", "remove", "--user", "alice", "--dry-run") == (
        "could remove consumer_byte_rate of user alice\n"
    )
    assert printed(broker, "quotas", "remove", "--user", "alice") == "removed consumer_byte_rate of user alice\n"
    assert ALICE not in broker.quotas
    sent = len(broker.asked(ALTER))
    assert printed(broker, "quotas", "remove", "--user", "alice") == "user alice has no quota\n"
    assert printed(broker, "quotas", "remove", "--user", "alice", "producer_byte_rate") == (
        "user alice has no such quota\n"
    )
    assert json.loads(printed(broker, "quotas", "remove", "--user", "alice", "--json"))["altered"] is False
    assert len(broker.asked(ALTER)) == sent
    assert refusal(run(broker, "quotas", "remove", "--user", "alice", "sped"), 2) == (
        "unknown quota 'sped': expected one of connection_creation_rate, consumer_byte_rate, controller_mutation_rate, "
        'producer_byte_rate, request_percentage, or one with "shadow." before it'
    )


# ---------------------------------------------------------------- resolve

RESOLVED = """\
QUOTA                     LIMIT  LEVEL  SET FOR                           COUNTED FOR
consumer_byte_rate      512 B/s      3  user alice                        user alice, all clients
controller_mutation_rate      -      -  -                                 -
producer_byte_rate       99 B/s      2  user alice, client-id <default>   user alice, client-id app
request_percentage       12.5 %      8  client-id <default>               client-id app, all users
"""


def test_resolve(broker: QuotaBroker) -> None:
    """Each quota has the level that applies, the entity that sets it, and the clients that share its counter."""
    fill(broker)
    out = printed(broker, "quotas", "resolve", "--user", "alice", "--client-id", "app")
    assert [line.split() for line in out.splitlines()] == [line.split() for line in RESOLVED.splitlines()]
    (row,) = json.loads(printed(broker, "quotas", "resolve", "--client-id", "app", "--ip", "10.0.0.1", "--json"))[4:]
    assert row == {
        "quota": "connection_creation_rate",
        "limit": 30,
        "level": None,
        "entity": {"ip": "10.0.0.1"},
        "shared_by": "ip 10.0.0.1",
        "levels": [
            {"level": 1, "entity": {"ip": "10.0.0.1"}, "limit": 30, "outcome": "applies"},
            {"level": 2, "entity": {"ip": None}, "limit": None, "outcome": "not set"},
        ],
    }


def test_resolve_without_a_client_id(broker: QuotaBroker) -> None:
    """Only quotas without a client id apply, and the command prints that."""
    fill(broker)
    out = printed(broker, "quotas", "resolve", "--user", "alice").splitlines()
    assert out[-1] == "Only quotas without a client id (levels 3 and 6) apply to a client without a client id."
    rows = {row["quota"]: row for row in json.loads(printed(broker, "quotas", "resolve", "--json"))}
    assert (rows["producer_byte_rate"]["level"], rows["producer_byte_rate"]["shared_by"]) == (
        6,
        "user ANONYMOUS, all clients",
    )
    assert rows["request_percentage"]["level"] is None


def test_resolve_says_why_the_other_levels_lost(broker: QuotaBroker) -> None:
    """Each of the eight levels has its outcome: it applies, is overridden, is not set, or needs a client id."""
    fill(broker)

    def outcomes(*args: str) -> list[tuple[int, str]]:
        rows = {row["quota"]: row for row in json.loads(printed(broker, "quotas", "resolve", *args, "--json"))}
        return [(one["level"], one["outcome"]) for one in rows["producer_byte_rate"]["levels"]]

    assert outcomes("--user", "alice", "--client-id", "app") == [
        (1, "not set"), (2, "applies"), (3, "overridden"), (4, "not set"), (5, "not set"), (6, "overridden"),
        (7, "not set"), (8, "not set"),
    ]  # fmt: skip
    assert outcomes("--user", "alice") == [
        (1, "no client id"), (2, "no client id"), (3, "applies"), (4, "no client id"), (5, "no client id"),
        (6, "overridden"), (7, "no client id"), (8, "no client id"),
    ]  # fmt: skip


# ---------------------------------------------------------------- hostile names, several brokers

HOSTILE = "a\x1b[2J\x9b31m\u202eb\x07"
ESCAPED = "a\\u001b[2J\\u009b31m\\u202eb\\u0007"


def test_control_characters_in_names_never_reach_the_terminal(broker: QuotaBroker, tmp_path: Path) -> None:
    """Tables, lines, errors and JSON escape control characters, and the JSON still decodes to the same name."""
    broker.quotas = {(("user", HOSTILE),): {"producer_byte_rate": 1024.0}}
    broker.unknown_keys = {"speed"}
    plan = tmp_path / "q.json"
    plan.write_text(json.dumps([{"entity": {"user": HOSTILE}, "quotas": {"producer_byte_rate": 5}}]))
    for args in (
        ("quotas", "list"),
        ("quotas", "describe", "--user", HOSTILE),
        ("quotas", "resolve", "--user", HOSTILE),
        ("quotas", "set", "--user", HOSTILE, "producer_byte_rate=2048"),
        ("quotas", "set", "--user", HOSTILE, "speed=1"),
        ("quotas", "diff", str(plan)),
        ("quotas", "apply", str(plan)),
        ("quotas", "remove", "--user", HOSTILE),
        ("quotas", "remove", "--user", HOSTILE),
    ):
        result = run(broker, *args)
        assert ESCAPED in result.output, args
        assert not set(HOSTILE) - set("a[2J31mb") & set(result.output), args
    broker.quotas = {(("user", HOSTILE),): {"producer_byte_rate": 1024.0}}
    listed = printed(broker, "quotas", "list", "--json")
    assert ESCAPED in listed
    assert json.loads(listed)[0]["entity"] == {"user": HOSTILE}


def test_of_several_brokers_the_output_says_that_each_enforces(broker: QuotaBroker, plan: Path) -> None:
    """A line on stderr and a number in JSON state the brokers, and a file of that JSON can be read."""
    fill(broker)
    broker.more_nodes = 2
    note = (
        "note: each of the 3 brokers enforces quotas by itself, so a client may get a limit up to 3 times; only "
        "controller_mutation_rate holds for the whole cluster\n"
    )
    for args in (
        ("list",),
        ("describe", "--user", "alice"),
        ("resolve",),
        ("set", "--user", "alice", "producer_byte_rate=2048"),
        ("diff", str(plan)),
        ("apply", str(plan)),
    ):
        result = run(broker, "quotas", *args)
        assert (result.exit_code, result.stderr) == (0, note), args
        fill(broker)
        found = json.loads(run(broker, "quotas", *args, "--json").stdout)
        assert [row["brokers"] for row in (found if isinstance(found, list) else [found])][:1] == [3], args
    listed = plan.with_suffix(".json")
    listed.write_text(run(broker, "quotas", "list", "--json").stdout)
    assert run(broker, "quotas", "diff", str(listed), "--prune", "--exit-code").exit_code == 0


# ---------------------------------------------------------------- files

FILE = """\
# what alice may do
- entity: {user: alice}
  quotas:
    producer_byte_rate: 2048
    request_percentage: 50.5
- entity:
    user: null
  quotas: {}
- entity: {user: "alice", client-id: null}
  quotas: {producer_byte_rate: 99}
"""
DIFFERENT = """\
- user alice: consumer_byte_rate 512 B/s
~ user alice: producer_byte_rate 1 KiB/s -> 2 KiB/s
+ user alice: request_percentage 50.5 %
- user <default>: producer_byte_rate 1 MiB/s
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "quotas.yaml"
    path.write_text(FILE)
    return path


def test_diff_shows_what_apply_would_change(broker: QuotaBroker, plan: Path) -> None:
    """An entity in the file gets exactly the file's quotas, other entities are unchanged, and nothing is altered."""
    fill(broker)
    assert printed(broker, "quotas", "diff", str(plan)) == DIFFERENT
    assert run(broker, "quotas", "diff", str(plan), "--exit-code").exit_code == 3
    assert {body["ValidateOnly"] for _, body in broker.asked(ALTER)} == {True}
    rows = json.loads(printed(broker, "quotas", "diff", str(plan), "--json"))
    assert rows[1] == {"entity": {"user": "alice"}, "key": "producer_byte_rate", "before": 1024, "after": 2048}


def test_diff_refuses_what_apply_would_refuse(broker: QuotaBroker, plan: Path) -> None:
    """A value that the broker rejects is an error with its place in the file, not a difference."""
    fill(broker)
    broker.unknown_keys = {"request_percentage"}
    result = run(broker, "quotas", "diff", str(plan))
    assert (result.exit_code, "alice" in result.stdout) == (1, False)
    assert result.stderr.startswith(f"kbroker: INVALID_REQUEST: {plan}: line ")
    assert run(broker, "quotas", "apply", str(plan)).stderr == result.stderr


def test_diff_without_the_right_to_alter(broker: QuotaBroker, plan: Path) -> None:
    """Differences are shown to users who may only describe quotas."""
    fill(broker)

    def refuse(version: int, body: Body) -> Body:
        code = int(Errors.CLUSTER_AUTHORIZATION_FAILED)
        return {"Entries": [{"ErrorCode": code, "ErrorMessage": None, "Entity": e["Entity"]} for e in body["Entries"]]}

    broker.handlers[ALTER] = refuse
    assert printed(broker, "quotas", "diff", str(plan)) == DIFFERENT


def test_apply_sends_all_in_one_request(broker: QuotaBroker, plan: Path) -> None:
    """The whole file is one request; afterwards there is no difference, and a second apply sends nothing."""
    fill(broker)
    assert printed(broker, "quotas", "apply", str(plan), "--dry-run") == DIFFERENT
    assert broker.quotas[ALICE]["producer_byte_rate"] == 1024
    assert printed(broker, "quotas", "apply", str(plan)) == DIFFERENT
    assert [body["ValidateOnly"] for _, body in broker.asked(ALTER)] == [True, False]
    assert [len(body["Entries"]) for _, body in broker.asked(ALTER)] == [2, 2]
    assert broker.quotas[ALICE] == {"producer_byte_rate": 2048, "request_percentage": 50.5}
    assert ANYBODY not in broker.quotas
    assert (("client-id", "app"),) in broker.quotas
    assert printed(broker, "quotas", "diff", str(plan), "--exit-code") == ""
    assert printed(broker, "quotas", "apply", str(plan)) == ""
    assert len(broker.asked(ALTER)) == 2


def test_apply_with_prune(broker: QuotaBroker, plan: Path) -> None:
    """Entities missing in the file are removed too, in the same request."""
    fill(broker)
    printed(broker, "quotas", "apply", str(plan), "--prune")
    assert broker.quotas == {
        ALICE: {"producer_byte_rate": 2048, "request_percentage": 50.5},
        ALICE_ANY: {"producer_byte_rate": 99},
    }
    assert len(broker.asked(ALTER)) == 1


def test_apply_prints_what_was_made_and_what_was_refused(broker: QuotaBroker, plan: Path) -> None:
    """Entities are independent: valid entities are changed, and the first error ends the command with status 1."""
    fill(broker)
    broker.unknown_keys = {"request_percentage"}
    result = run(broker, "quotas", "apply", str(plan))
    text = "user alice: Invalid configuration key request_percentage"
    assert refusal(result, 1, "- user <default>: producer_byte_rate 1 MiB/s\n") == (
        f"INVALID_REQUEST: {plan}: line 5, column 5: {text}"
    )
    fill(broker)
    result = run(broker, "quotas", "apply", "--json", str(plan))
    (made,) = json.loads(result.stdout)
    assert (result.exit_code, made["entity"], made["after"]) == (1, {"user": None}, None)


def test_what_the_broker_refuses_has_its_place_in_the_file(broker: QuotaBroker, tmp_path: Path) -> None:
    """A key that resembles no known key may be a newer broker's; its error has the place of the key or the entity."""
    path = tmp_path / "q.yaml"
    path.write_text("- entity: {user: a}\n  quotas:\n    producer_byte_rate: 5\n    rate: 5\n")
    broker.unknown_keys = {"rate"}
    assert refusal(run(broker, "quotas", "apply", str(path)), 1) == (
        f"INVALID_REQUEST: {path}: line 4, column 5: user a: Invalid configuration key rate"
    )
    wanted = read_quota_file(path)
    (entity,) = wanted
    assert wanted.place_of(entity, "it is refused") == f"{path}: line 1, column 11: "
    assert wanted.place_of(QuotaEntity.of({"user": "b"}), "it is refused") == ""
    path = tmp_path / "q.json"
    path.write_text(
        '[{"entity": {"user": "a"}, "quotas": {"rate": 5}}, {"entity": {"user": "b"}, "quotas": {"rate": 5}}]'
    )
    assert refusal(run(broker, "quotas", "apply", str(path)), 1) == (
        f"INVALID_REQUEST: {path}: entry 1: user a: Invalid configuration key rate (and 1 more entity)"
    )


@pytest.mark.parametrize("command", ["list", "describe", "set producer_byte_rate=5", "resolve", "explain"])
def test_a_name_that_is_not_utf_8(broker: QuotaBroker, command: str) -> None:
    """A byte of another encoding is an error before any request."""
    result = run(broker, "quotas", *command.split(), "--user", "\udcff")
    text = "Invalid value for '--user': expected a user in UTF-8, got '\\udcff'"
    assert refusal(result, 2) == text
    assert broker.asked(DESCRIBE) == broker.asked(ALTER) == []


def test_what_list_prints_apply_reads(broker: QuotaBroker, tmp_path: Path) -> None:
    """The JSON of `list` is a file for `apply`, as JSON and as YAML."""
    fill(broker)
    listed = printed(broker, "quotas", "list", "--json")
    for name in ("q.json", "q.yaml"):
        path = tmp_path / name
        path.write_text(listed)
        assert printed(broker, "quotas", "diff", str(path), "--prune", "--exit-code") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a list of {entity"),
        ("{}", "line 1, column 1: expected a list of {entity"),
        ("- user: alice", "line 1, column 3: expected entity and quotas, of a list of {entity"),
        ("- {entity: {user: a}, quota: {}}", "column 23: expected entity and quotas"),
        ("- {entity: {user: a}, quota: {}}", "; found 'quota'; did you mean quotas?"),
        ("- {entity: {}, quotas: {}}",
         "line 1, column 12: expected an entity of a user, a client-id, both, or an ip, got {}"),
        ("- {entity: {group: g}, quotas: {}}",
         "line 1, column 13: expected an entity type (user, client-id, ip), got 'group'"),
        ("- {entity: {client_id: g}, quotas: {}}", "got 'client_id'; did you mean client-id?"),
        ("- {entity: {user: 7}, quotas: {}}", "line 1, column 19: expected a string as user, got 7; quote it"),
        ("- {entity: {user: [b]}, quotas: {}}", "expected a string as user, got a list; quote it"),
        ("- {entity: {user: a}, quotas: 5}",
         "line 1, column 31: user a: expected quotas as KEY: NUMBER ({} removes all), got 5"),
        ("- {entity: {user: a}, quotas: {k: fast}}", "column 35: user a: k: expected a number, got 'fast'"),
        ("- {entity: {user: a}, quotas: {k: true}}", "column 35: user a: k: expected a number, got True"),
        ("- {entity: {user: a}, quotas: {k: .nan}}", "column 35: user a: k: expected a number, got nan"),
        ("- {entity: {user: a}, quotas: {k: [1]}}", "column 35: user a: k: expected a number, got a list"),
        ("- entity: {user: a}\n  quotas:\n    producer_byte_rte: 5",
         "line 3, column 5: user a: unknown quota 'producer_byte_rte'; did you mean producer_byte_rate?"),
        ("- entity: {user: a}\n  quotas:\n    producer_byte_rate: 5 MBs",
         "line 3, column 25: user a: producer_byte_rate: expected bytes per second such as"),
        ("- {entity: {user: a}, quotas: {k: 1" + "0" * 400 + "}}",
         "column 35: user a: k: expected a number below 1e308 as quota, got a larger one"),
        ("- {entity: {user: a}, quotas: {k: 1, k: 2}}", "line 1, column 38: user a: duplicate key k; keep one"),
        ("- {entity: {1: a}, quotas: {}}", "line 1, column 13: expected a string as key, got 1; quote it"),
        ("- {entity: {[b]: a}, quotas: {}}", "line 1, column 13: expected a string as key, got a list; quote it"),
        ("- {entity: {user: a}, quotas: {}}\n- {entity: {user: a}, quotas: {}}",
         "line 2, column 3: duplicate entry for user a; keep one"),
        ("- {entity: {user: a}\n  x: [", "line 2, column "),
        ("- entity: {user: a}\n  quotas:\n  producer_byte_rate: 5\n quotas: 3", "line 4, column 2: "),
        ("- {entity: {user: \x00}}", "line 1, column 19: expected printable characters, found U+0000"),
        ("- {entity: {user: 2026-02-30}, quotas: {}}",
         "line 1, column 19: expected a valid timestamp, got '2026-02-30'; if it is a name, quote it"),
        ("- {entity: {user: a}, quotas: {k: 0x_}}", "line 1, column 35: expected a valid int, got '0x_'"),
        ("- {entity: {user: a}, quotas: {k: !!bool maybe}}", "line 1, column 35: expected a valid bool, got 'maybe'"),
        ("- {entity: {user: a}, quotas: {k: !!timestamp now}}",
         "line 1, column 35: expected a valid timestamp, got 'now'"),
        ("- {entity: {user: a}, quotas: {k: 1" + "0" * 5000 + "}}", "column 35: expected a valid int, got '1000"),
        ("[" * 5000, "nested too deeply"),
        ("- !!python/object/apply:os.system ['true']",
         "line 1, column 3: expected a plain list, got one of the type tag:yaml.org,2002:python/object/apply"),
        ("- !!python/name:os.system", "line 1, column 3: could not determine a constructor"),
        ("- {entity: {user: a}, quotas: {<<: {k: 1}}}", "line 1, column "),
        ("- &a {entity: *a, quotas: *a}", "column 7: expected an entity type (user, client-id, ip), got 'entity'"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_that_says_where(broker: QuotaBroker, tmp_path: Path, text: str, message: str) -> None:
    """No request is sent, and no code of the file is executed."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message_found = refusal(run(broker, "quotas", "apply", str(path)), 1)
    assert message_found.startswith(f"{path}: ")
    assert message in message_found
    assert broker.seen == []


def test_bad_json_says_where(broker: QuotaBroker, tmp_path: Path) -> None:
    """Errors in JSON have a line or an entry, and endless or deeply nested files are rejected."""
    path = tmp_path / "bad.json"
    path.write_text('[\n{"entity": {"user": "a"}, "quotas": {"k": 1, "k": 2}}]')
    assert refusal(run(broker, "quotas", "diff", str(path)), 1) == f"{path}: entry 1: user a: duplicate key k; keep one"
    path.write_text("[" * 100_000)
    assert refusal(run(broker, "quotas", "diff", str(path)), 1) == f"{path}: nested too deeply"
    path.write_text("9" * 5000)
    assert (
        refusal(run(broker, "quotas", "diff", str(path)), 1)
        == f"{path}: expected numbers of at most 308 digits, found a longer one"
    )
    path.write_text("[\n,")
    assert refusal(run(broker, "quotas", "diff", str(path)), 1) == f"{path}: line 2, column 1: Expecting value"
    path.write_bytes(b"\xff")
    assert (
        refusal(run(broker, "quotas", "diff", str(path)), 1)
        == f"{path}: expected UTF-8 text, found other bytes; save the file as UTF-8"
    )
    assert refusal(run(broker, "quotas", "diff", "/dev/zero"), 1) == (  # an unlimited read took all memory
        "/dev/zero: expected a file of quotas, of at most 16,777,216 characters, found more"
    )
    assert refusal(run(broker, "quotas", "diff", str(tmp_path / "none.yaml")), 1) == (
        f"{tmp_path / 'none.yaml'}: No such file or directory"
    )


def test_without_pyyaml_the_command_says_what_to_install(
    broker: QuotaBroker, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YAML needs an extra and JSON does not, as the error states."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert refusal(run(broker, "quotas", "diff", str(plan)), 1) == (
        f"{plan}: YAML needs PyYAML: pip install 'kbroker[yaml]' (a file named .json needs nothing)"
    )
