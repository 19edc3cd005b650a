"""A proxy that passes requests on to the server and writes each as one JSON line."""

import http.client
import http.server
import json
import threading

KEPT = {"accept", "content-type", "accept-encoding"}


class Recorder:
    """Listens on a port of its own; `lines` holds what was recorded."""

    def __init__(self, target_port):
        self.lines = []
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                upstream = http.client.HTTPConnection("127.0.0.1", target_port, timeout=120)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                upstream.request(self.command, self.path, body or None, headers)
                answer = upstream.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                recorder.lines.append(
                    {
                        "method": self.command,
                        "path": self.path,
                        "headers": {k: v for k, v in sorted(headers.items()) if k.lower() in KEPT},
                        "body": json.loads(body) if body else None,
                        "status": answer.status,
                    }
                )

            do_GET = do_POST = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            for line in self.lines:
                file.write(json.dumps(line, sort_keys=True) + "\n")
