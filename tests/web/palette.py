#!/usr/bin/env python3
"""Makes web/experts.css: 16 tints that also colour-blind readers tell apart; with 4 marks they name 64 experts.

`palette.py` prints the file, `palette.py --check` says whether the committed one still holds what it promises:
text stays readable on every tint, and no two tints look alike to any of the four kinds of eyes. 64 tints cannot
promise that (the nearest two would be 0.007 apart), so expert e has tint e % 16 and the mark e / 16 % 4 of style.css.
"""
import argparse
import functools
import itertools
import math
import pathlib
import re
import sys

CSS = pathlib.Path(__file__).parents[2] / "web" / "experts.css"
NUM_TINTS = 16
# An expert keeps its hue in both themes; lightness and chroma in OKLCH are chosen for each.
LIGHTNESS = {"light": [0.95, 0.91, 0.87, 0.82, 0.77], "dark": [0.30, 0.35, 0.40, 0.45, 0.50]}
CHROMA = {"light": [0.02, 0.05, 0.08, 0.105], "dark": [0.02, 0.05, 0.075, 0.10]}
NUM_HUES = 30
MIN_CONTRAST = 5.0
INK = {"light": "#1b1a18", "dark": "#ebe9e4"}
PAPER = {"light": "#fbfaf8", "dark": "#141413"}
# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
EYES = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear_of_lch(lightness, chroma, hue):
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l3 = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m3 = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s3 = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * l3 - 3.3077115913 * m3 + 0.2309699292 * s3,
        -1.2684380046 * l3 + 2.6097574011 * m3 - 0.3413193965 * s3,
        -0.0041960863 * l3 - 0.7034186147 * m3 + 1.7076147010 * s3,
    )


def lab_of_linear(rgb):
    r, g, b = rgb
    l = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    )


def hex_of_linear(rgb):
    def channel(v):
        v = 12.92 * v if v <= 0.0031308 else 1.055 * v ** (1 / 2.4) - 0.055
        return round(255 * v)

    return "#" + "".join(f"{channel(v):02x}" for v in rgb)


def linear_of_hex(text):
    def channel(v):
        v /= 255
        return v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4

    return tuple(channel(int(text[i : i + 2], 16)) for i in (1, 3, 5))


def seen(rgb, eyes):
    """OKLab of the colour as those eyes see it."""
    mixed = (sum(k * v for k, v in zip(row, rgb)) for row in EYES[eyes])
    return lab_of_linear(tuple(min(max(v, 0.0), 1.0) for v in mixed))


def contrast(first, second):
    y = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear_of_hex(first), linear_of_hex(second)))
    return (y[1] + 0.05) / (y[0] + 0.05)


def tints_of(hue, theme):
    for lightness in LIGHTNESS[theme]:
        for chroma in CHROMA[theme]:
            rgb = linear_of_lch(lightness, chroma, hue)
            if all(0 <= v <= 1 for v in rgb) and contrast(INK[theme], hex_of_linear(rgb)) >= MIN_CONTRAST:
                yield hex_of_linear(rgb)


def candidates():
    for hue_idx in range(NUM_HUES):
        hue = 360 * hue_idx / NUM_HUES
        yield from itertools.product(tints_of(hue, "light"), tints_of(hue, "dark"))


@functools.lru_cache(maxsize=None)
def seen_by_all(tint):
    return [seen(linear_of_hex(tint), eyes) for eyes in EYES]


def views(pair):
    """The tint in both themes as each kind of eyes sees it."""
    return seen_by_all(pair[0]) + seen_by_all(pair[1])


def distance(first, second):
    """Between two lists of views. Usual eyes are given twice the distance, so that they see many hues, not shades of two."""
    return min(math.dist(a, b) / (2 if i % len(EYES) == 0 else 1) for i, (a, b) in enumerate(zip(first, second)))


def choose():
    """Farthest first, then exchanges while they help; the first n tints are about as far apart as n can be."""
    pairs = list(dict.fromkeys(candidates()))
    seen_as = [views(pair) for pair in pairs]
    paper = views((PAPER["light"], PAPER["dark"]))

    def farthest(chosen, at_least):
        nearest = [min([distance(view, paper)] + [distance(view, seen_as[c]) for c in chosen]) for view in seen_as]
        best = max(range(len(pairs)), key=lambda i: nearest[i])
        return best if nearest[best] > at_least else None

    def gap(chosen, i):
        return min([distance(seen_as[c], seen_as[i]) for c in chosen if c != i] + [distance(seen_as[i], paper)])

    chosen = []
    while len(chosen) < NUM_TINTS:
        chosen.append(farthest(chosen, 0.0))
    exchanged = True
    while exchanged:
        exchanged = False
        for i in sorted(chosen, key=lambda c: gap(chosen, c)):
            others = [c for c in chosen if c != i]
            better = farthest(others, gap(chosen, i) + 1e-9)
            if better is not None:
                chosen[chosen.index(i)] = better
                exchanged = True
                break
    ordered = [chosen.pop(0)]
    while chosen:
        ordered.append(max(chosen, key=lambda c: min(distance(seen_as[c], seen_as[o]) for o in ordered)))
        chosen.remove(ordered[-1])
    return [pairs[c] for c in ordered]


def css_of(pairs):
    def block(indent, theme):
        return "\n".join(f"{indent}--e{i}: {pair[theme]};" for i, pair in enumerate(pairs))

    return f"""/* The tints of experts; written by tests/web/palette.py, which says why they are these. */
:root {{
{block("  ", 0)}
}}
:root[data-theme="dark"] {{
{block("  ", 1)}
}}
"""


def check(text):
    """Problems found, as lines."""
    found = re.findall(r"--e(\d+): (#[0-9a-f]{6});", text)
    if [int(i) for i, _ in found] != 2 * list(range(NUM_TINTS)):
        return [f"{CSS.name} does not hold {NUM_TINTS} tints for each of the two themes"]
    tints = [tint for _, tint in found]
    pairs = list(zip(tints[:NUM_TINTS], tints[NUM_TINTS:]))
    problems = []
    for i, pair in enumerate(pairs):
        for theme, tint in zip(INK, pair):
            if contrast(INK[theme], tint) < MIN_CONTRAST:
                problems.append(f"expert {i}, {theme}: contrast with the text is {contrast(INK[theme], tint):.2f}, below {MIN_CONTRAST}")
    # Just noticeable is about 0.02 in OKLab.
    for num, least in ((8, 0.03), (NUM_TINTS, 0.028)):
        seen_as = [views(pair) for pair in pairs[:num]]
        worst = min(distance(seen_as[i], seen_as[j]) for i in range(num) for j in range(i))
        print(f"first {num}: nearest two are {worst:.4f} apart (at least {least})")
        if worst < least:
            problems.append(f"the first {num} tints: two are only {worst:.4f} apart")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        sys.stdout.write(css_of(choose()))
        return 0
    problems = check(CSS.read_text())
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
