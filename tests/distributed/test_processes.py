"""Several processes on one machine, through the loopback address: the example with which a user starts."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 400  # seconds for all of a test, on a loaded machine


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(*command: str, devices: int = 2, quick: bool = False) -> subprocess.Popen[str]:
    """Python with devices of the CPU; `quick` compiles with less effort."""
    effort = "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    flags = f"--xla_force_host_platform_device_count={devices} {effort if quick else ''}"
    flags = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    env, pipe = os.environ | flags, subprocess.PIPE
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)


def example(process: int, processes: int, port: int, *options: str) -> subprocess.Popen[str]:
    """The example as one of several processes."""
    meeting = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(processes), "--process", str(process)]
    return started("examples/multi_host.py", *meeting, *options)


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
    port, processes = free_port(), 3
    running = [example(k, processes, port, "--saved", str(tmp_path)) for k in range(processes)]
    ended = finished(running)
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


DISAGREE = """
import functools, sys, jax, numpy as np, jaxsparse_fmt as jsf
from solvers import Adjoint, cg, eigsh, gmres, lobpcg, lsmr, precond, refine, solve, svds
from solvers.precond import _hierarchy
process = int(sys.argv[1])
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, process)
mesh, S = jax.make_mesh((2,), ("rows",)), jsf.gallery.poisson(4).tocsr()
A, B, b = jsf.shard(S, mesh), jsf.shard(2 * S, mesh), np.ones(64)
on_device = jax.numpy.asarray(b) * (1 + process)

def refused(f):
    try:
        f()
    except Exception as error:
        print("refused:", error, flush=True)

class Unreadable:
    shape, dtype = (64,), np.dtype(float)

    def __array__(self, *args, **options):
        raise RuntimeError("nothing to read")

def blocks(block_size):
    return functools.partial(precond.block_jacobi, block_size=block_size)

def halved(r):
    return r / 2

def same(r):
    return r

refused(lambda: jsf.shard((1 + process) * S, mesh))
refused(lambda: jsf.shard(S, mesh, mode=("naive", "overlap")[process]))
refused(lambda: jsf.shard_from_rows(lambda a, b: S[a:b], 64, mesh, dtype=("float32", "float16")[process]))
refused(lambda: jsf.shard_from_rows(lambda a, b: S[a:b], 64, mesh, starts=([0, 32, 64], [1])[process]))
refused(lambda: jsf.shard_from_rows(lambda a, b: S[a:b].astype(("float32", "complex64")[process]), 64, mesh))
refused(lambda: A @ (b + process))
refused(lambda: A * (1.0 + process))
refused(lambda: A.T.astype(("float32", "float16")[process]))
refused(lambda: jsf.spmv(A, b, b, alpha=process))
with jsf.use_backend(("auto", "xla")[process]):
    refused(lambda: A @ b)
with jax.enable_x64(process == 0):
    refused(lambda: A @ b)
