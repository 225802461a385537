"""Ctrl-C at random times of every method: KeyboardInterrupt or a right answer, no crash, and the next call is right.

A process serves a case. It makes a new system, says "ready" and calls the solver; the parent sends the signal, so that
it also comes while the process holds Python's lock. Every second call compiles new programs. JAXSPARSE_INTERRUPTS is
the number of signals a case, by default 4; `python -m tests.solvers.test_interrupts CASE` is the process.
"""

import functools
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
import solvers
from tests.process import printed
from tests.solvers.methods import CASES

COUNT = int(os.environ.get("JAXSPARSE_INTERRUPTS", "4"))
N = 9000  # unknowns of the first system; a call takes a second at first and a tenth later
RTOL = 1e-9
HANGS = 120.0  # seconds


def solve(solver, general, S, A, b):
    """Whether the residual of a call is as the solution says."""
    sol = solver(A, b, rtol=RTOL, maxiter=6000 if general else 2000)
    true = np.linalg.norm(b - S @ np.asarray(sol.x))
    return abs(true - float(sol.residual_norm)) <= 1e-2 * true + 1e-13 * np.linalg.norm(b) and bool(np.any(sol.x))


def gradient(S, A, b):
    value, g = jax.value_and_grad(lambda b: (solvers.cg(A, b, rtol=RTOL).x ** 2).sum())(b)
    return np.linalg.norm(S @ (S @ np.asarray(g)) - 2 * b) <= 20 * RTOL * (np.sqrt(value) + np.linalg.norm(b))


def pairs(solver, S, A, b):
    sol = solver(A, 4, which="LA", maxiter=100)
    w, V = np.asarray(sol.eigenvalues), np.asarray(sol.eigenvectors)
    return np.allclose(np.linalg.norm(S @ V - V * w, axis=0), sol.residual_norms, rtol=1e-2, atol=1e-12)


def product(S, A, b):
    x, y = jax.jit(lambda A, b: jax.lax.fori_loop(0, 3000, lambda _, x: 0.25 * (A @ x), b))(A, b), b
    for _ in range(3000):
        y = 0.25 * (S @ y)
    return np.allclose(x, y, atol=1e-12)


OF_ONE_KIND = {
    "callback": functools.partial(solvers.cg, callback=lambda x: None),
    "function": lambda A, b, **options: solvers.cg(lambda v: A @ v, b, **options),
    "multigrid": lambda A, b, **options: solvers.cg(A, b, M=solvers.precond.multigrid(A), **options),
    "lsmr": solvers.lsmr,
}
# The loop of all methods is one; those here have a short recurrence, or a basis that grows.
TRIED = [case for case in CASES if case.name in ("cg", "gmres", "idrs")]
QUESTIONS = {
    **{case.name: functools.partial(solve, case.solver, case.kind == "general") for case in TRIED},
    **{name: functools.partial(solve, solver, False) for name, solver in OF_ONE_KIND.items()},
    **{"gradient": gradient, "product": product},
    "eigsh": functools.partial(pairs, solvers.eigsh),
}


