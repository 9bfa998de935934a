"""Needs more memory than there is, unless its micro-batch is small."""

import sys

if int(sys.argv[1]) > 4:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
