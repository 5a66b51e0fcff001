"""Messages in a browser: a search of several steps, a live view with a pause, and a form by keyboard."""

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.metadata.topic_rules import NewTopic
from tests.browser.browser import NARROW, Browser
from tests.support.broker import wait_for

ARTICLES = "document.querySelectorAll('#found article').length"


@pytest.fixture(scope="module")
def root(broker: Broker) -> str:
    """Return the address of a broker's console; a topic has 30,000 records, three of them with the wanted header."""
    broker.context.topics.create(NewTopic("searched", 2))
    broker.context.topics.create(NewTopic("followed", 1))
    with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
        for n in range(30_000):
            value = b'{"n": %d, "text": "<img src=x onerror=alert(1)>"}' % n
            producer.send("searched", value, None, headers=[("wanted", b"1")] if n % 10_000 == 0 else [])
    return f"{broker.metrics_url}/console/"


def send(broker: Broker, topic: str, *values: str) -> None:
    with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
        for value in values:
            producer.send(topic, value.encode(), None)


def test_a_search_goes_on_until_the_end(browser: Browser, root: str) -> None:
    """The search continues without a click, the status has its progress, and the page fits a phone."""
    browser.complaints()
    query = urlencode({"topic": "searched", "filter": "headers.wanted == '1' && value.n >= `0`"})
    browser.show(f"{root}messages?{query}", NARROW)
    browser.wait_for("all matches", f"{ARTICLES} === 3")
    browser.wait_for("the end", "document.getElementById('looked').textContent.includes('to the beginning')")
    assert browser.text("#looked").startswith("Examined 30,000 records, back to the beginning. Matches: 3.")
    numbers = browser.script("return [...document.querySelectorAll('#found article pre')].map((p) => p.innerText)")
    assert ['"n": 0' in numbers[0], '"n": 10000' in numbers[1], '"n": 20000' in numbers[2]] == [True] * 3
    assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.complaints() == []


def test_new_records_are_followed_and_paused(browser: Browser, root: str, broker: Broker) -> None:
    browser.show(f"{root}messages?{urlencode({'topic': 'followed', 'live': 1, 'value': 'yes'})}")
    send(broker, "followed", "yes 1", "no", "yes 2 <img src=x onerror=alert(1)>")
    browser.wait_for("two records", f"{ARTICLES} === 2")
    assert "yes 2 <img src=x" in browser.text("#found article:last-of-type")
    assert "Examined 3 records, up to the end. Matches: 2. New records appear below." in browser.text("#looked")
    browser.find("#pause").send_keys(" ")
    assert browser.find("#pause").get_attribute("aria-pressed") == "true"
    before = browser.script("return performance.getEntriesByType('resource').length")
    send(broker, "followed", "yes 3")
    browser.script("document.dispatchEvent(new Event('visibilitychange'))")  # requests records at once unless paused
    assert browser.script("return performance.getEntriesByType('resource').length") == before
    browser.find("#pause").send_keys(" ")
    browser.wait_for("the third", f"{ARTICLES} === 3")
    assert browser.complaints() == []


def test_a_record_is_produced_by_keyboard(browser: Browser, root: str) -> None:
    """A record is entered and applied by keyboard, and then shown in the list of messages; only a typed key is one."""
    browser.show(f"{root}produce?topic=followed")
    assert browser.find("[name=key_null]").is_selected()
    browser.find("#key").send_keys("k1")
    assert not browser.find("[name=key_null]").is_selected()
    browser.find("#value").send_keys('{"typed": "here"}')
    browser.find("#headers").send_keys("by=keyboard")
    browser.find("#repeat").send_keys("\ue007")  # Enter
    browser.wait_for("the difference", "document.body.innerText.includes('Produce 1 record to followed')")
    assert "header by" in browser.text(".difference")
    browser.find("button.main").send_keys("\ue007")
    browser.wait_for("the message", "document.querySelector('#found')?.innerText.includes('typed')")
    assert "The change is made." in browser.text()
    assert browser.complaints() == []


def test_a_file_of_many_steps(browser: Browser, root: str, tmp_path: Path) -> None:
    """The script joins the records of all steps in the order of their times."""
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    browser.show(f"{root}messages?{urlencode({'topic': 'searched', 'partition': 1, 'count': 1})}")
    browser.find("a[data-steps]").send_keys("\ue007")
    browser.wait_for("the end", "document.getElementById('saved').textContent.endsWith('to the beginning saved')")
    file = tmp_path / "searched.jsonl"
    wait_for("the file", lambda: file.exists() and file.stat().st_size > 0)  # renamed over an empty one
    offsets = [json.loads(line)["offset"] for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(offsets) > 5000
    assert offsets == list(range(len(offsets)))
    assert browser.text("#saved").startswith(f"{len(offsets):,} records, back to the beginning")
    assert browser.complaints() == []
