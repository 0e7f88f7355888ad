# SPDX-License-Identifier: Apache-2.0
"""A publisher process that the benchmark drives over its standard input.

    python worker.py UPDATES_PORT SYNCS_PORT SEND_UPDATES

Commands: ``fill BLOCKS FLUSH`` offers that many blocks, ``trickle COUNT INTERVAL_MS`` single
updates of 4 blocks, each answered with one JSON line. Times are of the system's monotonic clock.
"""

from __future__ import annotations

import json
import random
import sys
import time

from sglang.srt.disaggregation.prefix_registry.history import History, Identity
from sglang.srt.disaggregation.prefix_registry.publisher import Publisher
from sglang.srt.disaggregation.prefix_registry.translate import Translator

# A tree node's pages, as a prompt's suffix brings them.
NODE_BLOCKS = 32


def main(ports: tuple[int, int], send_updates: int) -> None:
    history = History(Identity("m", "float32/auto", 16, "token", "bench", 0))
    publisher = Publisher(
        history,
        Translator(16, bigram=False),
        host="127.0.0.1",
        ports=ports,
        queue_blocks=2**31,
        send_updates=send_updates,
    )
    chance = random.Random(ports[0])
    print(json.dumps({"ready": time.monotonic()}), flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "fill":
            blocks, flush = map(int, rest)
            nodes = [
                ("node_stored", 1, [chance.randbytes(32).hex() for _ in range(NODE_BLOCKS)])
                for _ in range(blocks // NODE_BLOCKS)
            ]
            a_flush = max(1, flush // NODE_BLOCKS)
            start = time.monotonic()
            for first in range(0, len(nodes), a_flush):
                events = nodes[first : first + a_flush]
                publisher.offer(events, len(events) * NODE_BLOCKS)
            offered = time.monotonic()
            while publisher.queued_blocks:
                time.sleep(0.001)
            answer = {"start": start, "offered": offered, "seq": history.seq}
        else:
            count, interval = int(rest[0]), float(rest[1]) / 1e3
            first, times = history.seq, []
            for _ in range(count):
                pages = [chance.randbytes(32).hex() for _ in range(4)]
                times.append(time.monotonic())
                publisher.offer([("node_stored", 1, pages)], 4)
                time.sleep(interval)
            while publisher.queued_blocks:
                time.sleep(0.001)
            answer = {"first": first + 1, "times": times, "blocks": history.num_blocks}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main((int(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3]))
