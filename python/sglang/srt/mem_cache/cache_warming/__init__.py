# SPDX-License-Identifier: Apache-2.0
"""Cache warming: listed prompts are made ready while the scheduler idles.

Where things are:
    settings.py     flags and their start-up check
    prompt_file.py  the prompts file and its entries, checked without a tokenizer
    render.py       an entry's token ids, as a request with that prompt has them
    entry.py        one entry's state
    listing.py      the entries by name and in order, and their check
    prefix_index.py which prefixes are warmed (or hinted): lengths and sizes
    steps.py        what the ranks are told to do, one step an idle iteration
    step_size.py    tokens of a step, so that it takes about so long
    planner.py      decides the next step; runs on the rank that receives input
    tree.py         look-ups and removals in the KV tree
    lora_ids.py     ids of loaded adapters
    request.py      the internal prefill request of one chunk
    pins.py         tree locks of pinned entries, on every rank
    hints.py        the order of the waiting queue by hinted prefixes (tree mode)
    warmer.py       joins these to a scheduler; called by the patched places
    factory.py      builds the warmer, or refuses with a reason
    metrics.py      Prometheus metrics
    control.py      requests of the endpoint, answered in the scheduler
    http_api.py     the endpoint

Layers import downwards only: planner.py and what stands above it in this list
know nothing of the scheduler.
"""
