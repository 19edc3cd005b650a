#!/usr/bin/env python3
"""The pictures of docs/page.md, from a running server: pictures.py URL [FOLDER]. With the demo's model: dsmoe serve, then this."""
import pathlib
import sys

import browser

STORY = "Once upon a time there was a"
QUESTION = "Mia the fox lived by the lake. One morning Mia found a red kite in the grass and gave it to Tom the owl. Who has the kite now?"
ADDITION = "Add 27 + 45:"


def take(page, url, path, select):
    """A short conversation with all domains of the demo, one token of the last answer selected."""
    browser.get_json(url, "/v1/experts/reset", "POST")
    page.open(url)
    page.ready()
    page.set_input("#temperature", 0.7)
    page.set_input("#max-tokens", 140)
    page.set_input("#seed", 7)
    for mode, text in (("chat", QUESTION), ("continue", ADDITION), ("continue", STORY)):
        page.choose_mode(mode)
        page.say(text)
        page.ended()
        if page.state() != "done":
            raise SystemExit(f"pictures: {page.text('.problem')}")
    page.js("const n = [...document.querySelectorAll('.turn:last-child .token')]; (n.find((t) => t.textContent === arguments[0]) ?? n[12]).click()", select)
    page.wait("document.querySelector('.token.selected')", "the selected token")
    page.wait("!document.getElementById('load').hidden", "the map")
    page.js("return new Promise((done) => setTimeout(done, 2500))")  # the map is asked for every two seconds
    page.screenshot(path)


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
            take(page, url, folder / f"page-{name}.png", "lived")
        told = page.console()
        if told:
            raise SystemExit(f"pictures: {told}")
    finally:
        page.quit()


if __name__ == "__main__":
    main()
