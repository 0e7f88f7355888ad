# SPDX-License-Identifier: Apache-2.0
"""Measures the cross-instance prefix registry.

* ``tree``       a real tree with events on, without a model (also used by the tests)
* ``tables``     registering, removing and looking up, beside Dynamo's radix tree
* ``transport``  a publisher process and a reader: throughput, lag, recovery
* ``worker``     that publisher process
* ``dynamo_indexer``  the same way into Dynamo's standalone indexer
* ``cost``       what publishing costs the scheduler's thread
* ``scheduler_cost``  what publishing costs a prefill scheduler that publishes in every other turn
* ``scheduler_turns``  that scheduler's process
* ``pair``       served instances, and requests through a prefill and a decode instance
* ``publishing``  what publishing costs a served prefill instance
* ``ordering``   what decode's order by prediction gains
* ``command``    options; ``report`` tables, findings and plot
"""
