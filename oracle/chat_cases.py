"""The conversations and the small templates that make_chat_goldens.py renders."""

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        "return": {"type": "string"},
    },
}
CALL = {"id": "abcdef123", "type": "function",
        "function": {"name": "weather", "arguments": {"town": "Zürich", "days": 2, "wind": None}}}


def turns(*contents):
    """user, assistant, user, ... with the given contents."""
    return [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]


def system(text):
    return [{"role": "system", "content": text}]


def conversation(name, messages, **more):
    case = {"name": name, "messages": messages, "add_generation_prompt": True, "bos_token": "<s>",
            "eos_token": "</s>", "extra": {}}
    case.update(more)
    return case


def conversations():
    c = conversation
    return [
        c("one question", turns("Hello")),
        c("no prompt for an answer", turns("Hello"), add_generation_prompt=False),
        c("two turns", turns("Hi", "Hello!", "How are you?")),
        c("ends with an answer", turns("Hi", "Hello!"), add_generation_prompt=False),
        c("system", system("Be brief.") + turns("Hi", "Yes?", "Go")),
        c("system alone", system("Be brief.")),
        c("empty system", system("") + turns("Hi")),
        c("two systems", system("One.") + turns("a", "b") + system("Two.") + turns("c")),
        c("empty contents", turns("", "", "")),
        c("white space", turns("  padded \n\n", "\n\tanswer\t\n", "\u00a0nbsp\u2003")),
        c("newlines", turns("line one\nline two\r\nline three", "a\n\nb", "c\n")),
        c("scripts", turns("Grüße 你好 مرحبا", "👩‍👩‍👧 ok", "नमस्ते — “quotes”")),
        c("template text", turns("{{ messages }} {% if %} {# no #}", "[INST] <|im_end|> </s>", "\\n \\ \"'")),
        c("six turns", turns("1", "2", "3", "4", "5", "6", "7")),
        c("two users in a row", [*turns("a"), *turns("b")]),
        c("answer first", [{"role": "assistant", "content": "I start."}, *turns("ok")]),
        c("unknown role", [{"role": "judge", "content": "Order!"}, *turns("ok")]),
        c("thinking", turns("2+2?", "<think>\nfour, sure\n</think>\n\n4", "and 3+3?")),
        c("thinking last", turns("2+2?", "<think>\nfour\n</think>\n\n4"), add_generation_prompt=False),
        c("reasoning field", [*turns("q"), {"role": "assistant", "content": "a", "reasoning_content": "because"}]),
        c("no content", [{"role": "user"}]),
        c("content none", [{"role": "user", "content": None}]),
        c("content in parts", [{"role": "user", "content": [{"type": "text", "text": " look: "}, {"type": "image"}]}]),
        c("tool call", [*turns("rain?"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
                        {"role": "tool", "content": "sun"}, {"role": "assistant", "content": "No."}, *turns("good")]),
        c("tool result last", [*turns("rain?"), {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
                               {"role": "tool", "content": "sun"}, {"role": "tool", "content": "wind"}]),
        c("tools given", system("Help.") + turns("rain?"), extra={"tools": [TOOL, TOOL]}),
        c("tools in the system text", turns("rain?"), extra={"tools": [TOOL], "tools_in_user_message": False}),
        c("date", system("x") + turns("y"), extra={"date_string": "5 May 2025", "enable_thinking": False}),
        c("no special tokens", turns("Hi", "Yo", "Hi"), bos_token=None, eos_token=None),
        c("no messages", []),
        c("long", turns(*["word " * 40 + str(i) for i in range(21)])),
    ]


CONTEXT = {
    "n": 7, "m": -3, "z": 0, "f": 2.5, "t": True, "u": None, "s": "Hello World", "e": "", "w": "  pad\t\n",
    "a": "añb→c😀", "xs": [3, 1, 2], "ys": [], "names": ["ann", "Bob", "cid"],
    "d": {"b": 1, "a": [1, {"k": "v"}], "items": "shadow", "C": None}, "q": "it's \"quoted\"\\\n",
    "msgs": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "extra": {"deep": 5}},
             {"role": "user", "content": ""}],
    "big": 9007199254740993, "fl": [0.1, 1e16, 1e-5, 100.0, -0.0, 123456.789, 1e22, 3.0e-4],
}

