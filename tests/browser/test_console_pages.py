"""Console in a browser: no findings of axe-core, no script errors, pages that fit a phone, and uses of pages."""

from urllib.parse import urlsplit

import pytest

from kbroker.broker import Broker
from tests.browser.browser import NARROW, WIDE, Browser
from tests.browser.conftest import LIMITED, SETTINGS
from tests.support.console import served

TAB = {"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
PAGES = (
    "",
    "topics",
    "topic?topic=orders",
    "topic-new",
    "cluster",
    "configs?kind=broker&name=1",
    "configs?kind=topic&name=orders",
    "config?kind=topic&name=orders&key=retention.ms",
    "configs-edit?kind=topic&name=orders",
    "messages",
    "messages?topic=orders",
    "message?topic=orders&offset=0",
    "messages?topic=binary",
    "messages?topic=orders&live=1&value=sku",
    "produce?topic=orders",
    "groups",
    "group?group=billing",
    "group-reset?group=billing",
    "transactions",
    "hanging?search=1",
    "acl-check?asked=1&principal=User:a&name=x",
    "acl-add",
    "users",
    "clients",
    "client?client=AAAAAAAAAAAAAAAAAAAABw",
    "throughput",
    "throttles",
    "requests",
    "quotas",
    "quota?client-id=loader%3Ci%3E",
    "explain?client-id=mirror",
    "xray",
    "sign-in",
    "none",
)


@pytest.fixture
def root(broker: Broker) -> str:
    return f"{broker.metrics_url}/console/"


@pytest.mark.parametrize("page", PAGES)
def test_everybody_can_use_a_page(browser: Browser, root: str, axe: str, page: str) -> None:
    """A page is accessible on a wide screen in the light theme, and on a phone in the dark one."""
    check(browser, root + page, axe, (WIDE, "light"), (NARROW, "dark"))


@pytest.mark.soak
@pytest.mark.parametrize("page", PAGES)
def test_everybody_can_use_a_page_the_other_way_round(browser: Browser, root: str, axe: str, page: str) -> None:
    check(browser, root + page, axe, (WIDE, "dark"), (NARROW, "light"))


def check(browser: Browser, url: str, axe: str, *looks: tuple[tuple[int, int], str]) -> None:
    browser.complaints()
    for size, theme in looks:
        browser.show(url, size, theme)
        if "throughput" in url:
            browser.wait_for("charts", "document.querySelectorAll('canvas').length == 4")
        assert browser.findings(axe) == []
        assert browser.script("return document.documentElement.scrollWidth") <= size[0], "wider than the screen"
    expected = "status of 404" if url.endswith("none") else None
    assert [line for line in browser.complaints() if expected is None or expected not in line] == []
    elsewhere = "performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))"
    assert browser.script(f"return {elsewhere}") == []


def test_names_stay_text(browser: Browser, root: str) -> None:
    browser.show(root + "messages?topic=orders&partition=1")
    assert "plain <img src=x onerror=alert(1)>" in browser.text("main")
    browser.show(root + "throttles?q=loader")
    browser.wait_for("the verdict", "document.querySelector('.heatmap')?.innerText.includes('client id loader<i>')")


def test_filtering_while_typing(browser: Browser, root: str) -> None:
    """The filter applies to the list and to the address, and the focus stays in the field."""
    browser.show(root + "topics")
    assert len(browser.all("tbody tr")) == 50
    browser.find("#q").send_keys("team-5")
    browser.wait_for("the filter", "document.querySelectorAll('tbody tr').length == 10")
    assert browser.script("return document.activeElement.id") == "q"
    assert "q=team-5" in urlsplit(browser.driver.current_url).query
    assert browser.script("return document.querySelector('[data-live]').dataset.live").endswith("q=team-5&sort=name")


def test_fields_in_any_order(browser: Browser, root: str) -> None:
    """The check while a user types leaves the focus where it is, and no difference of former values."""
    browser.show(root + "topic-new")
    browser.find("#partitions").send_keys("1")
    browser.wait_for("a check without a name", "document.querySelector('#check .bad')")
    assert browser.script("return document.activeElement.id") == "partitions"
    browser.find("#topic").send_keys("later")
    browser.wait_for("the difference", "document.querySelector('#check')?.innerText.includes('later')")
    browser.find("#partitions").clear()
    browser.find("#partitions").send_keys("0")
    browser.wait_for("the expected number", "document.querySelector('#check .bad')?.innerText.includes('expected')")


def test_a_page_without_a_mouse(browser: Browser, root: str) -> None:
    """The first key leads to a link past the menu, and each control can be reached by keyboard."""
    browser.show(root + "topics")
    browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", TAB)
    assert browser.script("return document.activeElement.innerText") == "Skip to the content"
    assert browser.script("return document.activeElement.getBoundingClientRect().top") >= 0
    unreachable = "[...document.querySelectorAll('a, button, input, select, summary')].filter(e => e.tabIndex < 0)"
    assert browser.script(f"return {unreachable}.length") == 0


def test_a_page_outlives_its_broker(browser: Browser) -> None:
    """The page shows that the broker does not respond, keeps its contents, and reports the next broker."""
    with served(SETTINGS) as first:
        url = str(first.metrics_url)
        browser.show(f"{url}/console/")
        browser.wait_for("figures", "document.querySelector('#live dd').innerText.includes('/s')")
    browser.wait_for(
        "the banner", "/does not respond since ..:..:.. UTC/.test(document.querySelector('#connection').innerText)"
    )
    assert "This broker" in browser.text("main")
    with served({**SETTINGS, "kbroker.metrics.listener": url.removeprefix("http://")}) as second:
        is_back = "/is back since ..:..:.. UTC/.test(document.querySelector('#connection').innerText)"
        browser.wait_for("that it is back", is_back)
        is_new = "document.querySelector('#live').innerText.includes(arguments[0])"
        browser.wait_for("the new one", is_new, second.cluster_id)


def test_a_quota_from_shadow_to_enforced(browser: Browser, broker: Broker, root: str) -> None:
    """A quota is tried as a shadow and then promoted; nothing changes before Apply."""
    store = broker.context.quota_entities

    def values() -> dict[str, float]:
        found = store.find({"client-id": "tried"}, (), True)
        return dict(found[0][1]) if found else {}

    browser.show(root + "quotas")
    browser.find("#client-id").send_keys("tried")
    browser.find("main form.fields button").click()
    browser.wait_for("the client's page", "document.querySelector('#value')")
    browser.find("#value").send_keys("nonsense")
    press(browser, "Show the difference")
    assert "expected a number" in browser.text("[role=alert].lead") or "expected" in browser.text("main .lead.bad")
    browser.find("#value").clear()
    browser.script("const s = document.querySelector('#key'); s.value = 'producer_byte_rate'")
    browser.find("#value").send_keys("2 MiB/s")
    press(browser, "Show the difference")
    assert browser.text(".difference tbody").split("\t") == ["shadow.producer_byte_rate", "none", "2 MiB/s"]
    assert values() == {}
    press(browser, "Apply")
    assert "The change is made." in browser.text(".lead.good")
    assert values() == {"shadow.producer_byte_rate": 2.0 * (1 << 20)}
    browser.script("document.querySelector('#key').value = 'producer_byte_rate'")
    browser.find("input[value=promote]").click()
    press(browser, "Show the difference")
    press(browser, "Apply")
    assert values() == {"producer_byte_rate": 2.0 * (1 << 20)}


def test_a_difference_that_is_out_of_date(browser: Browser, broker: Broker, root: str) -> None:
    """A difference is not applied if another client has changed the quota."""
    from kbroker.quota.entity_rules import Alteration, QuotaOp

    browser.show(root + "quota?client-id=loader%3Ci%3E")
    browser.script("document.querySelector('#key').value = 'request_percentage'")
    browser.find("#value").send_keys("50 %")
    press(browser, "Show the difference")
    broker.context.quota_entities.alter([Alteration(LIMITED, [QuotaOp("consumer_byte_rate", 5000.0)])])
    press(browser, "Apply")
    assert "has changed since you saw" in browser.text("main")


def test_a_topic_from_its_creation_to_its_end(browser: Browser, broker: Broker, root: str) -> None:
    """A new topic is checked while it is typed, markup stays text, and a deletion needs the topic's name."""
    browser.complaints()
    browser.show(root + "topics", NARROW)
    browser.find("a[href$=topic-new]").click()
    browser.wait_for("the form", "document.querySelector('#topic')")
    browser.find("#topic").send_keys("<b>made</b>")
    browser.wait_for("the broker's check", "document.querySelector('#check .bad')")
    assert "<b>made</b>" in browser.text("#check")
    browser.find("#topic").clear()
    browser.find("#topic").send_keys("typed")
    browser.find("#configs").send_keys("retention.ms=60000")
    browser.wait_for("the difference", "document.querySelector('#check')?.innerText.includes('60000')")
    assert broker.context.topics.get("typed") is None
    browser.find("#topic").send_keys("\n")  # submits by keyboard
    browser.wait_for("the difference", "document.querySelector('#difference')")
    press(browser, "Apply")
    assert broker.context.topics.get("typed") is not None
    assert "The change is made." in browser.text(".lead.good")
    browser.show(root + "topic?topic=typed")
    browser.script("document.querySelector('form[action$=\"topic/delete/preview\"]').closest('details').open = true")
    browser.find("form[action$='topic/delete/preview'] button").click()
    browser.wait_for("the difference", "document.querySelector('#confirm')")
    browser.find("#confirm").send_keys("other")
    press(browser, "Apply")
    assert "to be typed" in browser.text("main .lead.bad")
    browser.find("#confirm").send_keys("typed")
    press(browser, "Apply")
    assert broker.context.topics.get("typed") is None
    assert [one for one in browser.complaints() if "400" not in one] == []


def press(browser: Browser, name: str) -> None:
    """Click the button of a name, and wait for the next page."""
    button = next(one for one in browser.all("main button") if one.text == name)
    browser.script("window.isOld = true")
    button.click()
    browser.wait_for("the next page", "!window.isOld && document.readyState == 'complete'")
