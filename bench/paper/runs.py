#!/usr/bin/env python3
"""Makes the runs of docs/paper-comparison.md, in pieces: those that are missing, in the plan's order, until time is up.

RESULTS keeps little of a run: the lines of metrics.jsonl with a validation, the manifest of its last checkpoint (hashes)
and its probes; `dsmoe report RESULTS/main` makes table and figure of them. WORK is where runs are made (12 bytes per
parameter and 300 MB); weights are removed once their figures are kept, unless --keep-weights.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

DATA = ["books-train-1", "books-train-2", "gov-train", "multilingual-train", "techdocs-train", "novels-train", "peps-train"]
HELD_OUT = ["books-valid", "gov-valid", "multilingual-valid", "techdocs-valid", "novels-valid", "peps-valid"]
TOKENS = 300_000_000
SMALL, LARGE = "configs/compare-67m.json", "configs/compare-330m.json"
MAIN = ["--seeds", "6", "--shared", "2,4", "--fp32", "b,c", "--upper-bound"]


def names(seeds, models):
    return [f"{model}-seed-{seed}" for seed in seeds for model in models]


# Folder, config, options, runs in the order in which they are made.
def parts(rates):
    main = ["--lr", rates] + MAIN
    return [
        ("main", SMALL, main, names([1, 2, 3], ["c", "b", "a", "dense"]) + names([4, 5, 6], ["c", "b"])),
        ("main", SMALL, main, ["c-fp32-seed-1", "b-fp32-seed-1"]),
        ("again", SMALL, main, ["c-seed-1"]),
        ("large", LARGE, ["--lr", halved(rates), "--seeds", "1"], names([1], ["c", "b", "a", "dense"])),
        ("main", SMALL, main, names([1, 2, 3], ["c-shared-2", "c-shared-4"])),
        ("main", SMALL, main, ["dense-total-seed-1"]),
    ]


# "2e-3,dense=1e-3" -> half of each.
def halved(rates):
    words = [word.rpartition("=") for word in rates.split(",")]
    return ",".join(f"{name}{equals}{float(rate) / 2:g}" for name, equals, rate in words)


def last_checkpoint(run):
    found = sorted(run.glob("step-*/MANIFEST.json"))
    return found[-1].parent if found else None


class Runs:
    def __init__(self, options):
        self.options = options
        self.begun = time.monotonic()
        self.seconds = {}  # of the last run of (folder, model)

    def elapsed(self):
        return time.monotonic() - self.begun

    def files(self, stems):
        return [str(self.options.data / f"{stem}.txt.zst") for stem in stems]

    # By the same model's last run, else by --expect.
    def expected(self, folder, run):
        model = run.rpartition("-seed-")[0]
        seconds = self.seconds.get((folder, model), self.options.expect)
        return seconds if (folder, model) in self.seconds or folder != "large" else 3 * seconds

    def train(self, folder, config, more, run):
        o = self.options
        out = o.work / folder
        if not out.exists() and (o.results / folder).exists():
            shutil.copytree(o.results / folder, out)
        command = [o.program, "compare", "--config", o.config or config, "--tokenizer", str(o.tokenizer), "--cache", str(o.work / "cache"),
                   "--tokens", str(o.tokens), "--batch", str(o.batch), "--seq", str(o.seq), "--micro-batch", str(o.batch),
                   "--schedule", "paper", "--valid-rows", str(o.valid_rows), "--device", o.device, "-o", str(out), "--only", run,
                   "--data"] + self.files(DATA) + more
        begun = self.elapsed()
        with open(o.work / "log.txt", "a") as log:
            log.write(" ".join(command) + "\n")
            log.flush()
            done = subprocess.run(command, stdout=log, stderr=log, timeout=max(60, o.seconds - begun + 120))
        self.seconds[(folder, run.rpartition("-seed-")[0])] = self.elapsed() - begun
        return done.returncode

    def keep(self, folder, run):
        o = self.options
        made, kept = o.work / folder / run, o.results / folder / run
        checkpoint = last_checkpoint(made)
        (kept / checkpoint.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(o.work / folder / "compare.json", o.results / folder)
        lines = []
        for line in (made / "metrics.jsonl").read_text().splitlines():
            step = json.loads(line)
            if step.get("validation_loss") is None:
                continue
            for layer in step["layers"]:
                layer.pop("load", None)
            lines.append(json.dumps(step, separators=(",", ":")))
        (kept / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        shutil.copy(checkpoint / "MANIFEST.json", kept / checkpoint.name)
        if not run.startswith("dense"):
            self.probe(checkpoint, kept / "probe.json")
        if not o.keep_weights:
            for weights in made.glob("step-*/*.safetensors"):
                weights.unlink()
        return json.loads(lines[-1])

    def probe(self, checkpoint, out):
        o = self.options
        command = [o.program, "probe", str(checkpoint), "--context", str(o.seq), "--max-tokens", str(o.probe_tokens), "--device", o.device,
                   "--json", "--data"] + self.files(HELD_OUT)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            out.write_text(done.stdout)
        else:
            print(f"probe failed: {done.stderr.strip()}", flush=True)

    def one(self, folder, config, more, run):
        o = self.options
        if last_checkpoint(o.results / folder / run):
            return
        if self.elapsed() + self.expected(folder, run) > o.seconds:
            print(f"{folder}/{run}: no time left for it", flush=True)
            return
        try:
            code = self.train(folder, config, more, run)
            if code == 0:
                last = self.keep(folder, run)
                print(f"{folder}/{run}: {last['validation_loss']:.6f} after {last['step']} steps, at {self.elapsed():.0f} s", flush=True)
            else:
                print(f"{folder}/{run}: exit {code}, see {o.work}/log.txt; at {self.elapsed():.0f} s", flush=True)
        except (OSError, subprocess.SubprocessError, ValueError, AttributeError) as error:
            print(f"{folder}/{run}: {error}; at {self.elapsed():.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build-cuda/dsmoe")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the files the plan names")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("bench/paper/results"))
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--rates", required=True, help="as compare's --lr; the larger size takes half")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run that would end later")
    parser.add_argument("--expect", type=float, default=180, help="seconds of a first run, three times that for the larger size")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep-weights", action="store_true")
    small = parser.add_argument_group("to try it in small")
    small.add_argument("--config")
    small.add_argument("--tokens", type=int, default=TOKENS)
    small.add_argument("--batch", type=int, default=64)
    small.add_argument("--seq", type=int, default=512)
    small.add_argument("--valid-rows", type=int, default=1024)
    small.add_argument("--probe-tokens", type=int, default=120000)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.results.mkdir(parents=True, exist_ok=True)
    runs = Runs(options)
    for folder, config, more, wanted in parts(options.rates):
        for run in wanted:
            runs.one(folder, config, more, run)


if __name__ == "__main__":
    sys.exit(main())
