# SPDX-License-Identifier: Apache-2.0
"""A publisher to be killed: reads commands, publishes, answers with what it holds.

python publisher_process.py PORT
"""

from __future__ import annotations

import hashlib
import random
import sys

from sglang.srt.disaggregation.prefix_registry.digests import hash_pages_in_python
from sglang.srt.disaggregation.prefix_registry.history import History, Identity
from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
from sglang.srt.disaggregation.prefix_registry.translate import Translator

PROMPT = list(range(64))


def main(port: int) -> None:
    from array import array

    history = History(Identity("m", "float32/auto", 4, "token", "i", 0), replay_batches=1000)
    publisher = Publisher(
        history,
        Translator(4, bigram=False),
        host="127.0.0.1",
        ports=(port, port + 1),
        send_updates=100,
        heartbeat_s=0.2,
    )
    held: dict[str, None] = {}
    raw = hash_pages_in_python(array("q", PROMPT), 4, b"", False)
    prompt = [raw[i : i + 32].hex() for i in range(0, len(raw), 32)]

    def change(kind: str, pages: list[str]) -> None:
        publisher.offer([(kind, 1, pages)], len(pages))
        for page in pages:
            if kind == "node_stored":
                held[page] = None
            else:
                held.pop(page, None)

    def summary() -> str:
        digests = sorted(bytes.fromhex(page) for page in held)
        return f"{len(digests)} {hashlib.sha256(b''.join(digests)).hexdigest()}"

    for line in sys.stdin:
        command, *rest = line.split()
        answer = "ready"
        if command == "churn":
            seed, count = map(int, rest)
            chance = random.Random(seed)
            for i in range(count):
                pages = [hashlib.sha256(b"%d %d %d" % (seed, i, j)).hexdigest() for j in range(3)]
                change("node_stored", pages)
                others = [page for page in list(held)[:40] if page not in prompt]
                if len(held) > 3000 and others:
                    change("node_removed", chance.sample(others, min(4, len(others))))
            answer = summary()
        elif command == "remember":
            change("node_stored", prompt)
            answer = " ".join(map(str, PROMPT))
        elif command == "forget":
            change("node_removed", prompt)
        print(answer, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
