# SPDX-License-Identifier: Apache-2.0
"""The process with the imports of a scheduler, whose copies run scripts; see ``copies.py``."""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path

from harness.fork_server import serve_forks

IMPORTS = (
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",
    "sglang.srt.server_args",
    "sglang.srt.speculative.ngram_worker",
    "transformers.models.llama.modeling_llama",
)


def run(arguments: list[str], environment: dict[str, str], log: int) -> None:
    """Runs the script as ``python ARGUMENTS`` and exits."""
    status = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        # As for a script: its own folder first, and what PYTHONPATH names.
        sys.path[:0] = [str(Path(arguments[0]).parent), *environment["PYTHONPATH"].split(":")]
        runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in IMPORTS:
        importlib.import_module(name)
    asked, (log_file,) = serve_forks(socket.socket(fileno=int(sys.argv[1])))
    run(**asked, log=log_file)
