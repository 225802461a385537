"""How long a user waits: for the import, and for the first solve."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIRST_SOLVE = """
import numpy as np
from tests.stopwatch import stopwatch
import jax
jax.config.update("jax_enable_x64", True)
import jaxsparse_fmt as jsf
from solvers import cg
S, b = jsf.gallery.poisson(10), np.ones(1000)
clock = stopwatch()
sol = cg(jsf.from_scipy(S), b, rtol=1e-8)
sol.x.block_until_ready()
print(clock())
assert sol.success
"""


def seconds(code: str) -> float:
    """What the code prints in a process that finds no program kept."""
    command, fresh = [sys.executable, "-c", code], os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    root = Path(__file__).parents[2]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=fresh, cwd=root).stdout)


@pytest.mark.clock
def test_the_first_solve_takes_at_most_three_seconds_with_its_compilation():
    assert any(seconds(FIRST_SOLVE) <= 3.0 for _ in range(10))  # whatever else the machine's host is at