# Each is rendered as "{{ <expression> }}".
EXPRESSIONS = r"""
1
-1
+5
--3
1 + 2 * 3
(1 + 2) * 3
2 ** 3 ** 2
-2 ** 2
7 / 2
7 // 2
-7 // 2
7 // -2
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7.5 % -2
1 / 3
10 / 5
2 ** -1
2 ** 0.5
0 ** 0
1e3
1.5e-7
1_000
f * 2
f + n
n - f
t + 1
-t
fl
fl[4]
big
big + 1
0.1 + 0.2
1e300 * 1e10
1 / 0
n % z
5 // 0
1.0 // 0
'a' + 'b'
'a' 'b' "c"
'a' * 3
3 * 'ab'
'a' * 0
'a' * -1
[1, 2] + [3]
(1,) + (2, 3)
[1] * 3
'a' + 1
1 + 'a'
u + 'a'
missing + 'a'
'a' + missing
[1] + (2,)
1 ~ 2
'a' ~ 1 ~ none ~ true ~ 1.5
missing ~ 'x'
[1, 'a', none, true, 1.5]
('a',)
()
(1, 'x')
{}
{'a': 1, "b": [1, 2], 'c': {'d': none}}
{'a': 1, 'a': 2}
d
msgs
q
[q]
["it's"]
['say "hi"']
['\x07\x7f\u00e9\u200b\U0001f600\xa0']
['tab\tnl\ncr\rbs\\']
'\x41\u00e9\101\n|\q|\'|"'
"\"\a\b\f\v\t".split()
n == 7
n == 7.0
t == 1
'1' == 1
u == none
missing == none
missing == other
missing != 1
[1, 2] == [1, 2]
[1, 2] == (1, 2)
{'a': 1} == {'a': 1.0}
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
n != 7
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2
'a' < 'b'
'Z' < 'a'
'é' < 'z'
'a' < 1
none < 1
missing < 1
1 <= 1.0
1 in xs
9 in xs
'ell' in s
'' in s
1 in s
'a' in d
'zz' in d
1 in d
none in [none]
3 not in xs
'x' not in s
x in missing
1 in none
1 in 5
'a' in ('a', 'b')
not true
not 0
not not 'a'
not missing
true and 'x'
false and 'x'
'' or 'x'
0 or none or 'z'
1 and 2 or 3
t and not z
not 1 == 2
1 if t else 2
1 if z else 2
1 if z
(1 if z) is defined
'a' if t else 'b' if z else 'c'
xs[0]
xs[-1]
xs[5]
xs[-9]
xs[1:]
xs[:1]
xs[::-1]
xs[-2:]
xs[5:]
xs[::2]
xs[2:0:-1]
xs[0:3:0]
xs['a']
xs.0
xs[true]
s[0]
s[-1]
s[50]
s[1:5]
s[::-1]
s[:-1]
a[1]
a[2:]
a[::-1]
a[-1]
a | length
(1, 2, 3)[1:]
range(5)[1:3] | list
u[0]
u.x
u.x.y
n[0]
missing.x
missing['x']
missing[0]
d.b
d['b']
d.a[1].k
d['nope']
d.nope
d.nope.more
d['items']
d[0]
d[['x']]
d['a'][1]['k']
d[1:]
none[1:]
msgs[0].role
msgs[0]['content']
msgs[1].extra.deep
msgs[9].role
msgs[0].nope
msgs | length
msgs[-1]['content'] == ''
s.upper()
s.lower()
s.title()
"they're bill's".title()
s.capitalize()
'hELLO wORLD'.capitalize()
s.strip('Hd')
w.strip()
w.lstrip()
w.rstrip()
w.rstrip('\n')
'xxaxx'.strip('x')
'a→b→'.strip('→a')
s.split()
s.split(' ')
s.split('o')
s.split('o', 1)
s.split('zz')
s.rsplit('o', 1)
'a,b,,c'.split(',')
'  a  b '.split()
'  a  b c'.split(none, 1)
''.split()
''.split(',')
'a'.split('')
s.split('</think>')[-1]
s.startswith('Hell')
s.startswith(('x', 'H'))
s.endswith('World')
s.endswith('')
s.startswith(1)
s.replace('o', '0')
s.replace('o', '0', 1)
s.replace('', '-')
s.replace('l', '')
'ab'.replace('', '→', 2)
s.find('World')
a.find('→')
s.find('q')
s.count('l')
s.count('')
'aaaa'.count('aa')
'-'.join(['a', 'b'])
'-'.join('abc')
'-'.join([1])
'a\nb\r\nc\x0bd'.splitlines()
'prefix.rest'.removeprefix('prefix.')
'file.txt'.removesuffix('.txt')
n.strip()
u.strip()
missing.strip()
d.get('b')
d.get('nope')
d.get('nope', 5)
d.keys() | list
d.values() | list
d.items() | list
d.items() | length
'a' in d.keys()
d.keys() | join(',')
s | upper
s | lower
'hello wORLD-foo (bar' | title
'hello World' | capitalize
w | trim
'xxaxx' | trim('x')
none | trim
missing | trim
5 | trim
s | length
xs | length
d | length
missing | length
n | length
xs | count
xs | first
xs | last
ys | first
(ys | first) is defined
s | first
s | last
d | first
xs | join
xs | join(', ')
msgs | join('|', attribute='role')
'abc' | join('.')
missing | join
n | join
names | map('upper') | join(' ')
names | map('trim') | list
msgs | map(attribute='role') | list
msgs | map(attribute='extra.deep', default='-') | list
msgs | map(attribute='content') | join('+')
msgs | selectattr('role', 'equalto', 'user') | list | length
msgs | selectattr('content') | map(attribute='content') | list
msgs | rejectattr('role', 'equalto', 'user') | list
msgs | selectattr('extra', 'defined') | list | length
msgs | selectattr('role', '==', 'assistant') | first
msgs | rejectattr('role', 'in', ['user']) | map(attribute='role') | join
xs | select('gt', 1) | list
xs | select('odd') | list
xs | reject('odd') | list
[0, 1, '', 'a', none] | select | list
[0, 1] | reject | list
xs | select('divisibleby', 3) | list
xs | reverse | list
s | reverse
d | list
s | list
missing | list
(1, 2) | list
xs | string
u | string
5 | string + 'a'
missing | default('x')
u | default('x')
u | default('x', true)
e | default('x', boolean=true)
missing | default
missing | d(3)
d.nope | default('none such')
s | replace('o', '0')
s | replace('o', '0', 1)
n | replace(7, 8)
'42' | int
' 42 ' | int
'-17' | int
'+5' | int
'4.9' | int
'x' | int
'x' | int(7)
'' | int
'1e3' | int
4.9 | int
-4.9 | int
true | int
none | int
[] | int
missing | int
'inf' | int
d | items | list
missing | items | list
n | items
xs | sort
xs | sort(reverse=true)
names | sort
names | sort(case_sensitive=true)
names | sort(true, true)
msgs | sort(attribute='content') | map(attribute='role') | list
msgs | sort(attribute='role', reverse=true) | map(attribute='content') | list
[1, 'a'] | sort
[[2, 1], [1, 2]] | sort(attribute=0)
ys | sort
'cab' | sort
missing | sort
[3, 1, 3, 1.0, 2] | unique | list
['b', 'B', 'a', 'A'] | unique | list
['b', 'B', 'a', 'A'] | unique(true) | list
msgs | unique(attribute='role') | map(attribute='content') | list
xs | min
xs | max
names | min
names | max(case_sensitive=true)
ys | min
(ys | max) is defined
msgs | max(attribute='content')
[1, none] | min
[2, 1.5] | max
'{}-{}'.format(1, 'x')
'{0}{1}{0}'.format('a', none)
'{a} {{}} {}'.format(1, a=2.5)
'{}'.format([1, 'x'])
'{} {}'.format(1)
'{x}'.format(1)
'{'.format()
'plain'.format(1)
'[1, {"a": null, "b": [true, 2.5]}]' | from_json
('{"b": 1, "a": 2}' | from_json).keys() | list
'nope' | from_json
'"x"' | from_json
{'b': 1, 'A': 2, 'c': 3} | dictsort
{'b': 1, 'A': 2} | dictsort(true)
{'b': 1, 'A': 2} | dictsort(reverse=true)
d | tojson
d | tojson(indent=2)
d | tojson(indent=0)
d | tojson(sort_keys=true)
d | tojson(separators=(',', ':'))
a | tojson
a | tojson(ensure_ascii=true)
q | tojson
'\x01\x1f\x7f</script>&\'' | tojson
[] | tojson
{} | tojson(indent=4)
[[], {}, [1, [2]]] | tojson(indent=1)
xs | tojson(indent='--')
fl | tojson
(1, 2) | tojson
missing | tojson
none | tojson
msgs | tojson
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2)
'a\nb\n\nc\n' | indent(2, true)
'a\n\nc' | indent(2, false, true)
'a\nb' | indent('> ', first=true)
s | safe
s | upper | lower | title
-n | string
n is defined
missing is defined
missing is undefined
missing is not defined
not missing is defined
u is none
missing is none
n is number
t is number
f is number
s is string
n is string
d is mapping
xs is mapping
xs is iterable
s is iterable
n is iterable
missing is iterable
xs is sequence
d is sequence
s is sequence
n is sequence
missing is sequence
t is boolean
n is boolean
t is true
n is true
z is false
false is false
n is integer
t is integer
f is float
n is odd
n is even
9 is divisibleby 3
9 is divisibleby(2)
n is eq 7
n is equalto 7
n is ne 7
n is gt 5
n is ge 7
n is lt 5
n is le(7)
1 is in xs
'a' is in 'abc'
'abc' is lower
'ABC' is upper
'a1' is lower
'1' is lower
range is defined
raise_exception is defined
namespace is callable
n is callable
missing is callable
d.get is defined
s is string and s
n is defined or false
1 if n is defined else 2
n is not none and n > 5
range(3) | list
range(1, 4) | list
range(5, 0, -2) | list
range(0) | list
range(3, 1) | list
range(2, 3, 0)
2 in range(3)
range(3) | length
range(100001) | length
dict(a=1, b='x')
dict({'a': 1}, b=2)
namespace(a=5).a
namespace({'a': 6}).a
namespace().nope
1,
1, 2
(1, 2) | first
[xs, [d]] | first | last
((((1))))
[[[[1]]]]
{'a': {'b': {'c': 3}}}.a.b.c
'}}' + '%}'
{'x': {}}
"{{" ~ '{%'
s | default('a') | upper ~ '!'
'%s' | string
n | string | length
[1,2,3,]
{'a': 1,}
(1,2,)
'a' in 'abc' and 'b' not in 'xyz'
1 + 1 | string
'x' ~ 1 + 2
2 * 3 ~ 4
- 2 ~ 3
not 'a' in 'b'
1 == 1 in [true]
a | upper
'é'.strip('é') == ''
'\u2028'.strip() == ''
'\x1c\x85' | trim | length
"a\
b"
'line
two'
1.5 | string
1e5
1E5
12345678901234567.0
0.00001
123456789.123456789
5 .real is defined
'%d' % 3
'{}'.format(1)
'a'.encode()
xs.append(4)
d.update({})
d.pop('a')
d.items
s.upper
s.__class__
loop
loop.index
self
cycler
'abc' | nosuchfilter
n is nosuchtest
nosuchfunction(1)
xs | sort
xs | unique | list
xs | sum
'a' | e
joiner(',')
none | selectattr('role') | list
0 | map('upper') | list
5 | select | list
s.replace('o', '0', none)
s | replace('o', '0', none)
""".strip("\n")


