#!/usr/bin/env python3
"""Refuses includes against the order of the house, files over 600 lines, and files that do not say their one job.

A folder of src/ may include only itself and the folders before it in HOUSE; apps, tests, bench and fuzz may include all.
Run from anywhere; --self-test checks the checker on a small tree of wrong files.
"""

import pathlib
import re
import sys
import tempfile

HOUSE = ["base", "tensor", "kernels", "comm", "moe", "model", "text", "data", "store", "train", "infer", "serve"]

# Arrows that the order alone would allow.
REFUSED = {
    ("infer", "train"): "train and infer never see each other",
    ("store", "model"): "store knows names and views, not models",
    ("store", "moe"): "store knows names and views, not models",
}
REFUSED_SYSTEM = {"base": re.compile(r"cuda|cublas|nccl|mpi\.h")}

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
TREES = ["src", "apps", "tests", "bench", "fuzz", "examples"]
MAX_LINES = 600
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def allowed_large(root):
    """Path -> reason."""
    allowed = {}
    path = root / "tools" / "large_files.txt"
    if path.exists():
        for line in path.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, _, reason = line.partition(" ")
                allowed[name] = reason.strip()
    return allowed


def include_fault(root, folder, bracket, target):
    """What is wrong with one include of a file in src/<folder>, or None."""
    if bracket == "<":
        pattern = REFUSED_SYSTEM.get(folder)
        return f"{folder} may not use <{target}>" if pattern and pattern.search(target) else None
    first = target.split("/")[0]
    if "/" not in target or first not in HOUSE:
        return f'"{target}" is not a path from src/, such as "base/error.h"'
    if not (root / "src" / target).exists():
        return f'"{target}" does not exist in src/'
    if HOUSE.index(first) > HOUSE.index(folder):
        return f"{folder} may not include {first}: it comes later in the house"
    if (folder, first) in REFUSED:
        return f"{folder} may not include {first}: {REFUSED[folder, first]}"
    return None


def check_file(root, path, large):
    """All faults of one file, as text."""
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    # A test's name says its job.
    if not name.endswith("_test.cc") and not (lines and lines[0].startswith("// ")):
        yield f"{name}:1: the first line must say the file's one job in a // comment"
    if len(lines) > MAX_LINES and not large.get(name):
        yield f"{name}: {len(lines)} lines, at most {MAX_LINES}; split it or give a reason in tools/large_files.txt"
    parts = path.relative_to(root).parts
    if parts[0] != "src":
        return
    if parts[1] not in HOUSE:
        yield f"{name}: src/{parts[1]} is not a folder of the house ({' '.join(HOUSE)})"
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        fault = match and include_fault(root, parts[1], match.group(1), match.group(2))
        if fault:
            yield f"{name}:{number}: {fault}"


def check_tree(root):
    """(number of files, faults)."""
    large = allowed_large(root)
    files = sorted(p for tree in TREES for p in (root / tree).rglob("*") if p.suffix in SUFFIXES and p.is_file())
    faults = [fault for path in files for fault in check_file(root, path, large)]
    for name, reason in large.items():
        if not (root / name).exists():
            faults.append(f"tools/large_files.txt: {name} does not exist")
        elif not reason:
            faults.append(f"tools/large_files.txt: {name} has no reason")
    return len(files), faults


def self_test():
    """Each wrong file must give exactly the expected fault, each right one none."""
    job = "// Its job.\n"
    files = {
        "src/base/error.h": job,
        "src/train/step.h": job,
        "src/model/block.h": job + '#include "base/error.h"\n',
        "src/base/up.cc": job + '#include "model/block.h"\n',
        "src/infer/peek.cc": job + '#include "train/step.h"\n',
        "src/store/peek.cc": job + '#include "model/block.h"\n',
        "src/base/gpu.cc": job + "#include <cuda_runtime.h>\n",
        "src/base/gone.cc": job + '#include "base/gone.h"\n',
        "src/base/short.cc": job + '#include "error.h"\n',
        "src/attic/old.cc": job,
        "src/base/silent.cc": "int x;\n",
        "src/base/long.cc": job + "\n" * 600,
        "src/base/excused.cc": job + "\n" * 600,
        "apps/dsmoe/main.cc": job + '#include "serve/anything.h"\n',
    }
    expected = {
        "src/base/up.cc:2": "base may not include model",
        "src/infer/peek.cc:2": "never see each other",
        "src/store/peek.cc:2": "not models",
        "src/base/gpu.cc:2": "may not use <cuda_runtime.h>",
        "src/base/gone.cc:2": "does not exist",
        "src/base/short.cc:2": "not a path from src/",
        "src/attic/old.cc": "not a folder of the house",
        "src/base/silent.cc:1": "one job",
        "src/base/long.cc": "601 lines",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "tools").mkdir()
        (root / "tools" / "large_files.txt").write_text("# comment\nsrc/base/excused.cc generated table\n")
        _, faults = check_tree(root)
    found = {fault.split(": ")[0]: fault for fault in faults}
    ok = found.keys() == expected.keys() and all(text in found[place] for place, text in expected.items())
    if not ok:
        print("check_layers: self-test failed; found:\n  " + "\n  ".join(faults))
    return ok


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 0 if self_test() else 1
    count, faults = check_tree(pathlib.Path(__file__).resolve().parent.parent)
    for fault in faults:
        print(fault)
    print(f"check_layers: {count} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
