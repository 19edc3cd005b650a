#!/usr/bin/env python3
"""The page in good and bad days, against the mock: first sight, settings, errors, keys, themes, small screens."""
import unittest

import browser
import mock_server
import palette
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.page.quit()

    def setUp(self):
        self.mock = mock_server.Mock(layers=9, experts=64, k=6, delay=0.004)
        self.server = mock_server.start(self.mock)
        self.page.resize(1360, 900)
        self.page.prefer("light")
        self.faults_expected = False

    def tearDown(self):
        # The browser itself reports failed requests on the console; the page's own code must never.
        told = self.page.console()
        self.assertEqual([line for line in told if not (self.faults_expected and line.startswith("network:"))], [])
        self.assertEqual(self.page.outside_requests(), [])
        self.server.stop()

    def open(self):
        self.page.open(self.server.url)
        self.page.ready()

    def answer(self, text="What happened?"):
        self.page.say(text)
        self.page.ended()

    def keys(self, *keys):
        ActionChains(self.page.driver).send_keys(*keys).perform()

    def problem(self):
        return self.page.text(".turn:last-child .problem:not([hidden]) p")

    # ---- first sight ----
    def test_empty_page(self):
        self.open()
        self.assertEqual(self.page.text("#model"), "mock-moe")
        self.assertTrue(self.page.is_shown("#welcome"))
        self.assertTrue(self.page.find("#send").get_property("disabled"))
        self.assertEqual(self.page.js("return document.activeElement.id"), "prompt")
        self.page.wait("!document.getElementById('load').hidden", "the map")
        self.assertEqual({cell["step"] for row in self.page.map_cells() for cell in row}, {0})
        # An example fills the box and chooses what to do with it; it does not send.
        self.page.js("document.querySelectorAll('.example')[0].click()")
        self.assertEqual(self.page.find("#prompt").get_property("value"), "Add 49 + 38:")
        self.assertTrue(self.page.js("return document.querySelector('#mode [value=continue]').checked"))
        self.assertEqual(self.mock.requests, [])

    def test_a_model_without_a_template_continues_text(self):
        self.mock.template = False
        self.open()
        self.assertTrue(self.page.js("return document.querySelector('#mode [value=chat]').disabled"))
        self.answer("Once")
        self.assertEqual(self.mock.requests[0]["prompt"], "Once")

    def test_every_character_arrives(self):
        self.open()
        self.answer()
        self.assertEqual(self.page.answer_text(), mock_server.STORY.lstrip())
        self.assertEqual(self.page.js("return document.querySelectorAll('#log b').length"), 0)
        self.assertFalse(self.page.is_shown("#welcome"))

    def test_stream_in_odd_pieces(self):
        # Events cut inside lines and characters, CR LF, comments, several data lines.
        self.open()
        events = self.page.driver.execute_async_script(
            """
            const done = arguments[arguments.length - 1];
            import('/assets/api.js').then(async ({ eventsOf }) => {
              const bytes = new TextEncoder().encode(': hi\\n\\ndata: {"a":"🪁"}\\r\\n\\r\\ndata:x\\ndata: y\\n\\nevent: z\\ndata: [DONE]\\n\\ndata: never finished');
              let at = 0;
              const reader = { read: async () => at < bytes.length ? { done: false, value: bytes.slice(at, at += 3) } : { done: true } };
              const found = [];
              for await (const event of eventsOf(reader)) found.push(event);
              done(found);
            });"""
        )
        self.assertEqual(events, ['{"a":"🪁"}', "x\ny", "[DONE]"])

    # ---- settings ----
    def test_settings_reach_the_request_and_stay(self):
        self.open()
        self.page.find("#settings-toggle").click()
        for selector, value in (("#temperature", 0.3), ("#top-p", 0.5), ("#max-tokens", 33), ("#seed", 99), ("#experts", 3), ("#system", "Be brief.")):
            self.page.set_input(selector, value)
        self.answer("One")
        self.answer("Two")
        body = self.mock.requests[1]
        expected = {"temperature": 0.3, "top_p": 0.5, "max_tokens": 33, "seed": 99, "num_experts_per_tok": 3, "stream": True}
        self.assertEqual({name: body[name] for name in expected}, expected)
        self.assertEqual([m["role"] for m in body["messages"]], ["system", "user", "assistant", "user"])
        self.assertEqual(body["messages"][0]["content"], "Be brief.")
        self.page.driver.refresh()
        self.page.ready()
        self.assertEqual(self.page.find("#max-tokens").get_property("value"), "33")
        self.page.set_input("#experts", 5000)  # more than the model has
        self.assertEqual(self.page.find("#experts").get_property("value"), "64")

    def test_an_answer_is_as_long_as_fits(self):
        self.faults_expected = True
        self.mock.context = 100
        self.open()
        self.page.set_input("#max-tokens", 90)
        self.page.choose_mode("continue")
        self.answer("one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen")
        self.assertEqual(self.page.state(), "done", self.problem())
        refused, fitted = (body["max_tokens"] for body in self.mock.requests)
        self.assertEqual((refused, fitted), (90, 100 - len(mock_server.tokens_of(self.mock.requests[0]["prompt"]))))
        self.page.choose_mode("chat")
        self.answer("one two three four five six seven eight nine ten eleven twelve")
        self.assertEqual(self.page.state(), "done", self.problem())
        self.answer("word " * 100)
        self.assertIn("maximum context length is 100", self.problem())

    # ---- trouble ----
    def test_key(self):
        self.faults_expected = True
        self.mock.key = "secret"
        self.page.open(self.server.url)
        self.page.wait("document.getElementById('key-dialog').open", "the question for a key")
        self.page.find("#key").send_keys("wrong" + Keys.ENTER)
        self.page.wait("document.getElementById('key-dialog').open && document.getElementById('key-why').textContent.includes('not accept')", "the second question")
        self.page.find("#key").send_keys("secret" + Keys.ENTER)
        self.page.ready()
        self.answer()
        self.assertEqual(self.page.state(), "done")
        self.assertFalse(self.page.is_shown("#notice"))
        self.assertNotIn("secret", self.page.js("return JSON.stringify(localStorage)"))
        # A key that is withdrawn: the answer fails, a new key asks again by itself.
        self.mock.key = "other"
        self.answer()
        self.assertEqual(self.page.state(), "failed")
        self.page.js("document.querySelector('.turn:last-child .problem button').click()")
        self.page.find("#key").send_keys("other" + Keys.ENTER)
        self.page.wait(lambda: self.page.state() == "done", "the answer with the new key")

    def test_busy(self):
        self.faults_expected = True
        self.open()
        self.mock.fault = "busy"
        self.answer()
        self.assertIn("queue is full", self.problem())
        self.assertIn("Try again in 2 s", self.page.text(".problem button"))
        self.mock.fault = ""
        self.page.wait("!document.querySelector('.problem button').disabled", "the end of the wait")
        self.page.js("document.querySelector('.problem button').click()")
        self.page.wait(lambda: self.page.state() == "done", "the answer")
        self.assertEqual(len(self.page.find_all(".turn")), 1)
        self.assertIsNone(self.problem())

    def test_a_model_that_is_still_loading(self):
        self.faults_expected = True
        self.mock.fault = "loading"
        self.page.open(self.server.url)
        self.page.wait(lambda: self.page.is_shown("#notice"), "the word about it")
        self.assertIn("still loading", self.page.text("#notice-text"))
        self.assertFalse(self.page.is_shown("#training"))
        self.mock.training = {"step": 450, "total": 1500, "loss": 1.234, "seconds_left": 65.2}
        self.page.wait(lambda: self.page.is_shown("#training"), "the training's progress")
        self.assertEqual(self.page.text("#training-text"), "Training: step 450 of 1,500, loss 1.23, about 1:05 left")
        self.assertAlmostEqual(self.page.js("return document.getElementById('training-bar').position"), 0.3)
        self.assertFalse(self.page.is_shown("#welcome"))
        self.assertIn("after the first steps", self.page.text("#training-curve"))
        self.mock.training["curve"] = [[1, 6.0], [2, 5.0], [3, 5.5]]
        self.page.wait("document.querySelector('.curve-line')", "the curve")
        heights = self.page.js("return document.querySelector('.curve-line').getAttribute('d').split(/[ML]/).slice(1).map((p) => Number(p.split(' ')[1]))")
        self.assertTrue(heights[0] < heights[2] < heights[1], heights)  # a larger loss stands higher
        self.assertEqual(self.page.js("return document.querySelector('.curve-picture').getAttribute('aria-label')"), "Loss from 6.00 at step 1 to 5.50 at step 3.")
        self.mock.training["step"] = 1500
        self.page.wait(lambda: "measuring" in self.page.text("#training-text"), "the end of the training")
        self.page.find("#prompt").send_keys("Hello")
        self.assertTrue(self.page.find("#send").get_property("disabled"))
        self.mock.fault = ""
        self.page.ready()
        self.page.wait("!document.getElementById('send').disabled", "the page to go on by itself")
        self.assertFalse(self.page.is_shown("#notice"))
        self.assertEqual(self.page.find("#prompt").get_property("value"), "Hello")

    def test_draining_and_refused(self):
        self.faults_expected = True
        self.open()
        self.mock.fault = "draining"
        self.answer()
        self.assertIn("shutting down", self.problem())
        self.mock.fault = "refused"
        self.answer("A long text")
        self.assertIn("context of 4,096", self.problem())
        self.mock.fault = ""
        self.page.wait(lambda: not self.page.is_shown("#notice"), "the server to be found again")
        self.answer("Another")
        # What got no answer is no part of the conversation.
        self.assertEqual(len(self.mock.requests[-1]["messages"]), 1)

    def test_broken_stream_keeps_its_text(self):
        self.faults_expected = True
        self.open()
        for fault, words in (("midstream", "engine stopped"), ("cut", "before the answer")):
            self.mock.fault = fault
            self.answer()
            self.assertIn(words, self.problem())
            self.assertTrue(mock_server.STORY.lstrip().startswith(self.page.answer_text()))
            self.assertGreater(len(self.page.answer_text()), 10)

    def test_server_away_and_back(self):
        self.faults_expected = True
        self.open()
        port = self.server.server_address[1]
        self.server.stop()
        self.page.say("Anyone?")
        self.page.ended()
        self.assertIn("cannot be reached", self.problem())
        self.assertTrue(self.page.is_shown("#notice"))
        self.server = mock_server.start(self.mock, port)
        self.page.wait(lambda: not self.page.is_shown("#notice"), "the server to be found again")
        self.page.js("document.querySelector('.problem button').click()")
        self.page.wait(lambda: self.page.state() == "done", "the answer")

    # ---- stop ----
    def test_stop_frees_the_server(self):
        self.open()
        self.mock.delay = 0.1
        self.page.say("Go on")
        self.page.wait(lambda: len(self.page.answer_text()) > 10, "the first words")
        self.keys(Keys.ESCAPE)
        self.page.ended()
        self.assertEqual(self.page.state(), "stopped")
        self.page.wait(lambda: self.mock.left == 1, "the server to see the client leave")

    def test_new_conversation_while_answering(self):
        self.open()
        self.mock.delay = 0.05
        self.page.say("Go on")
        self.page.wait(lambda: len(self.page.answer_text()) > 10, "the first words")
        self.page.find("#new-chat").click()
        self.assertTrue(self.page.is_shown("#welcome"))
        self.mock.delay = 0.002
        self.answer("Again")
        self.assertEqual(self.page.state(), "done")
        self.assertEqual(len(self.mock.requests[-1]["messages"]), 1)
        self.assertFalse(self.page.js("return document.getElementById('composer').classList.contains('busy')"))

    # ---- keyboard and names ----
    def test_keyboard(self):
        self.open()
        self.answer()
        self.page.js("document.activeElement.blur()")
        self.keys("e")
        self.assertFalse(self.page.is_shown("#atlas"))
        self.keys("e")
        self.assertTrue(self.page.is_shown("#atlas"))
        title = self.page.text("#layer-title")
        self.keys("]")
        self.assertNotEqual(self.page.text("#layer-title"), title)
        self.keys("c")
        self.assertEqual(self.page.js("return document.querySelectorAll('.token[data-expert]').length"), 0)
        self.keys("c", "n")
        self.assertTrue(self.page.js("return document.getElementById('log').classList.contains('numbers')"))
        self.keys("/")
        self.assertEqual(self.page.js("return document.activeElement.id"), "prompt")
        self.keys("en")  # typed, not obeyed
        self.assertTrue(self.page.is_shown("#atlas"))
        self.page.js("document.querySelector('.body').focus()")
        self.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        self.assertEqual(self.page.js("return [...document.querySelectorAll('.token')].findIndex((n) => n.matches('.selected'))"), 2)
        self.assertIn("expert", self.page.text("#tip"))
        self.assertIn("expert", self.page.text("#status"))
        self.assertTrue(self.page.is_shown("#inspector"))
        self.keys(Keys.ESCAPE)
        self.assertFalse(self.page.is_shown("#inspector"))
        self.keys("?")
        self.assertTrue(self.page.js("return document.getElementById('help-dialog').open"))
        self.keys(Keys.ESCAPE)

    def test_tab_order_and_rings(self):
        self.open()
        self.answer()
        self.page.js("document.querySelector('.token').click(); document.activeElement.blur()")
        stops = []
        for _ in range(60):
            self.keys(Keys.TAB)
            stop = self.page.js(
                """const n = document.activeElement; if (n === document.body) return null;
                const box = n.matches('.segments input') ? n.nextElementSibling : n.id === 'prompt' ? n.parentNode : n;
                const style = getComputedStyle(box);
                return { id: n.id, where: n.closest('[id]')?.id ?? '', ring: style.outlineStyle !== 'none' || n.id === 'prompt',
                         name: n.getAttribute('aria-label') || n.labels?.[0]?.textContent || n.textContent.trim() }"""
            )
            if stop is None or (stops and stop["id"] and stop["id"] == stops[0]["id"]):
                break
            stops.append(stop)
        self.assertLess(len(stops), 60, "Tab never comes round")
        self.assertEqual([stop for stop in stops if not stop["ring"] or not stop["name"]], [])
        order = [stop["where"] for stop in stops]
        self.assertEqual(sum(where == "map" for where in order), 1, "the map is one stop")
        self.assertLess(order.index("prompt"), order.index("map"))
        self.assertIn("inspector", order)

    def test_everything_has_a_name(self):
        self.open()
        self.answer()
        nameless = self.page.js(
            """return [...document.querySelectorAll('button, input, textarea')].filter((n) => !n.hidden &&
                 !(n.getAttribute('aria-label') || n.labels?.[0]?.textContent.trim() || n.textContent.trim())).map((n) => n.outerHTML)"""
        )
        self.assertEqual(nameless, [])
        twice = self.page.js("const ids = [...document.querySelectorAll('[id]')].map((n) => n.id); return ids.filter((id, i) => ids.indexOf(id) !== i)")
        self.assertEqual(twice, [])

    # ---- looks ----
    def test_tints_are_readable(self):
        self.assertEqual(palette.check(palette.CSS.read_text()), [])

    def test_themes(self):
        self.open()
        paper = lambda: self.page.js("return getComputedStyle(document.body).backgroundColor")
        light = paper()
        self.page.prefer("dark")
        self.page.wait(lambda: paper() != light, "the dark theme of the system")
        self.page.find("#theme").click()  # light, whatever the system says
        self.assertEqual(paper(), light)
        self.page.driver.refresh()
        self.page.ready()
        self.assertEqual(paper(), light)
        for theme in ("light", "dark"):
            self.page.js("document.documentElement.dataset.theme = arguments[0]", theme)
            for name in ("--ink", "--soft", "--bad"):
                for ground in ("--paper", "--raised", "--wash"):
                    colours = [self.page.js("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()", v) for v in (name, ground)]
                    self.assertGreaterEqual(palette.contrast(*colours), 4.5, f"{name} on {ground}, {theme}")

    def test_phone(self):
        self.page.resize(390, 844, is_phone=True)
        self.open()
        self.assertFalse(self.page.is_shown("#atlas"))
        self.answer()
        fits = "return document.documentElement.scrollWidth <= innerWidth && document.body.scrollHeight <= innerHeight"
        self.assertTrue(self.page.js(fits))
        self.page.js("[...document.querySelectorAll('.token')].at(-5).click()")
        self.assertTrue(self.page.is_shown("#inspector"))
        self.assertTrue(self.page.js(fits))
        self.page.wait(
            "(() => { const t = document.querySelector('.token.selected').getBoundingClientRect(), a = document.getElementById('atlas').getBoundingClientRect();"
            " return t.top >= 0 && t.bottom <= a.top })()", "the selected token to stay in sight",
        )
        # Also once the map has come, which stands above.
        self.page.wait("document.querySelectorAll('#map .cell').length > 0", "the map")
        self.page.wait(
            "(() => { const way = document.querySelector('#inspector .way-row').getBoundingClientRect(); return way.top > 0 && way.bottom < innerHeight })()",
            "the token's experts to be in sight",
        )
        self.page.js("document.querySelector('#map .cell').click()")
        self.page.wait(
            "(() => { const head = document.querySelector('#inspector h3').getBoundingClientRect(), a = document.getElementById('atlas-body').getBoundingClientRect();"
            " return head.top >= a.top && head.bottom <= a.bottom && document.querySelector('#inspector h3').textContent.includes('xpert') })()",
            "the picked expert to be in sight",
        )
        self.page.find("#atlas-close").click()
        self.assertTrue(self.page.is_shown("#prompt"))

    def test_a_model_without_experts(self):
        self.mock.shape["layers"] = []
        self.mock.reset()
        self.open()
        self.page.wait(lambda: "no routed experts" in self.page.text("#atlas-empty"), "the word about it")
        self.answer()
        self.assertEqual(self.page.state(), "done")


if __name__ == "__main__":
    unittest.main(verbosity=2)
