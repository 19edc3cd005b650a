#!/usr/bin/env python3
"""Refuses pages of documentation over 200 lines, links that lead nowhere, and result tables that differ from their records.

Run from anywhere; --self-test checks the checker on a small tree of wrong pages.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

MAX_LINES = 200
REFERENCE = {"docs/api.md", "docs/formats.md", "docs/numerics.md"}  # tables that one looks things up in
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text):
    """What the headings of a page are called in links, as GitHub makes them."""
    found = set()
    for line in re.sub(r"^    .*|^```.*?^```", "", text, flags=re.M | re.S).splitlines():
        heading = re.match(r"#+ (.*)", line)
        if heading:
            name = re.sub(r"[^\w\- ]", "", heading.group(1).strip().lower()).replace(" ", "-")
            found.add(name)
    return found


def faults_of(root):
    pages = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])
    texts = {page: page.read_text() for page in pages}
    faults = []
    for page, text in texts.items():
        name = page.relative_to(root).as_posix()
        lines = text.count("\n")
        if lines > MAX_LINES and name not in REFERENCE:
            faults.append(f"{name}: {lines} lines; a page has at most {MAX_LINES}, or stands in REFERENCE of {sys.argv[0]}")
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            if not other.exists():
                faults.append(f"{name}: the link to {target} leads nowhere")
            elif anchor and other in texts and anchor not in anchors(texts[other]):
                faults.append(f"{name}: {target} names no heading of that page")
    return faults


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        (root / "docs").mkdir()
        (root / "README.md").write_text("# A\n[good](docs/b.md#one-two) [bad](docs/none.md) [worse](docs/b.md#three)\n")
        (root / "docs" / "b.md").write_text("# One, two\n" + "line\n" * MAX_LINES)
        faults = faults_of(root)
    expected = ["docs/none.md leads nowhere", "docs/b.md#three names no heading", "201 lines"]
    if len(faults) != len(expected) or not all(any(e in f for f in faults) for e in expected):
        sys.exit("check_docs: self-test failed; found:\n  " + "\n  ".join(faults))


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    faults = faults_of(root)
    results = subprocess.run([sys.executable, root / "bench" / "results.py", "--check"], capture_output=True, text=True)
    if results.returncode != 0:
        faults.append(results.stderr.strip())
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(f"check_docs: {len(faults)} faults")
    print("check_docs: all pages are well")


if __name__ == "__main__":
    main()