refused(lambda: precond.multigrid(A, max_coarse=10 + process))
refused(lambda: cg(A, b + process))
refused(lambda: cg(A, b, rtol=(1e-3, 1e-5)[process]))
refused(lambda: cg(A, b, x0=(None, b)[process]))
refused(lambda: cg(A, b, one_reduction=process == 1))
refused(lambda: cg(A, b, adjoint=Adjoint(rtol=(1e-3, 1e-5)[process])))
refused(lambda: refine(A, b, dtype=("float32", "bfloat16")[process]))
refused(lambda: cg(A, b, progress=(None, print)[process]))
refused(lambda: cg(A, b, M=(None, b)[process]))
refused(lambda: eigsh(A, 2, ncv=(20, 21)[process]))
refused(lambda: svds(A, (2, 3)[process]))
refused(lambda: lsmr(A, b, damp=process))
refused(lambda: solve(A, b + process))
refused(lambda: solve(A, b, method=("auto", "cg")[process]))
refused(lambda: A.scale_rows(b + process))
refused(lambda: A.shift(1.0 + process))
refused(lambda: precond.chebyshev(A, degree=2 + process))
refused(lambda: precond.coarse_space(A, (b + process)[:, None]))
refused(lambda: precond.multigrid(A, cycle="VW"[process], max_coarse=10))
refused(lambda: cg(A, on_device))
refused(lambda: cg((A, B)[process], b))
refused(lambda: (A, A.T)[process] @ b)
refused(lambda: (cg, gmres)[process](A, b))
refused(lambda: (A.diagonal, A.to_scipy)[process]())
refused(lambda: A @ b if process else A.data)
refused(lambda: A.with_data(jax.numpy.ones(A.nnz) * (1 + process)))
refused(lambda: A.scale_cols(on_device))
refused(lambda: A.shift(on_device[0]))
refused(lambda: A * on_device[0])
refused(lambda: A + (A, B)[process])
refused(lambda: jsf.spmv(A, b, on_device, beta=1.0))
refused(lambda: cg(A, b, M=on_device))
refused(lambda: cg(A, b, M=(A, B)[process]))
refused(lambda: cg(A, b, M=(halved, same)[process]))
refused(lambda: cg(A, b, rtol=on_device[0] * 1e-3))
refused(lambda: lsmr(A, b, x0=on_device))
refused(lambda: eigsh(A, 2, v0=on_device))
refused(lambda: precond.coarse_space(A, on_device[:, None]))
refused(lambda: precond.schwarz(A, blocks(2 + 2 * process)))
refused(lambda: cg(A, (Unreadable(), b)[process]))
refused(lambda: A @ (b, Unreadable())[process])
refused(lambda: cg(A, b, **({"rtol": 1e-3}, {"tol": 1e-3})[process]))
refused(lambda: jsf.shard(S, mesh, axis=("rows", "columns")[process]))
refused(lambda: cg(A, b, rtol=(1e-6, -1)[process]))
refused(lambda: solve(A, b, method=("auto", "cgs")[process]))
refused(lambda: gmres(A, b, restart=(10, 0)[process]))
refused(lambda: A @ b[: (64, 60)[process]])
refused(lambda: A.astype(("float32", "int8")[process]))
refused(lambda: A.shift((1.0, "one")[process]))
refused(lambda: A + (A, 3)[process])
refused(lambda: eigsh(A, (2, 64)[process]))
refused(lambda: svds(A, (3, 64)[process]))
refused(lambda: lobpcg(A, (3, 64)[process]))
refused(lambda: precond.block_jacobi(A, (4, 0)[process]))
refused(lambda: precond.schwarz(A, precond.ilu, overlap=(0, -1)[process]))
refused(lambda: precond.chebyshev(A, bounds=((1, 2), (2, 1))[process]))
refused(lambda: precond.coarse_space(A, np.full((64, 1), (1, np.nan)[process])))
steps = (_hierarchy.aggregation, "lumped"), (_hierarchy.aggregation, "sums")
for module, name in (*steps, (_hierarchy, "coarse_inverse")):
    kept = getattr(module, name)
    setattr(module, name, None if process == 1 else kept)
    refused(lambda: precond.multigrid(A, max_coarse=10))
    setattr(module, name, kept)
print("solved", bool(cg(A, b).success))
"""


REFUSED_BY_ONE = (
    "cg has no keyword 'tol'",
    "axis must name an axis of the mesh",
    "rtol must be a number from 0 up; got -1",
    "method must be one of",
    "restart must be at least",
    "A @ x with A of shape (64, 64) takes x",
    "dtype int8 cannot hold",
    "d has dtype <U3, which is not numeric",
    "A + B of sharded matrices moves no entries",
    "k must be below n = 64; got 64",
    "k must be below 64, the shorter side",
    "block_size must be",
    "overlap must be at least 0; got -1",
    "bounds must be (least, largest)",
    "W has a NaN or an infinity",
)


@pytest.mark.deep
def test_what_differs_between_processes_is_named_and_nobody_hangs():
    ended = together(DISAGREE, 2, devices=1)
    words, others = (re.findall("^refused: .*", out, re.MULTILINE) for _, out, _ in ended)
    assert words == others  # the same in both
    for code, out, err in ended:
        found = re.findall(r"refused: the processes disagree on ([\w ]+): .* in process 0, .* in process 1;", out)
        assert found == [
            *("S", "mode", "dtype", "dtype", "vector", "factor", "dtype", "alpha", "backend in use"),
            *("jax_enable_x64", "max_coarse", "b", "rtol", "x0", "method", "adjoint", "narrow", "progress", "M"),
            *("ncv", "k", "damp", "b", "method", "vector", "vector", "degree", "W", "cycle", "b", "A"),
            *("operation", "operation", "operation", "operation", "vector", "vector", "vector", "factor", "B", "y"),
            *("M", "M", "M", "rtol", "x0", "vector", "W", "local"),
        ], (out, err)
        assert out.count("refused: nothing to read") == 2
        for of_one in REFUSED_BY_ONE:
            assert f"refused: {of_one}" in out
        assert "refused: starts must be 3 numbers" in out
        assert out.count("refused: 'NoneType' object is not callable") == 3  # of process 1 alone, setting up multigrid
        assert code == 0 and "solved True" in out, (out, err)
