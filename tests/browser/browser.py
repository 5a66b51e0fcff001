"""Headless Chromium for tests: page size and theme, contents of a page, and findings of axe-core."""

import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

WIDE, NARROW = (1200, 900), (390, 844)
PATIENCE_S = 20
AXE_RUN = """
const done = arguments[arguments.length - 1];
axe.run().then(
  (found) => done(found.violations.flatMap(
    (one) => one.nodes.map((node) => ({id: one.id, target: node.target.join(" "), why: node.failureSummary})))),
  (error) => done([{id: "axe", target: "", why: String(error)}]));
"""
SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # needed by root in a container
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
)


class Browser:
    """Headless Chromium.

    Args: ``folder`` for the browser's own files.
    """

    def __init__(self, folder: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for switch in (*SWITCHES, f"--user-data-dir={folder}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        self.driver.set_page_load_timeout(PATIENCE_S)
        self.driver.set_script_timeout(PATIENCE_S)

    def close(self) -> None:
        self.driver.quit()

    def show(self, url: str, size: tuple[int, int] = WIDE, theme: str = "light") -> None:
        """Open a page with a size and a theme."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == NARROW}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.theme(theme)
        self.driver.get(url)

    def theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        return str(self.script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def script(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)

    def wait_for(self, what: str, code: str, *arguments: object) -> None:
        """Wait until a JavaScript expression is true; `what` describes it in the error."""
        waiting = WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.05)
        waiting.until(lambda _: self.script(f"return Boolean({code})", *arguments), what)

    def findings(self, axe: str) -> list[str]:
        """Return the rule, element and summary of each finding of axe-core on the page."""
        self.script("if (!window.axe) { " + axe + " }")
        found = self.driver.execute_async_script(AXE_RUN)
        return [f"{one['id']}: {one['target']} {one['why']}" for one in found]

    def complaints(self) -> list[str]:
        """Return the warnings and errors of the browser's log since the last call, such as script errors and missing
        files.
        """
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
