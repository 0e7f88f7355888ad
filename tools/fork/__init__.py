# SPDX-License-Identifier: Apache-2.0
"""Builds the fork: a pinned SGLang release with our edits and modules in it.

`python -m fork` is the command line (`fork.cli`), `fork.backend` the PEP 517/660 backend. The
pieces, lowest first: `errors`, `repo`, `patches` (what the files say); `statements`, `anchors`,
`edits` (one upstream file); `plan` (the whole result, in memory); `fetch`, `dist_info`, `wheel`,
`tree` (the release, and what is made of it); `export`, `rehash`, `bump` (the life of a patch);
`work`, `cli`, `backend`.
"""

import sys

# Before an import fails in a way that does not say so.
if sys.version_info < (3, 11):  # noqa: UP036
    raise SystemExit(
        f"fork: needs Python 3.11 or newer, this is {sys.version_info[0]}.{sys.version_info[1]}"
    )
