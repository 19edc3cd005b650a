#!/usr/bin/env python3
"""The page against a server: an answer streams and stops, colours are those of the API, nothing leaves the machine.

DSMOE_URL names a running `dsmoe serve`; without it the mock answers. All tests here hold for both.
"""
import os
import unittest

import browser
import mock_server
from selenium.webdriver.common.keys import Keys

STORY = "Once upon a time there was a"
QUESTION = "Mia the fox lived by the lake. One morning Mia found a red kite in the grass and gave it to Tom the owl. Who has the kite now?"
# Records what the page asks, so that another client can ask the same.
SPY = """
const real = window.fetch;
window.asked = [];
window.fetch = (url, options = {}) => {
  if (options.body) window.asked.push({ path: new URL(url).pathname.slice(1), body: JSON.parse(options.body) });
  return real(url, options);
};"""


class AnswerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = os.environ.get("DSMOE_URL", "").rstrip("/")
        if not cls.url:
            cls.server = mock_server.start(mock_server.Mock())
            cls.url = cls.server.url
        cls.page = browser.Browser()
        cls.model = browser.get_json(cls.url, "/v1/models")["data"][0]

    @classmethod
    def tearDownClass(cls):
        cls.page.quit()

    def setUp(self):
        self.page.open(self.url)
        self.page.ready()
        self.page.js(SPY)
        self.page.set_input("#max-tokens", 60)
        self.page.set_input("#seed", 7)

    def tearDown(self):
        self.assertEqual(self.page.console(), [])
        self.assertEqual(self.page.outside_requests(), [])

    def asked(self):
        return self.page.js("return window.asked.filter(({ path }) => path.endsWith('completions'))")

    def tell_story(self):
        self.page.choose_mode("continue")
        self.page.say(STORY)
        self.page.ended()
        self.assertEqual(self.page.state(), "done", self.page.text(".problem"))

    def test_an_answer_streams(self):
        # Long enough that a fast server does not send it in one piece; the mock takes its time anyway.
        if "DSMOE_URL" in os.environ:
            for selector in ("#max-tokens", "#min-tokens"):
                self.page.set_input(selector, 250)
        # Every change of the text is kept: a page that waited for the whole answer would show one.
        self.page.js(
            "window.seen = []; new MutationObserver(() => window.seen.push(document.querySelector('.turn .body')?.textContent.length ?? 0))"
            ".observe(document.getElementById('log'), { childList: true, subtree: true, characterData: true })"
        )
        self.page.say(QUESTION)
        self.page.ended()
        seen = sorted(set(self.page.js("return window.seen")))
        self.assertGreater(len(seen), 3)
        (asked,) = self.asked()
        self.assertEqual(asked["body"]["messages"], [{"role": "user", "content": QUESTION}])
        text, _ = browser.ask(self.url, asked["path"], asked["body"])
        self.assertEqual(self.page.answer_text(), text)

    def test_text_is_never_markup(self):
        self.page.choose_mode("continue")
        self.page.say('<img src=x onerror="window.hit = 1"><b>bold</b>')
        self.page.ended()
        self.assertEqual(self.page.js("return document.querySelectorAll('#log img, #log b').length"), 0)
        self.assertIsNone(self.page.js("return window.hit ?? null"))

    def test_stop_stops(self):
        self.page.set_input("#max-tokens", 400)
        self.page.choose_mode("continue")
        # A small model would be done before a driver can press the button, so the page presses it at the first words.
        self.page.js(
            "const send = document.getElementById('send'), log = document.getElementById('log'); const given = arguments[0].length;"
            "new MutationObserver((_, observer) => { if ((log.querySelector('.body')?.textContent.length ?? 0) < given + 6) return;"
            " observer.disconnect(); window.label = send.getAttribute('aria-label'); send.click(); })"
            ".observe(log, { childList: true, subtree: true, characterData: true })", STORY,
        )
        self.page.say(STORY)
        self.page.ended()
        self.assertEqual(self.page.js("return window.label"), "Stop")
        stopped = self.page.answer_text()
        self.assertEqual(self.page.state(), "stopped")
        self.assertIn("stopped", self.page.text(".foot"))
        self.page.js("return new Promise((done) => setTimeout(done, 600))")
        self.assertEqual(self.page.answer_text(), stopped)
        self.assertEqual(self.page.find("#send").get_attribute("aria-label"), "Send")
        (asked,) = self.asked()
        whole, _ = browser.ask(self.url, asked["path"], asked["body"])
        self.assertTrue(whole.startswith(stopped) and len(whole) > len(stopped), (stopped, whole))

    def check_colours(self, tokens, row):
        shown = self.page.tokens()
        self.assertEqual(len(shown), len(tokens))
        for place, (node, (_, experts, _)) in enumerate(zip(shown, tokens)):
            self.assertEqual(node["expert"], experts[row][0], f"token {place}, {node['text']!r}")
            self.assertEqual(node["mark"], experts[row][0] // 16 % 4)
            self.assertEqual(node["colour"], node["expected"])
            self.assertNotIn(node["colour"], ("rgba(0, 0, 0, 0)", "transparent"))

    def test_colours_are_the_routed_experts(self):
        self.tell_story()
        (asked,) = self.asked()
        text, tokens = browser.ask(self.url, asked["path"], asked["body"])
        self.assertEqual(self.page.answer_text(), text)
        self.assertGreater(len(tokens), 10)
        for node, (token, _, _) in zip(self.page.tokens(), tokens):
            self.assertIn(node["text"], (token, token.lstrip(" ")))
        layers = self.model["moe_layers"]
        row = len(layers) // 2
        self.check_colours(tokens, row)
        # Another layer gives other colours; the negative control of this test.
        self.page.find("#layer-up" if row + 1 < len(layers) else "#layer-down").click()
        other = row + 1 if row + 1 < len(layers) else row - 1
        self.check_colours(tokens, other)
        self.assertNotEqual([t[1][row][0] for t in tokens], [t[1][other][0] for t in tokens])

    def test_a_token_shows_experts_and_gates_of_each_layer(self):
        self.tell_story()
        (asked,) = self.asked()
        _, tokens = browser.ask(self.url, asked["path"], asked["body"])
        place = next(i for i, token in enumerate(tokens) if token[0].strip())
        self.page.js("[...document.querySelectorAll('.token')].at(arguments[0]).click()", place)
        rows = self.page.js(
            "return [...document.querySelectorAll('#inspector .way-row')].map((row) => [...row.querySelectorAll('.chip')]"
            ".map((chip) => [Number(chip.dataset.expert), Number(chip.querySelector('.chip-value').textContent)]))"
        )
        _, experts, gates = tokens[place]
        self.assertEqual([[expert for expert, _ in row] for row in rows], experts)
        for shown, given in zip(rows, gates):
            for (_, gate), exact in zip(shown, given):
                self.assertAlmostEqual(gate, exact, delta=0.0051)
        way = self.page.js(
            "return [...document.querySelectorAll('#map .map-row')].map((row) => [...row.querySelectorAll('.cell')]"
            ".flatMap((cell, expert) => cell.matches('.way, .way-top') ? [expert] : []))"
        )
        self.assertEqual(way, [sorted(row) for row in experts])

    def test_the_map_is_the_load(self):
        browser.get_json(self.url, "/v1/experts/reset", "POST")
        self.tell_story()
        load = browser.get_json(self.url, "/v1/experts")
        self.assertGreater(load["window"]["tokens"], 20)
        expected = [[browser.load_step(ratio) for ratio in layer["ratio"]] for layer in load["layers"]]
        self.page.wait(lambda: [[cell["step"] for cell in row] for row in self.page.map_cells()] == expected, "the map to show the load")
        colours = {}
        for row in self.page.map_cells():
            for cell in row:
                colours.setdefault(cell["step"], set()).add(cell["colour"])
        self.assertGreater(len(colours), 2)
        self.assertTrue(all(len(found) == 1 for found in colours.values()), colours)
        self.assertEqual(len(set.union(*colours.values())), len(colours), "two steps look alike")

    def test_an_expert_shows_the_tokens_it_takes_most(self):
        browser.get_json(self.url, "/v1/experts/reset", "POST")
        self.tell_story()
        layer = browser.get_json(self.url, "/v1/experts")["layers"][0]
        expert = max(range(layer["num_experts"]), key=lambda e: layer["tokens"][e])
        self.page.wait("document.querySelector('#map .cell')", "the map")
        self.page.js("document.querySelectorAll('#map .map-row')[0].querySelectorAll('.cell')[arguments[0]].click()", expert)
        self.page.wait("document.querySelector('.taken-list')", "the list of tokens")
        self.assertIn(f"Layer {layer['layer']}, expert {expert}", self.page.text("#inspector h3"))
        list_of = lambda order: browser.get_json(self.url, f"/v1/experts/tokens?layer={layer['layer']}&expert={expert}&limit=12{order}")
        lifts = lambda: self.page.js("return [...document.querySelectorAll('.by-lift tbody tr')].map((r) => r.cells[3].textContent)")
        by_lift = list_of("&sort=lift&min_count=2")["tokens"]
        self.assertGreater(len(by_lift), 0)
        text = lambda lift: f"{lift:.0f}×" if lift >= 10 else f"{lift:.1f}×" if lift >= 1 else f"{lift:.2f}×"
        self.page.wait(lambda: lifts() == [text(token["lift"]) for token in by_lift], "the lifts of the API")
        self.page.js("[...document.querySelectorAll('.order button')].find((b) => b.textContent === 'by count').click()")
        taken = list_of("")
        counts = lambda: self.page.js("return [...document.querySelectorAll('.taken tbody tr')].map((r) => Number(r.cells[2].textContent.replaceAll(',', '')))")
        self.page.wait(lambda: counts() == [token["count"] for token in taken["tokens"]], "the counts of the API")
        # Its tokens stand out in the answer.
        lit = self.page.js("return [...document.querySelectorAll('.token')].map((n) => n.classList.contains('lit'))")
        (asked,) = self.asked()
        _, tokens = browser.ask(self.url, asked["path"], asked["body"])
        self.assertEqual(lit, [expert in experts[0] for _, experts, _ in tokens])

    def test_fewer_experts_per_token(self):
        self.page.set_input("#experts", 1)
        self.tell_story()
        (asked,) = self.asked()
        self.assertEqual(asked["body"]["num_experts_per_tok"], 1)
        self.page.js("document.querySelector('.token').click()")
        self.assertEqual(self.page.js("return document.querySelectorAll('#inspector .way-row:first-child .chip').length"), 1)

    def test_regenerate_with_a_seed_gives_the_same(self):
        self.tell_story()
        first = self.page.answer_text()
        self.page.js("[...document.querySelectorAll('.foot button')].find((b) => b.textContent === 'Regenerate').click()")
        self.page.ended()
        self.page.wait(lambda: len(self.asked()) == 2, "the second request")
        self.page.ended()
        self.assertEqual(len(self.page.find_all(".turn")), 1)
        self.assertEqual(self.page.answer_text(), first)
        one, two = self.asked()
        self.assertEqual(one, two)
        self.page.set_input("#seed", "")
        self.page.find("body").send_keys(Keys.ESCAPE)
        self.page.js("[...document.querySelectorAll('.foot button')].find((b) => b.textContent === 'Regenerate').click()")
        self.page.wait(lambda: len(self.asked()) == 3, "the third request")
        self.assertNotEqual(self.asked()[2]["body"]["seed"], 7)
        self.page.ended()


if __name__ == "__main__":
    unittest.main(verbosity=2)
