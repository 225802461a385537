"""What `jaxsparse doctor` tells is true of this process, and what fails is told with a cure and exits with 1."""

import importlib.util

import jax
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.cli import doctor, main
from tests.cli.test_main import fact


def test_every_device_is_named_and_its_product_and_solve_agree(capsys):
    assert main.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert fact(out, "jaxsparse").startswith(jsf.__version__) and fact(out, "jax") == jax.__version__
    assert fact(out, "64 bits") == "on" and int(fact(out, "threads").split()[0]) >= 1
    assert all(f" {device} " in out for device in jax.devices())
    assert out.count("agrees; error") == 2 * len(jax.devices())


@pytest.mark.skipif(
    jax.default_backend() != "cpu" or importlib.util.find_spec("numba") is None, reason="needs a CPU with Numba"
)
def test_the_kernel_is_read_from_the_compiled_program():
    name, text, works = next(doctor.checked(jax.devices()[0]))
    assert name == str(jax.devices()[0]) and "backend numba, kernel jaxsparse_native" in text and works
    with jsf.use_backend("xla"):
        _, text, works = next(doctor.checked(jax.devices()[0]))
    assert "kernel none: plain XLA, which is slower; pip install numba" in text and not works


@pytest.mark.parametrize("fails", ["wrong", "error"])
def test_a_failure_is_told_with_a_cure_and_is_the_exit_code(fails, monkeypatch, capsys):
    def broken(S, dtype):
        if fails == "error":
            raise RuntimeError("no such kernel")
        return jsf.from_scipy(2 * S, dtype=dtype)

    monkeypatch.setattr(doctor, "from_scipy", broken)
    assert main.main(["doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert ("FAILED: RuntimeError: no such kernel; report it" if fails == "error" else "FAILED: report it") in out
