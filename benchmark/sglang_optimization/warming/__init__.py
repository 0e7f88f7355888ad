# SPDX-License-Identifier: Apache-2.0
"""Cache warming on a real server.

Where does my code go?

* ``prompts``   prompts of a wanted length, and open-loop traffic
* ``measure``   what is done with a running server
* ``first``     first part: the first requests of listed prompts, by mode
* ``cost``      second part: what warming costs real traffic
* ``report``    tables, targets and plots
* ``command``   options to servers, servers to rows
"""
