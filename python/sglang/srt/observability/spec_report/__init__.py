# SPDX-License-Identifier: Apache-2.0
"""Where a live server's speculative decoding spends its time and its drafts.

``python -m sglang.srt.observability.spec_report URL [--interval S]`` reads the
server's ``/metrics`` twice. ``scrape`` reads, ``analysis`` reduces two scrapes to
what happened between them, ``verdicts`` says what to change, ``render`` prints.
"""
