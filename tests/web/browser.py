"""A headless Chromium on the page: what a reader does and sees, and what the page asked the network for."""
import json
import os
import re
import tempfile
import urllib.request

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

WAIT_S = float(os.environ.get("PAGE_WAIT_S", "20"))  # for anything the page must do; a shared machine is slow
# Colours by the rules of web/palette.js, written down a second time on purpose.
LOAD_BOUNDS = [0.25, 0.5, 0.8, 1.25, 2, 4]


def load_step(ratio):
    return 0 if ratio <= 0 else 1 + sum(ratio >= bound for bound in LOAD_BOUNDS)


class Browser:
    def __init__(self, theme="light", size=(1360, 900)):
        options = webdriver.ChromeOptions()
        options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        self.profile = tempfile.TemporaryDirectory(prefix="page-test-")
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
            "--disable-background-networking", "--disable-component-update", "--no-first-run", "--lang=en",
            f"--user-data-dir={self.profile.name}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver")), options=options)
        self.resize(*size)
        self.prefer(theme)

    def quit(self):
        self.driver.quit()
        self.profile.cleanup()

    def resize(self, width, height, is_phone=False):
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 2 if is_phone else 1, "mobile": is_phone},
        )

    def prefer(self, theme):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url):
        """A fresh page: nothing remembered from the one before."""
        self.url = url
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(url + "/")
        self.driver.execute_script("sessionStorage.clear(); localStorage.clear();")
        self.driver.refresh()

    # ---- looking ----
    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def is_shown(self, selector):
        return self.js("const n = document.querySelector(arguments[0]); return n !== null && n.checkVisibility()", selector)

    def wait(self, condition, what):
        """`condition` is JavaScript that becomes true, or a function."""
        met = (lambda _: self.js(f"return Boolean({condition})")) if isinstance(condition, str) else (lambda _: condition())
        return WebDriverWait(self.driver, WAIT_S, poll_frequency=0.05).until(met, f"waited {WAIT_S:.0f} s for: {what}")

    def answer_text(self):
        """The last answer as the reader sees it."""
        return self.js(
            "const body = [...document.querySelectorAll('.turn .body')].at(-1);"
            "return body.textContent.slice(body.querySelector('.given')?.textContent.length ?? 0)"
        )

    def state(self):
        return self.js("return [...document.querySelectorAll('.turn')].at(-1)?.dataset.state ?? ''")

    def tokens(self):
        """The coloured tokens of the last answer: text, expert it is labelled with, colour it has and colour that expert has."""
        return self.js(
            """
            const turn = [...document.querySelectorAll('.turn')].at(-1);
            const probe = document.body.appendChild(document.createElement('span'));
            const colour = (expert) => { probe.style.background = `var(--e${expert % 16})`; return getComputedStyle(probe).backgroundColor; };
            const rows = [...turn.querySelectorAll('.token')].map((node) => ({
              text: node.textContent, expert: Number(node.dataset.expert), mark: Number(node.dataset.mark),
              colour: getComputedStyle(node).backgroundColor, expected: colour(Number(node.dataset.expert)) }));
            probe.remove();
            return rows;"""
        )

    def map_cells(self):
        """[row][expert] of the map: the step it is in, and its colour."""
        return self.js(
            """return [...document.querySelectorAll('#map .map-row')].map((row) => [...row.querySelectorAll('.cell')].map(
              (cell) => ({ step: Number(cell.dataset.step), colour: getComputedStyle(cell).backgroundColor })))"""
        )

    # ---- doing ----
    def ready(self):
        self.wait("document.getElementById('model')?.textContent", "the name of the model")

    def choose_mode(self, mode):
        self.js("document.querySelector(`#mode [value=${arguments[0]}]`).click()", mode)

    def say(self, text):
        """Types and sends; returns when the answer has begun or failed."""
        box = self.find("#prompt")
        box.clear()
        box.send_keys(text)
        turns = len(self.find_all(".turn"))
        self.wait("!document.getElementById('send').disabled", "the page to be ready to send")
        self.find("#send").click()
        self.wait(lambda: len(self.find_all(".turn")) == turns + 1, "the new turn")

    def ended(self):
        self.wait(lambda: self.state() in ("done", "stopped", "failed"), "the end of the answer")

    def set_input(self, selector, value):
        """As a reader who leaves the field."""
        self.js(
            "const n = document.querySelector(arguments[0]); n.value = arguments[1];"
            "n.dispatchEvent(new Event('input', {bubbles: true})); n.dispatchEvent(new Event('change', {bubbles: true}))",
            selector, str(value),
        )

    def screenshot(self, path):
        self.driver.save_screenshot(str(path))

    # ---- what must not happen ----
    def console(self):
        """Warnings and errors since the last look."""
        return [f"{entry['source']}: {entry['message']}" for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def outside_requests(self):
        """Addresses asked for since the page was opened that are not the server's."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                params = message["params"]
                address = params.get("url") or params["request"]["url"]
                if not address.startswith((self.url + "/", "data:", "about:")):
                    found.append(address)
        return found


def get_json(url, path, method="GET"):
    with urllib.request.urlopen(urllib.request.Request(url + path, method=method), timeout=30) as response:
        return json.load(response)


def ask(url, path, body):
    """The same request as the page's, by another client: [(text, experts [layers][K], gates)] of the answer's forwarded tokens."""
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    text, tokens = "", []
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            data = re.sub(rb"^data: ?", b"", line.strip())
            if not data or data == b"[DONE]":
                continue
            for choice in json.loads(data)["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                for i, experts in enumerate(choice.get("routed_experts", [])):
                    if choice["routed_start"] + i >= choice["routed_prompt"]:
                        tokens.append((choice["routed_text"][i], experts, choice["routed_gates"][i]))
    return text, tokens
