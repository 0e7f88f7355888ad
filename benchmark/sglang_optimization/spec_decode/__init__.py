# SPDX-License-Identifier: Apache-2.0
"""Offline replay of draft proposers.

``samples`` and ``workloads`` supply texts, ``drafts`` says what a draft is and how it is verified,
``proposers`` and the modules named after a project adapt one proposer each, ``replay`` measures
acceptance and cost, ``batch`` the cost of a step of many requests, ``engine`` a real server,
``command`` is the command line.
"""
