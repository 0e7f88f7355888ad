# SPDX-License-Identifier: Apache-2.0
"""Early sharing of generated tokens on a real server.

agents.py   requests that continue one another's running output
command.py  arms, parts, tables
"""
