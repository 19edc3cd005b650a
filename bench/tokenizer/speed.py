"""Encoding speed beside PyPI `tokenizers`, one thread each, both in one run; ids are compared too.

  python bench/tokenizer/speed.py                                     # tokenizers and texts made here
  python bench/tokenizer/speed.py --tokenizer tokenizer.json --text corpus.txt --megabytes 10
Needs build/bench/tokenizer/tokenizer_speed and the Python package. PyPI is timed in its two best forms: the whole text, and
encode_batch_fast over its lines (which is another text at the line ends, so only the first is compared).
"""
import argparse
import array
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "src" / "text" / "testdata"
sys.path.insert(0, str(ROOT / "oracle"))
from tokenizer_texts import CORPUS  # noqa: E402


def made_text(num_bytes: int) -> bytes:
    """Words of the test corpus in random order, so that no cache sees the same line twice."""
    rng, words, out, size = random.Random(1), CORPUS.split(), [], 0
    while size < num_bytes:
        line = " ".join(rng.choice(words) for _ in range(rng.randint(5, 20))) + "\n"
        out.append(line)
        size += len(line.encode())
    return "".join(out).encode()[:num_bytes].decode(errors="ignore").encode()


def ours(program: str, tokenizer: str, text: bytes, repeats: int, folder: str):
    (pathlib.Path(folder) / "text").write_bytes(text)
    ids_file = f"{folder}/ids"
    result = subprocess.run([program, tokenizer, f"{folder}/text", str(repeats), ids_file], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{program}: {result.stderr}")
    ids = array.array("i", pathlib.Path(ids_file).read_bytes())
    return json.loads(result.stdout), list(ids)


def theirs(tokenizer: Tokenizer, text: bytes, repeats: int):
    string, whole, batch, ids = text.decode(), 1e30, 1e30, []
    lines = string.splitlines(keepends=True)
    for _ in range(repeats):
        start = time.perf_counter()
        ids = tokenizer.encode(string, add_special_tokens=False).ids
        whole = min(whole, time.perf_counter() - start)
        start = time.perf_counter()
        tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        batch = min(batch, time.perf_counter() - start)
    return whole, batch, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/bench/tokenizer/tokenizer_speed"))
    parser.add_argument("--tokenizer", action="append", help="tokenizer.json (default: the four of the tests)")
    parser.add_argument("--text", help="text file (default: made here)")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-linear", action="store_true", help="leave the growth to 100 MB and the long runs out")
    args = parser.parse_args()
    num_bytes = int(args.megabytes * 1e6)
    text = pathlib.Path(args.text).read_bytes()[:num_bytes].decode(errors="ignore").encode() if args.text else made_text(num_bytes)
    tokenizers = args.tokenizer or [str(TESTDATA / f"{kind}.json") for kind in ("deepseek", "gpt2", "llama", "metaspace")]
    slower = different = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in tokenizers:
            mine, my_ids = ours(args.program, path, text, args.repeats, folder)
            whole, batch, ids = theirs(Tokenizer.from_file(path), text, args.repeats)
            mb = mine["bytes"] / 1e6
            print(f"{path}: {mb:.1f} MB, {len(my_ids)} ids, equal ids: {my_ids == ids}")
            print(f"  dsmoe {mb / mine['encode_s']:8.1f} MB/s   PyPI whole text {mb / whole:6.2f} MB/s, batch of lines {mb / batch:6.2f} MB/s"
                  f"   ratio {min(whole, batch) / mine['encode_s']:.1f}")
            slower += mine["encode_s"] > min(whole, batch)
            different += my_ids != ids
            if args.skip_linear:
                continue
            for label, long_text in [("1 MB", text[:1_000_000]), ("10 MB", text * 10), ("100 MB", text * 100)]:
                long_text = long_text[: int(label.split()[0]) * 1_000_000].decode(errors="ignore").encode()
                result, _ = ours(args.program, path, long_text, 1, folder)
                print(f"  {label:>7}: {result['encode_s']:8.3f} s, {result['bytes'] / 1e6 / result['encode_s']:7.1f} MB/s")
            for unit in ("a", " ", "\n", "1", "!", "é", "中", " 1", "\x00"):
                run = unit.encode() * (1_000_000 // len(unit.encode()))
                half, _ = ours(args.program, path, run[: len(run) // 2 // len(unit.encode()) * len(unit.encode())], 1, folder)
                full, _ = ours(args.program, path, run, 1, folder)
                print(f"  run of {unit!r:6}: {half['bytes']} bytes {half['encode_s']:.3f} s, {full['bytes']} bytes {full['encode_s']:.3f} s")
    if slower or different:
        sys.exit(f"{slower} slower than PyPI, {different} with different ids")


if __name__ == "__main__":
    main()