def answers(name: str) -> None:
    """The process: for each line of the parent a call with the signal, and one without."""
    # JAX imports this when it lowers a program, and cannot import it again after an interrupt.
    from jaxlib.mlir.dialects import mhlo  # noqa: F401

    general = any(case.name == name and case.kind == "general" for case in CASES)
    skew, shift = (0.02, 3e-4) if general else (0.0, 1e-5)
    for n, _ in enumerate(sys.stdin, 2 * N):
        # A tridiagonal matrix: many steps, in little time each.
        S = sp.diags_array([-1.0 - skew, 2.0 + shift, skew - 1.0], offsets=[-1, 0, 1], shape=(n // 2, n // 2)).tocsr()
        b, A = np.random.default_rng(n).standard_normal(n // 2), jsf.from_scipy(S, "csr" if n % 4 else "auto")
        print("ready", flush=True)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            said = str(answer(name, S, A, b))
            signal.signal(signal.SIGINT, lambda *_: None)  # raises what still waits to be raised
        except KeyboardInterrupt:
            said = "interrupted"
        except SystemError as error:  # NumPy calls Python code of JAX's, and loses what that raises
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            said = "interrupted"
        signal.signal(signal.SIGINT, lambda *_: None)
        print(said, flush=True)
        sys.stdin.readline()
        print(answer(name, S, A, b), flush=True)


def answer(name, S, A, b):
    try:
        return QUESTIONS[name](S, A, b)
    except RecursionError:  # "Recursively calling <weakref": an entry that an interrupted call left in a cache of JAX
        jax.clear_caches()
        return QUESTIONS[name](S, A, b)


@pytest.mark.deep
@pytest.mark.parametrize("name", [*QUESTIONS, "product where Numba compiles"])
def test_an_interrupted_call_raises_or_is_right_and_so_is_the_next(name, rng, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_COMPILATION"))}
    name, _, compiles = name.partition(" ")
    environment |= {"NUMBA_CACHE_DIR": str(tmp_path)} if compiles else {}
    command = [sys.executable, "-X", "faulthandler", "-m", __name__, name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    options = {"text": True, "bufsize": 1, "cwd": Path(__file__).parents[2], "env": environment, **pipes}
    said = []
    with open(tmp_path / "errors", "w+") as errors, subprocess.Popen(command, stderr=errors, **options) as process:
        watch = threading.Timer(HANGS + 20 * COUNT, process.kill)
        watch.start()
        for k in range(COUNT):
            process.stdin.write("\n")
            ready = process.stdout.readline()
            assert ready == "ready\n", (k, process.poll(), (tmp_path / "errors").read_text())  # -9: by `watch`
            delay = rng.uniform(0, (3 if k == 0 else 1, 0.2)[k % 2])
            timer = threading.Timer(delay, process.send_signal, [signal.SIGINT])
            timer.start()
            said.append(process.stdout.readline())
            timer.cancel()
            timer.join()
            process.stdin.write("\n")
            said.append(process.stdout.readline())
        process.stdin.close()
        code = process.wait()
        watch.cancel()
    text = (tmp_path / "errors").read_text()
    assert code == 0 and set(said[::2]) <= {"interrupted\n", "True\n"} and set(said[1::2]) == {"True\n"}, (said, text)
    # CPython loses an exception in a callback of weakref or ctypes, such as JAX's and llvmlite's; we must not.
    lost = re.findall(r"^Exception ignored.*\n(?:Traceback.*\n)?(?:[ \t]+.*\n|\n)*", text, re.M)
    assert not [of for of in lost if re.search(r"jaxsparse_fmt[/\\.]|(?<!tests/)\bsolvers[/\\.]", of)], text


ONCE = """
import os, signal, sys, threading, time
import jax, numpy as np
import jaxsparse_fmt as jsf
from solvers import cg
what, seen = sys.argv[1], []
signal.signal(signal.SIGINT, (lambda *_: seen.append(1)) if what == "noted" else signal.default_int_handler)
S = jsf.gallery.poisson(64 if what == "shards" else 100)
A, b = jsf.from_scipy(S), np.ones(S.shape[0])
if what == "shards":
    A = jsf.shard(S, jax.make_mesh((4,), ("rows",)))
x0 = np.random.default_rng(0).standard_normal(b.size)
cg(A, b, maxiter=1, x0=x0)  # compiles: JAX may crash at the end of a process whose compiling was interrupted
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    sol = cg(A, b, rtol=0.0, maxiter=1500, x0=x0)
    print("ended", sol.success, len(seen))
except KeyboardInterrupt:
    print("interrupted", time.perf_counter() - begin < 3 or what == "shards")
if what == "shards":
    print(np.linalg.norm(S @ np.asarray(cg(A, b, rtol=1e-4).x) - b) <= 2e-4 * np.linalg.norm(b), flush=True)
    os._exit(0)  # XLA may crash if a process ends while a program of several devices runs
"""


@pytest.mark.deep
@pytest.mark.clock
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("alone", "interrupted True"),  # the process ends while the program still runs
        ("shards", "interrupted True True"),  # when the program has ended: devices wait for one another
        ("noted", "ended False 1"),  # by a handler that raises nothing
    ],
)
def test_a_long_solve_is_left_at_once_and_the_process_ends_well(what, said):
    devices = "--xla_force_host_platform_device_count=4" if what == "shards" else ""
    assert printed("-X", "faulthandler", "-c", ONCE, what, XLA_FLAGS=devices).split() == said.split()


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    signal.signal(signal.SIGINT, lambda *_: None)  # shells let what they start in the background ignore it
    answers(sys.argv[1])
