"""What a notebook shows of a matrix and of results: well-formed HTML with the right numbers and pictures."""

import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt import _html
from solvers import Solution, Status, solve

NAMESPACE = "{http://www.w3.org/2000/svg}"


def facts(shown: str) -> dict[str, str]:
    """The table, once the whole parses as XML."""
    return {row[0].text: row[1].text for row in ET.fromstring(shown).iter("tr")}


def cells(shown: str) -> set[tuple[int, int]]:
    """Row and column of each dark cell of the picture."""
    paths = [path.get("d") for path in ET.fromstring(shown).iter(f"{NAMESPACE}path")]
    return {(int(i), int(j)) for path in paths for j, i in re.findall(r"M(\d+) (\d+)", path)}


def test_a_matrix_shows_sizes_format_and_the_places_of_its_entries():
    S = sp.random_array((20, 30), density=0.1, rng=np.random.default_rng(0), format="csr")
    for A, T in ((jsf.from_scipy(S, "ell"), S), (jsf.from_scipy(S, "csr").T, S.T)):
        shown = A._repr_html_()
        assert cells(shown) == set(zip(*T.nonzero(), strict=True))
        assert facts(shown)["entries"] == "60, 0.1 of all places" and facts(shown)["format"].startswith(("ell", "csr"))
        assert f"sparse matrix {T.shape[0]} × {T.shape[1]}" in shown


def test_the_picture_of_a_large_matrix_is_small_and_of_an_empty_one_is_none():
    shown = jsf.from_scipy(jsf.gallery.poisson(60, dim=2), "csr")._repr_html_()
    assert len(shown) < 10_000 and {(0, 0), (39, 39)} < cells(shown) and (0, 39) not in cells(shown)
    assert "svg" not in jsf.from_scipy(sp.csr_array((0, 3)), "csr")._repr_html_()


def test_inside_a_trace_and_of_a_stack_there_is_no_html():
    A = jsf.from_scipy(sp.csr_array(np.eye(3)), "csr")
    shown = []
    jax.jit(lambda A: shown.append(A._repr_html_()))(A)
    jax.jit(lambda code: shown.append(solution(code)._repr_html_()))(jnp.int32(0))
    assert shown == [None, None]
    jax.jit(lambda A: shown.append(repr(A)))(A)  # as `print(A)` in a function that somebody compiles
    assert shown[2].startswith("<csr 3×3, nnz=3, float64")
    assert jax.vmap(lambda d: A.with_data(d))(jnp.ones((2, 3)))._repr_html_() is None


def solution(code, **fields) -> Solution:
    given = {"x": jnp.ones(3), "n_iterations": jnp.int32(4), "residual_norm": jnp.float64(0.5), "norms": None}
    return Solution(code=code, **given | fields)


def test_a_result_shows_status_residual_and_its_history():
    norms = jnp.array([1e0, 1e-1, 1e-1, 1e-2, 1e-4, -1.0])
    shown = solution(jnp.int32(Status.MAXITER), norms=norms)._repr_html_()
    assert facts(shown)["status"] == f"MAXITER: {Status.MAXITER.message}"
    assert (facts(shown)["iterations"], facts(shown)["residual norm"]) == ("4", "0.5")
    (curve,) = ET.fromstring(shown).iter(f"{NAMESPACE}polyline")
    x, y = np.array([point.split(",") for point in curve.get("points").split()], float).T
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0])
    np.testing.assert_allclose(np.diff(y) / np.diff(y)[0], [1, 0, 1, 2], atol=0.05)
    assert facts(solution(jnp.int32(0))._repr_html_())["status"] == "CONVERGED"


def test_results_of_several_solves_name_their_statuses():
    sol = solution(jnp.array([0, 1, 0]), n_iterations=jnp.array([3, 9, 4]), residual_norm=jnp.array([0.1, 2.0, 0.1]))
    assert repr(sol).startswith("Solution(2 CONVERGED, 1 MAXITER, ")
    shown = facts(sol._repr_html_())
    assert shown["status"] == "2 CONVERGED, 1 MAXITER" and shown["iterations"] == "3 to 9"
    assert shown["residual norm"] == "at most 2"


def test_a_repr_has_the_method_that_was_chosen_and_the_options_that_kernels_here_read():
    A = jsf.from_scipy(sp.eye_array(5), "csr")
    on_cpu = jax.default_backend() == "cpu"
    assert ("threads_per_row" in repr(A)) != on_cpu and "threads_per_row" in A.layout
    assert repr(solve(A, np.ones(5))).startswith("Solution(CONVERGED by ")


def test_names_are_shown_as_text():
    assert facts(_html.table("<b>", [("a&b", "<script>")])) == {"a&b": "<script>"}
