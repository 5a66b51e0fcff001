"""`kbroker groups`, `configs` and `topics alter` against a scripted broker: requests, output and errors."""

import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

from kbroker._core.clock import VirtualClock
from kbroker.cli.reset import datetime_ms, read_plan, time_before_ms
from kbroker.client.cluster import BACKOFF_MAX_S, Cluster
from kbroker.client.offset_reset import topic_partitions
from kbroker.common.errors import Errors
from tests.support.cli import printed, refusal, run
from tests.support.fake_broker import Body
from tests.support.fake_log import FakeTime
from tests.support.fixtures import fixture_of
from tests.support.group_broker import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_PARTITIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    GROUP_ID_NOT_FOUND,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SHARE_GROUP_DESCRIBE,
    GroupBroker,
    member,
)

broker = fixture_of(GroupBroker)


# ---- list, describe, delete


def test_groups_are_listed_and_filtered(broker: GroupBroker) -> None:
    """Every group is a row, and --state and --type filter them even if the broker cannot."""
    assert printed(broker, "groups", "list").splitlines() == [
        "GROUP   TYPE     PROTOCOL  STATE",
        "g       classic  consumer  Empty",
        "other   classic  consumer  Stable",
        "shared  share    consumer  Empty",
    ]
    found = json.loads(printed(broker, "groups", "list", "--json", "--state", "stable", "--type", "classic"))
    assert found == [{"group": "other", "type": "classic", "protocol_type": "consumer", "state": "Stable"}]


def test_members_of_a_streams_group_have_tasks(broker: GroupBroker) -> None:
    """Partitions belong to the members with their active tasks; --members shows the tasks of each role."""
    broker.committed["app"] = {("t", 0): 50, ("t", 1): 60}
    lines = printed(broker, "groups", "describe", "app").splitlines()
    assert lines[0] == (
        "app  state Reconciling  type streams  assignor -  coordinator 7  members 2  epoch 6  target epoch 5"
    )
    assert [line.split()[:6] for line in lines[2:4]] == [
        ["t", "0", "50", "100", "50", "m1"],
        ["t", "1", "60", "100", "40", "m1"],
    ]
    assert printed(broker, "groups", "describe", "app", "--members").splitlines()[1:] == [
        "MEMBER  PROCESS  HOST  CLIENT  EPOCH  ACTIVE  STANDBY  WARMUP  TARGET",
        "m1      p1       /h    c           4  0:0,1   -             -  active 0:0 standby 0:1 warmup -",
        "m2      p2       /h    c           5  -       0:0           -  as assigned",
    ]
    (found,) = json.loads(printed(broker, "groups", "describe", "app", "--json"))
    standby = [{"subtopology": "0", "partition": 0}]
    assert found["members"][1]["tasks"] == {"active": [], "standby": standby, "warmup": []}
    assert found["members"][1]["process"] == "p2"


def test_old_brokers_have_groups_too(broker: GroupBroker) -> None:
    """Older versions without state and type give unknown and classic, and a Dead group is not found."""
    broker.ranges |= {LIST_GROUPS: (0, 2), DESCRIBE_GROUPS: (0, 2), OFFSET_FETCH: (0, 5), FIND_COORDINATOR: (0, 0)}
    broker.ranges.pop(CONSUMER_GROUP_DESCRIBE)
    broker.ranges.pop(SHARE_GROUP_DESCRIBE)
    rows = json.loads(printed(broker, "groups", "list", "--json"))
    assert rows[0] == {"group": "g", "type": "classic", "protocol_type": "consumer", "state": None}
    (described,) = json.loads(printed(broker, "groups", "describe", "g", "--json"))
    assert described["partitions"][0]["lag"] == 50
    assert refusal(run(broker, "groups", "describe", "none")).startswith("GROUP_ID_NOT_FOUND: group 'none'")


