"""The end of a solve that falls too slowly for its budget: the steps that another way would cost."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from solvers.core.stopping import Loop
from solvers.core.vectors import anyone
from solvers.solution import Status


class Pace(NamedTuple):
    """How fast a solve with a `budget` falls: its smallest norm so far, and the same as it was after `k` steps."""

    k: Array
    norm: Array
    least: Array


def paced(loop: Loop, active: Array, tolerance: Array, budget: Array) -> Loop:
    """The loop with its pace; MAXITER in all columns if one of them would take more than `budget` further steps.

    The rate is that of the last half of all steps, first after budget / 2 steps and then whenever their number has
    doubled. So a solve that does not fall wastes half of what the other way costs, and one that is predicted to end
    within the budget goes on. At first twice the budget is allowed, since Krylov methods get faster.
    """
    k, norm, least = loop.pace
    least = jnp.where(loop.norm < least, loop.norm, least)
    due = active & (loop.k >= jnp.maximum(2 * k, budget / 4))
    fall, rest = jnp.log(norm / least), jnp.log(least / tolerance)
    allowed = jnp.where(loop.k < budget, 2, 1) * budget
    is_slow = due & (loop.k >= budget / 2) & ~(rest * (loop.k - k) <= allowed * fall)
    pace = Pace(jnp.where(due, loop.k, k), jnp.where(due, least, norm), least)
    return loop._replace(code=jnp.where(active & anyone(is_slow), jnp.int32(Status.MAXITER), loop.code), pace=pace)
