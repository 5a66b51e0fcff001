"""Topics and configs in the console: views, and changes with previews and the broker's validation."""

import logging
import re
import threading
from html import unescape

import pytest

from kbroker.broker import Broker
from kbroker.client.acls import Acls
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.client.users import Users
from kbroker.common.configs.config_resource import ConfigChange, ConfigOperation
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.console.app import Console
from kbroker.console.sign_in import FormSecret
from kbroker.console.views.configs import KINDS
from kbroker.metadata.topic_rules import NewTopic
from tests.integration.test_console_users import allow
from tests.support.console import (
    SECURED,
    SETTINGS,
    TOKEN,
    apply,
    ask,
    cluster_of,
    hidden_fields,
    pages_of,
    post,
    secret_of,
    served,
    sign_in,
    text_of,
    words_of,
)
from tests.support.fixtures import fixture_of

MARKUP = "<script>alert(1)</script>"
broker = fixture_of(served, {**SETTINGS, "ssl.key.password": "a-secret", "num.partitions": 3}, scope="module")


def page(pages: Console, target: str, status: int = 200) -> str:
    response = ask(pages, target)
    assert response.status == status, response.body.decode()
    return response.body.decode()


def with_secret(pages: Console, **fields: str) -> dict[str, str]:
    return {"form_secret": secret_of(page(pages, "topic-new")), **fields}


def make(broker: Broker, name: str, partitions: int = 2, records: int = 0) -> None:
    broker.context.topics.create(NewTopic(name, partitions))
    if records:
        with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
            for _ in range(records):
                producer.send(name, b"value", partition=0)


# ---------------------------------------------------------------- topics


def test_a_form_with_the_name_of_its_change_waits_for_nothing(pages: Console) -> None:
    """The request would wait for itself, and a few of them would block the console."""
    fields = with_secret(pages, topic="itself", was="Create topic itself")
    found: list[int] = []
    sender = threading.Thread(
        target=lambda: found.append(post(pages, "topic/create/apply", fields).status), daemon=True
    )
    sender.start()
    sender.join(30)
    assert found == [409]


def test_a_topic_is_created_as_it_was_shown(broker: Broker, pages: Console, caplog: pytest.LogCaptureFixture) -> None:
    fields = with_secret(pages, topic="made", configs="retention.ms = 60000\n# of tests\n\ncleanup.policy=compact")
    assert "partitions none 3" in text_of(post(pages, "topic/create/check", fields)), "the default of the broker"
    shown = post(pages, "topic/create/preview", fields)
    assert "retention.ms none 60000" in text_of(shown)
    assert broker.context.topics.get("made") is None
    with caplog.at_level(logging.INFO, "kbroker.console.changes"):
        response = apply(pages, "topic/create", fields)
    assert (response.status, dict(response.headers)["Location"]) == (303, "/console/topic?topic=made&done=1")
    view = broker.context.topics.get("made")
    assert view is not None
    assert (len(view.partitions), dict(view.configs)) == (3, {"retention.ms": "60000", "cleanup.policy": "compact"})
    assert (
        "console: User:ANONYMOUS from 127.0.0.1: Create topic made (topic: none -> made; partitions: none -> 3; "
        "replication factor: none -> 1; retention.ms: none -> 60000; cleanup.policy: none -> compact)"
    ) in caplog.messages
    assert "The change is made." in page(pages, "topic?topic=made&done=1")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topic": "a b"}, "name is invalid"),
        ({"topic": MARKUP}, "name is invalid"),
        ({"topic": ""}, "parameter topic is missing"),
        ({"topic": "x", "partitions": "0"}, "expected a whole number from 1"),
        ({"topic": "x", "replication": "2"}, "replication factor"),
        ({"topic": "x", "configs": "retention.ms=never"}, "retention.ms"),
        ({"topic": "x", "configs": "no.such.config=1"}, "no.such.config"),
        ({"topic": "x", "configs": MARKUP}, "Expected one NAME=VALUE"),
        ({"topic": "x", "configs": "a=1\na=2"}, "given twice"),
    ],
)
def test_a_topic_that_cannot_be_created(pages: Console, fields: dict[str, str], why: str) -> None:
    """The form is shown again with its fields and the reason; the check while typing returns only the reason."""
    shown = post(pages, "topic/create/preview", with_secret(pages, **fields))
    assert (shown.status, why.lower() in text_of(shown).lower()) == (400, True), text_of(shown)
    assert MARKUP not in shown.body.decode()
    assert 'name="topic"' in shown.body.decode()
    checked = post(pages, "topic/create/check", with_secret(pages, **fields))
    assert (checked.status, why.lower() in text_of(checked).lower()) == (200, True)
    assert "<html" not in checked.body.decode()


