# SPDX-License-Identifier: Apache-2.0
"""Generated tokens in the prefix cache before their request finishes.

    settings.py  flags and their check at start-up
    factory.py   builds the sharer of a scheduler, or refuses with the reason
    sharer.py    when a running request is shared, and what a retracted one keeps
    publish.py   one insertion into the tree
    spans.py     which cached tokens are there because of it
    weights.py   what a weight update means for running requests
    metrics.py   Prometheus counters

See docs/spec-radix-sharing.md.
"""