def test_lag_is_the_end_minus_the_committed_offset(broker: GroupBroker) -> None:
    """Committed and assigned partitions are rows, with unknown values as a dash, and null in JSON."""
    broker.state = "Stable"
    broker.members = [member("m2", t=[2]), member("m1", t=[0]), member("m3", assignment=b"\xff\xff nonsense")]
    broker.committed["g"]["gone", 4] = 3
    assert printed(broker, "groups", "describe", "g").splitlines() == [
        "g  state Stable  type classic  assignor range  coordinator 7  members 3",
        "TOPIC  PARTITION  OFFSET  END  LAG  MEMBER  HOST        CLIENT",
        "gone           4       3    -    -  -       -           -",
        "t              0      50  100   50  m1      /127.0.0.1  c",
        "t              2       -  100    -  m2      /127.0.0.1  c",
    ]
    (found,) = json.loads(printed(broker, "groups", "describe", "--json", "g"))
    assert [(p["topic"], p["partition"], p["offset"], p["end_offset"], p["lag"]) for p in found["partitions"]] == [
        ("gone", 4, 3, None, None),
        ("t", 0, 50, 100, 50),
        ("t", 2, None, 100, None),
    ]
    assert [m["assignment"] for m in found["members"]] == [
        [{"topic": "t", "partition": 0}],
        [{"topic": "t", "partition": 2}],
        [],
    ]
    assert printed(broker, "groups", "describe", "g", "--members").splitlines()[1:3] == [
        "MEMBER  INSTANCE  HOST        CLIENT  ASSIGNMENT",
        "m1             -  /127.0.0.1  c       t:0",
    ]


def test_names_cannot_control_the_terminal(broker: GroupBroker) -> None:
    """Clients choose names of groups: control characters are escaped above the table too."""
    broker.committed["\x1b[31mred"] = {("t", 0): 50}
    assert printed(broker, "groups", "describe", "\x1b[31mred").startswith("\\u001b[31mred  state ")


def test_groups_of_the_new_protocol_are_described(broker: GroupBroker) -> None:
    """A group that DescribeGroups does not find is described by ConsumerGroupDescribe."""
    (found,) = json.loads(printed(broker, "groups", "describe", "newer", "--json"))
    assert (found["type"], found["assignor"], found["state"]) == ("consumer", "uniform", "Stable")
    assert [(p["partition"], p["member_id"]) for p in found["partitions"]] == [(2, "m1")]
    assert (found["epoch"], found["target_epoch"]) == (6, 5)
    assert printed(broker, "groups", "describe", "newer", "--members").splitlines() == [
        "newer  state Stable  type consumer  assignor uniform  coordinator 7  members 2  epoch 6  target epoch 5",
        "MEMBER  INSTANCE  HOST  CLIENT  ASSIGNMENT  EPOCH  PROTOCOL  TARGET",
        "m0             -  /h    c       t:2             5  classic   t:0,1",
        "m1             -  /h    c       t:2             4  consumer  as assigned",
    ]
    assert refusal(run(broker, "groups", "describe", "none")).startswith("GROUP_ID_NOT_FOUND: group 'none'")


def test_share_groups_are_described(broker: GroupBroker) -> None:
    """The lag is the broker's; a partition of several members has their number."""
    broker.sharing = {"m1": [0, 1], "m2": [0]}
    assert printed(broker, "groups", "describe", "shared").splitlines() == [
        "shared  state Stable  type share  assignor simple  coordinator 7  members 2  epoch 3  target epoch 3",
        "TOPIC  PARTITION  OFFSET  END  LAG  MEMBER     HOST  CLIENT",
        "t              0      20  100   75  2 members  -     -",
        "t              1       -  100    -  m1         /h    c",
    ]
    assert printed(broker, "groups", "describe", "shared", "--members").splitlines()[1:] == [
        "MEMBER  INSTANCE  HOST  CLIENT  ASSIGNMENT  EPOCH  PROTOCOL  TARGET",
        "m1             -  /h    c       t:0,1           3  share     as assigned",
        "m2             -  /h    c       t:0             3  share     as assigned",
    ]


