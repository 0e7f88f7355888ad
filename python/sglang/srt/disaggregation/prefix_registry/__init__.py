# SPDX-License-Identifier: Apache-2.0
"""What other instances of a PD deployment have cached (``--enable-cross-instance-cache-sync``).

A prefill instance publishes which KV pages its prefix cache holds, by their hashes; a
decode instance keeps a registry of them, which predicts when a prompt's KV will be ready
and tells routers where a prompt is cached. Hints only: results never depend on them.

Where does my code go?

* ``settings``    flags, their form and their check before anything is loaded
* ``wire``        messages and their bytes
* ``digests``     page hashes of token ids
* ``table``       the set of digests; ``registry`` asks it for prefixes
* ``tap``         what a tree core tells, on the scheduler's thread
* ``translate``   from that to operations; ``history`` numbers, remembers, replays
* ``publisher``   sockets and thread of the sending side; ``prefill_side`` builds it
* ``stream``      one publisher's history as read: gaps, restarts, healing
* ``subscriber``  sockets and thread of the reading side; ``decode_side`` builds it
* ``discovery``   endpoints over the PD bootstrap; ``endpoints`` addresses and keys
* ``ready_model`` when a prompt's KV will be ready; ``prealloc_order`` the queue by it
* ``http_api``    the estimate for routers; ``metrics`` both sides' numbers,
  ``stream_report`` those of one stream

``wire`` to ``stream`` know no sockets and no scheduler; nothing imports upwards.
"""
