"""Several processes on one machine, through the loopback address: the example with which a user starts."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.process import ROOT

PATIENCE = 400  # seconds for all of a test, on a loaded machine


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(*command: str, devices: int = 2, quick: bool = False) -> subprocess.Popen[str]:
    """Python with devices of the CPU; `quick` compiles with less effort."""
    effort = "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    flags = f"--xla_force_host_platform_device_count={devices} {effort if quick else ''}"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)


def finished(running: list[subprocess.Popen[str]], seconds: float = PATIENCE) -> list[tuple[int, str, str]]:
    """Code and output of each; none outlives the test."""
    try:
        told = [p.communicate(timeout=seconds) for p in running]
    finally:
        for p in running:
            p.kill()
    return [(p.returncode, *texts) for p, texts in zip(running, told, strict=True)]


def together(code: str, processes: int, devices: int = 2) -> list[tuple[int, str, str]]:
    """Code and output of processes that run `code` with their number and a port to meet at."""
    port = free_port()
    return finished([started("-c", code, str(k), str(port), devices=devices, quick=True) for k in range(processes)])


@pytest.mark.deep
def test_processes_solve_together_and_each_reads_only_its_rows(tmp_path):
    S = jsf.gallery.poisson(6).tocsr()
    for start in range(0, 216, 50):
        sp.save_npz(tmp_path / f"{start:09}.npz", S[start : start + 50])
    processes = 3
    given = "examples/multi_host.py", "--coordinator", f"127.0.0.1:{free_port()}", "--saved", str(tmp_path)
    count = "--processes", str(processes), "--process"
    ended = finished([started(*given, *count, str(k)) for k in range(processes)])
    assert [code for code, *_ in ended] == [0] * processes, ended
    report = r"process {} of {} made (\d+) of 216 rows"
    made = [int(re.findall(report.format(k, processes), out)[0]) for k, (_, out, _) in enumerate(ended)]
    assert sum(made) == 216 and max(made) < 1.25 * 216 / processes
    told = {re.findall(r"(\d+) iterations on (\d+) devices, error (\S+)", out)[0] for _, out, _ in ended}
    ((iterations, devices, error),) = told  # all say the same
    assert int(devices) == 2 * processes and 0 < int(iterations) < 60 and float(error) < 1e-9


IN_A_ROW = """
import os, signal, sys, jax, numpy as np, scipy.sparse as sp, jaxsparse_fmt as jsf
from solvers import cg
process, n = int(sys.argv[1]), 100_001
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, process)
shape, names = ((2,), ("rows",)) if jax.local_device_count() == 1 else ((2, 2), ("rows", "batch"))
S = sp.diags_array([np.ones(n - 1), np.full(n, 4.0), np.ones(n - 1)], offsets=[-1, 0, 1], format="csr") / 6
A = jsf.shard(S.astype(np.float32), jax.make_mesh(shape, names), format="csr")
x = np.ones((n, 2), np.float32)
for step in range(150):  # none of which waits for the one before
    x = A @ x if step % 5 else (A.scale_rows(np.ones(n, np.float32)) @ x)
    if step % 50 == 0:
        b = A @ np.ones(n, np.float32)
        sol = cg(A, b, rtol=1e-3, maxiter=3)
