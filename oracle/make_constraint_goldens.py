#!/usr/bin/env python3
"""Cases for src/constrain: JSON texts and whether PyPI jsonschema finds them valid, for the schemas of tests/clients.

    python oracle/make_constraint_goldens.py OUT.json [--xgrammar]

A text that is not valid must never be written. One that is valid must be possible where it is plain: its members are listed,
in the order of the schema, and its numbers and strings are short. --xgrammar prints where xgrammar's own automaton judges
differently, to be looked at by hand; the file is the same.
"""

import argparse
import json
import pathlib
import random
import sys

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/clients"))
from structured_schemas import schemas  # noqa: E402

LEAVES = [
    None, True, False, 0, 1, -1, 2, 6, 7, 12, 300, -150, 1000, 0.5, -0.25, 1.1, 1.25, 3.0, 2.5, "", "a", "aa", "ab", "foo", "bar", "foobar", "x\"y", "é",
    "ab-123", "2024-02-29", "2024-02-28", "2024-12-31T23:59:59Z", "12:30:00Z", "127.0.0.1", "256.1.1.1", "me@example.org", "hello\nworld", "-a1 ", "日本語",
]


def resolve(schema, root):
    while isinstance(schema, dict) and "$ref" in schema:
        here = root
        for key in schema["$ref"][1:].split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            here = here[key]
        schema = here
    return schema


def value(schema, root, pick, depth):
    """A value near the schema: mostly what it asks for, sometimes anything."""
    schema = resolve(schema, root)
    if depth == 0 or not isinstance(schema, dict) or pick.random() < 0.15:
        return pick.choice(LEAVES + [[], {}, [1], {"foo": 1}])
    for word in ("anyOf", "allOf"):
        if word in schema:
            return value(pick.choice(schema[word]), root, pick, depth)
    if "enum" in schema:
        return pick.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kinds = schema.get("type", "object" if "properties" in schema else pick.choice(["string", "integer", "array"]))
    kind = pick.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "object":
        members = {k: value(s, root, pick, depth - 1) for k, s in schema.get("properties", {}).items() if k in schema.get("required", []) or pick.random() < 0.5}
        if members and pick.random() < 0.1:
            members.pop(pick.choice(list(members)))
        if pick.random() < 0.2:
            members[pick.choice(["zz", "foo", "né"])] = pick.choice(LEAVES)
        return members
    if kind == "array":
        return [value(schema.get("items", True), root, pick, depth - 1) for _ in range(pick.choice([0, 1, 1, 2, 3, 5]))]
    if kind in ("integer", "number"):
        return pick.choice([x for x in LEAVES if isinstance(x, (int, float)) and not isinstance(x, bool)])
    if kind == "string":
        return pick.choice([x for x in LEAVES if isinstance(x, str)])
    return pick.choice([None, True, False])


def is_plain(instance, schema, root):
    """Whether an answer may be written just so: no member that the schema does not list, order kept."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict):
        return True
    for word in ("anyOf", "allOf"):
        if word in schema:
            return any(is_plain(instance, one, root) and jsonschema.Draft202012Validator({**one, "$defs": root.get("$defs", {})} if isinstance(one, dict) else one).is_valid(instance)
                       for one in (resolve(s, root) for s in schema[word]) if not references(one))
    if isinstance(instance, float) and instance == int(instance):
        return False  # 3.0 is an integer for the standard
    if "format" in schema or "enum" in schema or "const" in schema:
        return not (isinstance(instance, str) and "format" in schema)
    if isinstance(instance, dict) and "properties" in schema:
        names = list(schema["properties"])
        if [k for k in instance if k in names] != [k for k in names if k in instance] or any(k not in names for k in instance):
            return False
        return all(is_plain(v, schema["properties"][k], root) for k, v in instance.items())
    if isinstance(instance, dict):
        return "type" in schema and all(is_plain(v, schema.get("additionalProperties", True), root) for v in instance.values())
    if isinstance(instance, list):
        return all(is_plain(v, schema.get("items", True), root) for v in instance)
    return "type" in schema or not schema


def references(schema):
    return "$ref" in json.dumps(schema)


def judge_by_xgrammar(cases):
    import xgrammar

    tokens = [bytes([b]) for b in range(256)] + [b"</s>"]
    info = xgrammar.TokenizerInfo(tokens, stop_token_ids=[256])
    compiler = xgrammar.GrammarCompiler(info)
    counts = {"same": 0, "different": 0, "refused": 0}
    for case in cases:
        try:
            grammar = compiler.compile_json_schema(json.dumps(case["schema"]), any_whitespace=False, separators=(",", ":"), strict_mode=True)
        except RuntimeError:
            counts["refused"] += 1
            continue
        for text, expected in [(t, True) for t in case["plain"]] + [(t, False) for t in case["invalid"]]:
            matcher = xgrammar.GrammarMatcher(grammar)
            accepted = matcher.accept_string(text) and matcher.accept_token(256)
            counts["same" if accepted == expected else "different"] += 1
            if accepted != expected:
                print(f"xgrammar {'takes' if accepted else 'refuses'} {text} for {json.dumps(case['schema'])}")
    print("xgrammar:", counts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--xgrammar", action="store_true")
    options = parser.parse_args()
    pick, cases = random.Random(3), []
    for schema in schemas():
        if schema is True or schema == {}:
            continue
        checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        plain, invalid = set(), set()
        for _ in range(40):
            instance = value(schema, schema, pick, 4)
            text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
            if not checker.is_valid(instance):
                invalid.add(text)
            elif is_plain(instance, schema, schema):
                plain.add(text)
        cases.append({"schema": schema, "plain": sorted(plain)[:5], "invalid": sorted(invalid)[:5]})
    with open(options.out, "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
    print(f"{len(cases)} schemas, {sum(len(c['plain']) for c in cases)} plain and {sum(len(c['invalid']) for c in cases)} invalid texts")
    if options.xgrammar:
        judge_by_xgrammar(cases)


if __name__ == "__main__":
    main()
