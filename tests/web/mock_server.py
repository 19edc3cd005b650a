#!/usr/bin/env python3
"""A stand-in for `dsmoe serve` that the page cannot tell from it: same paths, same JSON (docs/serving.md), invented routes.

It can do what the real one does only in trouble: `Mock.fault` makes the next requests fail. Routes are a function of
(token, layer), so that a test can say beforehand which expert a token must show.
"""
import argparse
import collections
import contextlib
import functools
import hashlib
import http.server
import json
import mimetypes
import pathlib
import re
import socket
import threading
import time
import urllib.parse

WEB = pathlib.Path(__file__).parents[2] / "web"
# What the server sends too: nothing from elsewhere, nothing inline.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
STORY = """ The fox looked at the kite for a long time. It was red, with a tail of paper bows, and nobody in the forest had seen one before.

"May I hold it?" asked Tom. He was an owl, and owls do not need kites; they have wings of their own. But he had never held a string with the wind at the other end.

So they took turns until it was dark: first 10 steps for Mia, then 10 steps for Tom, 20 in all. When the moon rose they tied the kite to the mill, where it stayed – naïve, brave and <b>very</b> red 🪁 – until morning."""


def tokens_of(text):
    """Words with the blank before them, cut after six letters; numbers digit by digit; the rest character by character."""
    return re.findall(r" ?[^\W\d_]{1,6}|\d|\s|[^\w\s]|_", text)


def routes_of(token, shape):
    """Experts and gates [layers][K] of a token, strongest first."""
    return routes_in(token, tuple(shape["layers"]), shape["experts"], shape["k"])