print("off by", abs(np.asarray(x)[n // 2] - 1).max(), flush=True)

def rows_of(start, stop):
    if process == 1 and stop > start:
        raise OSError("the disk is gone")
    return S[start:stop]

try:
    jsf.shard_from_rows(rows_of, n, A.range.over.mesh)
except OSError as error:
    print("refused:", error, *getattr(error, "__notes__", []), flush=True)
if process == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    cg(A, b)
except Exception as error:
    print(type(error).__name__, error, flush=True)
    os._exit(0)  # without the wait for the other
"""


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_programs_in_a_row_need_no_pause_and_the_end_of_one_process_reaches_the_other(devices):
    (_, out, err), (_, other, _) = together(IN_A_ROW, 2, devices)
    for text in (out, other):
        assert float(re.findall(r"off by (\S+)", text)[0]) < 1e-4, (text, err)
        assert "refused: the disk is gone" in text
    assert "refused: the disk is gone in process 1" in out
    assert "SolverError process 1 of 2 is gone; what it printed last says why" in out


KILLED = """
import os, signal, sys, threading, jax, numpy as np, jaxsparse_fmt as jsf
from solvers import cg, precond
process = int(sys.argv[1])
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 3, process, heartbeat_timeout_seconds=10)
S, mesh = jsf.gallery.poisson(8), jax.make_mesh((3,), ("rows",))
try:
    for round in range(100_000):
        A = jsf.shard(S, mesh)
        cg(A, np.ones(512), M=precond.multigrid(A, max_coarse=10))
        if process == 1 and round == 0:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
except Exception as error:
    print("raised:", type(error).__name__, error, flush=True)
"""


@pytest.mark.deep
def test_none_outlives_one_that_was_killed_by_more_than_the_heartbeat():
    """They raise, at once as a rule; JAX ends one that waits in a collective for another that has raised."""
    first, _, third = together(KILLED, 3, 1)
    for code, out, err in (first, third):
        raised = re.findall("^raised: (.*)", out, re.MULTILINE)
        assert raised or code == -signal.SIGABRT, (out, err)
        wanted = r"(SolverError|ProcessGone) process 1 of 3 is gone|SolverError another process is gone"
        assert all(re.match(wanted, words) for words in raised), raised


MESHES_OF_SOME = """
import sys, jax, numpy as np, jaxsparse_fmt as jsf
process = int(sys.argv[1])
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 3, process)
own = jax.sharding.Mesh(jax.local_devices(), ("rows",))
S = (process + 1.0) * jsf.gallery.poisson(4 + process)
A = jsf.shard(S, own)
if process == 0:  # the others have nothing to do with it
    A = jsf.shard_from_rows(lambda a, b: S[a:b], S.shape[0], own)
x = np.random.default_rng(process).standard_normal(S.shape[0])
print("off by", abs(A.to_scipy() - S).max() + abs(A @ x - S @ x).max() / abs(S @ x).max())
try:
    jsf.shard(S, jax.sharding.Mesh([d for d in jax.devices() if d.process_index < 2], ("rows",)))
except ValueError as error:
    print("refused:", error)
"""


@pytest.mark.deep
def test_a_process_is_alone_on_a_mesh_of_its_devices_and_a_mesh_of_some_processes_is_refused():
    for code, out, err in together(MESHES_OF_SOME, 3):
        assert code == 0 and float(re.findall(r"off by (\S+)", out)[0]) < 1e-5, (out, err)
        assert "refused: the mesh has devices of 2 of 3 processes, of number 0, 1; make the mesh of the" in out, out


# What is refused, and a call whose arguments differ between process 0 and process 1.
DISAGREEMENTS = """
S | jsf.shard((1 + process) * S, mesh)
mode | jsf.shard(S, mesh, mode=("naive", "overlap")[process])
dtype | jsf.shard_from_rows(lambda a, b: S[a:b], 64, mesh, dtype=("float32", "float16")[process])
dtype | jsf.shard_from_rows(lambda a, b: S[a:b].astype(("float32", "complex64")[process]), 64, mesh)
vector | A @ (b + process)
scalar | A * (1.0 + process)
dtype | A.T.astype(("float32", "float16")[process])
alpha | jsf.spmv(A, b, b, alpha=process)
backend in use | under(jsf.use_backend(("auto", "xla")[process]), lambda: A @ b)
jax_enable_x64 | under(jax.enable_x64(process == 0), lambda: A @ b)
max_coarse | precond.multigrid(A, max_coarse=10 + process)
b | cg(A, b + process)
rtol | cg(A, b, rtol=(1e-3, 1e-5)[process])
x0 | cg(A, b, x0=(None, b)[process])
method | cg(A, b, one_reduction=process == 1)
adjoint | cg(A, b, adjoint=Adjoint(rtol=(1e-3, 1e-5)[process]))
narrow | refine(A, b, dtype=("float32", "bfloat16")[process])
progress | cg(A, b, progress=(None, print)[process])
M | cg(A, b, M=(None, b)[process])
ncv | eigsh(A, 2, ncv=(20, 21)[process])
Minv | eigsh(A, 2, M=A, Minv=(A, B)[process])
k | svds(A, (2, 3)[process])
which | svds(A, 2, which=("LM", "SM")[process])
t | expm_multiply(A, b, 1.0 + process)
maxiter | expm_multiply(A, b, maxiter=10 + process)
damp | lsmr(A, b, damp=process)
b | solve(A, b + process)
method | solve(A, b, method=("auto", "cg")[process])
vector | A.scale_rows(b + process)
vector | A.shift(1.0 + process)
degree | precond.chebyshev(A, degree=2 + process)
W | precond.coarse_space(A, (b + process)[:, None])
cycle | precond.multigrid(A, cycle="VW"[process], max_coarse=10)
b | cg(A, on_device)
A | cg((A, B)[process], b)
operation | (A, A.T)[process] @ b
operation | (cg, gmres)[process](A, b)
b | gmres(A.T, b + process)
rtol | cg(A.T, b, rtol=(1e-3, 1e-5)[process])
b | solve(A.T, b + process)
degree | precond.chebyshev(A.T, degree=2 + process)
operation | (A.diagonal, A.to_scipy)[process]()
operation | (A.max, A.min)[process]()
n | A.power(2 + process)
scalar | A * (2.0, b)[process]
scalar | A / (2.0, b)[process]
dtype | A.astype(("float32", "int8")[process])
axis | A.sum(axis=(0, 7)[process])
k | A.diagonal((0, 1)[process])
max_bytes | A.todense(max_bytes=(2**30, 1)[process])
name | A.asformat(("csr", "dense")[process])
data | A.T.with_data(np.ones((A.nnz, 3)[process]))
b | jsf.constrain(A, b + process, [0])
fixed | jsf.constrain(A, b, ([0], [64])[process])
operation | A @ b if process else A.data
vector | A.with_data(jax.numpy.ones(A.nnz) * (1 + process))
vector | A.scale_cols(on_device)
vector | A.shift(on_device[0])
scalar | A * on_device[0]
B | A + (A, B)[process]
y | jsf.spmv(A, b, on_device, beta=1.0)
M | cg(A, b, M=on_device)
M | cg(A, b, M=(A, B)[process])
M | cg(A, b, M=(halved, same)[process])
rtol | cg(A, b, rtol=on_device[0] * 1e-3)
x0 | lsmr(A, b, x0=on_device)
vector | eigsh(A, 2, v0=on_device)
W | precond.coarse_space(A, on_device[:, None])
local | precond.schwarz(A, blocks(2 + 2 * process))
vector | precond.schwarz(A, blocks(2)) @ (b + process)
vector | precond.multigrid(A, max_coarse=10) @ (b + process)
M | cycles[process].refreshed(A)
"""
# What one process alone would refuse, by the first words of the refusal.
REFUSED_BY_ONE = """
nothing to read | cg(A, (Unreadable(), b)[process])
nothing to read | A @ (b, Unreadable())[process]
cg has no keyword 'tol' | cg(A, b, **({"rtol": 1e-3}, {"tol": 1e-3})[process])
axis must name an axis of the mesh | jsf.shard(S, mesh, axis=("rows", "columns")[process])
rtol must be a number from 0 up; got -1 | cg(A, b, rtol=(1e-6, -1)[process])
method must be one of | solve(A, b, method=("auto", "cgs")[process])
restart must be at least | gmres(A, b, restart=(10, 0)[process])
A @ x with A of shape (64, 64) takes x | A @ b[: (64, 60)[process]]
d has dtype <U3, which is not numeric | A.shift((1.0, "one")[process])
A + B of sharded matrices moves no entries | A + (A, 3)[process]
eigsh(M=) works on one device, and A is sharded | eigsh(A, 2, M=A, Minv=(B, None)[process])
k must be below n = 64; got 64 | eigsh(A, (2, 64)[process])
k must be below 64, the shorter side | svds(A, (3, 64)[process])
k must be | lobpcg(A, (3, 64)[process])
block_size must be | precond.block_jacobi(A, (4, 0)[process])
overlap must be at least 0; got -1 | precond.schwarz(A, precond.ilu, overlap=(0, -1)[process])
bounds must be (least, largest) | precond.chebyshev(A, bounds=((1, 2), (2, 1))[process])
W has a NaN or an infinity | precond.coarse_space(A, np.full((64, 1), (1, np.nan)[process]))
starts must be 3 numbers | jsf.shard_from_rows(lambda a, b: S[a:b], 64, mesh, starts=([0, 32, 64], [1])[process])
"""
DISAGREE = """
import functools, sys, jax, numpy as np, jaxsparse_fmt as jsf
from solvers import Adjoint, cg, eigsh, expm_multiply, gmres, lobpcg, lsmr, precond, refine, solve, svds
from solvers.precond import _hierarchy
process = int(sys.argv[1])
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, process)
mesh, S = jax.make_mesh((2,), ("rows",)), jsf.gallery.poisson(4).tocsr()
A, B, b = jsf.shard(S, mesh), jsf.shard(2 * S, mesh), np.ones(64)
on_device = jax.numpy.asarray(b) * (1 + process)

