# SPDX-License-Identifier: Apache-2.0
import sys

from fork.cli import main

sys.exit(main())