def test_partitions_are_added(broker: Broker, pages: Console) -> None:
    make(broker, "grows")
    fields = with_secret(pages, topic="grows", partitions="5")
    assert "partitions 2 5" in text_of(post(pages, "topic/partitions/preview", fields))
    assert apply(pages, "topic/partitions", fields).status == 303
    assert len(broker.context.topics.get("grows").partitions) == 5
    assert post(pages, "topic/partitions/preview", {**fields, "partitions": "4"}).status == 400


def test_records_are_deleted_up_to_an_offset(broker: Broker, pages: Console) -> None:
    make(broker, "sheds", records=5)
    fields = with_secret(pages, topic="sheds", partition="0", offset="3")
    assert "first offset of partition 0 0 3" in text_of(post(pages, "topic/records/preview", fields))
    assert apply(pages, "topic/records", fields).status == 303
    assert broker.context.topics.get("sheds").partitions[0].log_start_offset == 3
    for more, why in (({"offset": "6"}, "ends at offset 5"), ({"offset": ""}, "Give an"), ({"partition": "2"}, "no 2")):
        refused = post(pages, "topic/records/preview", {**fields, **more})
        assert (refused.status, why in text_of(refused)) == (400, True), text_of(refused)
    assert "None: nothing would change." in text_of(post(pages, "topic/records/preview", fields))


def test_a_topic_is_emptied_by_typing_its_name(broker: Broker, pages: Console) -> None:
    """The records up to the end offsets of the preview are deleted, and later records are kept."""
    make(broker, "emptied", records=4)
    fields = with_secret(pages, topic="emptied")
    assert apply(pages, "topic/empty", fields, typed="empty").status == 400
    shown = post(pages, "topic/empty/preview", fields).body.decode()
    assert "first offset of partition 0 0 4" in words_of(shown)
    assert 'name="offsets" value="0:4"' in shown
    was = re.search(r'name="was" value="(\w+)"', shown)[1]  # type: ignore[index]
    with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
        producer.send("emptied", b"later", partition=0)
    sent = {**fields, "offsets": "0:4", "was": was, "confirm": "emptied"}
    assert post(pages, "topic/empty/apply", sent).status == 303
    log = broker.context.topics.get("emptied").partitions[0]
    assert (log.log_start_offset, log.high_watermark) == (4, 5)
    for wrong in ("0:x", "0:-1", "0:1,0:2", "0:1,", "0:1_0"):
        assert post(pages, "topic/empty/apply", {**sent, "offsets": wrong}).status == 400
    assert post(pages, "topic/empty/apply", {**sent, "offsets": "0:5"}).status == 409, "another change than was shown"


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("topic/empty", {"topic": "again", "confirm": "again"}),
        ("topic/records", {"topic": "again", "partition": "0", "offset": "1"}),
        ("topic/partitions", {"topic": "again", "partitions": "4"}),
        ("config", {"kind": "topic", "name": "again", "key": "retention.ms", "value": "1", "effect": "set"}),
        ("produce", {"topic": "again", "value": "x"}),
    ],
)
def test_a_topic_that_was_created_again_is_another_one(
    broker: Broker, pages: Console, action: str, fields: dict[str, str]
) -> None:
    """A change that was shown for a deleted topic is refused for a new topic with the same name."""
    make(broker, "again", records=2)
    shown = post(pages, f"{action}/preview", with_secret(pages, **fields)).body.decode()
    broker.context.topics.delete("again")
    make(broker, "again", records=2)
    assert post(pages, f"{action}/apply", {**fields, **hidden_fields(shown)}).status == 409
    assert apply(pages, action, with_secret(pages, **fields), typed="again").status == 303
    broker.context.topics.delete("again")


