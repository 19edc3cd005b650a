#!/usr/bin/env python3
"""Conversations that stay: reload, second tab, full store, files in and out, branches, comparisons."""
import ast
import json
import pathlib
import shlex
import tempfile
import unittest

import browser
import mock_server
from selenium.webdriver.common.keys import Keys

GOOD = {
    "format": "dsmoe-conversations", "version": 1,
    "conversations": [{
        "title": "From a file", "created": 1000, "changed": 2000,
        "turns": [{
            "id": "a", "parent": None, "mode": "chat", "text": "Hi", "system": "", "created": 1500,
            "answer": {"text": "Hello **you**", "state": "done", "finish": "stop", "experts": 6, "request": {"seed": 5, "temperature": 0.5}},
        }],
    }],
}


def changed(path, value):
    """GOOD with one part replaced."""
    file = json.loads(json.dumps(GOOD))
    at = file
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(file)


TURN = ["conversations", 0, "turns", 0]
HOSTILE = [
    ("no JSON", "not JSON"),
    ("", "not JSON"),
    ("[" * 200000, "not JSON"),
    ("null", "format"),
    ("[]", "format"),
    ("{}", "format"),
    (changed(["format"], "other"), "format"),
    (changed(["version"], 2), "version"),
    (changed(["conversations"], {}), "conversations"),
    (changed(["conversations"], []), "conversations"),
    (changed(["conversations", 0], None), "conversations[0]"),
    (changed(["conversations", 0, "title"], 3), "title"),
    (changed(["conversations", 0, "title"], "x" * 201), "title"),
    (changed(["conversations", 0, "created"], "now"), "created"),
    (changed(["conversations", 0, "turns"], []), "turns"),
    (changed([*TURN, "id"], ""), "id"),
    (changed([*TURN, "parent"], "a"), "parent"),
    (changed([*TURN, "parent"], "unknown"), "parent"),
    (changed([*TURN, "mode"], "shell"), "mode"),
    (changed([*TURN, "text"], {"toString": "x"}), "text"),
    (changed([*TURN, "created"], -1), "created"),
    (changed([*TURN, "answer"], None), "answer"),
    (changed([*TURN, "answer", "text"], ["<script>"]), "answer.text"),
    (changed([*TURN, "answer", "state"], "streaming"), "state"),
    (changed([*TURN, "answer", "experts"], 1.5), "experts"),
    (changed([*TURN, "answer", "request"], []), "request"),
]


class KeepingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = browser.Browser()
        cls.page.driver.set_script_timeout(60)
        cls.folder = tempfile.TemporaryDirectory(prefix="page-files-")
        cls.page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": cls.folder.name})

    @classmethod
    def tearDownClass(cls):
        cls.page.quit()
        cls.folder.cleanup()

    def setUp(self):
        self.mock = mock_server.Mock(layers=3, experts=16, k=4, delay=0.002)
        self.server = mock_server.start(self.mock)
        self.faults_expected = False
        self.page.open(self.server.url)
        self.page.ready()

    def tearDown(self):
        told = self.page.console()
        self.assertEqual([line for line in told if not (self.faults_expected and line.startswith("network:"))], [])
        self.assertEqual(self.page.outside_requests(), [])
        self.server.stop()

    def answer(self, text, answer=None):
        if answer is not None:
            self.mock.answer = answer
        self.page.say(text)
        self.page.ended()

    def reload(self):
        self.page.driver.refresh()
        self.page.ready()
        self.page.wait("document.querySelector('.turn')", "the conversation to be there again")

    def press(self, name, nth=-1):
        """A button by what stands on it or what it is called, the last of its kind."""
        self.page.js(
            "[...document.querySelectorAll('button')].filter((b) => b.checkVisibility() && (b.textContent === arguments[0] || b.getAttribute('aria-label') === arguments[0]))"
            ".at(arguments[1]).click()", name, nth,
        )

    def titles(self):
        self.page.js("document.getElementById('library').open || document.getElementById('library-open').click()")
        self.page.wait("document.getElementById('library').open", "the list")
        return self.page.js("return [...document.querySelectorAll('.library-title')].map((n) => n.textContent)")

    def list_is(self, titles):
        self.page.wait(lambda: self.titles() == titles, f"the list {titles}, not {self.titles()}")

    def said(self):
        return self.page.js("return [...document.querySelectorAll('.said')].map((n) => n.textContent)")

    def toast(self, words):
        self.page.wait(lambda: words in (self.page.text("#toast") or ""), f"the words {words!r}, not {self.page.text('#toast')!r}")

    # ---- kept ----
    def test_a_reload_loses_nothing(self):
        self.answer("First", "One **bold** answer.")
        self.answer("Second", "Another.")
        before = self.page.js("return document.getElementById('log').innerText")
        colours = self.page.tokens()
        self.assertGreater(len(colours), 1)
        self.reload()
        self.assertEqual(self.page.js("return document.getElementById('log').innerText"), before)
        self.assertEqual(self.page.tokens(), colours)
        # A token has its experts, gates and alternatives again.
        self.page.js("document.querySelector('.token').click()")
        self.page.wait("document.querySelector('#inspector .alternatives')", "the alternatives")
        self.assertEqual(self.page.js("return document.querySelectorAll('#inspector .way-row').length"), 3)
        self.answer("Third")
        self.assertEqual([m["content"] for m in self.mock.requests[-1]["messages"]], ["First", "One **bold** answer.", "Second", "Another.", "Third"])

    def test_a_reload_in_the_middle_of_an_answer(self):
        self.mock.delay = 0.08
        self.page.say("Tell me")
        self.page.wait(lambda: len(self.page.answer_text()) > 100, "some words")
        self.reload()
        self.assertEqual(self.page.state(), "stopped")
        text = self.page.answer_text()
        self.assertGreater(len(text), 20)
        self.assertTrue(mock_server.STORY.lstrip().startswith(text))
        self.mock.delay = 0.002
        self.press("Regenerate")
        self.page.ended()
        self.assertEqual(self.page.answer_text(), mock_server.STORY.lstrip())

    def test_new_in_the_middle_of_an_answer_keeps_it(self):
        self.mock.delay = 0.05
        self.page.say("Left alone")
        self.page.wait(lambda: len(self.page.answer_text()) > 30, "some words")
        self.page.find("#new-chat").click()
        self.list_is(["Left alone"])
        self.press("Left alone" + self.page.text(".library-when"))
        self.page.wait("document.querySelector('.turn')", "the conversation")
        self.assertGreater(len(self.page.answer_text()), 10)
        self.assertEqual(self.page.state(), "stopped")

    def test_the_server_dies_in_the_middle(self):
        self.faults_expected = True
        self.mock.delay = 0.03
        self.page.say("Tell me")
        self.page.wait(lambda: len(self.page.answer_text()) > 60, "some words")
        port = self.server.server_address[1]
        self.server.stop()
        self.page.ended()
        self.assertEqual(self.page.state(), "failed")
        text = self.page.answer_text()
        self.assertGreater(len(text), 60)
        self.server = mock_server.start(self.mock, port)
        self.mock.delay = 0.002
        self.reload()
        self.assertEqual(self.page.answer_text(), text)
        self.press("Try again")
        self.page.wait(lambda: self.page.state() == "done", "the whole answer")

    # ---- the list ----
    def test_list_rename_delete_undo(self):
        self.answer("First", "One.")
        self.page.find("#new-chat").click()
        self.answer("Second", "Two.")
        self.list_is(["Second", "First"])
        self.press("Rename: Second")
        self.page.find(".library input").send_keys(Keys.CONTROL + "a")
        self.page.find(".library input").send_keys("Better <b>name</b>" + Keys.ENTER)
        self.page.wait(lambda: self.titles() == ["Better <b>name</b>", "First"], "the new name")
        self.press("Delete: Better <b>name</b>")
        self.page.wait(lambda: self.titles() == ["First"], "it to be gone")
        self.assertEqual(self.said(), [])
        self.page.driver.refresh()  # gone for good only later; but the message with Undo goes with the page
        self.page.ready()
        self.list_is(["First"])
        self.press("Delete: First")
        self.toast("Deleted “First”")
        self.press("Undo")
        self.page.wait(lambda: self.titles() == ["First"], "it to be back")
        self.page.find(".library-name").click()
        self.page.wait(lambda: self.said() == ["First"], "the conversation")
        self.assertEqual(self.page.answer_text(), "One.")

    def test_the_list_by_keyboard(self):
        self.answer("First", "One.")
        self.page.js("document.activeElement.blur()")
        self.page.find("body").send_keys("l")
        self.page.wait("document.getElementById('library').open", "the list")
        self.assertTrue(self.page.js("return document.getElementById('library').contains(document.activeElement)"))
        self.page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        self.assertFalse(self.page.js("return document.getElementById('library').open"))

    # ---- files ----
    def write(self, text):
        path = pathlib.Path(self.folder.name) / "given.json"
        path.write_text(text)
        self.page.find("#library-file").send_keys(str(path))

    def exported(self, name):
        path = pathlib.Path(self.folder.name) / name
        self.page.wait(path.is_file, f"the file {name}")
        text = path.read_text()
        path.unlink()
        return text

    def test_export_and_import(self):
        self.answer("First", "One **bold**.")
        self.press("Regenerate")
        self.page.ended()
        self.answer("Second", "Two.")
        self.titles()
        self.press("Export all")
        text = self.exported("dsmoe conversations.json")
        file = json.loads(text)
        self.assertEqual(len(file["conversations"][0]["turns"]), 3)
        self.page.open(self.server.url)  # with nothing in its store
        self.page.ready()
        self.list_is([])
        self.write(text)
        self.page.wait(lambda: self.titles() == ["First"], "the conversation")
        self.page.find(".library-name").click()
        self.page.wait(lambda: self.said() == ["First", "Second"], "its turns")
        self.assertEqual(self.page.text(".version"), "2 / 2")
        self.page.set_input("#prompt", "Third")  # a download takes the keyboard from a headless page
        self.page.find("#send").click()
        self.page.wait("document.querySelectorAll('.turn').length === 3", "the new turn")
        self.page.ended()
        self.assertEqual([m["content"] for m in self.mock.requests[-1]["messages"]], ["First", "One **bold**.", "Second", "Two.", "Third"])
        # A second time it becomes a second conversation, and the first is not touched.
        self.titles()
        self.write(text)
        self.page.wait(lambda: len(self.titles()) == 2, "two")

    def test_hostile_files_are_refused_with_a_sentence(self):
        self.titles()
        for text, words in HOSTILE:
            self.page.js("document.getElementById('toast').hidden = true; document.getElementById('toast').replaceChildren()")
            self.write(text)
            self.toast("was not imported")
            self.assertIn(words, self.page.text("#toast p"), text[:80])
            self.assertTrue(self.page.text("#toast p").endswith("."))
        self.list_is([])
        self.write(json.dumps(GOOD))  # the control: this one is taken
        self.page.wait(lambda: self.titles() == ["From a file"], "the good file")

    def test_a_file_cannot_bring_markup_or_fields(self):
        evil = json.loads(changed([*TURN, "answer", "text"], "<img src=x onerror=window.hit=1> [x](javascript:window.hit=1)"))
        evil["conversations"][0]["title"] = "<script>window.hit = 1</script>"
        turn = evil["conversations"][0]["turns"][0]
        turn["answer"]["request"] |= {"__proto__": {"polluted": 1}, "tools": ["x"], "temperature": "hot", "stop": [1]}
        self.titles()
        self.write(json.dumps(evil).replace('"seed": 5', '"seed": 5, "__proto__": {"polluted": 1}'))
        self.page.wait(lambda: self.titles() == ["<script>window.hit = 1</script>"], "it as text")
        self.page.find(".library-name").click()
        self.page.wait("document.querySelector('.turn')", "its turn")
        self.assertEqual(self.page.js("return [document.querySelectorAll('#log :is(img, a, script)').length, window.hit ?? 0, {}.polluted ?? 0]"), [0, 0, 0])

    # ---- two tabs ----
    def test_two_tabs(self):
        self.answer("First", "One.")
        first = self.page.driver.current_window_handle
        self.page.js("window.open(location.href)")
        second = next(handle for handle in self.page.driver.window_handles if handle != first)
        self.page.driver.switch_to.window(second)
        self.page.ready()
        try:
            self.page.wait(lambda: self.titles() == ["First"], "the list in the second tab")
            self.page.find(".library-name").click()
            self.page.wait(lambda: self.said() == ["First"], "the conversation in the second tab")
            self.answer("From two", "Two.")
            self.page.driver.switch_to.window(first)
            self.page.wait(lambda: self.said() == ["First", "From two"], "the second tab's turn in the first")
            # Both say something at once: both are kept, one after the other or as branches.
            self.mock.delay = 0.05
            self.mock.answer = "An answer that takes some time, because it has some words, one after the other."
            self.page.say("A")
            self.page.driver.switch_to.window(second)
            self.page.say("B")
            self.page.ended()
            self.page.driver.switch_to.window(first)
            self.page.ended()
            self.reload()
            self.titles()
            self.press("Export: First")
            turns = json.loads(self.exported("dsmoe First.json"))["conversations"][0]["turns"]
            self.assertEqual(sorted(turn["text"] for turn in turns), ["A", "B", "First", "From two"])
            self.assertEqual([turn["answer"]["text"] for turn in turns[2:]], [self.mock.answer] * 2)
        finally:
            self.page.driver.switch_to.window(second)
            self.page.driver.close()
            self.page.driver.switch_to.window(first)

    # ---- a full store ----
    def test_a_full_store_says_so_and_loses_nothing_on_screen(self):
        self.answer("First", "One.")
        # As a browser does whose disk is full.
        self.page.js("window.realPut = IDBObjectStore.prototype.put; IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); };")
        self.answer("Second", "Two.")
        self.toast("is full")
        self.assertEqual(self.said(), ["First", "Second"])
        self.assertEqual(self.page.answer_text(), "Two.")
        self.page.js("IDBObjectStore.prototype.put = window.realPut")
        self.answer("Third", "Three.")
        self.reload()
        self.assertEqual(self.said()[0], "First")

    def test_the_bound_keeps_texts_before_experts(self):
        told = self.page.driver.execute_async_script(
            """
            const done = arguments[arguments.length - 1];
            Promise.all([import('/assets/store.js'), import('/assets/answer.js'), import('/assets/answer_record.js')]).then(async ([s, a, r]) => {
              const told = [];
              const store = new s.Store({ name: 'bounded', maxBytes: 9000, told: (words) => told.push(words), changed() {} });
              await store.open();
              const turn = (id, letters, tokens) => {
                const answer = new a.Answer({ seed: 1 }, 1);
                answer.text = 'x'.repeat(letters);
                for (let i = 0; i < tokens; ++i) answer.tokens.push({ start: i, end: i + 1, experts: [[1, 2], [3, 4]], gates: [[0.5, 0.25], [0.5, 0.25]] });
                answer.end('done');
                return { id, parent: null, mode: 'chat', text: id, created: 1, answer: r.recordOf(answer), rival: null };
              };
              const talk = { id: 'c', title: 'c', changed: 1, created: 1 };
              const kept = [];
              kept.push(await store.write(talk, [turn('small', 100, 50)]));
              kept.push(await store.write(talk, [turn('routes', 1000, 900)]));
              kept.push(await store.write(talk, [turn('text', 9000, 0)]));
              kept.push(await store.write({ ...talk, id: 'd' }, [turn('old', 900, 0)]));
              await store.change('d', { deleted: Date.now() });
              kept.push(await store.write(talk, [turn('again', 1200, 0)]));
              const { turns } = await store.read('c');
              const found = Object.fromEntries(turns.map((t) => [t.id, [t.answer.text.length, t.answer.routes !== undefined]]));
              store.close();
              done([kept, told, found, store.total <= 9000]);
            });"""
        )
        kept, words, found, is_bounded = told
        self.assertEqual(kept, [True, True, False, True, True])
        self.assertIn("its experts are not", words[0])
        self.assertIn("is full", words[1])
        self.assertEqual(found, {"small": [100, True], "routes": [1000, False], "again": [1200, False]})
        self.assertTrue(is_bounded)

    def test_a_browser_that_keeps_nothing(self):
        self.page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": "if (window.name === 'nothing') Object.defineProperty(window, 'indexedDB', { get() { throw new DOMException('no', 'SecurityError'); } });"})
        self.page.js("window.name = 'nothing'")
        self.page.driver.refresh()
        self.page.ready()
        self.toast("keep nothing")
        self.answer("First", "One.")
        self.assertEqual(self.page.state(), "done")
        self.list_is([])
        self.page.js("window.name = ''")

    # ---- branches ----
    def test_edit_and_branches(self):
        self.answer("First", "One.")
        self.answer("Second", "Two.")
        self.press("Edit, and ask again", 0)
        box = self.page.find(".edit-box")
        self.assertEqual(box.get_property("value"), "First")
        box.send_keys(Keys.ESCAPE)
        self.assertEqual(len(self.page.find_all(".edit-box")), 0)
        self.mock.answer = "Other."
        self.press("Edit, and ask again", 0)
        self.page.find(".edit-box").send_keys(" changed" + Keys.ENTER)
        self.page.wait(lambda: self.said() == ["First changed"], "the new branch")
        self.page.ended()
        self.assertEqual(self.page.answer_text(), "Other.")
        self.assertEqual([m["content"] for m in self.mock.requests[-1]["messages"]], ["First changed"])
        self.assertEqual(self.page.text(".version"), "2 / 2")
        self.press("Previous version")
        self.assertEqual(self.said(), ["First", "Second"])
        self.assertEqual(self.page.text(".version"), "1 / 2")
        self.assertEqual(self.page.js("return document.activeElement.getAttribute('aria-label')"), "Next version")
        self.reload()
        self.assertEqual(self.said(), ["First", "Second"])
        self.press("Next version")
        self.assertEqual(self.said(), ["First changed"])
        self.press("Regenerate")
        self.page.ended()
        self.assertEqual(self.page.text(".version"), "3 / 3")

    def test_compare(self):
        self.answer("First", "It is the same at first, and then it is not.")
        self.mock.answer = "It is the same at first, and here it differs."
        self.press("Compare")
        self.page.wait("document.querySelectorAll('.pair .answer[data-state=done]').length === 2", "both answers")
        one, two = self.mock.requests
        self.assertEqual(two.pop("num_experts_per_tok"), 2)
        self.assertEqual(one, two)
        self.assertIn("2 experts per token · the same up to token", self.page.text(".answer:last-child .pair-head"))
        self.reload()
        self.assertEqual(self.page.js("return [...document.querySelectorAll('.pair .body')].map((n) => n.innerText)"),
                         ["It is the same at first, and then it is not.", "It is the same at first, and here it differs."])
        self.press("More experts")
        self.page.wait(lambda: len(self.mock.requests) == 3, "the third request")
        self.assertEqual(self.mock.requests[2]["num_experts_per_tok"], 3)
        self.page.wait("document.querySelectorAll('.pair .answer[data-state=done]').length === 2", "both answers")
        self.press("Close")
        self.assertEqual(self.page.js("return document.querySelectorAll('.pair').length"), 0)
        # The conversation goes on with the first answer.
        self.answer("Second")
        self.assertEqual(self.mock.requests[-1]["messages"][1]["content"], "It is the same at first, and then it is not.")

    # ---- the request ----
    def test_as_code(self):
        for selector, value in (("#top-k", 40), ("#min-p", 0.05), ("#presence", 0.5), ("#frequency", -0.5), ("#repetition", 1.1), ("#min-tokens", 2),
                                ("#stop", "END\n\\n\\n"), ("#seed", 11), ("#system", "It's \"brief\" $HOME `x` \\ é")):
            self.page.set_input(selector, value)
        text = "It's a 'test'\nwith \"quotes\", $HOME, `ls`, \\n and 🪁"
        self.page.set_input("#prompt", text)  # typed, its line break would send it
        self.page.find("#send").click()
        self.page.wait("document.querySelector('.turn')", "the turn")
        self.page.ended()
        sent = self.mock.requests[-1]
        fields = {"top_k": 40, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "min_tokens": 2,
                  "stop": ["END", "\n\n"], "seed": 11, "top_logprobs": 5}
        self.assertEqual({name: sent[name] for name in fields}, fields)
        self.press("As code")
        curl = self.page.text("#code-text")
        words = shlex.split(curl)
        self.assertEqual(words[:2], ["curl", self.server.url + "/v1/chat/completions"])
        plain = {name: value for name, value in sent.items() if name not in ("stream", "stream_options", "logprobs", "top_logprobs", "return_routed_experts", "return_routed_gates")}
        self.assertEqual(json.loads(words[-1]), plain)
        self.page.js("document.querySelector('#code-kind [value=python]').click()")
        call = next(node for node in ast.walk(ast.parse(self.page.text("#code-text"))) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "create")
        given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        self.assertEqual(given.pop("extra_body") | given, plain)

    def test_the_context_meter(self):
        self.assertFalse(self.page.is_shown("#context"))
        self.page.find("#prompt").send_keys("one two three")
        self.page.wait("document.getElementById('context-text').textContent === '3 / 4,096'", "the draft's tokens")
        self.page.find("#prompt").clear()
        self.answer("First", "One.")
        self.assertEqual(self.page.text("#context-text"), "3 / 4,096")
        self.mock.context = 20
        self.page.driver.refresh()
        self.page.ready()
        self.page.wait("document.querySelector('.turn')", "the conversation")
        self.page.find("#prompt").send_keys("a b c d e f g h i j k l m n o p")
        self.page.wait("document.querySelector('#context.nearly')", "the warning")


if __name__ == "__main__":
    unittest.main(verbosity=2)
