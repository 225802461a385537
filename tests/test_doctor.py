"""What `python -m jaxsparse_fmt.doctor` tells is true of this process, and a wrong product is told and exits with 1."""

import importlib.util

import jax
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt import doctor


def test_every_device_is_named_and_its_product_agrees(capsys):
    assert doctor.main() == 0
    out = capsys.readouterr().out
    assert f"jaxsparse {jsf.__version__}" in out and f"jax {jax.__version__}" in out and "64 bits: on" in out
    assert all(f"{device} (" in out for device in jax.devices())
    assert out.count("agrees with SciPy") == len(jax.devices())


@pytest.mark.skipif(
    jax.default_backend() != "cpu" or importlib.util.find_spec("numba") is None, reason="needs a CPU with Numba"
)
def test_the_kernel_is_read_from_the_compiled_program():
    line, _ = doctor.product_on(jax.devices()[0])
    assert "backend numba, kernel jaxsparse_native" in line
    with jsf.use_backend("xla"):
        line, _ = doctor.product_on(jax.devices()[0])
    assert "kernel none: plain XLA" in line


def test_a_wrong_product_is_told_and_is_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "from_scipy", lambda S, dtype: jsf.from_scipy(2 * S, dtype=dtype))
    assert doctor.main() == 1
    assert "DISAGREES with SciPy" in capsys.readouterr().out
