"""What each way to solve a system costs, in seconds: from bytes, kernels and the factors' entries, by device."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from solvers.facts import ROUGH, Facts

PROGRAM = 0.05  # seconds that count for a program; it compiles in a second, and serves many solves
DEARER = 4  # times the seconds of a way that was left: it goes on before a way that costs more
BLOCK = 16  # rows of a block of `block_jacobi`
UNSURE = 3  # times the estimate of a way whose steps are guessed: it takes the place of one whose steps are known

# What is measured of an Intel Xeon of 2 cores, of an H200, and of the host. In seconds, but
#   bandwidth: bytes a second that products and passes over vectors move;
#   kernel, call, exchange: a kernel at least; from a call to a compiled solve and back; what waits for other devices;
#   multigrid, multigrid_row, multigrid_entry: its set-up, and what an unknown and an entry of A add;
#   level: one of a triangular solve;
#   work: multiplications a second of SuperLU;
#   factor, entry, solve, count: for an entry of the factors and one of A, one of the factors in a solve, one of A when
#     the entries of its factors are counted;
#   ilu_entry, ilu: for an entry of A in incomplete factors, or twice that if whole ones are counted; they take at least
#     this part of the time of whole ones, which drop nothing, and at most twice as long;
#   dense: the singular values, divided by n³.
DEVICES: dict[str, dict[str, float]] = {
    "cpu": dict(bandwidth=1.2e10, kernel=2e-6, call=4e-4, multigrid=5e-3, level=0.0)
    | dict(multigrid_row=4e-6, multigrid_entry=1.7e-7, exchange=3e-5),
    "gpu": dict(bandwidth=2.5e12, kernel=4e-6, call=1e-3, multigrid=0.3, level=1e-5)
    | dict(multigrid_row=1e-6, multigrid_entry=0.0, exchange=2e-5),
    "host": dict(work=3.5e9, factor=3e-8, entry=1e-7, solve=2e-9, count=4e-7, dense=6e-9)
    | dict(ilu_entry=2.5e-6, ilu=0.3),
}
FILL = 6  # entries of incomplete factors over those of A, usually
# A step's products, the vectors that it moves, and its kernels; and those of a preconditioner.
STEP = {"cg": (1, 11, 5), "fcg": (1, 14, 8), "minres": (1, 20, 10), "bicgstab": (2, 22, 12), "gmres": (1, 60, 20)}
STEP |= {"idrs": (1, 30, 20), "lsmr": (2, 24, 60)}
APPLIED = {"multigrid": (4, 90, 100), "ilu": (0, 4, 10), "jacobi": (0, 2, 0), "|jacobi|": (0, 2, 0)}
APPLIED |= {"block_jacobi": (0, BLOCK + 2, 2)}


class Way(NamedTuple):
    """A method and its preconditioner."""

    method: str  # of METHODS
    M: str | None  # of MAKERS
    when: Callable[[Facts], Any]  # whether it is meant for a matrix
    why: str  # that in words
    steps: int = 100  # that it usually takes

    @property
    def name(self) -> str:
        return f"{self.method} with {self.M}" if self.M and self.method != "direct" else self.method

    @property
    def has_set_up(self) -> bool:
        return self.M in ("factors", "multigrid", "ilu")


class Trial(NamedTuple):
    """A way and its estimate, in seconds; NaN for functions."""

    way: Way
    set_up: float
    step: float
    is_floor: bool = False  # only a bound from below is known, as factors are not counted yet, nor roughly
    taken: int = 0  # steps after which it was left for another way, if it was
    has_solved: bool = False  # a system with this pattern, so that its steps are known

    @property
    def seconds(self) -> float:
        """Those that it usually takes, or took until it was left."""
        return self.set_up + (self.taken or self.way.steps) * self.step

    @property
    def rank(self) -> float:
        """By which the next trial is chosen: of two quick ones first that which compiles nothing."""
        return DEARER * self.seconds if self.taken else self.seconds + PROGRAM * (self.way.method in STEP)

    def may_follow(self, other: "Trial") -> bool:
        """Whether it may be tried after a solve by another, whose steps are known, before that other."""
        if not self.way.has_set_up:
            return self.has_solved
        return (1 if self.way.M == "factors" else UNSURE) * self.seconds < other.seconds

    def __str__(self) -> str:
        about = "" if math.isnan(self.seconds) or self.is_floor else f"; about {float(f'{self.seconds:.1g}'):g} s"
        return f"{self.way.name} ({self.way.why}{about})"


def estimate(way: Way, facts: Facts, counts: bool = False) -> Trial:
    """The trial of a way; if it `counts` the entries of factors, that takes as long as to order their columns."""
    device, host, A = DEVICES.get(facts.platform), DEVICES["host"], facts.A
    if device is None:
        return Trial(way, math.nan, math.nan)
    is_counted, is_floor = counts or "factors" in vars(facts), False
    if way.M == "factors":
        if not is_counted:
            work = facts.least_work if "least_work" in vars(facts) else 0.0
            return Trial(way, host["count"] * A.nnz + work / host["work"], 0.0, True)
        return Trial(way, device["call"] + _of_factors(facts), facts.factors[0] * host["solve"] * facts.k)
    if way.method == "singular values":
        return Trial(way, host["dense"] * facts.n**3, 0.0)
    uses = 2 if way.method == "bicgstab" else 1
    more = APPLIED.get(way.M or "", (0, 0, 0))
    products, vectors, kernels = (a + uses * b for a, b in zip(STEP[way.method], more, strict=True))
    vector = A.dtype.itemsize * facts.n * facts.k
    step = (products * (A.nbytes + 2 * vector) + vectors * vector) / (facts.devices * device["bandwidth"])
    step += kernels * device["kernel"] + products * device["exchange"] * (facts.devices > 1)
    set_up = device["call"]
    if way.M == "multigrid":
        set_up += device["multigrid"]
        set_up += (device["multigrid_row"] * facts.n + device["multigrid_entry"] * A.nnz) / facts.devices
    elif way.M == "ilu":
        whole = _of_factors(facts) if is_counted else math.inf
        rough = whole if is_counted else vars(facts).get("least_work", 0.0) * ROUGH * _times(A) / host["work"]
        least = host["ilu_entry"] * (2 if is_counted else 1) * A.nnz
        set_up += min(2 * whole, max(least, host["ilu"] * rough))
        is_floor = not is_counted and "least_work" not in vars(facts)
        step += 12 * FILL * A.nnz / device["bandwidth"] + 2 * facts.n**0.5 * device["level"]
    return Trial(way, set_up, step, is_floor)


def _of_factors(facts: Facts) -> float:
    """Seconds of a factorization."""
    (entries, work), host, A = facts.factors, DEVICES["host"], facts.A
    return work * _times(A) / host["work"] + entries * _times(A) ** 0.5 * host["factor"] + A.nnz * host["entry"]


def _times(A: Any) -> int:
    """Real multiplications for one of A's numbers."""
    return 4 if jnp.issubdtype(A.dtype, jnp.complexfloating) else 1
