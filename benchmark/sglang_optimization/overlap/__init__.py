# SPDX-License-Identifier: Apache-2.0
"""Benchmark of dynamic overlap. Where does my code go?

* ``costs``      what a step costs on host and device, as functions of the batch
* ``in_process`` measures host costs on a scheduler in this process (``calibration.json``)
* ``calibrate``  reads measured host costs from there or from a server
* ``loop``       a discrete-event model of the scheduler's loop
* ``grid``       policies compared over a grid of costs, with the oracle
* ``engine``     the same comparison on real servers, in interleaved rounds
* ``loop_cost``  the three loops in turns of one scheduler; ``loop_turns`` is its process
* ``decision_cost`` time of one decision
* ``report``     tables and figures
* ``command``    options and parts
"""
