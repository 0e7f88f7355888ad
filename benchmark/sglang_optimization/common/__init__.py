# SPDX-License-Identifier: Apache-2.0
"""What every ``bench_*.py`` shares: command line, tables, JSON, plots, machine facts.

Where does my code go?

* ``cli``      option types and the entry point that turns errors into exit codes
* ``machine``  facts about the machine and the source that a result was measured on
* ``result``   the JSON file of a run (schema, reading, writing), tables as Markdown
* ``table``    a result table on the terminal and the same as Markdown
* ``progress`` a progress bar on a terminal, plain lines elsewhere
* ``plot``     matplotlib set-up and saving
* ``stats``    percentiles and repeated timings

A benchmark's own logic stays in its own package beside this one; nothing here
imports from those packages.
"""