def test_a_topic_is_deleted_by_typing_its_name(broker: Broker, pages: Console) -> None:
    make(broker, "dies")
    fields = with_secret(pages, topic="dies")
    for wrong in ("", "Dies", "dies ", MARKUP):
        refused = apply(pages, "topic/delete", fields, typed=wrong)
        assert (refused.status, MARKUP in refused.body.decode()) == (400, False)
    assert broker.context.topics.get("dies") is not None
    was = re.search(r'name="was" value="(\w+)"', post(pages, "topic/delete/preview", fields).body.decode())
    assert was is not None
    broker.context.topics.delete("dies")
    make(broker, "dies")
    stale = post(pages, "topic/delete/apply", {**fields, "was": was[1], "confirm": "dies"})
    assert stale.status == 409, "another topic has the name now"
    done = apply(pages, "topic/delete", fields, typed="dies")
    assert (done.status, dict(done.headers)["Location"]) == (303, "/console/topics?done=1")
    assert broker.context.topics.get("dies") is None
    assert post(pages, "topic/delete/preview", fields).status == 404


def test_the_list_and_the_page_of_a_topic(broker: Broker, pages: Console) -> None:
    make(broker, "shown", records=3)
    assert "shown 2 3 " in words_of(page(pages, "topics?q=shown"))
    for sort in ("name", "partitions", "records", "size", "rate"):
        assert "shown" in page(pages, f"topics?q=shown&sort={sort}")
    text = words_of(page(pages, "topic?topic=shown"))
    assert "0 0 3 " in text
    assert "Show messages of partition 1" in text
    assert "Delete the topic" in text
    with pages_of(broker, may_edit=False) as looking:
        assert "Delete the topic" not in page(looking, "topic?topic=shown")
        secret = FormSecret.of(looking._secret, "")
        refused = post(looking, "topic/delete/apply", {"form_secret": secret, "topic": "shown"})
        assert (refused.status, "kbroker.console.edit is off" in refused.body.decode()) == (403, True)


# ---------------------------------------------------------------- configs


def test_a_config_of_a_topic_is_set_and_removed(broker: Broker, pages: Console) -> None:
    make(broker, "tuned")
    listed = words_of(page(pages, "configs?kind=topic&name=tuned&q=retention.ms"))
    assert "Age in milliseconds above which segments are deleted" in listed
    assert "604800000 604800000 default" in listed
    fields = with_secret(pages, kind="topic", name="tuned", key="retention.ms", value="1000", effect="set")
    shown = text_of(post(pages, "config/preview", fields))
    assert "retention.ms 604800000 (default) 1000" in shown
    assert apply(pages, "config", fields).status == 303
    assert broker.context.topics.get("tuned").configs == {"retention.ms": "1000"}
    assert "1000" in words_of(page(pages, "configs?kind=topic&name=tuned&set=1"))
    assert "None: nothing would change." in text_of(post(pages, "config/check", fields))
    refused = post(pages, "config/preview", {**fields, "value": MARKUP})
    assert (refused.status, MARKUP in refused.body.decode()) == (400, False)
    assert apply(pages, "config", {**fields, "effect": "remove"}).status == 303
    assert broker.context.topics.get("tuned").configs == {}


