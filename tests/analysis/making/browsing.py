"""A real headless Chromium without a network, for tests of what is looked at in a browser."""

import json
import shutil
import time
from contextlib import contextmanager

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
MISSING = "chromium and chromedriver are not installed"
ARGUMENTS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,1000",
    "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


@contextmanager
def chromium(webdriver):
    """Start a browser; `webdriver` is selenium's module."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ARGUMENTS:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Shown:
    """What an address shows in the browser."""

    def __init__(self, driver, url, ready, scheme="light"):
        self.driver, self.url = driver, url
        self.scheme(scheme)
        driver.get_log("browser"), driver.get_log("performance")
        driver.get(url)
        self.until(ready)

    def do(self, script, *arguments):
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script, seconds=30):
        """Wait until a script returns something true."""
        end = time.monotonic() + seconds
        while not self.do(script):
            assert time.monotonic() < end, f"{script}: not within {seconds} s; {self.complaints()}"
            time.sleep(0.02)

    def scheme(self, name):
        """Let the system be light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def complaints(self):
        """Return what was written to the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """Return the addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
