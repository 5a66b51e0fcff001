"""Changes of groups and users by keyboard in a browser; each change is shown before it is applied."""

from pathlib import Path

from selenium.webdriver.common.keys import Keys

from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from kbroker.client.groups import Groups
from kbroker.client.users import Users
from tests.browser.browser import NARROW, Browser

GROUP = "reset <i>here</i>"


def pressed(browser: Browser, selector: str, key: str = Keys.ENTER) -> None:
    browser.find(selector).send_keys(key)


def test_offsets_are_reset_from_a_file(browser: Browser, broker: Broker, tmp_path: Path) -> None:
    """The file fills the form, the difference is shown, and Apply commits the offsets."""
    file = tmp_path / "offsets.csv"
    file.write_text("orders,0,3\norders,1,1\n")
    with Cluster(broker.bootstrap_servers) as cluster:
        groups = Groups(cluster)
        groups.commit(GROUP, {("orders", 0): 10, ("orders", 1): 1})
        browser.show(f"{broker.metrics_url}/console/groups?q=reset", NARROW)
        pressed(browser, "tbody a")
        browser.wait_for("the group", "document.querySelector('h1').innerText.startsWith('Group reset <i>')")
        pressed(browser, ".buttons a.button")
        browser.wait_for("the form", "document.querySelector('#rows') !== null")
        browser.find("input[type=file]").send_keys(str(file))
        browser.wait_for("the rows", "document.querySelector('#rows').value.startsWith('orders,0,3')")
        pressed(browser, "input[value=file]", Keys.SPACE)
        pressed(browser, "form.fields button")
        browser.wait_for("the difference", "document.querySelector('#difference') !== null")
        assert "orders, 0" in browser.text("table.difference")
        assert "orders, 1" not in browser.text("table.difference"), "the offset does not change"
        assert browser.script("return document.documentElement.scrollWidth") <= NARROW[0]
        pressed(browser, "button.main")
        browser.wait_for(
            "that it is made", "document.querySelector('[role=status]')?.innerText == 'The change is made.'"
        )
        assert {place: one.offset for place, one in groups.committed(GROUP).items()} == {
            ("orders", 0): 3,
            ("orders", 1): 1,
        }
        groups.delete(GROUP)


def test_a_user_gets_a_password_that_is_shown_once(browser: Browser, broker: Broker) -> None:
    root = f"{broker.metrics_url}/console/"
    browser.show(root + "users")
    browser.find("#user").send_keys("<b>carol", Keys.ENTER)
    browser.wait_for("the difference", "document.querySelector('#difference') !== null")
    pressed(browser, "button.main")
    browser.wait_for("the password", "document.querySelector('main code')?.innerText.length >= 32")
    password = browser.text("main code")
    pressed(browser, ".buttons a")
    browser.wait_for("the list", "document.querySelector('tbody')?.innerText.includes('<b>carol')")
    assert password not in browser.script("return document.documentElement.outerHTML")
    browser.find("tbody td.actions form:last-child button").send_keys(Keys.ENTER)
    browser.wait_for("the question", "document.querySelector('#confirm') !== null")
    browser.find("#confirm").send_keys("<b>carol", Keys.ENTER)
    browser.wait_for("that it is made", "document.querySelector('[role=status]')?.innerText == 'The change is made.'")
    with Cluster(broker.bootstrap_servers) as cluster:
        assert Users(cluster).list() == {}
