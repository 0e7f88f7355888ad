# SPDX-License-Identifier: Apache-2.0
"""Cache warming on a real server: prompts, what is measured, how it is shown."""