def test_start_offsets_of_share_groups_are_reset(broker: GroupBroker) -> None:
    """With --share a group that does not exist can be reset too; a group with members is rejected."""
    shown = printed(broker, "groups", "reset", "shared", "--all-topics", "--shift-by", "5", "--execute")
    assert shown.splitlines() == ["GROUP   TOPIC  PARTITION  OFFSET  NEW", "shared  t              0      20   25"]
    assert broker.shared["t", 0] == 25
    printed(broker, "groups", "reset", "fresh", "--share", "--topic", "t:1", "--to-earliest", "--execute")
    assert (broker.shared["t", 1], "fresh" in broker.committed) == (10, False)
    broker.commit_error = 3
    refused = run(broker, "groups", "reset", "shared", "--topic", "t:1", "--to-offset", "20", "--execute")
    assert refusal(refused).startswith("UNKNOWN_TOPIC_OR_PARTITION: group 'shared', partition t-1: ")
    broker.sharing = {"m1": [0]}
    refused = run(broker, "groups", "reset", "shared", "--topic", "t:1", "--to-offset", "20")
    assert refusal(refused).startswith("NON_EMPTY_GROUP: group 'shared': expected no members")


def test_a_group_that_changes_its_protocol_is_found(broker: GroupBroker) -> None:
    """A group that changes its protocol between the two requests, so that both miss it, is found."""
    describe = broker.describe_groups
    missing = iter([{"ErrorCode": GROUP_ID_NOT_FOUND, "GroupId": "g", "GroupState": "Dead", "Members": []}])

    def late(version: int, body: Body) -> Body:
        row = next(missing, None)
        return describe(version, body) if row is None else {"Groups": [row]}

    broker.handlers[DESCRIBE_GROUPS] = late
    assert printed(broker, "groups", "describe", "g").startswith("g  state Empty  type classic")


def test_a_coordinator_that_loads_is_asked_again(broker: GroupBroker) -> None:
    """COORDINATOR_NOT_AVAILABLE, as for the first request to a new cluster, and a load in progress are retried."""
    responses = iter([15, 14, 0])

    def find(version: int, body: Body) -> Body:
        found = GroupBroker.find_coordinator(broker, version, body)
        return {"Coordinators": [{**found["Coordinators"][0], "ErrorCode": next(responses, 0)}]}

    broker.handlers[FIND_COORDINATOR] = find
    printed(broker, "groups", "describe", "g")


def test_groups_are_deleted_one_by_one(broker: GroupBroker) -> None:
    """A missing group is an error, or with --if-exists a line of output."""
    assert refusal(run(broker, "groups", "delete", "none")).startswith("GROUP_ID_NOT_FOUND: group 'none'")
    shown = printed(broker, "groups", "delete", "none", "g", "--if-exists")
    assert shown == "none does not exist\ndeleted g\n"
    name = "none\udcff"  # as the shell passes a name that is not UTF-8
    assert printed(broker, "groups", "delete", name, "--if-exists") == "none\\udcff does not exist\n"
    assert broker.committed == {}


# ---- reset


