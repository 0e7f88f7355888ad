# SPDX-License-Identifier: Apache-2.0
"""Small models for tests, benchmarks and the demo, made on the spot and cached.

``smollm2``  SmolLM2-135M-Instruct from a package of the package index (a real model).
``tiny``     two random Llama layers over a byte-level tokenizer (seconds, no download).
``folder``   the cache both share: checksummed, locked, never half made.

Run as ``PYTHONPATH=tools python -m models.smollm2`` or import ``models.tiny``.
"""
