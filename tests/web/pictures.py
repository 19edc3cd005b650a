#!/usr/bin/env python3
"""The pictures of docs/page.md, from a running server: pictures.py URL [FOLDER]. With the demo's model: dsmoe serve, then this."""
import pathlib
import sys

import browser
import mock_server

PROGRAM = "def count(n):\n    for i in range(n):\n        print(i)\n\ncount(4)\n#"
ADDITION = "Add 49 + 38:"
STORY = "Once upon a time there was a"
MARKDOWN = """A mixture of experts has **many** small networks, and a *router* that chooses `K` of them for each token:

- the router scores all experts,
- the best four run, and their outputs are added.

```python
chosen = scores.topk(4)
output = sum(gate * expert(x) for gate, expert in chosen)
```

| part | runs for |
|---|---|
| shared experts | every token |
| routed experts | tokens that chose them |
"""


def ask(page, mode, text):
    """Texts with line breaks are set, not typed: Enter sends."""
    page.choose_mode(mode)
    page.set_input("#prompt", text)
    turns = len(page.find_all(".turn"))
    page.js("document.getElementById('send').click()")  # no pointer rests on the page
    page.wait(lambda: len(page.find_all(".turn")) == turns + 1, "the turn")
    page.ended()
    if page.state() != "done":
        raise SystemExit(f"pictures: {page.text('.problem')}")


def rest(page):
    page.js("return new Promise((done) => setTimeout(done, 3500))")  # the map is asked for every three seconds


def take(page, url, path):
    """A short conversation with the demo's model, one token of the last answer selected."""
    browser.get_json(url, "/v1/experts/reset", "POST")
    page.open(url)
    page.ready()
    page.set_input("#seed", 7)
    page.set_input("#max-tokens", 140)
    for text in (PROGRAM, ADDITION, STORY):
        ask(page, "continue", text)
    page.js("const n = [...document.querySelectorAll('.turn:last-child .token')]; (n.find((t) => t.textContent === 'lived') ?? n[12]).click()")
    page.wait("document.querySelector('.token.selected')", "the selected token")
    page.wait("!document.getElementById('load').hidden", "the map")
    rest(page)
    page.screenshot(path)


def take_features(page, folder):
    """What needs a model that writes Markdown: the mock, which is such a one."""
    mock = mock_server.Mock(layers=6, experts=16, k=4, delay=0)
    mock.answer = MARKDOWN
    server = mock_server.start(mock)
    page.open(server.url)
    page.ready()
    page.set_input("#seed", 7)
    ask(page, "chat", "What is a mixture of experts?")
    mock.answer = MARKDOWN.replace("many", "some").replace("are added", "add up")
    page.js("[...document.querySelectorAll('.foot button')].find((b) => b.textContent === 'Compare').click()")
    page.wait("document.querySelectorAll('.pair .answer[data-state=done]').length === 2", "both answers")
    page.js("document.getElementById('number-tokens').click(); document.getElementById('log').classList.remove('numbers')")
    rest(page)
    page.js("document.querySelectorAll('#map .map-row')[2].querySelectorAll('.cell')[1].click()")
    page.wait("document.querySelector('.taken')", "the expert's tokens")
    page.js("document.getElementById('scroll').scrollTop = 0")
    page.screenshot(folder / "page-compare.png")
    page.js("document.getElementById('number-tokens').click()")
    for text in ("And who chooses the experts?", "Write it as a poem"):
        page.find("#new-chat").click()
        ask(page, "chat", text)
    page.prefer("dark")
    page.resize(390, 844, is_phone=True)
    page.find("#library-open").click()
    page.wait("document.querySelectorAll('.library li').length === 3", "the list")
    page.js("[...document.querySelectorAll('.library-actions button')].at(-1).click()")
    page.wait("!document.getElementById('toast').hidden", "the offer to undo")
    page.screenshot(folder / "page-conversations.png")
    mock.training = {"step": 600, "total": 1500, "loss": 0.53, "seconds_left": 65,
                     "curve": [[8 * i, 0.42 + 5.6 * 2.72 ** (-i / 8) + 0.03 * (i * 7 % 5)] for i in range(1, 76)]}
    mock.fault = "loading"
    page.prefer("light")
    page.resize(900, 620)
    page.driver.refresh()
    page.wait("document.querySelector('.curve-line')", "the curve")
    page.js("document.getElementById('atlas').hidden || document.getElementById('atlas-close').click()")
    page.screenshot(folder / "page-training.png")
    server.stop()


def main():
    url = sys.argv[1].rstrip("/")
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parents[2] / "docs" / "images")
    page = browser.Browser()
    try:
        for name, theme, size, is_phone in (
            ("light", "light", (1360, 900), False), ("dark", "dark", (1360, 900), False), ("phone", "light", (390, 844), True)
        ):
            page.resize(*size, is_phone=is_phone)
            page.prefer(theme)
            take(page, url, folder / f"page-{name}.png")
        page.resize(1360, 900)
        told = page.console()
        take_features(page, folder)
        if told:
            raise SystemExit(f"pictures: {told}")
    finally:
        page.quit()


if __name__ == "__main__":
    main()