def reset(broker: GroupBroker, *args: str, group: str = "g") -> dict[int, int]:
    """Return the new offsets of topic t that a dry run shows without a commit."""
    before = {name: dict(found) for name, found in broker.committed.items()}
    shown = json.loads(printed(broker, "groups", "reset", group, *args, "--json"))
    assert (shown["executed"], broker.committed) == (False, before)
    assert broker.asked(OFFSET_COMMIT) == []
    return {row["partition"]: row["new_offset"] for row in shown["offsets"] if row["topic"] == "t"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--topic t --to-earliest", {0: 10, 1: 10, 2: 10}),
        ("--topic t:1,2 --topic t:0 --to-latest", {0: 100, 1: 100, 2: 100}),
        ("--topic t:1 --to-latest", {1: 100}),
        ("--topic t --to-current", {0: 50, 1: 100, 2: 100}),
        ("--topic t --to-offset 70", {0: 70, 1: 70, 2: 70}),
        ("--topic t:0 --to-offset 7", {0: 10}),
        ("--topic t:0 --to-offset 700", {0: 100}),
        ("--all-topics --shift-by -5", {0: 45}),
        ("--all-topics --shift-by 5 --dry-run", {0: 55}),
        ("--all-topics --shift-by -50", {0: 10}),
        ("--topic t:0 --shift-by 51", {0: 100}),
        ("--topic t --to-datetime 2026-01-31T12:00:00.000", {0: 30, 1: 60, 2: 100}),
        ("--topic t --by-duration P1D", {0: 30, 1: 60, 2: 100}),
    ],
)
def test_each_rule_of_a_reset(broker: GroupBroker, args: str, expected: dict[int, int]) -> None:
    """The new offsets are those of Kafka's tool, and without --execute nothing is committed."""
    assert reset(broker, *args.split()) == expected


def test_times_are_asked_in_milliseconds_of_utc(broker: GroupBroker) -> None:
    """A --to-datetime without a zone is UTC, as in Kafka's tool."""
    for text in ("2026-01-31T12:00:00", "2026-01-31T13:00:00+01:00", "2026-01-31T11:00-0100", "2026-01-31T12:00:00.0Z"):
        reset(broker, "--topic", "t:0", "--to-datetime", text)
    asked = {body["Topics"][0]["Partitions"][0]["Timestamp"] for _, body in broker.asked(LIST_OFFSETS)}
    assert asked == {1769860800000}
    assert (datetime_ms("1970-01-01T00:00:00.001"), datetime_ms("1960-01-01T00:00:00")) == (1, 0)


def test_a_duration_counts_back_from_the_clock_that_was_given(broker: GroupBroker) -> None:
    """--by-duration reads only the injected clock, and a time before 1970 becomes 0."""
    for text in ("PT1S", "P36500D"):
        words = ["groups", "reset", "g", "--topic", "t:0", "--by-duration", text]
        printed(broker, *words, obj=VirtualClock(start_epoch_ms=1_769_860_800_000))
    asked = [body["Topics"][0]["Partitions"][0]["Timestamp"] for _, body in broker.asked(LIST_OFFSETS)]
    assert set(asked) - {-1, -2} == {1_769_860_799_000, 0}


def test_execute_commits_what_was_shown(broker: GroupBroker) -> None:
    """With --execute the same rows are shown and committed; the group may be new."""
    assert printed(broker, "groups", "reset", "g", "--topic", "t", "--to-earliest", "--execute").splitlines() == [
        "GROUP  TOPIC  PARTITION  OFFSET  NEW",
        "g      t              0      50   10",
        "g      t              1       -   10",
        "g      t              2       -   10",
    ]
    assert broker.committed["g"] == {("t", 0): 10, ("t", 1): 10, ("t", 2): 10}
    printed(broker, "groups", "reset", "fresh", "--topic", "t:1", "--to-offset", "20", "--execute")
    assert broker.committed["fresh"] == {("t", 1): 20}
    broker.commit_error = 25
    shown = run(broker, "groups", "reset", "g", "--topic", "t:1", "--to-offset", "20", "--execute")
    assert refusal(shown).startswith("UNKNOWN_MEMBER_ID: group 'g', partition t-1: ")


def test_groups_before_a_commit_that_fails(broker: GroupBroker) -> None:
    """Groups that were changed before the failure are printed, with their previous offsets."""
    broker.committed["h"] = {("t", 0): 60}

    def refuse_the_second(version: int, body: Body) -> Body:
        broker.commit_error = 25 if body["GroupId"] == "h" else 0
        return broker.offset_commit(version, body)

    broker.handlers[OFFSET_COMMIT] = refuse_the_second
    done = run(broker, "groups", "reset", "g", "h", "--all-topics", "--to-earliest", "--execute")
    assert (done.exit_code, done.stdout.splitlines()[1:]) == (1, ["g      t              0      50   10"])
    assert "UNKNOWN_MEMBER_ID: group 'h', partition t-0" in done.stderr


