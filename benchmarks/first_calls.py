"""The first calls of a process: seconds to import, to compile and to answer, against jax.scipy and lineax.

    python -m benchmarks first_calls --json out.json          on two cores, some five minutes

Every figure is of a process of its own, the median of three. The sides take turns, so that load on the machine
falls on all of them. Peers solve with the same matrix, as a function v -> A @ v. "CPU" is the processor's time of the
first call of the jitted function, from tracing to the answer; "of jax.scipy" is its ratio. The persistent cache is off
unless a row says "kept": then an earlier process has filled it. Kernels of Numba are compiled before the first row.

"Ways to compile" compares a jit of the user's, one with XLA's older emitters, and an eager call, which takes those by
itself on a CPU. On a GPU the seconds that matter are those of the wall, which these rows have too.
"""

import argparse
import functools
import statistics
import tempfile
from collections.abc import Iterator

from benchmarks import report
from benchmarks.report import Row

START = """
import json, os, sys, time
began = time.time()
import jax
jax.config.update("jax_enable_x64", True)
jax_imported = time.time() - began
import jax.numpy as jnp, jax.scipy.sparse.linalg as peer, numpy as np, scipy.sparse as sp

def seconds(f):
    wall, cpu = time.time(), time.process_time()
    jax.block_until_ready(f())
    return {"wall": time.time() - wall, "cpu": time.process_time() - cpu}

def matrix(n):
    S = sp.diags_array([4 * np.ones(n), -np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1, -1])
    return jsf.from_scipy(sp.csr_array(S), "csr"), jnp.ones(n)

before = time.time()
import jaxsparse_fmt as jsf
library_imported = time.time() - before
"""
SOLVE = """
import solvers
A, b = matrix({n})
jax.block_until_ready((jax.jit(lambda x: x + 1)(b), A @ b))
if "{side}" == "lineax":
    import lineax
    def x_of(A, b):
        tags = lineax.positive_semidefinite_tag if "{method}" == "cg" else ()
        operator = lineax.FunctionLinearOperator(lambda v: A @ v, jax.ShapeDtypeStruct(b.shape, b.dtype), tags)
        solver = {{"cg": lineax.CG, "gmres": lineax.GMRES, "bicgstab": lineax.BiCGStab}}["{method}"](1e-8, 0.0)
        return lineax.linear_solve(operator, b, solver, throw=False).value
elif "{side}" == "jax.scipy":
    x_of = lambda A, b: peer.{method}(lambda v: A @ v, b, tol=1e-8)[0]
else:
    x_of = lambda A, b: solvers.{method}(A, b, rtol=1e-8).x
loss = lambda data: jnp.sum(x_of(A.with_data(data), b) ** 2)
d = jnp.ones_like(A.data)
older = {{"xla_cpu_use_fusion_emitters": False}}
f = {{
    "": lambda: jax.jit(x_of)(A, b),
    "older": lambda: jax.jit(x_of, compiler_options=older)(A, b),
    "eager": lambda: x_of(A, b),
    "grad": lambda: jax.jit(jax.grad(loss))(A.data),
    "hessian": lambda: jax.jit(lambda data: jax.jvp(jax.grad(loss), (data,), (d,)))(A.data),
}}["{of}"]
print(json.dumps(seconds(f)))
"""
IMPORT = 'print(json.dumps({"jax": jax_imported, "library": library_imported}))'
EAGER = """
import timeit
import scipy.sparse.linalg, solvers
A, b = matrix(1000)
dense, v = jnp.eye(32), jnp.ones(32)
S, c = A.to_scipy(), np.ones(1000)
calls = {
    "A @ x": lambda: A @ b,
    "A.T @ x": lambda: A.T @ b,
    "dense @ x (32 × 32)": lambda: dense @ v,
    "A.with_data(A.data)": lambda: A.with_data(A.data),
    "cg": lambda: solvers.cg(A, b, rtol=1e-8).x,
    "SciPy's cg": lambda: scipy.sparse.linalg.cg(S, c, rtol=1e-8)[0],
}
for f in calls.values():
    jax.block_until_ready(f())
least = lambda f: min(timeit.repeat(lambda: jax.block_until_ready(f()), number=100, repeat=7)) / 100
print(json.dumps({name: least(f) for name, f in calls.items()}))
"""
METHODS = ("cg", "bicgstab", "gmres", "minres", "idrs", "lsmr")
SIDES = ("ours", "jax.scipy", "lineax")
SOLVES = (("cg", ""), ("gmres", ""), ("bicgstab", ""), ("cg", "grad"), ("gmres", "grad"), ("cg", "hessian"))


def child(code: str, cache: str | None = None) -> dict[str, float]:
    """The figures that a fresh process prints; `cache` as in `report.fresh`."""
    return report.fresh(START + code, cache=cache)


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(f[name] for f in found) for name in found[0]}


def first_solves(rounds: int) -> Iterator[Row]:
    for method, form in SOLVES:
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side in SIDES:
                found[side].append(child(SOLVE.format(n=400, side=side, method=method, of=form)))
        cpu = {side: medians(found[side])["cpu"] for side in SIDES}
        name = {"": method, "grad": f"grad of {method}", "hessian": f"hessian·v of {method}"}[form]
        yield {"call": name} | cpu | {"ratio": cpu["ours"] / cpu["jax.scipy"]}


def ways(rounds: int) -> Iterator[Row]:
    """CPU and wall seconds of each method's first call, in a user's jit, with the older emitters, and eager."""
    for method in METHODS:
        for form, name in (("", "jit"), ("older", "jit, older emitters"), ("eager", "eager")):
            code = SOLVE.format(n=400, side="ours", method=method, of=form)
            found = medians([child(code) for _ in range(rounds)])
            yield {"call": method, "compiled by": name} | found


def others(rounds: int) -> list[Row]:
    code = SOLVE.format(n=1000, side="ours", method="cg", of="")
    with tempfile.TemporaryDirectory() as cache:
        child(code, cache)
        kept = medians([child(code, cache) for _ in range(rounds)])
    cold, imports = (medians([child(code) for _ in range(rounds)]) for code in (code, IMPORT))
    rows = [
        {"what": "import jax", "seconds": imports["jax"]},
        {"what": "import jaxsparse_fmt, after that", "seconds": imports["library"]},
        {"what": "first cg, n = 1000, wall", "seconds": cold["wall"]},
        {"what": "first cg, n = 1000, programs kept, wall", "seconds": kept["wall"]},
    ]
    return rows + [{"what": f"{name}, warm", "seconds": s} for name, s in child(EAGER).items()]


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    rounds = 1 if args.small else 3
    child(SOLVE.format(n=400, side="ours", method="cg", of="hessian"))  # Numba compiles
    made = {"first calls, n = 400": first_solves, "ways to compile": ways, "starts and warm calls": others}
    return {name: functools.partial(rows, rounds) for name, rows in made.items()}
