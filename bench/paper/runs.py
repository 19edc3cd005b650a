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
import statistics
import subprocess
import sys
import time

DATA = ["books-train-1", "books-train-2", "gov-train", "multilingual-train", "techdocs-train", "novels-train", "peps-train"]
HELD_OUT = ["books-valid", "gov-valid", "multilingual-valid", "techdocs-valid", "novels-valid", "peps-valid"]
TOKENS = 300_000_000  # part 1 takes a third
RATES = [0.002, 0.001, 0.004]
MODELS = ["c", "b", "a", "dense"]
SLOW_LARGE, SLOW_FP32 = 550_000, 600_000  # tokens per second, below which those parts are shorter
BROKE_OFF = "training has diverged"  # of the message that ends such a run
SMALL, LARGE = "configs/compare-67m.json", "configs/compare-330m.json"
MAIN = ["--seeds", "6", "--shared", "2,4", "--fp32", "b,c", "--upper-bound"]


def names(seeds, models):
    return [f"{model}-seed-{seed}" for seed in seeds for model in models]


# As compare's --lr: (c)'s for all, the others' where they differ.
def rates_text(rates, factor=1.0):
    own = [f"{model}={factor * rate:g}" for model, rate in rates.items() if rate != rates["c"]]
    return ",".join([f"{factor * rates['c']:g}"] + own)


def parse_rates(text):
    words = dict((word.rpartition("=")[0], float(word.rpartition("=")[2])) for word in text.split(","))
    return {model: words.get(model, words.get("")) for model in MODELS}


def rates_folder(rate):
    return f"rates-{rate:g}"


def last_checkpoint(run):
    found = sorted(run.glob("step-*/MANIFEST.json"))
    return found[-1].parent if found else None


class Runs:
    def __init__(self, options):
        self.options = options
        self.begun = time.monotonic()
        self.seconds = {}  # of the last run of (kind of folder, model)
        self.shorter = 1  # part 4 takes this part of the tokens

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
        tokens = o.tokens // {"rates": 3, "large": self.shorter}.get(self.kind(folder), 1)
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

    # Median tokens per second of (c) over 60 steps; kept. None when it could not be measured.
    def speed(self, name, config, more):
        o = self.options
        kept = o.results / f"speed-{name}.json"
        if not kept.exists():
            out = o.work / f"speed-{name}"
            shutil.rmtree(out, ignore_errors=True)
            command = [o.program, "train", "--config", o.config or config, "--data", self.files(["peps-train"])[0], "--tokenizer", str(o.tokenizer),
                       "--steps", "60", "--batch", str(o.batch), "--seq", str(o.seq), "--micro-batch", str(o.batch), "--save-every", "0",
                       "--valid-every", "0", "--device", o.device, "-o", str(out)] + more
            with open(o.work / "log.txt", "a") as log:
                log.write(" ".join(command) + "\n")
                log.flush()
                done = subprocess.run(command, stdout=log, stderr=log)
            if done.returncode != 0:
                print(f"speed of {name}: exit {done.returncode}, see {o.work}/log.txt; its part is left for another time", flush=True)
                return None
            steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            rate = statistics.median(step["tokens"] / step["seconds"] for step in steps)
            shutil.rmtree(out)
            kept.write_text(json.dumps({"tokens_per_second": round(rate)}) + "\n")
        rate = json.loads(kept.read_text())["tokens_per_second"]
        print(f"speed of {name}: {rate:,} tokens/s, at {self.elapsed():.0f} s", flush=True)
        return rate

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
        return chosen

    # Parts 2 to 6, in the plan's order.
    def parts(self, rates, large_speed, fp32_speed):
        main = ["--lr", rates_text(rates)] + MAIN
        for run in names([1, 2, 3], MODELS) + names([4, 5, 6], ["c", "b"]):
            self.one("main", SMALL, main, run)
        for model in ["c", "b"] if fp32_speed else []:
            if fp32_speed >= SLOW_FP32:
                self.one("main", SMALL, main, f"{model}-fp32-seed-1")
            else:
                rate = rates[model]
                self.one(rates_folder(rate), SMALL, ["--lr", f"{rate:g}", "--seeds", "1", "--fp32", model], f"{model}-fp32-seed-1")
        self.one("again", SMALL, main, "c-seed-1")
        self.shorter = 1 if large_speed and large_speed >= SLOW_LARGE else 2
        for run in names([1], MODELS) if large_speed else []:
            self.one("large", LARGE, ["--lr", rates_text(rates, 0.5), "--seeds", "1"], run)
        for run in names([1, 2, 3], ["c-shared-2", "c-shared-4"]) + ["dense-total-seed-1"]:
            self.one("main", SMALL, main, run)

    def compare_hashes(self):
        runs = [last_checkpoint(self.options.results / folder / "c-seed-1") for folder in ["main", "again"]]
        if None in runs:
            return
        one, two = [json.loads((run / "MANIFEST.json").read_text())["files"]["model.safetensors"]["sha256"] for run in runs]
        print(f"c-seed-1 again: {'the same' if one == two else 'OTHER'} weights: {one[:16]}, {two[:16]}", flush=True)


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
    large_speed = runs.speed("large", LARGE, [])
    fp32_speed = runs.speed("fp32", SMALL, ["--dtype", "fp32"])
    rates = parse_rates(options.rates) if options.rates else runs.choose()
    if rates is None:
        return "part 1 is not finished"
    print(f"rates: {rates_text(rates)}", flush=True)
    runs.parts(rates, large_speed, fp32_speed)
    runs.compare_hashes()
    return 0


if __name__ == "__main__":
    sys.exit(main())
