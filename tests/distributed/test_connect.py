"""Processes that begin and end together: late, failing, killed and disagreeing ones, through the loopback address."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.distributed.test_processes import ROOT, example, finished, free_port

CONNECTED = """
import jax, numpy as np, jaxsparse_fmt as jsf
from solvers import cg
jsf.connect_processes(timeout=60)
process, S = jax.process_index(), jsf.gallery.poisson(6)
A = jsf.shard_from_rows(lambda a, b: S[a:b], 216, jax.make_mesh((jax.device_count(),), ("rows",)), format="csr")
solve = lambda rtol=1e-4: cg(A, np.ones(216), rtol=rtol)
print("solved", solve().success, jax.process_count(), flush=True)
"""


def launched(program: str, processes: int, launcher: tuple[str, str]) -> list[subprocess.Popen[str]]:
    """The program in processes that know one another from the environment alone."""
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, "-c", CONNECTED + program], subprocess.PIPE
    numbers = [dict(zip(launcher, (str(k), str(processes)), strict=True)) for k in range(processes)]
    clean = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return [
        subprocess.Popen(command, env=clean | address | of_one, stdout=pipe, stderr=pipe, text=True)
        for of_one in numbers
    ]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("processes", "launcher"),
    [(2, ("PMI_RANK", "PMI_SIZE")), (3, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))],
    ids=["2", "3"],
)
def test_processes_find_one_another_in_the_environment_and_end_quietly(processes, launcher):
    for code, out, err in finished(launched("", processes, launcher)):
        assert code == 0 and f"solved True {processes}" in out and "gone" not in err, (out, err)


@pytest.mark.deep
@pytest.mark.parametrize(("processes", "killed"), [(2, 0), (4, 2)])
def test_a_killed_process_ends_the_others_at_once_with_its_number(processes, killed):
    running = launched("while True: solve()", processes, ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"))
    for process in running:
        assert process.stdout is not None and any("solved" in line for line in process.stdout)  # Gloo writes there, too
    running[killed].send_signal(signal.SIGKILL)
    start = time.monotonic()
    ended = finished(running)
    assert time.monotonic() - start < 20  # of the 60 s that a lost host may take
    for k, (code, _, err) in enumerate(ended):
        if k != killed:
            assert code != 0 and f"process {killed} of {processes} is gone" in err, err


@pytest.mark.deep
def test_an_error_in_one_process_ends_all_with_its_text():
    fails = "if process == 1: raise OSError('the disk is gone')\nwhile True: solve()"
    for code, _, err in finished(launched(fails, 2, ("PMI_RANK", "PMI_SIZE"))):
        assert code == 1 and "OSError: the disk is gone" in err, err


@pytest.mark.deep
def test_processes_that_disagree_all_end_with_the_difference():
    for code, _, err in finished(launched("solve((1e-3, 1e-5)[process > 2])", 4, ("PMI_RANK", "PMI_SIZE"))):
        assert code == 1 and re.search(
            "the processes disagree on rtol: .*0.001.* in process 0, .*1e-05.* in process 3", err
        ), err


def test_a_process_that_waits_in_vain_ends_within_its_time():
    start = time.monotonic()
    ((code, _, err),) = finished([example(0, 2, free_port(), "--patience", "3")])
    assert code == 1 and "process 0 of 2 did not meet the others at 127.0.0.1" in err and "within 3 s" in err, err
    assert time.monotonic() - start < 60


@pytest.mark.deep
def test_a_process_without_a_launcher_stays_alone_and_one_of_several_needs_an_address():
    code = """
import os, jax, jaxsparse_fmt as jsf
def told(*given, **more):
    os.environ.update(more)
    try:
        jsf.connect_processes(*given)
        print(jax.process_count())
    except ValueError as error:
        print(error)
    for name in more:
        del os.environ[name]
told(PMI_RANK="1", PMI_SIZE="2")
told(JAX_NUM_PROCESSES="2")
told(None, 2, 0)
told(JAX_PROCESS_ID="one")
told()
"""
    clean = {k: v for k, v in os.environ.items() if k != "JAX_COORDINATOR_ADDRESS"} | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=120)
    *needed, no_number, alone = run.stdout.splitlines()
    unknown = "this is one of 2 processes, and the address of process 0 is unknown"
    assert len(needed) == 3 and all(unknown in line for line in needed), (run.stdout, run.stderr)
    assert "JAX_PROCESS_ID must be a whole number; got 'one'" in no_number and alone == "1"
