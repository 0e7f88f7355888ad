# SPDX-License-Identifier: Apache-2.0
"""Cost of the speculative metrics, and their dashboard drawn from real scrapes.

``cost`` times the code that runs in a step, ``served`` measures steps of a real server and keeps
its scrapes, ``promql`` evaluates the dashboard's queries on them, ``draw`` draws its panels.
"""
