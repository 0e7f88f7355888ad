#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the first interpreter that upstream has a wheel for (CPython 3.11 to 3.13) and that can
# make virtual environments. A name may exist and yet not run (a version manager's shim), so
# each is tried.
try='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
for name in python3.11 python3.12 python3.13 python3 python; do
    if path=$(command -v "$name") && "$path" -c "$try" >/dev/null 2>&1; then
        echo "$path"
        exit 0
    fi
done
echo "no usable Python: install CPython 3.11, 3.12 or 3.13 with its venv module (Debian:" >&2
echo "python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2
exit 1
