"""The command as a process: interrupted at any time, and with standard streams that are pipes, full or closed."""

import io as stdlib_io
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from jaxsparse_fmt import gallery
from jaxsparse_fmt.cli import main
from jaxsparse_fmt.io import files

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("process") / "small.mtx"
    files.write_mtx(path, gallery.poisson(3))
    return path


# As a terminal's child, whoever runs the tests: shells let what they start in the background ignore SIGINT.
HEEDING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("jaxsparse", run_name="__main__", alter_sys=True)
"""


def start(*args: object, **options) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "FORCE_COLOR")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, "-c", HEEDING, *map(str, args)], cwd=ROOT, env=environment, **options)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_interruption_while_importing_is_one_line(small):
    process = start("info", small)
    while "numpy" not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "jaxsparse: interrupted\n")


@pytest.mark.deep
@pytest.mark.clock
def test_an_interruption_while_solving_ends_the_process_at_once(tmp_path):
    n = 150_000  # as many steps as unknowns: a minute and more
    lines = [f"{i} {i} 2\n" for i in range(1, n + 1)] + [f"{i + 1} {i} -1\n" for i in range(1, n)]
    path = tmp_path / "path.mtx"
    path.write_text(f"%%MatrixMarket matrix coordinate real symmetric\n{n} {n} {2 * n - 1}\n" + "".join(lines))
    process = start("solve", path, "--method", "cg", "--rtol", "1e-14", "--out", tmp_path / "x.npy")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("solve:"):
            break
    time.sleep(1)  # in the middle of XLA's loop
    clock = time.perf_counter()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert time.perf_counter() - clock < 5  # 0.3 s, on a machine that does nothing else
    assert process.returncode == 130 and out == "" and "Traceback" not in err
    assert err.splitlines()[-1] == "jaxsparse: interrupted"
    assert os.listdir(tmp_path) == ["path.mtx"]


@pytest.mark.parametrize("lost", ["full", "closed"])
def test_output_that_is_lost_is_told_in_one_line(small, lost):
    if lost == "full":
        if not os.path.exists("/dev/full"):
            pytest.skip("needs /dev/full")
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    process = start("info", small, stdout=target)
    os.close(target)
    err = process.communicate(timeout=120)[1]
    said = {"full": "No space left on device", "closed": "Broken pipe"}[lost]
    assert process.returncode == 2 and "Traceback" not in err
    assert [line for line in err.splitlines() if line.startswith("jaxsparse")] == [
        f"jaxsparse: standard output: {said}"
    ]


def test_a_process_without_standard_output_is_told_so(small, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["info", str(small)]) == 2
    assert "jaxsparse: standard output is closed" in capsys.readouterr().err


def test_a_minus_sign_is_standard_input(small, monkeypatch, capsys):
    data = stdlib_io.BytesIO(small.read_bytes())
    data.name = "<stdin>"  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(sys, "stdin", stdlib_io.TextIOWrapper(data))
    assert main.main(["info", "-"]) == 0
    told = capsys.readouterr()
    assert "27 × 27" in told.out and told.out.startswith("<stdin>")
    assert main.main(["info", "-"]) == 2  # it is read once
    assert re.search(r"jaxsparse: <stdin>, line 1: .*the file is empty", capsys.readouterr().err)
    monkeypatch.setattr(sys, "stdin", None)
    assert main.main(["info", "-"]) == 2
    assert "jaxsparse: <stdin> is closed; name a file" in capsys.readouterr().err