@functools.lru_cache(maxsize=4096)
def routes_in(token, layers, num_experts, k):
    experts, gates = [], []
    for layer in layers:
        digest = hashlib.sha256(f"{token} {layer}".encode()).digest()
        order = sorted(range(num_experts), key=lambda e: hashlib.sha256(digest + bytes([e % 256, e // 256])).digest())
        # Few letters lead to few experts: the load must not look even.
        order.insert(0, order.pop(order.index(digest[0] % num_experts // (1 + digest[1] % 3))))
        scores = [0.5 / (1.4 + digest[2] % 7) * 0.72**rank for rank in range(k)]
        experts.append(order[:k])
        gates.append([round(score, 4) for score in scores])
    return experts, gates


def score_of(token, alternatives, is_chat):
    """Log-probabilities of a token in the form of either route: it is the second likeliest, and others stand around it."""
    top = [("else", -0.4), (token, -1.25), *((f" w{i}", -2.0 - i) for i in range(alternatives - 2))][:alternatives]
    if not is_chat:
        return {"tokens": [token], "token_logprobs": [-1.25], "top_logprobs": [dict(top)], "text_offset": [0]}
    return {"content": [{"token": token, "logprob": -1.25, "bytes": [], "top_logprobs": [{"token": text, "logprob": score, "bytes": []} for text, score in top]}]}


class Mock:
    """The state behind the handler."""

    def __init__(self, layers=27, experts=64, k=6, delay=0.02):
        self.shape = {"layers": list(range(1, layers + 1)), "experts": experts, "k": k}
        self.delay = delay
        self.answer = STORY
        self.key = ""
        self.fault = ""  # loading | busy | draining | refused | midstream | cut
        self.training = None  # while loading: {"step", "total", "loss", "seconds_left"}
        self.template = True
        self.context = 4096
        self.requests = []  # bodies of what was asked
        self.left = 0  # clients that went away before their answer was complete
        self.lock = threading.Lock()
        self.reset()

    def reset(self):
        with self.lock:
            self.taken = [[collections.Counter() for _ in range(self.shape["experts"])] for _ in self.shape["layers"]]
            self.first = [[0] * self.shape["experts"] for _ in self.shape["layers"]]
            self.forwarded = collections.Counter()
            self.since = time.time()

    def count(self, token, experts):
        with self.lock:
            self.forwarded[token] += 1
            for layer, chosen in enumerate(experts):
                self.first[layer][chosen[0]] += 1
                for expert in chosen:
                    self.taken[layer][expert][token] += 1

    def load(self):
        with self.lock:
            layers = []
            for number, counters, first in zip(self.shape["layers"], self.taken, self.first):
                tokens = [sum(counter.values()) for counter in counters]
                fair = sum(tokens) / len(tokens)
                ratio = [round(count / fair, 4) if fair else 0 for count in tokens]
                layers.append({"layer": number, "num_experts": len(tokens), "tokens": tokens, "first": list(first), "ratio": ratio, "max_ratio": max(ratio)})
            window = {"seconds": time.time() - self.since, "tokens": sum(self.forwarded.values())}
        return {"object": "expert_load", "num_experts_per_tok": self.shape["k"], "max_experts_per_tok": self.shape["experts"], "window": window, "layers": layers}

    def taken_most(self, layer, expert, limit, sort, floor):
        with self.lock:
            counter = self.taken[self.shape["layers"].index(layer)][expert]
            total, everything = sum(counter.values()), sum(self.forwarded.values())
            tokens = []
            for text, count in counter.most_common():
                lift = count / total / (self.forwarded[text] / everything)
                tokens.append({"id": 1, "text": text, "count": count, "share": count / total, "lift": lift})
        tokens = sorted((token for token in tokens if token["count"] >= floor), key=lambda token: -token[sort])[:limit]
        return {"object": "expert_tokens", "layer": layer, "expert": expert, "total": total, "tokens": tokens}

    def models(self):
        shape = self.shape
        return {"object": "list", "data": [{
            "id": "mock-moe", "object": "model", "created": 0, "owned_by": "dsmoe", "max_model_len": self.context,
            "num_experts_per_tok": shape["k"], "max_experts_per_tok": shape["experts"], "num_experts": shape["experts"],
            "moe_layers": shape["layers"], "has_chat_template": self.template}]}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def mock(self):
        return self.server.mock

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json", headers=()):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message, headers=(), code=None):
        self.reply(status, {"error": {"message": message, "type": "error", "param": None, "code": code}}, headers=headers)

    def is_let_in(self):
        if not self.mock.key or self.headers.get("Authorization") == f"Bearer {self.mock.key}":
            return True
        self.refuse(401, "give the key as 'Authorization: Bearer KEY'")
        return False

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/" or url.path.startswith("/assets/"):
            return self.file("index.html" if url.path == "/" else url.path[len("/assets/"):])
        if not self.is_let_in():
            return None
        if self.mock.fault == "loading" and url.path == "/health":
            return self.reply(503, {"status": "loading", **({"training": self.mock.training} if self.mock.training else {})})
        if self.mock.fault == "loading":
            return self.refuse(503, "the model is still loading", [("Retry-After", "1")], code="loading")
        if url.path == "/v1/models":
            return self.reply(200, self.mock.models())
        if url.path == "/v1/experts":
            return self.reply(200, self.mock.load())
        if url.path == "/v1/experts/tokens":
            query = urllib.parse.parse_qs(url.query)
            number = lambda name, default=None: int(query[name][0]) if name in query else default
            return self.reply(200, self.mock.taken_most(number("layer"), number("expert"), number("limit"), query.get("sort", ["count"])[0], number("min_count", 1)))
        return self.refuse(404, f"There is no {url.path}.")

    def file(self, name):
        path = WEB / name
        if "/" in name or not path.is_file():
            return self.refuse(404, f"There is no {name}.")
        kind = {".js": "text/javascript"}.get(path.suffix) or mimetypes.guess_type(name)[0]
        return self.reply(200, path.read_bytes(), f"{kind}; charset=utf-8", [("Cache-Control", "no-store")])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if not self.is_let_in():
            return None
        if self.path == "/v1/experts/reset":
            self.mock.reset()
            return self.reply(200, self.mock.load())
        if self.path == "/tokenize":
            tokens = [1] * len(tokens_of(body["prompt"]))
            return self.reply(200, {"tokens": tokens, "count": len(tokens), "max_model_len": self.mock.context})
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            return self.refuse(404, f"There is no {self.path}.")
        if self.mock.fault == "busy":
            return self.refuse(429, "the queue is full", [("Retry-After", "2")])
        if self.mock.fault == "draining":
            return self.refuse(503, "the server is shutting down")
        if self.mock.fault == "refused":
            return self.refuse(400, "the prompt has 5,120 tokens and max_tokens is 256; together they exceed the context of 4,096")
        self.mock.requests.append(body)
        is_chat = "messages" in body
        prompt = tokens_of("".join(message["content"] for message in body["messages"]) if is_chat else body["prompt"])
        left = self.mock.context - len(prompt)
        if body.setdefault("max_tokens", max(left, 1)) > left:
            return self.refuse(400, f"this model's maximum context length is {self.mock.context} tokens; {len(prompt)} are in the prompt", code="context_length_exceeded")
        return self.answer(body)

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.stream(body)
            self.write_raw(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.mock.left += 1
            self.close_connection = True

    def write_raw(self, data):
        self.wfile.write(data)
        self.wfile.flush()

    def event(self, data):
        line = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self.write_raw(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def stream(self, body):
        mock, is_chat = self.mock, "messages" in body
        prompt = tokens_of(body["messages"][-1]["content"] if is_chat else body["prompt"])
        shape = {**mock.shape, "k": body.get("num_experts_per_tok", mock.shape["k"])}
        answer = tokens_of(mock.answer.lstrip() if is_chat else mock.answer)
        ended = len(answer) <= body["max_tokens"]
        answer = answer[: body["max_tokens"]]

        def chunk(text, waiting, start, finish=None):
            """A part with text, and the routes of the tokens forwarded since the last one."""
            routes = [routes_of(token, shape) for token in waiting]
            for token, (experts, _) in zip(waiting, routes):
                mock.count(token, experts)
            choice = {"index": 0, "finish_reason": finish, **({"delta": {"content": text}} if is_chat else {"text": text})}
            alternatives = body.get("top_logprobs" if is_chat else "logprobs")
            if alternatives and finish is None:
                choice["logprobs"] = score_of(text, alternatives, is_chat)
            if waiting:
                choice |= {"routed_experts": [experts for experts, _ in routes], "routed_gates": [gates for _, gates in routes],
                           "routed_tokens": [1] * len(waiting), "routed_text": waiting, "routed_start": start, "routed_prompt": len(prompt)}
            self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "mock-moe", "choices": [choice]})

        if is_chat:
            self.event({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        waiting, start = prompt, 0
        for i, token in enumerate(answer):
            if mock.fault == "midstream" and i == 12:
                return self.event({"error": {"message": "the engine stopped", "type": "server_error", "param": None, "code": None}})
            if mock.fault == "cut" and i == 12:
                raise BrokenPipeError
            time.sleep(mock.delay)
            chunk(token, waiting, start)
            start += len(waiting)
            waiting = [token]
        chunk("", waiting if ended else [], start, "stop" if ended else "length")
        self.event({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(answer), "total_tokens": len(prompt) + len(answer)}})
        return self.event("[DONE]")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, *arguments):
        self.connections = set()
        super().__init__(*arguments)

    def process_request(self, request, client_address):
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        pass  # a client that leaves is no news

    def stop(self):
        """Gone, with its open connections: browsers keep some for later."""
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def start(mock, port=0):
    """Serves in a thread; returns the server (its address is server.url)."""
    server = Server(("127.0.0.1", port), Handler)
    server.mock = mock
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--k", type=int, default=6)
    parser.add_argument("--delay", type=float, default=0.03)
    args = parser.parse_args()
    server = start(Mock(args.layers, args.experts, args.k, args.delay), args.port)
    print(server.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
