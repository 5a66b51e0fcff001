"""Groups of all types in the console: lists, lag, reset of offsets, removal of members, deletion."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.broker import Broker
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.connection import Body
from kbroker.client.group_lag import lags_of
from kbroker.client.group_members import ClassicMember, ConsumerMember
from kbroker.client.groups import Groups
from kbroker.client.producer import Producer
from kbroker.client.share_offsets import share_offsets
from kbroker.common.errors import Errors, KafkaError
from kbroker.console.app import Console
from kbroker.console.connections import Identity
from kbroker.console.lag_history import IN_USE_MS, MAX_GROUPS, LagHistory, Point, Shown
from kbroker.console.line_chart import KEPT_MS, Chart, chart_of
from kbroker.console.views import groups as views
from kbroker.coordinator.share_group.membership import HeartbeatRequest
from kbroker.coordinator.streams_group import membership as streams
from tests.support.console import SETTINGS, ask, change, pages_of, post, preview, secret_of, served, text_of
from tests.support.errors import error_of
from tests.support.streams_groups import subtopology, topology

MARKUP = "<script>alert(1)</script>\"'&\u202e"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with served({**SETTINGS, "group.initial.rebalance.delay.ms": 0}) as made:
        with Cluster(made.bootstrap_servers) as cluster:
            Admin(cluster).create_topics([NewTopic("orders", 2), NewTopic("payments", 1)])
            with Producer(cluster) as producer:
                for number in range(10):
                    producer.send("orders", b"%d" % number, partition=number % 2)
        yield made


def committed(cluster: Cluster, group_id: str) -> dict[tuple[str, int], int]:
    return {place: one.offset for place, one in Groups(cluster).committed(group_id).items()}


# ---------------------------------------------------------------- lists and lag


def test_the_list_and_a_group(pages: Console, cluster: Cluster) -> None:
    Groups(cluster).commit("billing", {("orders", 0): 2, ("orders", 1): 5})
    page = text_of(ask(pages, "groups?q=BILL"))
    assert re.search(r"billing Empty 3 2 classic", page), page
    assert "No groups" in text_of(ask(pages, "groups?q=bill&type=share"))
    assert "1 of 1 groups" in text_of(ask(pages, "groups?q=bill&type=classic&state=Empty"))
    page = text_of(ask(pages, "group?group=billing"))
    assert re.search(r"state Empty lag 3 members 0 type classic", page), page
    assert re.search(r"orders , 0 3 2 5 orders , 1 0 5 5 1 to 2 of 2 partitions", page), page
    assert ask(pages, "group?group=none").status == 404


def test_an_offset_beyond_the_end_has_no_bar(pages: Console, cluster: Cluster) -> None:
    """The lag of a topic that was created again can be negative; the width of a bar cannot."""
    Groups(cluster).commit("ahead", {("orders", 0): 2, ("payments", 0): 4})
    page = ask(pages, "group?group=ahead").body.decode()
    assert re.search(r"payments , 0 -4 4 0", text_of(ask(pages, "group?group=ahead")))
    assert re.findall(r'class="heat" width="([^"]+)"', page) == ["100.0"]


def test_lags_of_many_groups_take_few_requests(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(cluster)
    for number in range(20):
        groups.commit(f"many-{number:02d}", {("orders", 0): number % 6})
    groups.ask("shared-many", 76, {"GroupId": "shared-many", "MemberId": "m", "MemberEpoch": 0,
                                   "SubscribedTopicNames": ["orders"]})  # fmt: skip
    sent: list[int] = []
    request = cluster.request

    def counted(api_key: int, *args: Any, **more: Any) -> Body:
        sent.append(api_key)
        return request(api_key, *args, **more)

    monkeypatch.setattr(cluster, "request", counted)
    kinds = {f"many-{number:02d}": "classic" for number in range(20)} | {"absent": "consumer", "shared-many": "share"}
    found = lags_of(groups, kinds)
    assert [found[f"many-{number:02d}"][0].lag for number in range(7)] == [5, 4, 3, 2, 1, 0, 5]
    assert (found["absent"], [one.place for one in found["shared-many"]]) == ([], [("orders", 0), ("orders", 1)])
    assert len(sent) <= 6, sent


def test_names_stay_text(pages: Console, cluster: Cluster) -> None:
    Groups(cluster).commit(MARKUP, {("orders", 0): 1})
    name = quote(MARKUP)
    for path in ("groups?q=script", f"groups?q={name}&state={name}&type={name}", f"group?group={name}",
                 f"group-reset?group={name}"):  # fmt: skip
        page = ask(pages, path).body.decode()
        assert "<script>alert" not in page, path
        assert "\u202e" not in re.sub(r'value="[^"]*"|href="[^"]*"|data-live="[^"]*"', "", page), path
    refused = preview(pages, "", "group-reset", group=MARKUP, rule="shift-by", value=MARKUP, topics=MARKUP, rows=MARKUP)
    assert (refused.status, "<script>alert" in refused.body.decode()) == (400, False)
    assert change(pages, "", "group/delete", MARKUP, group=MARKUP).status == 303


# ---------------------------------------------------------------- offsets


RESETS: list[tuple[dict[str, str], dict[int, int], str]] = [
    ({"rule": "earliest"}, {0: 0, 1: 0}, "7 records or fewer will be read again."),
    ({"rule": "latest", "topics": "orders:0"}, {0: 5, 1: 4}, "2 records or fewer will be skipped."),
    ({"rule": "shift-by", "value": "-2"}, {0: 1, 1: 2}, "4 records or fewer will be read again."),
    ({"rule": "offset", "value": "4"}, {0: 4, 1: 4}, "orders, 0 3 4"),
    ({"rule": "timestamp", "time": "2990-01-01T00:00:00"}, {0: 5, 1: 5}, "3 records or fewer will be skipped."),
    ({"rule": "file", "rows": "orders,1,2\norders,0,99\n"}, {0: 5, 1: 2}, "orders, 1 4 2"),
]


def test_a_reset_is_shown_and_made(pages: Console, cluster: Cluster) -> None:
    for fields, after, words in RESETS:
        Groups(cluster).commit("reset", {("orders", 0): 3, ("orders", 1): 4})
        shown = preview(pages, "", "group-reset", group="reset", **fields)
        assert (shown.status, words in text_of(shown)) == (200, True), text_of(shown)
        assert committed(cluster, "reset") == {("orders", 0): 3, ("orders", 1): 4}, "nothing before Apply"
        assert change(pages, "", "group-reset", group="reset", **fields).status == 303
        assert committed(cluster, "reset") == {("orders", index): offset for index, offset in after.items()}


def test_the_offsets_that_were_shown_are_committed(pages: Console, cluster: Cluster) -> None:
    """A reset commits the shown offsets although the log has grown; a later change of the group is refused."""
    groups = Groups(cluster)
    groups.commit("moving", {("payments", 0): 0})
    with Producer(cluster) as producer:
        producer.send("payments", b"1", partition=0)
    shown = preview(pages, "", "group-reset", group="moving", rule="latest").body.decode()
    with Producer(cluster) as producer:
        producer.send("payments", b"2", partition=0)
    sent = {unescape(name): unescape(value) for name, value in re.findall(r'name="([^"]*)" value="([^"]*)">', shown)}
    assert post(pages, "group-reset/apply", sent).status == 303
    assert committed(cluster, "moving") == {("payments", 0): 1}
    changed = post(pages, "group-reset/apply", sent)
    assert (changed.status, "This has changed since you saw the difference" in text_of(changed)) == (409, True)


WRONG = [
    ({"rule": "none"}, "rule is 'none'; expected earliest, latest,"),
    ({"rule": "shift-by", "value": "a"}, "Expected a whole number, got 'a'."),
    ({"rule": "offset", "value": "-1"}, "Expected a whole number, got '-1'."),
    ({"rule": "timestamp", "time": "soon"}, "Expected a time such as 2026-01-31T12:00:00, got 'soon'."),
    ({"rule": "earliest", "topics": "absent"}, "opic 'absent': This broker"),
    ({"rule": "earliest", "topics": "orders:7"}, "expected a partition from 0 to 1, got 7"),
    ({"rule": "earliest", "topics": "orders:x"}, "Expected TOPIC or TOPIC:0,1,..., got 'orders:x'."),
    ({"rule": "file", "rows": "orders,0"}, "Line 1: expected topic,partition,offset or group,"),
    ({"rule": "file", "rows": ""}, "Expected rows topic,partition,offset of group wrong, got 0 groups."),
]


def test_wrong_fields(pages: Console, cluster: Cluster) -> None:
    """The form is shown again with its fields and the reason."""
    Groups(cluster).commit("wrong", {("orders", 0): 3})
    for fields, why in WRONG:
        refused = preview(pages, "", "group-reset", group="wrong", **fields)
        assert (refused.status, why in text_of(refused)) == (400, True), text_of(refused)
        assert all(value in unescape(refused.body.decode()) for value in fields.values())


def test_share_groups_are_reset(pages: Console, broker: Broker, cluster: Cluster) -> None:
    groups = broker.context.groups.share_groups
    assert groups.alter_offsets("queue", {"orders": {0: 1, 1: 4}}) == {("orders", 0): None, ("orders", 1): None}
    assert "queue Empty 5 2 share" in text_of(ask(pages, "groups?q=queue"))
    assert change(pages, "", "group-reset", group="queue", rule="latest", topics="orders:1").status == 303
    found = share_offsets(Groups(cluster), "queue")
    assert {place: one.offset for place, one in found.items()} == {("orders", 0): 1, ("orders", 1): 5}
    assert change(pages, "", "group/delete", "queue", group="queue").status == 303
    assert ask(pages, "group?group=queue").status == 404


# ---------------------------------------------------------------- members


def test_members_are_removed(pages: Console, broker: Broker, cluster: Cluster) -> None:
    """Members of groups of each type can be removed; the next heartbeat of a running member returns an error."""
    groups = Groups(cluster)
    members: list[ConsumerMember | ClassicMember]
    members = [ConsumerMember(groups, "newer", "orders"), ClassicMember(groups, "older", "orders")]
    for member in members:
        member.join()
    parts = broker.context.groups
    parts.share_groups.heartbeat(HeartbeatRequest("sharing", "sharer", 0, None, ["orders"], "reader", "/127.0.0.1"))
    request = streams.HeartbeatRequest("app", "streamer", 0, rebalance_timeout_ms=9000, process_id="process-1")
    request = request._replace(topology=topology(subtopology("0", ["orders"])), active={}, standby={}, warmup={})
    parts.streams_groups.heartbeat(request._replace(client_id="c", client_host="/127.0.0.1"))
    named = {"newer": members[0].member_id, "older": members[1].member_id, "sharing": "sharer", "app": "streamer"}
    for group_id, member_id in named.items():
        page = ask(pages, f"group?group={group_id}").body.decode()
        assert member_id in page
        assert 'action="/console/group/delete/preview"' not in page
        refused = preview(pages, "", "group/delete", group=group_id)
        assert (refused.status, "without members, found 1 member" in text_of(refused)) == (400, True)
        assert change(pages, "", "group/remove-member", group=group_id, member=member_id).status == 303
        assert groups.describe(group_id).members == (), group_id
        gone = preview(pages, "", "group/remove-member", group=group_id, member=member_id)
        assert (gone.status, "it may have left" in text_of(gone)) == (400, True)
    for member in members:
        assert error_of(member.heartbeat) is Errors.UNKNOWN_MEMBER_ID
    active = ConsumerMember(groups, "newer", "orders")
    active.join()
    refused = preview(pages, "", "group-reset", group="newer", rule="earliest")
    assert (refused.status, "expected no members, found state Stable" in text_of(refused)) == (400, True)
    active.leave()


def test_a_group_is_deleted_by_typing_its_name(pages: Console, cluster: Cluster) -> None:
    Groups(cluster).commit("old", {("orders", 0): 3})
    wrong = change(pages, "", "group/delete", "Old", group="old")
    assert (wrong.status, "Expected 'old' to be typed, got 'Old'" in text_of(wrong)) == (400, True)
    assert change(pages, "", "group/delete", "old", group="old").status == 303
    assert ask(pages, "group?group=old").status == 404


def test_pages_only_show_without_edit(broker: Broker, cluster: Cluster) -> None:
    Groups(cluster).commit("kept", {("orders", 0): 3})
    with pages_of(broker) as pages:
        page = ask(pages, "group?group=kept").body.decode()
        assert "preview" not in page
        secret = secret_of(ask(pages, "sign-in").body.decode()) if 'name="form_secret"' in page else ""
        assert post(pages, "group/delete/preview", {"form_secret": secret, "group": "kept"}).status == 403


# ---------------------------------------------------------------- history


def test_lags_of_ten_minutes() -> None:
    """The lag is measured while a page of the group is in use; unused groups and those above the limit are dropped."""
    clock, lags = VirtualClock(0), {"g": 3}

    def measure(shown: Shown) -> int:
        if shown.group_id not in lags:
            raise KafkaError(Errors.GROUP_ID_NOT_FOUND, "deleted")
        return lags[shown.group_id]

    history = LagHistory(measure, clock)
    one = Shown(Identity("User:a", "127.0.0.1"), "g", "classic")
    assert [point.lag for point in history.use(one, 7)] == [7]
    for lag in (5, 4):
        clock.advance_ms(5000)
        lags["g"] = lag
        history.look_once()
    del lags["g"]
    clock.advance_ms(5000)
    history.look_once()
    assert [point.lag for point in history.use(one, 9)] == [7, 5, 4, None]
    clock.advance_ms(IN_USE_MS + 1)
    history.look_once()
    assert [point.lag for point in history.use(one, 9)] == [9], "not used for five minutes"
    for number in range(MAX_GROUPS):
        history.use(one._replace(group_id=str(number)), 1)
    assert [point.lag for point in history.use(one, 2)] == [2], "replaced by twenty others"
    for _ in range(KEPT_MS // 100_000 + 5):
        clock.advance_ms(100_000)
        history.use(one, 2)
        history.look_once()
    assert len(history.use(one, 2)) == KEPT_MS // 100_000 + 1
    history.stop()


def test_a_chart_has_its_times_and_gaps() -> None:
    points = [Point(0, 0), Point(300_000, 50), Point(400_000, None), Point(600_000, 100)]
    assert chart_of(points) == Chart(["0.0,98.0 50.0,50.0", "100.0,2.0"], 100, 10)
    assert chart_of([Point(-KEPT_MS - 1, 5000), *points]) == chart_of(points)
    assert chart_of(points[:1]) is None
    assert chart_of([Point(0, None), Point(1, None)]) is None
    flat = chart_of([Point(0, 0), Point(1000, 0)])
    assert flat is not None
    assert flat.lines == ["99.8,98.0 100.0,98.0"]


def test_the_chart_of_a_page(pages: Console, cluster: Cluster) -> None:
    Groups(cluster).commit("charted", {("orders", 0): 1})
    assert "The chart begins now" in text_of(ask(pages, "group?group=charted"))
    pages._lags.look_once()
    again = ask(pages, "group?group=charted&page=1").body.decode()
    assert 'aria-label="Lag of the last 10 minutes, at most 4, now 4"' in again


def test_a_thousand_groups(pages: Console, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page reads the lag of the fifty groups that it shows."""
    groups = Groups(cluster)
    for number in range(1000):
        groups.commit(f"of-a-thousand-{number:04d}", {("orders", 0): 1})
    wanted: list[str] = []

    def looked_up(client: Groups, kinds: dict[str, str]) -> Any:
        wanted.extend(kinds)
        return lags_of(client, kinds)

    monkeypatch.setattr(views, "lags_of", looked_up)
    page = ask(pages, "groups?q=of-a-thousand&page=20").body.decode()
    assert page.count('<th scope="row">') == len(wanted) == 50
    assert "of-a-thousand-0999" in page
