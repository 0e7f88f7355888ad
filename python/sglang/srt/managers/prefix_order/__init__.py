# SPDX-License-Identifier: Apache-2.0
"""Longest-prefix order at any queue length, with a bound on waiting.

Where does my code go?

* ``config``        the flag's keys and their checks; imports nothing heavy
* ``entry``         what is remembered about one waiting request
* ``watch``         which remembered matches a tree change can have changed
* ``queue_diff``    what the scheduler did to the queue between two calls
* ``sorted_queue``  the order itself, under single changes
* ``fcfs_cost``     what requests would cost in order of arrival
* ``aging``         which requests have waited long enough
* ``order``         the policy: ties the above together, siblings
* ``factory``       builds it for a ``SchedulePolicy``; alone knows upstream's types

Each file imports only from those above it.
"""
