"""Figures of runs of `dsmoe bench --json` and `llama-bench -o json`: summary.py TITLE FILE...; with both, the ratio of medians."""

import json
import statistics
import sys


def samples(path):
    """-> is it dsmoe's, {test: [tokens/s]}, {test: share of the limit}"""
    with open(path) as file:
        content = json.load(file)
    if isinstance(content, list):
        return False, {f"pp{e['n_prompt']}" if e["n_prompt"] else f"tg{e['n_gen']}": e["samples_ts"] for e in content}, {}
    name = lambda e: f"{'pp' if e['test'] == 'prompt' else 'tg'}{e['tokens']}"
    shares = {name(e): f", {100 * e['share_of_limit']:.0f} % of {e['limited_by']}" for e in content["results"] if "share_of_limit" in e}
    return True, {name(e): e["samples"] for e in content["results"]}, shares


def main():
    title, paths = sys.argv[1], sys.argv[2:]
    runs = [samples(path) for path in paths]
    for test in runs[0][1]:
        sides = [[x for ours, values, _ in runs if ours == side for x in values[test]] for side in (True, False)]
        show = lambda v: f"{statistics.median(v):.2f} ({min(v):.2f} to {max(v):.2f})"
        figures = " : ".join(show(side) for side in sides if side)
        ratio = f" = {statistics.median(sides[0]) / statistics.median(sides[1]):.2f}" if all(sides) else ""
        print(f"{title}, {test}: {figures} tokens/s{ratio}{runs[0][2].get(test, '') if len(runs) == 1 else ''}", flush=True)


if __name__ == "__main__":
    main()
