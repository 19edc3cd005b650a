"""Writes src/text/testdata/chat/{conversations,goldens,expressions}.json with Python's jinja2.

The environment is the one transformers gives chat templates: immutable sandbox, trim_blocks, lstrip_blocks, loop controls,
a tojson that keeps non-ASCII text, raise_exception. Three differences on purpose: strftime_now is left undefined,
{% generation %} only prints its body, and there is from_json, which some published templates expect. Needs jinja2; the files come out byte-equal.
"""

import copy
import json
import pathlib
import re

import jinja2
import jinja2.ext
import jinja2.sandbox

import chat_cases

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "src/text/testdata/chat"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body_text"), [], [], body).set_lineno(line)

    def body_text(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = env.filters["fromjson"] = json.loads
    env.globals["raise_exception"] = raise_exception
    return env


def outcome(env, source, variables):
    """{"text": ...} or {"error": ...}"""
    try:
        text = env.from_string(source).render(**copy.deepcopy(variables))  # some filters change lists
        return {"text": re.sub(r"(?i) at 0x[0-9a-f]+", " at 0x", text)}  # where Python put an object
    except Exception as error:  # every way to fail is an outcome to compare
        return {"error": f"{type(error).__name__}: {error}"}


def chat_variables(case):
    variables = {"messages": case["messages"], "add_generation_prompt": case["add_generation_prompt"],
                 "tools": None, "documents": None}
    for name in ("bos_token", "eos_token"):
        if case[name] is not None:
            variables[name] = case[name]
    return {**variables, **case["extra"]}


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, indent=0)
    (FOLDER / name).write_text(text + "\n", encoding="utf-8")


def main():
    env = environment()
    cases = chat_cases.conversations()
    goldens = {}
    for path in sorted((FOLDER / "templates").glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        goldens[path.stem] = [outcome(env, source, chat_variables(case)) for case in cases]
    write("conversations.json", cases)
    write("goldens.json", goldens)

    sources = ["{{ " + e + " }}" for e in chat_cases.expression_list()]
    sources += chat_cases.STATEMENTS + chat_cases.white_space_grid()
    small = [{"template": s, **outcome(env, s, chat_cases.CONTEXT)} for s in sources]
    write("expressions.json", {"context": chat_cases.CONTEXT, "cases": small})
    failed = sum("error" in case for case in small)
    print(f"{len(goldens)} templates x {len(cases)} conversations; {len(small)} small templates, {failed} refused")


if __name__ == "__main__":
    main()