def expression_list():
    """One expression per line; a line that ends in a backslash, or the one string with a real newline, continues."""
    out, pending = [], ""
    for line in EXPRESSIONS.split("\n"):
        pending = pending + "\n" + line if pending else line
        if pending.count('"') % 2 and pending.startswith('"a\\') or pending == "'line":
            continue
        out.append(pending)
        pending = ""
    return out


STATEMENTS = [
    "{% for x in xs %}{{ x }},{% endfor %}",
    "{% for x in xs %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }};{% endfor %}",
    "{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in xs %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}{{ loop.depth }}{{ loop.nope }}{% endfor %}",
    "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in ys %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in missing %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in xs if x > 1 %}{{ x }}:{{ loop.index }}/{{ loop.length }} {% else %}none{% endfor %}",
    "{% for x in xs if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for c in a %}{{ c }}.{% endfor %}",
    "{% for (p, q) in [(1, 2), [3, 4]] %}{{ p }}{{ q }}{% endfor %}",
    "{% for p, (q, r) in [(1, (2, 3))] %}{{ p }}{{ q }}{{ r }}{% endfor %}",
    "{% for p, q in ['ab', 'cd'] %}{{ q }}{{ p }}{% endfor %}",
    "{% for p, q in [(1, 2, 3)] %}{{ p }}{% endfor %}",
    "{% for p, q in xs %}{{ p }}{% endfor %}",
    "{% for x in 5 %}{{ x }}{% endfor %}",
    "{% for x in none %}{{ x }}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% for y in names %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in xs %}{% set outer = loop %}{% for y in names %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% for y in ys %}{% else %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% break %}{% else %}no turn reached its end{% endfor %}",
    "{% for x in xs %}{% if loop.last %}{% continue %}{% endif %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in xs %}{% continue %}{% else %}no turn reached its end{% endfor %}",
    "{% set i = 1 %}{% for x in xs %}{% set i = i + x %}{{ i }},{% endfor %}{{ i }}",
    "{% set ns = namespace(i=1) %}{% for x in xs %}{% set ns.i = ns.i + x %}{{ ns.i }},{% endfor %}{{ ns.i }}",
    "{% for x in xs %}{{ y is defined }}{% set y = 1 %}{{ y }}{% endfor %}{{ y is defined }}",
    "{% if t %}{% set y = 1 %}{% endif %}{{ y }}",
    "{% if z %}{% set n = 1 %}{% endif %}{{ n }}",
    "{% for x in xs %}{% if loop.first %}{% set n = x %}{% endif %}{{ n }}{% endfor %}{{ n }}",
    "{% for n in xs %}{{ n }}{% endfor %}{{ n }}",
    "{% if z %}a{% elif u %}b{% elif t %}c{% else %}d{% endif %}",
    "{% if z %}a{% elif u %}b{% else %}d{% endif %}",
    "{% if z %}a{% endif %}",
    "{% if xs and ys %}a{% else %}b{% endif %}",
    "{% if ys is defined and ys | length == 0 %}a{% endif %}",
    "{% if (1, 2) %}a{% endif %}",
    "{% if msgs | selectattr('role', 'equalto', 'nobody') %}generators are true{% endif %}",
    "{% if msgs | selectattr('role', 'equalto', 'nobody') | list %}a{% else %}b{% endif %}",
    "{% set x = 5 %}{{ x }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "{% set x = 1, 2 %}{{ x }}",
    "{% set x = 1 if z else 2 %}{{ x }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% set x | upper | trim %} a{{ s }}b {% endset %}[{{ x }}]",
    "{% set x %}{% set inner = 1 %}{% endset %}{{ inner is defined }}",
    "{% set ns = namespace() %}{% set ns.x %}cap{% endset %}{{ ns.x }}",
    "{% set ns = namespace(a=1, b=[]) %}{% set ns.b = ns.b + [ns.a] %}{% set ns.b = ns.b + [2] %}{{ ns.b }}{{ ns.c is defined }}{{ ns['a'] }}",
    "{% set ns.x = 1 %}",
    "{% set d.x = 1 %}",
    "{% set messages = xs %}{% set messages = messages[1:] %}{{ messages }}",
    "{% with a=1, b=n %}{{ a }}{{ b }}{% set c = 4 %}{% endwith %}{{ c is defined }}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | trim %} aXa {% endfilter %}",
    "{% macro f(x, y=2) %}{{ x }}-{{ y }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(y=5, x=4) }}{{ f() }}",
    "{% macro f(x) %}{{ n }}{{ x }}{% set n = 1 %}{{ n }}{% endmacro %}{{ f(2) }}{{ n }}",
    "{% macro f(x) %}{{ y }}{% endmacro %}{% for y in xs %}{{ f(1) }}{% endfor %}[{{ f(1) }}]",
    "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(z=2) }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, x=2) }}",
    "{% macro f(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}",
    "{{ f(1) }}{% macro f(x) %}{{ x }}{% endmacro %}",
    "{% macro f(x) %} a {{ x }} {% endmacro %}{{ f(1) | trim ~ '|' }}{% set r = f(2) %}{{ r | length }}",
    "{% set y = 1 %}{% macro f() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ f() }}",
    "{% generation %}a{{ n }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}",
    "{{ raise_exception('stop: ' ~ n) }}",
    "{% if z %}{{ raise_exception('no') }}{% endif %}ok",
    "{# comment #}a{#- b -#} c{##}d{# {{ x }} {% if %} #}",
    "{% raw %}{{ x }} {% if %}{# c #}{% endraw %}|",
    " {%- raw -%}  {{ x }}  {%- endraw -%} |",
    "a\n  {% raw %}\n x\n  {% endraw %}\nb",
    "plain { text } with {single braces and % signs %",
    "a\r\nb\rc\n",
    "trailing newline\n",
    "two trailing\n\n",
    "\n",
    "",
    "{{ 'a' }}\n",
    "{{ 'a' }}\n\n{{ 'b' }}",
    "{% if t %}\nx\n{% endif %}\ny\n",
    "  {% if t %}  \n  x\n  {% endif %}  \n  y\n",
    "  {%+ if t %}\n  x\n  {%+ endif %}\ny",
    "{% if t +%}\nx{% endif +%}\ny",
    "a {%- if t -%} \n b \n {%- endif -%} c",
    "a \n {{- n -}} \n b",
    "a \n {{ n }} \n b",
    "  {{ n }}\n\t{{ n }}",
    "{{- n }} {{ n -}} x",
    "\t{% set x = 1 %}\t{{ x }}",
    "x {% set x = 1 %} y",
    "a\n\n  {# c #}\n\nb",
    "a {# c -#}\n\n b",
    "a \n{#- c #}\n\n b",
    "a{#+ c +#}\nb",
    "\u2003{%- if t %}\u2003x\u00a0{%- endif %}",
    "{% for x in xs %}\n{{ x }}\n{% endfor %}\nend",
    "{% for x in xs -%}\n{{ x }}\n{%- endfor %}\nend",
    "{%- for x in xs %}\n  {{- x }}\n{%- endfor %}",
    "{%   if   t   %}a{%endif%}",
    "{%if t%}a{%else%}b{%endif%}",
    "{% if t: %}a{% else: %}b{% endif %}",
    "{{ xs[0]-1 }}{{-1}}{{ 1-1 }}",
    "{{ {'a': {'b': 1}} }}|{{ {'a':{}} }}",
    "{{\nn\n+\n1\n}}",
    "{% set x = [\n 1,\n 2\n] %}{{ x }}",
    # Malformed: jinja2 and dsmoe both refuse.
    "{{", "{{ n", "{{ n }", "{% if t", "{% if t %}", "{% if %}a{% endif %}", "{% endif %}", "{% else %}",
    "{% for x in xs %}", "{% for in xs %}{% endfor %}", "{% for x xs %}{% endfor %}", "{% for x in %}{% endfor %}",
    "{% for x in xs %}{% endif %}", "{% set %}", "{% set x = %}", "{% set 1 = 2 %}", "{% set x y %}{% endset %}",
    "{% set x %}abc", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ [1 }}", "{{ 1) }}", "{{ [1) }}", "{{ {'a' 1} }}",
    "{{ 'abc }}", "{{ a b }}", "{{ a. }}", "{{ a.'x' }}", "{{ a[ }}", "{{ a | }}", "{{ a is }}", "{{ a is defined is none }}",
    "{{ $ }}", "{{ a & b }}", "{{ f(a=1, 2) }}", "{{ 1 if }}", "{{ not }}", "{{ 012 }}", "{# never closed", "{% raw %}x",
    "{% nosuchtag %}", "{% block x %}{% endblock %}", "{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}",
    "{% macro f( %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{% break %}", "{% set true = 1 %}",
    "{% for loop in xs %}{% endfor %}", "{{ '\\x4' }}", "{{ '\\u12' }}", "{% if t %}a{% else %}b{% else %}c{% endif %}",
]


def white_space_grid():
    """Every pair of signs around a block, a variable and a comment, within lines and between them."""
    cases = []
    for left in ("", "-", "+"):
        for right in ("", "-", "+"):
            for before, after in ((" a ", " b "), ("a\n  ", "  \n  b"), ("\n", "\n"), ("a\n\n \t", "\n\n b")):
                cases.append(f"{before}{{%{left} if t {right}%}}{after}{{%{left} endif {right}%}}{after}")
                if right != "+":
                    cases.append(f"{before}{{{{{left} n {right}}}}}{after}")
                cases.append(f"{before}{{#{left} c {right}#}}{after}")
    return cases
