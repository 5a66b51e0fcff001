"""Browser sessions with those console pages that work with any Kafka broker."""

import json
import re
from functools import partial
from urllib.parse import urlencode

from tests.support.broker import wait_for
from tests.support.console import Browser, words_of


def _page(browser: Browser, target: str) -> str:
    status, found = browser.ask(target)
    assert status == 200, found
    return words_of(found)


def check_pages(browser: Browser, topic: str) -> None:
    """View the pages and change resources with their forms. Args: ``topic``: an empty topic of 3 partitions."""
    page = partial(_page, browser)
    shown = page("")
    assert re.search(r"Brokers .* (\d+) (this node )?\S+:\d+ \S+ \d+ \d+ \d+ 0 Configs of broker \1 ", shown), shown
    assert re.search(r"Controllers Controller Role Log end Metadata lag \d+ leader [\d,]+ 0 ", shown), shown
    assert re.search(r"metadata\.version \d+ \d+ to \d+", shown), shown
    assert "X-ray" not in page("topics")
    assert browser.ask("xray")[0] == 404
    wait_for("the topic", lambda: f"{topic} 3 0 0 B" in page(f"topics?q={topic}"))
    assert topic in page("topics?sort=size")
    assert f'href="/console/messages?topic={topic}"' in browser.ask(f"messages?q={topic}")[1]
    assert "Leader Replicas In sync Messages 0 0 0 0 B 1 1 1 Show" in page(f"topic?topic={topic}")
    made = f"{topic}-made"
    wrong = browser.apply("topic/create", {"topic": made, "configs": "retention.ms=never"})
    assert (wrong[0], "retention.ms" in wrong[1]) == (400, True)
    assert browser.apply("topic/create", {"topic": made, "partitions": "2", "configs": "retention.ms=70000"})[0] == 303
    wait_for("the new topic", lambda: f"{made} 2 0" in page(f"topics?q={made}"))
    assert browser.apply("topic/partitions", {"topic": made, "partitions": "4"})[0] == 303
    wait_for("its partitions", lambda: f"{made} 4 0" in page(f"topics?q={made}"))
    assert "70000" in page(f"configs?kind=topic&name={made}&set=1")
    config = {"kind": "topic", "name": made, "key": "retention.ms", "value": "80000", "effect": "set"}
    assert browser.apply("config", config)[0] == 303
    wait_for("the config", lambda: "80000" in page(f"configs?kind=topic&name={made}&set=1"))
    assert browser.apply("topic/records", {"topic": topic, "partition": "0", "offset": "1"})[0] == 400
    assert browser.apply("topic/delete", {"topic": made}, typed="other")[0] == 400
    assert browser.apply("topic/delete", {"topic": made}, typed=made)[0] == 303
    wait_for("its end", lambda: browser.ask(f"topic?topic={made}")[0] == 404)
    assert "123456789" not in page("configs?kind=broker")
    everywhere = {"kind": "broker", "name": "", "key": "log.retention.ms", "value": "123456789", "effect": "set"}
    assert browser.apply("config", everywhere)[0] == 303
    wait_for("the default", lambda: "123456789" in page("configs?kind=broker"))
    assert browser.apply("config", {**everywhere, "effect": "remove"})[0] == 303
    quota = {"client-id": topic, "key": "producer_byte_rate", "value": "1MB", "effect": "enforce"}
    assert browser.apply("quota", quota)[0] == 303
    wait_for("the quota", lambda: f"client-id {topic}" in page("quotas"))
    assert browser.apply("quota", {**quota, "effect": "remove"})[0] == 303
    given = {"topic": topic, "partition": "1", "key": "k", "value": '{"n": 7}', "headers": "a=b", "repeat": "3"}
    assert browser.apply("produce", given)[0] == 303
    matching = f"messages?{urlencode({'topic': topic, 'filter': 'value.n == `7`', 'header': 'a=b'})}"
    wait_for("the records", lambda: "Examined 3 records, back to the beginning. Matches: 3." in page(matching))
    assert "Partition 1, offset 2" in page(matching)
    assert "key: text, 1 B" in page(f"message?topic={topic}&partition=1&offset=2")
    lines = browser.ask(f"records?topic={topic}&partition=1&offset=1&form=jsonl")[1].splitlines()
    assert [json.loads(line)["value"] for line in lines] == ['{"n": 7}'] * 2


def check_groups_and_access(browser: Browser, topic: str) -> None:
    """Reset, view and delete a group; set passwords of a user; add, check and remove an ACL.

    The ACL is left out if the broker has no authorizer. Args: ``topic``: a topic with three records in partition 1.
    """
    page = partial(_page, browser)
    group = f"group-of-{topic}"
    to_one = {"group": group, "rule": "offset", "value": "1", "topics": f"{topic}:1"}
    assert browser.apply("group-reset", to_one)[0] == 303
    wait_for("the group", lambda: f"{group} Empty 2 1 classic" in page(f"groups?q={group}"))
    assert f"{topic} , 1 2 1 3" in page(f"group?group={group}")
    assert browser.apply("group-reset", {"group": group, "rule": "latest"})[0] == 303
    assert f"{topic} , 1 0 3 3" in page(f"group?group={group}&page=1")
    assert browser.apply("group/delete", {"group": group}, typed=group)[0] == 303
    wait_for("its end", lambda: browser.ask(f"group?group={group}")[0] == 404)
    assert "transactional ids" in page("transactions")
    assert "No hanging transactions in these partitions" in page(f"hanging?search=1&topic={topic}")
    assert "Sign in as a user" in page("tokens")
    user = {"user": f"user-of-{topic}", "mechanism": "SCRAM-SHA-256"}
    assert "and this password" in words_of(browser.apply("users/add", user)[1])
    wait_for("the user", lambda: f"{user['user']} SCRAM-SHA-256 8,192" in page(f"users?q={topic}"))
    assert "and this password" in words_of(browser.apply("users/password", user)[1])
    assert browser.apply("users/remove", user, typed=user["user"])[0] == 303
    wait_for("its removal", lambda: user["user"] not in page(f"users?q={topic}"))
    rule = {"principal": f"User:{topic}", "operation": "Write", "resource": "Topic", "name": topic}
    question = f"acl-check?{urlencode({**rule, 'operation': 'Describe', 'asked': '1'})}"
    if "no authorizer" in page("acls"):
        assert browser.apply("acl-add", rule)[0] == 400
        assert "Yes : " in page(question)
        return
    assert "No ACL allows it" in page(question)
    assert browser.apply("acl-add", rule)[0] == 303
    wait_for("the rule", lambda: f"This rule decides: ALLOW User:{topic} from *: WRITE" in page(question))
    exact = {**rule, "permission": "Allow", "pattern": "Literal", "host": "*", "exact": "1"}
    assert browser.apply("acls/remove", exact)[0] == 303
    wait_for("its removal", lambda: "No ACLs" in page(f"acls?q={topic}"))
