#!/usr/bin/env python3
"""Tokens per second of a running server, by number of clients and way of choosing:

    dsmoe serve MODEL --device cuda --port 8001 --context 512 &
    bench/serve/load.py http://127.0.0.1:8001 --clients 1,16 --choose temperature=0 temperature=1 temperature=1,top_p=0.9

Every client asks for one answer of --tokens tokens; the slowest one ends the measurement. Prompts and seeds are fixed, so that two
versions of the server compute the same answers.
"""
import argparse
import hashlib
import json
import threading
import time
import urllib.request


def complete(url, client, tokens, choose):
    request = {"prompt": [client + 5, 7, 9, 11], "max_tokens": tokens, "seed": client, "ignore_eos": True,
               "return_token_ids": True, **choose}
    call = urllib.request.Request(f"{url}/v1/completions", json.dumps(request).encode(),
                                  {"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=600) as reply:
        answer = json.load(reply)
    return answer["usage"]["completion_tokens"], answer["choices"][0].get("token_ids")


def measure(url, clients, tokens, choose):
    answers = [None] * clients

    def run(client):
        answers[client] = complete(url, client, tokens, choose)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    if None in answers:
        raise SystemExit("a request failed")
    ids = hashlib.sha256(json.dumps([answer[1] for answer in answers]).encode()).hexdigest()[:8]
    return sum(answer[0] for answer in answers) / seconds, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", default="1,16")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--choose", nargs="+", default=["temperature=0", "temperature=1"])
    args = parser.parse_args()
    for choose in args.choose:
        fields = {name: float(value) for name, value in (field.split("=") for field in choose.split(","))}
        for name in ("top_k", "logprobs"):
            if name in fields:
                fields[name] = int(fields[name])
        for clients in map(int, args.clients.split(",")):
            runs = [measure(args.url, clients, args.tokens, fields) for _ in range(args.repeat)]
            print(f"{choose}, {clients} clients: {', '.join(f'{rate:.0f}' for rate, _ in runs)} tokens/s, "
                  f"answers {', '.join(ids for _, ids in runs)}", flush=True)


if __name__ == "__main__":
    main()
