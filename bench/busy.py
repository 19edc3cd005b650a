#!/usr/bin/env python3
"""What a machine shared with others costs: training, decoding and serving of the demo's model, several programs in turns.

    bench/busy.py --busy 4 build/dsmoe "build/dsmoe --threads 1"     # beside four processes that never rest
    bench/busy.py --busy 0 old/dsmoe build/dsmoe                     # on a quiet machine

Each argument is a program with options that train, bench and serve take. Prints tokens per second, medians over --rounds, and the
median over rounds of each program's ratio to the first.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent / "serve"))
import load  # noqa: E402


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def train(program, options, folder, args):
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    start = time.monotonic()
    run([program, "demo", "--steps", str(args.steps), "-q", "-o", out / "run", *options])
    return args.steps * 4 * 256 / (time.monotonic() - start)


def decode(program, options, folder, args):
    text = run([program, "bench", folder / "model", "--prompt", "0", "--generate", "64", "--repetitions", "5", "--slice", "0.3",
                "--no-limits", "--json", "-q", *options])
    return json.loads(text)["results"][0]["tokens_per_second"]


def serve(program, options, folder, args):
    server = subprocess.Popen([program, "serve", folder / "model", "--port", str(args.port), "-q", *options])
    url = f"http://127.0.0.1:{args.port}"
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(url + "/health", timeout=1)
                break
            except OSError:
                time.sleep(0.05)
        load.measure(url, 4, 50, {"temperature": 1})
        return statistics.harmonic_mean(load.measure(url, 4, 500, {"temperature": 1})[0] for _ in range(10))
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--busy", type=int, default=4, help="processes that never rest beside them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of the demo's training")
    parser.add_argument("--port", type=int, default=8731)
    parser.add_argument("--what", nargs="+", default=["train", "decode", "serve"])
    args = parser.parse_args()
    others = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(args.busy)]
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            run([args.programs[0].split()[0], "demo", "--random", "-q", "-o", folder / "model"])
            for what in args.what:
                rates = [[] for _ in args.programs]
                for _ in range(args.rounds):
                    for program, own in zip(args.programs, rates):
                        command, *options = program.split()
                        own.append({"train": train, "decode": decode, "serve": serve}[what](command, options, folder, args))
                for program, own in zip(args.programs, rates):
                    ratio = statistics.median(a / b for a, b in zip(own, rates[0]))
                    print(f"{what:6}  {statistics.median(own):8.0f} tokens/s  x {ratio:.3f}  {program}", flush=True)
    finally:
        for other in others:
            other.kill()


if __name__ == "__main__":
    main()
