#!/usr/bin/env python3
"""Markdown of a model: 40 attacks give nothing but text and safe links, no character is lost, hostile text costs linear time."""
import unittest

import browser
import mock_server

# What a view may consist of (web/text_view.js), and the attributes that its elements may have.
TAGS = set("div p h3 h4 h5 h6 blockquote ul ol li pre code em strong del a table thead tbody tr th td span button".split())
ATTRIBUTES = set("class data-token data-expert data-mark data-language start tabindex role aria-label aria-hidden scope type href title target rel style".split())

ATTACKS = [
    "<script>window.hit = 1</script>",
    '<img src=x onerror="window.hit = 1">',
    "<svg onload=window.hit=1><path/></svg>",
    '<iframe srcdoc="<script>parent.hit=1</script>"></iframe>',
    "<style>* { display: none }</style>",
    '<a href="javascript:window.hit=1">x</a>',
    "<base href=https://evil.example/>",
    '<form action="https://evil.example"><input name=q></form>',
    '<meta http-equiv="refresh" content="0; url=https://evil.example">',
    "<!-- --><script>window.hit=1</script>",
    "</span></div></article><script>window.hit=1</script>",
    "[x](javascript:window.hit=1)",
    "[x](JaVaScRiPt:window.hit=1)",
    "[x](java\tscript:window.hit=1)",
    "[x](java&#115;cript:window.hit=1)",
    "[x](\u0001javascript:window.hit=1)",
    "[x](data:text/html,<script>parent.hit=1</script>)",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](vbscript:msgbox)",
    "[x](file:///etc/passwd)",
    "[x](blob:https://a.example/1)",
    "[x](//evil.example)",
    "[x](\\\\evil.example\\a)",
    "[x](https:\\\\evil.example)",
    "[x](https:/evil.example)",
    "[your bank](https://bank.example@evil.example/)",
    "[your bank](https://user:word@evil.example/)",
    "[x](https://evil.example/\u202egpj.exe)",
    "[x](https://evil\u200b.example/)",
    '[x](https://a.example/"onmouseover="window.hit=1)',
    "[x](https://a.example/ \"title\" onclick=window.hit=1)",
    "![x](https://evil.example/pixel.png)",
    "![x](javascript:window.hit=1)",
    "<javascript:window.hit=1>",
    "<https://a.example/onload=x><script>window.hit=1</script>",
    '```"><script>window.hit=1</script>\ncode\n```',
    "```js onload=window.hit=1\n</code></pre><script>window.hit=1</script>\n```",
    "| <script>window.hit=1</script> | x |\n|---|---|\n| </td><img src=x onerror=window.hit=1> | y |",
    "# <img src=x onerror=window.hit=1>\n> - 1. <svg onload=window.hit=1>",
    "[a]: javascript:window.hit=1\n[x][a] [a]",
    "`<script>`window.hit=1`</script>` **<b onclick=window.hit=1>** [**<i>**](https://a.example)",
    "$\\href{javascript:window.hit=1}{x}$ {{constructor.constructor('window.hit=1')()}} ${window.hit=1}",
]