def test_partitions_before_one_that_a_commit_refuses(broker: GroupBroker) -> None:
    """The offsets that were committed before the failure are printed, with the former offsets."""

    def refuse_one(version: int, body: Body) -> Body:
        response = broker.offset_commit(version, body)
        response["Topics"][0]["Partitions"][1]["ErrorCode"] = int(Errors.TOPIC_AUTHORIZATION_FAILED)
        del broker.committed["g"]["t", 1]
        return response

    broker.handlers[OFFSET_COMMIT] = refuse_one
    done = run(broker, "groups", "reset", "g", "--topic", "t:0,1", "--to-earliest", "--execute")
    assert (done.exit_code, done.stdout.splitlines()[1:]) == (1, ["g      t              0      50   10"])
    assert "TOPIC_AUTHORIZATION_FAILED: group 'g', partition t-1" in done.stderr


def test_an_active_group_is_left_alone(broker: GroupBroker) -> None:
    """A group with members is rejected before any group is changed, in a dry run too."""
    broker.committed["h"] = {("t", 0): 1}
    broker.state = "Stable"
    for args in (["g"], ["g", "--execute"]):
        shown = run(broker, "groups", "reset", *args, "--all-topics", "--to-latest")
        assert (
            refusal(shown)
            == "NON_EMPTY_GROUP: group 'g': expected no members, found state Stable; stop its consumers first"
        )
    assert broker.asked(OFFSET_COMMIT) == []


def test_what_cannot_be_shifted_is_named(broker: GroupBroker) -> None:
    """--shift-by without a committed offset is an error that names the partition."""
    shown = run(broker, "groups", "reset", "g", "--topic", "t:1", "--shift-by", "1")
    assert "t-1: expected a committed offset to shift" in refusal(shown)


def test_export_is_what_from_file_reads(broker: GroupBroker, tmp_path: Path) -> None:
    """The CSV of one group omits the group's name; offsets read from a file are clamped to the log."""
    broker.committed["h"] = {("t", 1): 60}
    one = printed(broker, "groups", "reset", "g", "--topic", "t:0,1", "--to-offset", "70", "--export")
    assert one == "t,0,70\nt,1,70\n"
    two = printed(broker, "groups", "reset", "g", "h", "--all-topics", "--to-current", "--export")
    assert two == "g,t,0,50\nh,t,1,60\n"
    file = tmp_path / "plan.csv"
    file.write_text(one + "\n t , 2 , 5000\n")
    assert reset(broker, "--from-file", str(file)) == {0: 70, 1: 70, 2: 100}
    file.write_text(two)
    assert reset(broker, "--from-file", str(file), group="h") == {1: 60}
    printed(broker, "groups", "reset", "g", "h", "--from-file", str(file), "--execute")
    assert broker.committed == {"g": {("t", 0): 50}, "h": {("t", 1): 60}}


def test_export_of_a_group_whose_name_has_commas(broker: GroupBroker, tmp_path: Path) -> None:
    """Names of groups are any text; those that CSV needs quoted are quoted."""
    names = ["g", 'a,"b']
    broker.committed[names[1]] = {("t", 1): 60}
    file = tmp_path / "plan.csv"
    file.write_text(printed(broker, "groups", "reset", *names, "--all-topics", "--to-current", "--export"))
    assert file.read_text() == 'g,t,0,50\n"a,""b",t,1,60\n'
    assert reset(broker, "--from-file", str(file), group=names[1]) == {1: 60}