def test_several_configs_are_edited_at_once(broker: Broker, pages: Console) -> None:
    """One preview and one change: a listed config is set, and one that was removed from the list is deleted."""
    make(broker, "several")
    node, one = str(broker.context.node_id), {"kind": "topic", "name": "several"}
    first = with_secret(pages, **one, had="", configs="retention.ms=1000\nsegment.bytes=2097152\n# no line")
    shown = text_of(post(pages, "configs-edit/preview", first))
    assert "Change 2 configs of topic several" in shown
    assert apply(pages, "configs-edit", first).status == 303
    form = page(pages, "configs-edit?kind=topic&name=several")
    had = hidden_fields(form)["had"]
    assert set(had.split()) == {"retention.ms", "segment.bytes"}
    assert "retention.ms=1000\n" in form
    wrong = post(pages, "configs-edit/preview", {**first, "configs": "retention.ms=2000\nsegment.bytes=never"})
    assert (wrong.status, "segment.bytes=never" in wrong.body.decode()) == (400, True)
    assert broker.context.topics.get("several").configs["retention.ms"] == "1000"
    broker_configs = "num.io.threads=3\nno.such.config=1"
    unknown = post(pages, "configs-edit/preview", {**first, "kind": "broker", "name": node, "configs": broker_configs})
    assert (unknown.status, "no.such.config" in unknown.body.decode()) == (400, True)
    second = {**first, "had": had, "configs": "retention.ms=1000\nmax.message.bytes=5000"}
    shown = text_of(post(pages, "configs-edit/check", second))
    assert ("segment.bytes 2097152" in shown, "retention.ms" in shown) == (True, False)
    assert apply(pages, "configs-edit", second).status == 303
    assert broker.context.topics.get("several").configs == {"retention.ms": "1000", "max.message.bytes": "5000"}
    assert "nothing would change" in text_of(post(pages, "configs-edit/check", second))


@pytest.mark.parametrize(
    ("kind", "name", "odd", "plain"),
    [
        ("client-metrics", "m", {"match": "client_id=a\u2028b"}, {"interval.ms": "5000"}),
        ("broker", "", {"log.cleanup.policy": " delete"}, {"log.retention.ms": "5000"}),
    ],
)
def test_a_config_that_a_line_would_change_has_none(
    cluster: Cluster, pages: Console, kind: str, name: str, odd: dict[str, str], plain: dict[str, str]
) -> None:
    changes = [ConfigChange(key, int(ConfigOperation.SET), value) for key, value in {**odd, **plain}.items()]
    Admin(cluster).alter_configs(KINDS[kind], name, changes)
    form = page(pages, f"configs-edit?kind={kind}&name={name}")
    lines = re.search(r"<textarea[^>]*>([^<]*)</textarea>", form)
    assert lines is not None
    fields = {**hidden_fields(form), "configs": unescape(lines[1])}
    had = set(fields["had"].split())
    assert (had >= plain.keys(), had.isdisjoint(odd)) == (True, True)
    assert "nothing would change" in text_of(post(pages, "configs-edit/check", fields))
    Admin(cluster).alter_configs(KINDS[kind], name, [ConfigChange(one.name, 1) for one in changes])


def test_configs_of_brokers_and_their_loggers(broker: Broker, pages: Console) -> None:
    node = str(broker.context.node_id)
    assert f"broker {node}" in words_of(page(pages, f"configs?kind=broker&name={node}"))
    text = page(pages, f"configs?kind=broker&name={node}&q=ssl.key.password")
    assert ("a-secret" in text, "hidden" in text) == (False, True)
    fields = with_secret(pages, kind="broker", name=node, key="num.network.threads", value="2", effect="set")
    assert apply(pages, "config", fields).status == 303
    assert "2 3 set for this broker" in words_of(
        page(pages, f"configs?kind=broker&name={node}&q=num.network.threads")
    ) or ("set for this broker" in page(pages, f"configs?kind=broker&name={node}&q=num.network.threads&set=1"))
    assert apply(pages, "config", {**fields, "effect": "remove"}).status == 303
    everywhere = {**fields, "name": "", "key": "log.retention.ms", "value": "5000"}
    assert apply(pages, "config", everywhere).status == 303
    assert "set for all brokers" in page(pages, "configs?kind=broker")
    assert "set for all brokers" in page(pages, f"configs?kind=broker&name={node}&q=log.retention.ms")
    assert apply(pages, "config", {**everywhere, "effect": "remove"}).status == 303
    read_only = post(pages, "config/preview", {**fields, "key": "log.dirs", "value": "/x"})
    assert read_only.status == 400
    logger = with_secret(pages, kind="broker-logger", name=node, key="kbroker.console", value="DEBUG", effect="set")
    assert "DEBUG" in page(pages, f"config?kind=broker-logger&name={node}&key=kbroker.console.app")
    logger["key"] = "kbroker.console.app"
    before = logging.getLogger("kbroker.console.app").level
    assert apply(pages, "config", logger).status == 303
    assert logging.getLogger("kbroker.console.app").level == logging.DEBUG
    logging.getLogger("kbroker.console.app").setLevel(before)


