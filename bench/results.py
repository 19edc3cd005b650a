#!/usr/bin/env python3
"""Writes the tables of docs/results.md and docs/images/speed.svg from bench/records; --check says whether they are current.

A record is one JSON file: title, machine, dates, commit, commands, the measurements as they came (sections of text and
tables), and claims: the few figures of it that docs/results.md shows. A claim names its section of the page, what was
measured, the unit, whether more or less of it is better, our figure and, where there is one, that of the best other program.
"""
import html
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
PICTURE = ROOT / "docs" / "images" / "speed.svg"
NEEDED = ("title", "machine", "dates", "commit", "commands", "sections")
NEEDED_OF_CLAIM = ("section", "what", "unit", "better", "ours", "date")


def read_records():
    records = {}
    for path in sorted((ROOT / "bench" / "records").glob("*.json")):
        record = json.loads(path.read_text())
        missing = [key for key in NEEDED if key not in record]
        for claim in record.get("claims", []):
            missing += [f"{key} of a claim" for key in NEEDED_OF_CLAIM if key not in claim]
        if missing:
            sys.exit(f"{path}: a record needs {', '.join(missing)}")
        records[path.name] = record
    return records


def ratio(claim):
    """How many times better ours is; None where a ratio of these figures says nothing."""
    if "other" not in claim or claim["other"] <= 0 or claim["ours"] <= 0 or claim["section"] == "quality":
        return None
    return claim["ours"] / claim["other"] if claim["better"] == "more" else claim["other"] / claim["ours"]


def number(value):
    return f"{value:,}" if isinstance(value, int) or value >= 1000 else f"{value:g}"


def figure(value, unit):
    return f"{number(value)} {unit}".strip()


def table(claims):
    compared = any("other" in claim for _, claim in claims)
    ratios = any(ratio(claim) for _, claim in claims)
    head = ["what", "dsmoe"] + (["best other"] if compared else []) + (["ratio"] if ratios else []) + ["date"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, claim in claims:
        row = [f"[{claim['what']}](../bench/records/{name})", figure(claim["ours"], claim["unit"])]
        if compared:
            row.append(f"{figure(claim['other'], claim['unit'])} ({claim['other_name']})" if "other" in claim else "")
        if ratios:
            value = ratio(claim)
            row.append("" if value is None else f"**{value:.2f}**" if value >= 1 else f"{value:.2f}")
        lines.append("| " + " | ".join(row + [claim["date"]]) + " |")
    return "\n".join(lines)


def page(text, records):
    """The page with each `<!-- claims: SECTION -->` ... `<!-- end -->` filled anew."""
    def filled(match):
        section = match.group(1)
        claims = [(name, claim) for name, record in records.items() for claim in record.get("claims", [])
                  if claim["section"] == section]
        if not claims:
            sys.exit(f"{PAGE}: no record has a claim of section '{section}'")
        return f"<!-- claims: {section} -->\n{table(claims)}\n<!-- end -->"

    return re.sub(r"<!-- claims: (\S+) -->\n.*?<!-- end -->", filled, text, flags=re.DOTALL)


def picture(records):
    """Bars of the claims that have a label for the picture: how many times the best other program's speed."""
    claims = [claim for record in records.values() for claim in record.get("claims", []) if "picture" in claim]
    claims.sort(key=lambda claim: claim["picture"].split(":")[0] + f"{1000 - ratio(claim):010.3f}", reverse=False)
    claims.sort(key=lambda claim: not claim["picture"].startswith("GPU"))
    left, scale, row = 250, 170, 26
    longest = 2.6
    height = 64 + row * len(claims)
    width = left + int(scale * longest) + 190
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
           f'aria-label="Speed of dsmoe beside the best other program" font-family="system-ui, sans-serif" font-size="13">',
           "<style>text{fill:#1f2328}.quiet{fill:#59636e}.bar{fill:#2f6f8f}.less{fill:#b7791f}.one{stroke:#59636e}"
           ".back{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.bar{fill:#5aa9cc}"
           ".less{fill:#d9a441}.one{stroke:#9198a1}.back{fill:#0d1117}}</style>",
           f'<rect class="back" width="{width}" height="{height}"/>',
           f'<text x="{left}" y="20" font-weight="600">Speed, in multiples of the best other program</text>']
    for at, claim in enumerate(claims):
        value = ratio(claim)
        y = 34 + row * at
        shown = min(value, longest)
        out.append(f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{html.escape(claim["picture"])}</text>')
        out.append(f'<rect class="{"bar" if value >= 1 else "less"}" x="{left}" y="{y + 2}" '
                   f'width="{shown * scale:.1f}" height="{row - 8}" rx="2"/>')
        if value > longest:  # a bar that is cut says so
            cut = left + shown * scale - 26
            out.append(f'<path class="back" d="M{cut} {y}h6l-6 {row - 4}h-6z"/>')
        other = claim["other_name"].split(",")[0]
        out.append(f'<text x="{left + shown * scale + 8:.1f}" y="{y + 15}">{value:.2f} '
                   f'<tspan class="quiet">{html.escape(other)}</tspan></text>')
    bottom = 34 + row * len(claims)
    out.append(f'<line class="one" x1="{left + scale}" x2="{left + scale}" y1="30" y2="{bottom}" stroke-dasharray="3 3"/>')
    out.append(f'<text class="quiet" x="{left + scale}" y="{bottom + 18}" text-anchor="middle">1 = the best other program</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    if sys.argv[1:] not in (["--write"], ["--check"]):
        sys.exit("usage: bench/results.py --write | --check")
    records = read_records()
    wanted = {PAGE: page(PAGE.read_text(), records), PICTURE: picture(records)}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if sys.argv[1] == "--write":
        for path in stale:
            path.write_text(wanted[path])
    elif stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"bench/results.py: {names} does not show what bench/records says; run bench/results.py --write")


if __name__ == "__main__":
    main()