@pytest.mark.parametrize("text", ["t,0", "t,x,1", "t,0,-1", "g,t,0,1,2", "t,0,", '"t'])
def test_a_bad_line_of_a_plan_is_named(text: str, tmp_path: Path) -> None:
    """An invalid row is an error with file and line, and no request is sent."""
    file = tmp_path / "plan.csv"
    file.write_text(f"t,0,1\n{text}\n")
    with pytest.raises(click.BadParameter, match=r"plan\.csv, line 2: expected topic,partition,offset or group"):
        read_plan(str(file), ("g",))
    file.write_text(f"t,0,1\nt,0,{'1' * 200_000}\n")
    with pytest.raises(click.BadParameter, match=r"plan\.csv, line 2: field larger than field limit"):
        read_plan(str(file), ("g",))
    file.write_text("other,t,0,1\n")
    with pytest.raises(click.BadParameter, match="expected rows of group 'g', found none"):
        read_plan(str(file), ("g",))


def test_all_groups_leaves_share_groups_alone(broker: GroupBroker) -> None:
    """--all-groups selects consumer groups in every state and no share group."""
    shown = json.loads(printed(broker, "groups", "reset", "--all-groups", "--topic", "t:0", "--to-latest", "--json"))
    assert [row["group"] for row in shown["offsets"]] == ["g", "other"]


ONE_RULE = (
    "expected exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime, "
    "--by-duration, --from-file, got "
)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("groups reset g --topic t", ONE_RULE + "0"),
        ("groups reset g --topic t --to-earliest --to-latest", ONE_RULE + "2"),
        ("groups reset --topic t --to-latest", "expected either GROUP or --all-groups, got neither"),
        ("groups reset g --all-groups --topic t --to-latest", "expected either GROUP or --all-groups, got both"),
        ("groups reset g --to-latest", "expected either --topic or --all-topics, got neither"),
        ("groups reset g --topic t --all-topics --to-latest", "expected either --topic or --all-topics, got both"),
        ("groups reset g --topic t --to-latest --execute --dry-run",
         "expected only one of --dry-run and --execute, got both"),
        ("groups reset g --topic t --to-latest --export --json", "expected only one of --export and --json, got both"),
        ("groups reset g --topic t: --to-latest",
         "Invalid value for --topic: expected TOPIC or TOPIC:0,1,..., got 't:'"),
        ("groups reset g --topic t:0,x --to-latest",
         "Invalid value for --topic: expected TOPIC or TOPIC:0,1,..., got 't:0,x'"),
        ("groups reset g --topic t --to-datetime soon",
         "Invalid value for --to-datetime: expected a time such as 2026-01-31T12:00:00, got 'soon'"),
        ("groups reset g --topic t --by-duration 5m",
         "Invalid value for --by-duration: expected a duration such as P1DT2H30M, got '5m'"),
        ("groups reset g --topic t --by-duration=-PT9223372036854775S",
         "Invalid value for --by-duration: expected a duration such as P1DT2H30M, got '-PT9223372036854775S'"),
        ("groups delete", "Missing argument 'GROUP...'."),
        ("configs alter topic t", "expected at least one of --set, --delete, --append and --subtract"),
        ("configs alter topic t --set a=1 --delete a", "duplicate change of a: give each config once"),
        ("configs alter broker x --set a=1", "Invalid value for NAME: expected a node id or default, got 'x'"),
        ("configs describe broker-logger default", "Invalid value for NAME: expected a node id, got 'default'"),
        ("topics alter t", "expected at least one of --partitions, --config and --delete-config"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line(args: str, message: str) -> None:
    """An invalid combination is rejected before the command connects to a broker."""
    assert refusal(run(None, *args.split()), 2) == message


@pytest.mark.parametrize(
    ("text", "expected"),
    [("P1D", 86_400_000), ("PT1H2M3S", 3_723_000), ("PT0.5S", 500), ("-PT1M", -60_000), ("PT-1.5S", -1500),
     ("p1dt1h", 90_000_000), ("P0D", 0)],
)  # fmt: skip
def test_durations(text: str, expected: int) -> None:
    """Durations are read as java.time.Duration reads them."""
    assert time_before_ms(10**12, text) == 10**12 - expected


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "P1M", "1D", "P1Y", "PT1X", "P1D ", "PT٣S"])
def test_what_is_no_duration(text: str) -> None:
    """Months, years and empty parts are rejected."""
    with pytest.raises(click.BadParameter):
        time_before_ms(0, text)


