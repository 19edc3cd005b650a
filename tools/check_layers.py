#!/usr/bin/env python3
"""Refuses includes against the order of the house, files over 600 lines, files that do not say their one job, and kernels
that keep something of their own between calls.

A folder of src/ may include only itself and the folders before it in HOUSE; apps, tests, bench and fuzz may include all.
Run from anywhere; --self-test checks the checker on a small tree of wrong files.
"""

import pathlib
import re
import sys
import tempfile

HOUSE = ["base", "tensor", "store", "kernels", "comm", "attention", "moe", "model", "text", "constrain", "data", "train", "infer", "report", "serve"]

# Arrows that the order alone would allow.
REFUSED = {
    ("infer", "train"): "train and infer never see each other",
    ("serve", "train"): "serve may use all before it but train",
    ("serve", "report"): "serve may use all before it but train, which report uses",
    ("kernels", "store"): "ops know memory, not files",
    ("attention", "store"): "the parts of a block know memory, not files",
    ("moe", "store"): "the parts of a block know memory, not files",
    ("moe", "attention"): "the parts of a block do not see each other",
}
REFUSED_SYSTEM = {"base": re.compile(r"cuda|cublas|nccl|mpi\.h")}

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
TREES = ["src", "apps", "tests", "bench", "fuzz", "examples"]
MAX_LINES = 600
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


# Several ranks may be threads of one process: what a kernel keeps belongs to its stream or to its caller, never to the process.
STATELESS = "src/kernels/"
STATIC = re.compile(r"^\s*(?:inline\s+)?static\b(?P<rest>.*)")
# Formatted code has what a namespace holds in the first column. Up to a name, then what can only follow a variable.
VARIABLE = re.compile(r"^(?!using\b|namespace\b|template\b|typedef\b|friend\b|return\b|struct\b|class\b|enum\b|union\b|public\b|private\b|protected\b|static_assert\b)"
                      r"(?:[A-Za-z_][\w:]*(?:<[^()]*>)?[\s*&]+)+[A-Za-z_]\w*(?:\[[^\]]*\])*\s*(?:=|\{|;)")
CONSTANT = re.compile(r"\bconstexpr\b|\*\s*const\b|^(?:(?!\*|=|\{).)*\bconst\b(?:(?!\*|=|\{).)*[&=;{]")


def is_variable(text):
    """Whether the declaration after `static` is of a variable: a function's name comes before a parenthesis."""
    before = re.split(r"[={;]", text, maxsplit=1)[0]
    return "(" not in re.sub(r"<[^<>]*>|alignas\([^)]*\)|\[\[[^\]]*\]\]", "", before)


def state_fault(line):
    """What one line of a kernel keeps that it may not keep, or None."""
    code = line.split("//")[0]
    if re.search(r"\bthread_local\b|\b__thread\b", code):
        return "kernels keep nothing of a thread: thread_scratch, or the stream's state"
    static = STATIC.match(code)
    declared = static.group("rest") if static else code if VARIABLE.match(code) else None
    if declared is None or (static and not is_variable(declared)) or CONSTANT.search(declared):
        return None
    return "kernels keep nothing of the process: it belongs to the stream's state, or to the caller"


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
    if name.startswith(STATELESS) and not name.endswith("_test.cc"):
        for number, line in enumerate(lines, 1):
            if fault := state_fault(line):
                yield f"{name}:{number}: {fault}"
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


# For the self-test: what kernels may not keep, each line by itself, and what looks like it.
STATEFUL_LINES = [
    "std::atomic<int> forced{-1};",
    "std::mutex mutex;",
    "void* last = nullptr;",
    "const char* name = nullptr;",
    "__device__ int32_t counters[2 * kSets];",
    "__device__ unsigned left;",
    "std::map<void*, std::vector<int>> all;",
    "thread_local std::vector<float> weights;",
    "  thread_local struct {",
    "  static std::atomic<unsigned> turn{0};",
    "  static auto& map = *new std::map<int, int>;",
    "  static char kind;  // its address",
    "  static const char* name = nullptr;",
    "inline int64_t calls = 0;",
]
STATELESS_LINES = """constexpr int kSets = 64;
const KernelTable& table();
const char* name_of(int idx) { return names[idx]; }
int32_t* next(const Context& context);
template <class T> struct Rows { T x; };
struct Rows kept_by_a_caller(int64_t count);
using Table = std::map<int, int>;
inline constexpr int64_t kWide = 16;
constexpr const char* kNames[] = {"a", "b"};
const int kSome[] = {1, 2};
float lanes(float x);
return value;
  static const KernelTable table = make_table();
  static const int count = attribute_of_device(1);
  static void* const base = address();
  static constexpr int kDim = 8;
  static auto choose(int tokens) {
  static __device__ void score(float (&s)[8][4], const uint32_t (&rows)[4],
  int count = 0;
"""


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
        "src/store/folder.h": job,
        "src/moe/peek.cc": job + '#include "store/folder.h"\n',
        "src/base/gpu.cc": job + "#include <cuda_runtime.h>\n",
        "src/base/gone.cc": job + '#include "base/gone.h"\n',
        "src/base/short.cc": job + '#include "error.h"\n',
        "src/attic/old.cc": job,
        "src/base/silent.cc": "int x;\n",
        "src/base/long.cc": job + "\n" * 600,
        "src/base/excused.cc": job + "\n" * 600,
        "apps/dsmoe/main.cc": job + '#include "serve/anything.h"\n',
        "src/kernels/stateless.cc": job + STATELESS_LINES,
    }
    for number, line in enumerate(STATEFUL_LINES):
        files[f"src/kernels/stateful{number}.cc"] = job + line + "\n"
        files[f"src/base/stateful{number}.cc"] = job + line + "\n"
    expected = {
        "src/base/up.cc:2": "base may not include model",
        "src/infer/peek.cc:2": "never see each other",
        "src/store/peek.cc:2": "store may not include model",
        "src/moe/peek.cc:2": "not files",
        "src/base/gpu.cc:2": "may not use <cuda_runtime.h>",
        "src/base/gone.cc:2": "does not exist",
        "src/base/short.cc:2": "not a path from src/",
        "src/attic/old.cc": "not a folder of the house",
        "src/base/silent.cc:1": "one job",
        "src/base/long.cc": "601 lines",
    }
    for number, line in enumerate(STATEFUL_LINES):
        expected[f"src/kernels/stateful{number}.cc:2"] = "keep nothing"
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
