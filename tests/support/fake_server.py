# SPDX-License-Identifier: Apache-2.0
"""A stand-in for an inference server: the same endpoints, no model, and faults on demand.

Run as ``python fake_server.py --port N [fault flags]``; standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLEEPER = "import os, sys, time; {setup}; time.sleep(600)"


def start_children(kinds: list[str]) -> None:
    """Starts helper processes that try to outlive us, each in its own way."""
    setups = {
        "plain": "pass",
        "deaf": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "session": "os.setsid()",
        "daemon": "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)",
        # The first thread ends, so the process looks dead; its child runs on.
        "headless": (
            "import ctypes, subprocess, threading; "
            "threading.Thread(target=time.sleep, args=(600,)).start(); "
            "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
            "ctypes.CDLL(None).pthread_exit(None)"
        ),
    }
    for kind in kinds:
        subprocess.Popen([sys.executable, "-c", SLEEPER.format(setup=setups[kind])])


class Handler(BaseHTTPRequestHandler):
    """Answers from the options of the server it belongs to."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the log for what the tests look for."""

    def answer(self, status: int, body: str, kind: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        state = self.server.state
        if self.path == "/health":
            ready = time.monotonic() >= state["ready_at"]
            self.answer(200 if ready else 503, "{}")
        elif self.path == "/metrics":
            lines = [
                "# TYPE fake:requests_total counter",
                f'fake:requests_total{{kind="generate"}} {state["requests"]}',
                "# TYPE fake:running gauge",
                f"fake:running {state['running']}",
            ]
            self.answer(200, "\n".join(lines) + "\n", "text/plain")
        elif self.path == "/server_info":
            self.answer(200, json.dumps({"argv": sys.argv[1:], "pid": os.getpid()}))
        else:
            self.answer(404, '{"error": "no such page"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        state = self.server.state
        if self.path == "/state":
            self.answer(200, json.dumps({"most": state["most"]}))
            return
        with state["lock"]:
            state["requests"] += 1
            state["running"] += 1
            state["most"] = max(state["most"], state["running"])
            order = state["requests"]
        if "refuse" in str(body.get("text", "")):
            self.leave()
            self.answer(400, '{"error": "refused"}')
        elif self.path == "/v1/chat/completions":
            self.stream_chat(body)
        else:
            self.stream_generate(body, order)

    def leave(self) -> None:
        """Counts a request as ended, before the client can see that it has."""
        with self.server.state["lock"]:
            self.server.state["running"] -= 1

    def event(self, value: object) -> None:
        data = value if isinstance(value, str) else json.dumps(value)
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def stream_generate(self, body: dict, order: int) -> None:
        options = self.server.options
        self.begin_stream()
        total = body["sampling_params"]["max_new_tokens"]
        done = 0
        while done < total:
            time.sleep(options.token_seconds)
            if "break off" in str(body.get("text", "")) and done:
                self.leave()
                return
            done = min(total, done + options.chunk)
            meta = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": done}
            meta |= {"order": order, "finish_reason": {"type": "length"}}
            self.event({"text": "x" * done, "output_ids": [1] * done, "meta_info": meta})
        self.leave()
        self.event("[DONE]")

    def stream_chat(self, body: dict) -> None:
        self.begin_stream()
        for n in range(body["max_tokens"]):
            time.sleep(self.server.options.token_seconds)
            self.event({"choices": [{"delta": {"content": f"w{n} "}, "finish_reason": None}]})
        self.event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        details = {"cached_tokens": 7}
        usage = {"prompt_tokens": 12, "completion_tokens": body["max_tokens"]}
        self.event({"choices": [], "usage": {**usage, "prompt_tokens_details": details}})
        self.leave()
        self.event("[DONE]")


def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--fail-after", type=float)
    parser.add_argument("--lose-port", help="end as if it were taken, unless this file exists")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--token-seconds", type=float, default=0.0)
    parser.add_argument("--chunk", type=int, default=1)
    parser.add_argument("--children", nargs="*", default=[])
    options = parser.parse_args()
    print("fake server: loading", flush=True)
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_children(options.children)
    if options.fail_after is not None:
        time.sleep(options.fail_after)
        print("fake server: out of imaginary memory", flush=True)
        sys.exit(3)
    if options.lose_port and not os.path.exists(options.lose_port):
        open(options.lose_port, "w").close()
        print("OSError: [Errno 98] Address already in use", flush=True)
        sys.exit(1)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    server.options = options
    server.state = {
        "ready_at": time.monotonic() + options.ready_after,
        "requests": 0,
        "running": 0,
        "most": 0,
        "lock": threading.Lock(),
    }
    server.serve_forever()


if __name__ == "__main__":
    main()