def test_topics_with_partitions() -> None:
    """Partitions of one topic are merged, and a topic without numbers means all its partitions."""
    assert topic_partitions(("t:2,1", "t:1", "u", "v:0", "v", "v:1")) == {"t": [1, 2], "u": None, "v": None}


# ---- configs


def entry(name: str, value: str | None, source: int, **more: Any) -> Body:
    row: Body = {
        "Name": name,
        "Value": value,
        "ReadOnly": False,
        "IsSensitive": False,
        "ConfigSource": source,
        "Synonyms": [],
    }
    return {**row, **more}


def test_only_what_was_set_here_is_shown(broker: GroupBroker) -> None:
    """Without --all or --key only configs set on the resource are shown; secrets are never shown."""
    synonym = {"Name": "log.retention.ms", "Value": "9", "Source": 4}
    entries = [
        entry("retention.ms", "5", 1, Synonyms=[synonym]),
        entry("cleanup.policy", "", 1),
        entry("secret", None, 1, IsSensitive=True),
        entry("segment.bytes", "7", 5),
    ]
    broker.handlers[DESCRIBE_CONFIGS] = lambda version, body: {
        "Results": [{"ErrorCode": 0, "ResourceType": 2, "ResourceName": "t", "Configs": entries}]
    }
    assert printed(broker, "configs", "describe", "topic", "t").splitlines() == [
        "topic t",
        "NAME            VALUE     SOURCE",
        'cleanup.policy  ""        DYNAMIC_TOPIC_CONFIG',
        "retention.ms    5         DYNAMIC_TOPIC_CONFIG",
        "secret          (hidden)  DYNAMIC_TOPIC_CONFIG",
    ]
    (found,) = json.loads(printed(broker, "configs", "describe", "topic", "t", "--all", "--json"))
    assert [c["name"] for c in found["configs"]] == ["cleanup.policy", "retention.ms", "secret", "segment.bytes"]
    assert found["configs"][1]["synonyms"] == [
        {"name": "log.retention.ms", "value": "9", "source": "STATIC_BROKER_CONFIG"}
    ]


@pytest.mark.parametrize(("name", "sent", "kept"), [("7", "7", ["one"]), ("default", "", ["all"])])
def test_a_broker_and_all_brokers_are_distinguished(broker: GroupBroker, name: str, sent: str, kept: list[str]) -> None:
    """A broker shows its own configs, and `default` those of all brokers."""
    entries = [entry("one", "1", 2), entry("all", "2", 3), entry("static", "3", 4)]
    broker.handlers[DESCRIBE_CONFIGS] = lambda version, body: {
        "Results": [{"ErrorCode": 0, "ResourceType": 4, "ResourceName": sent, "Configs": entries}]
    }
    (found,) = json.loads(printed(broker, "configs", "describe", "broker", name, "--json"))
    assert [c["name"] for c in found["configs"]] == kept
    ((_, body),) = broker.asked(DESCRIBE_CONFIGS)
    assert [(r["ResourceType"], r["ResourceName"]) for r in body["Resources"]] == [(4, sent)]


def test_every_operation_is_sent(broker: GroupBroker) -> None:
    """--set, --delete, --append and --subtract are the four operations; --dry-run validates only."""
    broker.handlers[INCREMENTAL_ALTER_CONFIGS] = lambda version, body: {
        "Responses": [{"ErrorCode": 0, "ResourceType": 2, "ResourceName": "t"}]
    }
    args = ["--set", "a=1=2", "--delete", "b", "--append", "c=x", "--subtract", "d=y"]
    assert printed(broker, "configs", "alter", "topic", "t", *args) == "altered topic t\n"
    assert printed(broker, "configs", "alter", "topic", "t", *args, "--dry-run") == "could alter topic t\n"
    (_, first), (_, second) = broker.asked(INCREMENTAL_ALTER_CONFIGS)
    assert (first["ValidateOnly"], second["ValidateOnly"]) == (False, True)
    configs = first["Resources"][0]["Configs"]
    assert [(c["Name"], c["ConfigOperation"], c["Value"]) for c in configs] == [
        ("a", 0, "1=2"),
        ("c", 2, "x"),
        ("d", 3, "y"),
        ("b", 1, None),
    ]


