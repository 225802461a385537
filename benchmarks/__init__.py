"""Measurements, in CPU time on a CPU: a thread of BLAS that waits spins some 30 ms, in the next call's time."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
