#!/usr/bin/env python3
"""Makes the runs of docs/paper-comparison.md in pieces: those that are missing, in the plan's order, until time is up.

RESULTS keeps little of a run: the lines of metrics.jsonl with a validation, the manifest of its last checkpoint (hashes)
and its probes; `dsmoe report RESULTS/main` makes table and figure of them. WORK is where runs are made (12 bytes per
parameter and 300 MB); weights are removed once their figures are kept, unless --keep-weights.
"""

import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import time

DATA = ["books-train-1", "books-train-2", "gov-train", "multilingual-train", "techdocs-train", "novels-train", "peps-train"]
HELD_OUT = ["books-valid", "gov-valid", "multilingual-valid", "techdocs-valid", "novels-valid", "peps-valid"]
TOKENS = 300_000_000  # part 1 takes a third
RATES = [0.002, 0.001, 0.004]
MODELS = ["c", "b", "a", "dense"]
BROKE_OFF = "training has diverged"  # of the message that ends such a run
SMALL, LARGE = "configs/compare-67m.json", "configs/compare-330m.json"
MAIN = ["--seeds", "6", "--shared", "2,4", "--fp32", "b,c", "--upper-bound"]


def names(seeds, models):
    return [f"{model}-seed-{seed}" for seed in seeds for model in models]


# Folder, config, options, runs in the order in which they are made: parts 2 to 6.
def parts(rates):
    main = ["--lr", rates] + MAIN
    return [
        ("main", SMALL, main, names([1, 2, 3], MODELS) + names([4, 5, 6], ["c", "b"])),
        ("main", SMALL, main, ["c-fp32-seed-1", "b-fp32-seed-1"]),
        ("again", SMALL, main, ["c-seed-1"]),
        ("large", LARGE, ["--lr", halved(rates), "--seeds", "1"], names([1], MODELS)),
        ("main", SMALL, main, names([1, 2, 3], ["c-shared-2", "c-shared-4"])),
        ("main", SMALL, main, ["dense-total-seed-1"]),
    ]


# "2e-3,dense=1e-3" -> half of each.
def halved(rates):
    words = [word.rpartition("=") for word in rates.split(",")]
    return ",".join(f"{name}{equals}{float(rate) / 2:g}" for name, equals, rate in words)


def rates_folder(rate):
    return f"rates-{rate:g}"


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

    # Runs of equal length and size.
    @staticmethod
    def kind(folder):
        return {"again": "main"}.get(folder, folder.partition("-")[0])

    # By the same model's last run, else by --expect.
    def expected(self, folder, run):
        kind = self.kind(folder)
        known = self.seconds.get((kind, run.rpartition("-seed-")[0]))
        return known if known is not None else self.options.expect * {"rates": 0.4, "main": 1, "large": 3}[kind]

    def train(self, folder, config, more, run):
        o = self.options
        tokens = o.tokens // 3 if folder.startswith("rates-") else o.tokens
        out = o.work / folder
        if not out.exists() and (o.results / folder).exists():
            shutil.copytree(o.results / folder, out)
        command = [o.program, "compare", "--config", o.config or config, "--tokenizer", str(o.tokenizer), "--cache", str(o.work / "cache"),
                   "--tokens", str(tokens), "--batch", str(o.batch), "--seq", str(o.seq), "--micro-batch", str(o.batch),
                   "--schedule", "paper", "--valid-rows", str(o.valid_rows), "--device", o.device, "-o", str(out), "--only", run,
                   "--data"] + self.files(DATA) + more
        begun = self.elapsed()
        with open(o.work / "log.txt", "a+") as log:
            log.write(" ".join(command) + "\n")
            log.flush()
            at = log.tell()
            done = subprocess.run(command, stdout=log, stderr=log, timeout=max(60, o.seconds - begun + 120))
            log.seek(at)
            said = log.read()
        self.seconds[(self.kind(folder), run.rpartition("-seed-")[0])] = self.elapsed() - begun
        if done.returncode != 0 and BROKE_OFF in said:
            (o.results / folder / run).mkdir(parents=True, exist_ok=True)
            (o.results / folder / run / "broke-off.txt").write_text(said.strip().splitlines()[-1] + "\n")
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
        if not run.startswith("dense") and not folder.startswith("rates-"):
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
        if last_checkpoint(o.results / folder / run) or (o.results / folder / run / "broke-off.txt").exists():
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

    def trial(self, rate, model):
        self.one(rates_folder(rate), SMALL, ["--lr", f"{rate:g}", "--seeds", "1"], f"{model}-seed-1")

    # Last validation loss by rate; infinite for a run that broke off.
    def losses(self, model):
        found = {}
        for folder in self.options.results.glob("rates-*"):
            run, rate = folder / f"{model}-seed-1", float(folder.name.partition("-")[2])
            if last_checkpoint(run):
                found[rate] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["validation_loss"]
            elif (run / "broke-off.txt").exists():
                found[rate] = math.inf
        return found

    # Part 1 and its rule: the lowest of three, of four where the lowest lies at an edge. None while runs are missing.
    def choose(self):
        for rate in RATES:
            for model in MODELS:
                self.trial(rate, model)
        chosen = {}
        for model in MODELS:
            losses = self.losses(model)
            if not set(RATES) <= set(losses):
                return None
            best = min(RATES, key=losses.get)
            beyond = {min(RATES): best / 2, max(RATES): best * 2}.get(best)
            if beyond is not None:
                self.trial(beyond, model)
                losses = self.losses(model)
                if beyond not in losses:
                    return None
            chosen[model] = min(losses, key=losses.get)
            print(f"{model}: {chosen[model]:g} of {', '.join(f'{r:g}: {l:.6f}' for r, l in sorted(losses.items()))}", flush=True)
        own = [f"{model}={rate:g}" for model, rate in chosen.items() if rate != chosen["c"]]
        return ",".join([f"{chosen['c']:g}"] + own)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build-cuda/dsmoe")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the files the plan names")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("bench/paper/results"))
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--rates", help="as compare's --lr, the larger size takes half; default: by part 1")
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
    rates = options.rates or runs.choose()
    if rates is None:
        return "part 1 is not finished"
    print(f"rates: {rates}", flush=True)
    for folder, config, more, wanted in parts(rates):
        for run in wanted:
            runs.one(folder, config, more, run)


if __name__ == "__main__":
    sys.exit(main())