def test_a_refused_change_has_the_brokers_text(broker: GroupBroker) -> None:
    """The error has the broker's message about the invalid value."""
    broker.handlers[INCREMENTAL_ALTER_CONFIGS] = lambda version, body: {
        "Responses": [{"ErrorCode": 40, "ErrorMessage": "no such key", "ResourceType": 4, "ResourceName": "7"}]
    }
    shown = refusal(run(broker, "configs", "alter", "broker", "7", "--set", "a=1"))
    assert shown == "INVALID_CONFIG: broker '7': no such key"


def test_topics_are_altered(broker: GroupBroker) -> None:
    """Configs and partitions change in one command, configs first; a dry run validates only."""
    broker.handlers |= {
        INCREMENTAL_ALTER_CONFIGS: lambda version, body: {
            "Responses": [{"ErrorCode": 0, "ResourceType": 2, "ResourceName": "t"}]
        },
        CREATE_PARTITIONS: lambda version, body: {"Results": [{"Name": "t", "ErrorCode": 0}]},
    }
    args = ["topics", "alter", "t", "--partitions", "6", "--config", "a=1", "--delete-config", "b"]
    assert printed(broker, *args) == "altered t\n"
    shown = json.loads(printed(broker, *args, "--dry-run", "--json"))
    assert shown == [{"name": "t", "altered": False, "partitions": 6}]
    grown = [(b["Topics"][0]["Count"], b["ValidateOnly"]) for _, b in broker.asked(CREATE_PARTITIONS)]
    assert grown == [(6, False), (6, True)]
    assert [b["ValidateOnly"] for _, b in broker.asked(INCREMENTAL_ALTER_CONFIGS)] == [False, True]


def test_no_lag_is_one_line(broker: GroupBroker) -> None:
    """`pipeline lag` of groups without offsets prints a line instead of a header alone; --json prints a list."""
    broker.committed = {"g": {}}
    assert printed(broker, "pipeline", "lag", "g") == "no offsets are committed\n"
    assert json.loads(printed(broker, "pipeline", "lag", "g", "--json")) == []


# ---- consume


@pytest.mark.parametrize(("options", "seconds"), [((), 30), (("--timeout", "8"), 8), (("--timeout", "0.5"), 5)])
@pytest.mark.parametrize("api", [FIND_COORDINATOR, CONSUMER_GROUP_HEARTBEAT])
def test_a_member_without_a_coordinator_ends_after_its_timeout(
    broker: GroupBroker, monkeypatch: pytest.MonkeyPatch, api: int, options: tuple[str, ...], seconds: float
) -> None:
    """The command fails after --timeout, or 5 s if that is shorter, since a coordinator may still be loading."""
    fake_time = FakeTime()
    refused = {"ErrorCode": int(Errors.COORDINATOR_NOT_AVAILABLE)}
    row = {"Key": "g", "NodeId": -1, "Host": "", "Port": -1, **refused}
    broker.handlers[api] = lambda version, body: {"Coordinators": [row]} if api == FIND_COORDINATOR else refused
    monkeypatch.setattr(
        importlib.import_module("kbroker.cli.consume"),
        "connect",
        partial(Cluster, clock=fake_time.clock, sleep=fake_time.sleep),
    )
    line = refusal(run(broker, "consume", "t", "--group", "g", *options))
    assert line == f"COORDINATOR_NOT_AVAILABLE: group 'g': {Errors.COORDINATOR_NOT_AVAILABLE.message}"
    assert seconds - BACKOFF_MAX_S <= sum(fake_time.slept) <= seconds
