# SPDX-License-Identifier: Apache-2.0
"""CPU extensions of the SGLang fork.

`sgl_kernel_ext.suffix_automaton` drafts tokens for speculative decoding from the text alone.
"""