def test_a_sensitive_value_is_neither_shown_nor_logged(
    broker: Broker, pages: Console, caplog: pytest.LogCaptureFixture
) -> None:
    node = str(broker.context.node_id)
    fields = with_secret(pages, kind="broker", name=node, key="ssl.key.password", value="another-one", effect="set")
    shown = post(pages, "config/preview", fields)
    assert "another value, hidden" in text_of(shown) or shown.status == 400
    assert "another-one" not in text_of(shown)
    assert not any("another-one" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("configs?kind=topic&name=none", 404),
        ("configs?kind=topic", 400),
        ("configs?kind=planet&name=x", 400),
        ("configs?kind=broker&name=77", 404),
        ("configs?kind=broker&name=x", 400),
        ("config?kind=broker&name=1&key=none", 404),
        (f"configs?kind=topic&name={MARKUP}", 400),
        ("topic?topic=none", 404),
        ("topics?sort=colour", 400),
    ],
)
def test_things_that_are_not_there(pages: Console, target: str, status: int) -> None:
    assert MARKUP not in page(pages, target, status)


def test_what_acls_allow() -> None:
    """A user sees the topics that the ACLs allow to describe; a denied change names the missing ACL."""
    with served(SECURED) as made, pages_of(made, TOKEN, may_edit=True) as pages:
        make(made, "mine")
        make(made, "other")
        with cluster_of(made) as root:
            Users(root).set("alice", "SCRAM-SHA-256", "secret", 4096)
            Acls(root).add([allow("alice", Operation.DESCRIBE, ResourceType.TOPIC, "mine")])
        cookie = sign_in(pages, "alice", "secret")

        def text(target: str, status: int) -> str:
            response = ask(pages, target, cookie=cookie)
            assert response.status == status, response.body.decode()
            return text_of(response)

        listed = text("topics", 200)
        assert ("mine" in listed, "other" in listed) == (True, False)
        mine = text("topic?topic=mine", 200)
        assert re.search(r"on disk (\S+)", mine)[1] == "-"  # type: ignore[index]
        assert "Charts begin" in mine
        assert "on Topic 'other'" in text("topic?topic=other", 403)
        assert "No ACL allows User:alice the operation DescribeConfigs on Topic 'mine'." in text(
            "configs?kind=topic&name=mine", 403
        )
        assert "Read on Topic 'mine'" in text("messages?topic=mine", 403)
        secret = secret_of(ask(pages, "topic-new", cookie=cookie).body.decode())
        for action, fields, needed in (
            ("topic/create", {"topic": "new"}, "Create on Topic 'new'"),
            ("topic/partitions", {"topic": "mine", "partitions": "4"}, "Alter on Topic 'mine'"),
            ("topic/delete", {"topic": "mine", "confirm": "mine"}, "Delete on Topic 'mine'"),
        ):
            shown = post(pages, f"{action}/preview", {**fields, "form_secret": secret}, cookie=cookie)
            if shown.status == 200:
                shown = apply(pages, action, {**fields, "form_secret": secret}, typed="mine", cookie=cookie)
            assert (shown.status, needed in text_of(shown)) == (403, True), text_of(shown)
        assert made.context.topics.get("mine") is not None