cycles = [precond.multigrid(A, max_coarse=m) for m in (10, 20)]

def refused(f):
    try:
        f()
    except Exception as error:
        print("refused:", error, flush=True)

class Unreadable:
    shape, dtype = (64,), np.dtype(float)

    def __array__(self, *args, **options):
        raise RuntimeError("nothing to read")

def under(context, f):
    with context:
        return f()

def blocks(block_size):
    return functools.partial(precond.block_jacobi, block_size=block_size)

def halved(r):
    return r / 2

def same(r):
    return r

for row in ROWS.splitlines():
    refused(lambda: eval(row.partition(" | ")[2]))
parts = _hierarchy.aggregation
for module, name in ((parts, "lumped"), (parts, "sums"), (_hierarchy, "coarse_inverse")):
    kept = getattr(module, name)
    setattr(module, name, None if process == 1 else kept)
    refused(lambda: precond.multigrid(A, max_coarse=10))
    setattr(module, name, kept)
print("solved", bool(cg(A, b).success))
""".replace("ROWS", repr(DISAGREEMENTS.strip() + REFUSED_BY_ONE.rstrip()))


@pytest.mark.deep
def test_what_differs_between_processes_is_named_and_nobody_hangs():
    first = lambda table: [row.partition(" | ")[0] for row in table.strip().splitlines()]  # noqa: E731
    words = [f"the processes disagree on {name}: .* in process 0, .* in process 1;" for name in first(DISAGREEMENTS)]
    words += [*map(re.escape, first(REFUSED_BY_ONE)), *["'NoneType' object is not callable"] * 3]
    ended = together(DISAGREE, 2, devices=1)
    told, others = (re.findall("^refused: (.*)", out, re.MULTILINE) for _, out, _ in ended)
    assert told == others  # the same in both
    assert [(want, got) for want, got in zip(words, told, strict=True) if not re.match(want, got)] == [], ended[0]
    assert all(code == 0 and "solved True" in out for code, out, _ in ended), ended


FACTORS = dict.fromkeys(("direct", "factorized", "ilu"), "precond.schwarz, which has a factorization")
REFUSED = {"idrs, refine": "method must be one of"} | FACTORS


@pytest.mark.deep
def test_every_method_of_reach_is_right_or_refused_in_words_and_none_hangs():
    command, port = ("-m", "tests.distributed.reach"), str(free_port())
    ended = finished([started(*command, k, port, "2", devices=2, quick=True) for k in "01"], seconds=1500)
    (_, out, err), _ = ended
    assert [code for code, *_ in ended] == [0, 0], err[-3000:]
    rows = {row["row"]: row for row in map(json.loads, filter(lambda line: line.startswith("{"), out.splitlines()))}
    for name, row in rows.items():
        if name in REFUSED:
            assert REFUSED[name] in row["refused"], row
        else:
            assert row.get("error", 1) <= 1e-8, row
    assert len(rows) == 49
