# SPDX-License-Identifier: Apache-2.0
"""Builds the fork: a pinned SGLang release with our edits and modules in it.

`python -m fork` is the command line (`fork.cli`), `fork.backend` the PEP 517/660 backend. The
pieces, lowest first: `errors`, `repo`, `patches` (what the files say), `statements`, `anchors`,
`edits` (one upstream file), `fetch`, `wheel` (the release), `plan` (the whole result, in memory),
`tree`, `backend`, `export`, `bump` (what is written).
"""
