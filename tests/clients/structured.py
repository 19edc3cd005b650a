"""Constrained answers of an untrained model against PyPI jsonschema: what stops is valid, what is cut is a beginning.

    python tests/clients/structured.py --url http://127.0.0.1:8080 [--samples 20] [--max-tokens 256]

The server must serve a model of random weights (tests/clients/run.sh makes one). Ends with 1 when anything is wrong.
"""

import argparse
import json
import sys
import time
import urllib.request

import jsonschema
from structured_schemas import schemas


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": "Bearer test-key"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def is_beginning(text):
    """Whether the text is the beginning of JSON: everything that is open can be closed, by one of a few ends."""
    closers, in_string, escaped = [], False, False
    for c in text:
        if in_string:
            escaped, in_string = (c == "\\" and not escaped), (escaped or c != '"')
        elif c == '"':
            in_string = True
        elif c in "{[":
            closers.append("}" if c == "{" else "]")
        elif c in "}]":
            if not closers or closers.pop() != c:
                return False
    words = ["".join(w[i:]) for w in ("null", "true", "false") for i in range(len(w))]
    unescaped = [text] if not in_string else [text + end for end in ('"', 'n"', '0"', '00"', '000"', '0000"', '\\udc00"', 'udc00"', 'dc00"', 'c00"')]
    for base in unescaped:
        for end in ["", "0", "1", '"":0', ":0", '"x":0', *words, *(':' + w for w in words)]:
            try:
                json.loads(base + end + "".join(reversed(closers)))
                return True
            except ValueError:
                continue
    return False


def check(url, schema, samples, max_tokens):
    """(answers that stopped, those that were cut, faults)"""
    answer = post(url + "/v1/completions", {"prompt": "The cat", "n": samples, "temperature": 1, "seed": 1, "max_tokens": max_tokens, "guided_json": schema})
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    stopped, cut, faults = 0, 0, []
    for choice in answer["choices"]:
        text = choice["text"]
        if choice["finish_reason"] != "stop":
            cut += 1
            if not is_beginning(text):
                faults.append(f"no beginning: {text!r} of {json.dumps(schema)}")
            continue
        stopped += 1
        try:
            validator.validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            faults.append(f"{str(error).splitlines()[0]}: {text!r} of {json.dumps(schema)}")
    return stopped, cut, faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=200)
    options = parser.parse_args()
    start, stopped, cut, faults = time.time(), 0, 0, []
    for schema in schemas():
        one = check(options.url, schema, options.samples, options.max_tokens)
        stopped, cut, faults = stopped + one[0], cut + one[1], faults + one[2]
    share = stopped / (stopped + cut)
    print(f"structured: {len(schemas())} schemas x {options.samples}: {stopped} stopped ({share:.1%}), {cut} cut, {len(faults)} faults, {time.time() - start:.0f} s")
    for fault in faults[:20]:
        print("  " + fault)
    sys.exit(1 if faults or share < 0.95 else 0)


if __name__ == "__main__":
    main()