# Renders `texts` whole, and as they would stream, `step` characters at a time. Per text: what is wrong, tags, attributes, links.
RENDER = """
const [texts, step, done] = arguments;
Promise.all([import('/assets/text_view.js'), import('/assets/answer.js')]).then(([{ TextView }, { Answer }]) => {
  const look = (text, cuts) => {
    const body = document.getElementById('log').appendChild(document.createElement('div'));
    const view = new TextView(body, { painted() {}, copy() {} });
    view.clear();
    const answer = new Answer({ seed: 1 }, 1);
    let lost = false;
    cuts.forEach((end, i) => {
      answer.text = text.slice(0, end);
      answer.tokens = [];
      for (let at = 0; at < end; at += 3) answer.tokens.push({ start: at, end: Math.min(at + 3, end), experts: [] });
      view.show(answer, 'markdown', i + 1 < cuts.length);
      lost ||= body.textContent !== answer.text;
    });
    const nodes = [...body.querySelectorAll('*')];
    const found = {
      lost, tags: [...new Set(nodes.map((n) => n.localName))],
      attributes: [...new Set(nodes.flatMap((n) => n.getAttributeNames()))],
      links: nodes.filter((n) => n.localName === 'a').map((n) => [n.getAttribute('href'), n.rel, n.target, n.protocol, n.textContent]),
      html: body.innerHTML.replaceAll('<span class="caret" aria-hidden="true"></span>', '')
    };
    body.remove();
    return found;
  };
  done(texts.map((text) => {
    const cuts = [];
    for (let at = step; at < text.length; at += step) cuts.push(at);
    const grown = look(text, [...cuts, text.length]);
    return { grown, whole: look(text, [text.length]), isSame: true };
  }));
});"""

TREE = """
const [text, isOpen, done] = arguments;
import('/assets/markdown.js').then(({ readMarkdown }) => {
  const show = (node) => node.tag ? `<${node.tag}>${node.kids.map(show).join('')}</>` : node.isMark ? '' : text.slice(node.from, node.to);
  done(readMarkdown(text, { isOpen }).kids.map(show).join(''));
});"""


class MarkdownTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mock = mock_server.Mock(layers=3, experts=16, k=4, delay=0.001)
        cls.server = mock_server.start(cls.mock)
        cls.page = browser.Browser()
        cls.page.driver.set_script_timeout(60)

    @classmethod
    def tearDownClass(cls):
        cls.page.quit()
        cls.server.stop()

    def setUp(self):
        self.page.open(self.server.url)
        self.page.ready()

    def tearDown(self):
        self.assertEqual(self.page.console(), [])
        self.assertEqual(self.page.outside_requests(), [])

    def run_js(self, script, *arguments):
        return self.page.driver.execute_async_script(script, *arguments)

    def tree(self, text, is_open=False):
        return self.run_js(TREE, text, is_open)

    def check_safe(self, text, found):
        self.assertFalse(found["lost"], text)
        self.assertLessEqual(set(found["tags"]), TAGS, text)
        self.assertLessEqual(set(found["attributes"]), ATTRIBUTES, text)
        for href, rel, target, protocol, _ in found["links"]:
            if href is None:
                continue  # an address that is not complete yet leads nowhere
            self.assertIn(protocol, ("http:", "https:"), text)
            self.assertEqual((rel, target), ("noopener noreferrer nofollow ugc", "_blank"), text)

    def test_attacks(self):
        self.assertGreaterEqual(len(ATTACKS), 40)
        for text, found in zip(ATTACKS, self.run_js(RENDER, ATTACKS, 1)):
            self.check_safe(text, found["whole"])
            self.check_safe(text, found["grown"])
            for href, *_, said in found["whole"]["links"]:
                # Only addresses that the reader sees, or that name the honest host, became links; a picture is a link too.
                host = href.split("/")[2]
                self.assertTrue(host == "a.example" or (host == "evil.example" and (host in said or "pixel.png" in href)), (text, href, said))
        self.assertIsNone(self.page.js("return window.hit ?? null"))

    def test_the_check_sees_an_attack(self):
        """The negative control: markup that got through is found."""
        with self.assertRaises(AssertionError):
            self.check_safe("x", {"lost": False, "tags": ["script"], "attributes": [], "links": []})
        with self.assertRaises(AssertionError):
            self.check_safe("x", {"lost": False, "tags": ["a"], "attributes": ["href"], "links": [["javascript:1", "", "", "javascript:", ""]]})

    def test_an_attack_as_an_answer(self):
        self.mock.answer = "\n\n".join(ATTACKS)
        self.page.set_input("#max-tokens", 4000)
        self.page.say("Attack")
        self.page.ended()
        self.assertEqual(self.page.answer_text(), self.mock.answer)
        self.assertEqual(self.page.js("return document.querySelectorAll('#log :is(script, img, svg, iframe, style, form, input, base, meta)').length"), 0)
        self.assertIsNone(self.page.js("return window.hit ?? null"))

    def test_what_it_reads(self):
        for text, expected in (
            ("a **b** *c* `d` ~~e~~", "<p>a <strong>b</> <em>c</> <code>d</> <del>e</></>"),
            ("***a***", "<p><em><strong>a</></></>"),
            ("snake_case 2 * 3 * 4 \\*a\\* 5*6*7", "<p>snake_case 2 * 3 * 4 *a* 5<em>6</>7</>"),
            ("# A\n## B #\ntext", "<h>A</><h>B</><p>text</>"),
            ("- a\n- b\n  1. c\n\n  d\n\nafter", "<ul><li><p>a</></><li><p>b</><ol><li><p>c</></></><p>d</></></><p>after</>"),
            ("> a\n> > b\n\nc", "<blockquote><p>a</><blockquote><p>b</></></><p>c</>"),
            ("```py\n*x*\n```\ny", "<pre><code>*x*\n</></><p>y</>"),
            ("~~~\n```\n~~~~", "<pre><code>```\n</></>"),
            ("| a | b |\n|:--|--:|\n| `c` | d\\|e |", "<table><thead><tr><th>a</><th>b</></></><tbody><tr><td><code>c</></><td>d|e</></></></>"),
            ("[a](https://b.example/(c)) https://d.example/e_f_g.", "<p><a>a</> <a>https://d.example/e_f_g</>.</>"),
            ("[a](ftp://b.example) [c] [d](e)", "<p>[a](ftp://b.example) [c] [d](e)</>"),
            ("---", "<hr></>"),
            ("**a", "<p>**a</>"),
            ("<b>a</b> &amp;", "<p><b>a</b> &amp;</>"),
        ):
            self.assertEqual(self.tree(text), expected, text)

    def test_what_grows_does_not_flicker(self):
        """While text streams, marks are taken for what they will be, and half of one is not shown."""
        for text, expected in (
            ("a **b", "<p>a <strong>b</></>"),
            ("a **b*", "<p>a <strong>b</></>"),
            ("a **", "<p>a </>"),
            ("a `b", "<p>a <code>b</></>"),
            ("[a](https://b.ex", "<p><a>a</></>"),
            ("``", "<p></>"),
            ("#", "<p></>"),
            ("- ", "<ul><li></></>"),
            ("```py\nx", "<pre><code>x</></>"),
            ("```py\nx\n``", "<pre><code>x\n</></>"),
            ("| a | b", "<table><thead><tr><th>a</><th>b</></></></>"),
            ("| a | b |\n|--", "<table><thead><tr><th>a</><th>b</></></></>"),
        ):
            self.assertEqual(self.tree(text, True), expected, text)
        # No state between shows what a reader of the whole would never see.
        whole = "It is **bold**, `code` and [a link](https://a.example/b).\n\n```js\nlet a;\n```\n\nEnd"
        seen = [self.tree(whole[:end], True) for end in range(len(whole))]
        for sign in ("*", "`", "]("):
            self.assertEqual([tree for tree in seen if sign in tree], [], sign)

    def test_what_stands_keeps_its_elements(self):
        kept = self.run_js(
            """
            const done = arguments[arguments.length - 1];
            Promise.all([import('/assets/text_view.js'), import('/assets/answer.js')]).then(([{ TextView }, { Answer }]) => {
              const body = document.getElementById('log').appendChild(document.createElement('div'));
              const view = new TextView(body, { painted() {}, copy() {} });
              view.clear();
              const answer = new Answer({ seed: 1 }, 1);
              const text = 'First **bold**.\\n\\n- one\\n- two\\n\\n```\\ncode\\nmore\\n```\\n\\nLast `x` word\\n\\nEnd';
              const firsts = [];
              for (let end = 1; end <= text.length; ++end) {
                answer.text = text.slice(0, end);
                if (end % 5 === 0) answer.tokens.push({ start: end - 5, end, experts: [] });
                view.show(answer, 'markdown', end < text.length);
                firsts.push([body.querySelector('p'), body.querySelector('li'), body.querySelector('pre')]);
              }
              const names = firsts.at(-1).map((node, k) => new Set(firsts.map((row) => row[k]).filter(Boolean)).size);
              done([names, body.textContent === text]);
            });"""
        )
        # One paragraph, one item, one block of code: none was made twice, at the end least of all.
        self.assertEqual(kept, [[1, 1, 1], True])

    def test_streamed_or_whole_is_the_same(self):
        texts = [
            "# A\n\ntext **b** and\nmore\n\n1. x\n2. y\n\n   z\n\n> q\n\n```\na\n\nb\n```\n\n| a |\n|---|\n| b |\n\nend",
            "- a\n\n- b\n\n\n- c\n\nd\n\n    e\n\n* f\n+ g\n",
            "a\n#\n#b\n\n-\n-5 c\n\n1\n1.\n\n```",
            "\n\n\n  first\r\n\r\nsecond\r\n> q\r\n",
        ]
        for step in (1, 4):
            for text, found in zip(texts, self.run_js(RENDER, texts, step)):
                self.assertFalse(found["grown"]["lost"] or found["whole"]["lost"], text)
                self.assertEqual(found["grown"]["html"], found["whole"]["html"], text)

    def test_hostile_text_costs_linear_time(self):
        """200,000 hostile characters take about 0.1 s; where every character looked at all others it would be minutes."""
        slow = self.run_js(
            """
            const done = arguments[arguments.length - 1];
            import('/assets/markdown.js').then(({ readMarkdown }) => {
              const units = ['*', '**a ', '*a _b ', '`', '`` ` ', '[', '[a](', '](', '![', '> ', '> \\n', '- ', '- a\\n', '1. ', '#', '|', '|a', '| a |\\n',
                '|-|\\n', '```\\n', '~~', '\\\\', '<', '<https://', 'https://(', 'https://)', '(', 'a\\n', ' ', ' \\n', '\\n', '\\t', '_a_ ', '*_~~`[', '    a\\n', '\\r\\n'];
              const depth = (root) => {
                let most = 0;
                for (const stack = [[root, 1]]; stack.length > 0; ) {
                  const [node, level] = stack.pop();
                  most = Math.max(most, level);
                  for (const kid of node.kids ?? []) stack.push([kid, level + 1]);
                }
                return most;
              };
              const time = (unit, length, isOpen) => {
                const text = unit.repeat(length / unit.length);
                const start = performance.now();
                const tree = readMarkdown(text, { isOpen });
                const ms = performance.now() - start;
                if (depth(tree) > 60) bad.push([unit, 'deep', depth(tree)]);
                return ms;
              };
              const bad = [];
              for (const unit of units) for (const isOpen of [false, true]) {
                // Other programs take their time too: one slow reading is none.
                if (time(unit, 200000, isOpen) > 2000 && time(unit, 200000, isOpen) > 2000) bad.push([unit, isOpen]);
              }
              done(bad);
            });"""
        )
        self.assertEqual(slow, [])

    def test_the_switch(self):
        self.mock.answer = "It is **bold**."
        self.page.say("Say it")
        self.page.ended()
        self.assertEqual(self.page.js("return document.querySelector('.body strong').innerText"), "bold")
        shown = lambda: self.page.js("return document.querySelector('.body').innerText")
        self.assertEqual(shown(), "It is bold.")
        self.page.js("document.getElementById('use-markdown').click()")
        self.assertEqual(shown(), "It is **bold**.")
        self.page.driver.refresh()
        self.page.ready()
        self.page.wait("document.querySelector('.turn')", "the conversation")
        self.assertEqual(shown(), "It is **bold**.")


if __name__ == "__main__":
    unittest.main(verbosity=2)
