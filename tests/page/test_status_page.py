"""The status page in a real Chromium: no console error, numbers move, both colour schemes, narrow, by keyboard alone, with a key."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fixtures.fronts import CLOSE, Front, end_front, rounds, start_front
from fixtures.waiting import wait_until

pytestmark = pytest.mark.browser
BODY = {"messages": [{"role": "user", "content": "hi"}]}
TURN = (
    "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
    "document.dispatchEvent(new Event('visibilitychange'))"
)
# Every question of the page waits until it is let go.
HELD = (
    "window.asked = 0; const free = fetch, held = new Promise(told => window.release = told);"
    "window.fetch = (...what) => { window.asked += 1; return held.then(() => free(...what)); };"
)
WORDS = [f"word {number}, " for number in range(1500)]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    driver = Chrome(options, ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Chrome) -> Iterator[Chrome]:
    """With an empty page and an empty log: a page left open would go on asking the server that ends, and complain."""
    yield chromium
    chromium.get("about:blank")
    chromium.get_log("browser")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("page")
    keys = folder / "keys"
    keys.write_text("team: secret-one\n")
    keys.chmod(0o600)
    script = {"rounds": rounds(*["word "] * 60), "delay_s": 0.02}
    started = start_front(folder, script, "--auth", "key", "--api-key-file", str(keys))
    started.http.headers["x-api-key"] = "secret-one"
    started.wait_for("/health/ready", 200)
    yield started
    end_front(started)


def text(browser: Chrome, name: str) -> str:
    return browser.find_element(By.ID, name).text


def until(browser: Chrome, question: Callable[[], bool]) -> None:
    WebDriverWait(browser, 15, 0.1).until(lambda _: question())


def scheme(browser: Chrome, word: str) -> str:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": word}]})
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def picture(browser: Chrome, name: str) -> None:
    if folder := os.environ.get("PAGE_PICTURES"):
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def without_key(browser: Chrome, front: Front) -> None:
    browser.get(front.url + "/")
    browser.execute_script("sessionStorage.clear()")
    browser.refresh()
    until(browser, lambda: browser.find_element(By.ID, "keybox").is_displayed())


def complaints(browser: Chrome) -> list[object]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_the_page_asks_for_a_key_chats_by_keyboard_and_its_numbers_move(front: Front, browser: Chrome) -> None:
    browser.set_window_size(1100, 900)
    without_key(browser, front)
    picture(browser, "locked")
    board = ActionChains(browser)
    board.send_keys(Keys.TAB, "secret-one").perform()
    until(browser, lambda: text(browser, "slots") == "0 / 4")
    until(browser, lambda: text(browser, "state") == "ok")
    until(browser, lambda: not browser.find_element(By.ID, "keybox").is_displayed())
    before = text(browser, "speedmore")
    board = ActionChains(browser)
    # From the key, which is gone now, the next stop is the message.
    board.send_keys(Keys.TAB, "hello <b>there</b>", Keys.ENTER).perform()
    until(browser, lambda: text(browser, "slots") == "1 / 4")
    until(browser, lambda: float(text(browser, "speed") or 0) > 1)
    until(browser, lambda: text(browser, "log").count("word") == 60 and browser.find_element(By.ID, "send").is_enabled())
    picture(browser, "light")
    assert "hello <b>there</b>" in text(browser, "log")
    until(browser, lambda: text(browser, "speedmore") != before)
    assert browser.switch_to.active_element.get_attribute("id") == "text"
    assert complaints(browser) == []


def test_dark_and_light_differ_and_no_width_scrolls_sideways(front: Front, browser: Chrome) -> None:
    browser.get(front.url + "/")
    light, dark = scheme(browser, "light"), scheme(browser, "dark")
    assert light != dark
    picture(browser, "dark")
    for width in (320, 375, 768, 1400):
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        assert browser.execute_script("return innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        picture(browser, f"width-{width}")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    scheme(browser, "light")


def test_the_page_is_one_file_that_may_ask_nobody_else(front: Front) -> None:
    reply = httpx.get(front.url + "/")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in reply.text.replace("http-equiv", "")
    assert httpx.get(front.url + "/").headers["content-security-policy"] != policy
    assert "secret" not in reply.text


def test_errors_of_the_server_are_shown_and_those_of_clients_are_not(browser: Chrome, tmp_path: Path) -> None:
    front = start_front(tmp_path, {"rounds": rounds("x")})
    try:
        front.wait_for("/health/ready", 200)
        assert front.http.post("/v1/chat/completions", json={"messages": []}).status_code == 400
        assert front.http.get("/health").json()["recent_errors"] == []
        os.kill(front.engine_pid, signal.SIGKILL)
        wait_until(lambda: front.http.post("/v1/chat/completions", json=BODY).status_code == 503)
        browser.get(front.url + "/")
        until(browser, lambda: "503 /v1/chat/completions" in text(browser, "errors"))
        assert "400" not in text(browser, "errors")
        assert (text(browser, "state"), text(browser, "slots")) == ("dead", "–")
        picture(browser, "dead")
    finally:
        end_front(front)


def test_reasoning_is_folded_tab_reaches_stop_and_a_hidden_page_asks_nothing(tmp_path: Path, browser: Chrome) -> None:
    script = {"rounds": [*rounds("quiet thought", end=False), [CLOSE], *rounds(*WORDS[:400])], "delay_s": 0.02}
    front = start_front(tmp_path, script, "--thinking")
    try:
        front.wait_for("/health/ready", 200)
        browser.get(front.url + "/")
        until(browser, lambda: text(browser, "state") == "ok")
        assert not browser.find_element(By.ID, "keybox").is_displayed()
        ActionChains(browser).send_keys(Keys.TAB, "hello", Keys.ENTER).perform()
        until(browser, lambda: text(browser, "log").count("word") > 5)
        fold = browser.find_element(By.TAG_NAME, "details")
        assert fold.get_attribute("open") is None
        assert fold.get_attribute("textContent") == "Reasoningquiet thought"
        picture(browser, "reasoning")
        ActionChains(browser).send_keys(Keys.TAB).perform()
        assert browser.switch_to.active_element.get_attribute("id") == "stop"
        assert browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
        ActionChains(browser).send_keys(Keys.ENTER).perform()
        until(browser, lambda: text(browser, "log").endswith("(stopped)"))
        assert text(browser, "log").count("word") < 400
        until(browser, lambda: text(browser, "slots") == "0 / 4")
        asked = "return performance.getEntriesByType('resource').filter(one => one.name.endsWith('/health')).length"
        browser.execute_script(TURN, True)
        time.sleep(1.2)
        before = browser.execute_script(asked)
        time.sleep(2.2)
        assert browser.execute_script(asked) == before
        browser.execute_script(TURN, False)
        until(browser, lambda: browser.execute_script(asked) > before)
        assert complaints(browser) == []
    finally:
        end_front(front)


def test_a_page_turned_away_from_before_its_first_answer_asks_no_more_than_others(front: Front, browser: Chrome) -> None:
    held = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HELD})
    try:
        browser.get(front.url + "/")
        for is_hidden in (True, False):
            browser.execute_script(TURN, is_hidden)
        assert browser.execute_script("return window.asked") == 1
        browser.execute_script("window.release()")
        until(browser, lambda: browser.execute_script("return window.asked") > 1)
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", held)


def test_a_key_lasts_as_long_as_its_tab(front: Front, browser: Chrome) -> None:
    without_key(browser, front)
    browser.find_element(By.ID, "key").send_keys("secret-one")
    until(browser, lambda: text(browser, "slots") == "0 / 4")
    browser.refresh()
    until(browser, lambda: text(browser, "slots") == "0 / 4")
    assert browser.execute_script("return localStorage.length") == 0


def test_loading_draining_and_dead_say_so_and_leave_no_stale_figures(tmp_path: Path, browser: Chrome) -> None:
    loaded = tmp_path / "loaded"
    script = {"rounds": rounds(*WORDS, end=False), "delay_s": 0.02, "loads_until": str(loaded)}
    front = start_front(tmp_path, script, "--drain-timeout", "30")
    try:
        front.wait_for("/health", 200)
        browser.get(front.url + "/")
        until(browser, lambda: text(browser, "state") == "loading")
        until(browser, lambda: "loading: scripted, 50%" in text(browser, "about"))
        assert text(browser, "slots") == "–"
        picture(browser, "loading")
        ActionChains(browser).send_keys(Keys.TAB, "hello", Keys.ENTER).perform()
        until(browser, lambda: "Loading model" in text(browser, "log"))
        browser.get_log("browser")
        loaded.touch()
        until(browser, lambda: text(browser, "state") == "ok" and text(browser, "slots") == "0 / 4")
        ActionChains(browser).send_keys("hello", Keys.ENTER).perform()
        until(browser, lambda: text(browser, "slots") == "1 / 4" and float(text(browser, "speed")) > 1)
        front.process.send_signal(signal.SIGTERM)
        until(browser, lambda: text(browser, "state") == "draining")
        assert text(browser, "slots") == "1 / 4"
        picture(browser, "draining")
        assert complaints(browser) == []
        os.kill(front.engine_pid, signal.SIGKILL)
        until(browser, lambda: text(browser, "state") in ("dead", "no answer"))
        until(browser, lambda: "SIGKILL" in text(browser, "log"))
    finally:
        end_front(front)
