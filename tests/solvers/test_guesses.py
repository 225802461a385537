"""Names that users of other libraries guess: the error has the right call."""

import numpy as np
import pytest

import jaxsparse as js

A, B = js.from_scipy(js.gallery.poisson(4, dim=2), "csr"), np.ones(16)
METHODS = (js.cg, js.fcg, js.minres, js.gmres, js.bicgstab, js.idrs, js.refine, js.solve)
WORDS = {
    "jacobi": "jacobi",
    "Jacobi": "jacobi",
    "diagonal": "jacobi",
    "amg": "multigrid",
    "mg": "multigrid",
    "multigird": "multigrid",
    "ic": "incomplete_cholesky",
    "ichol": "incomplete_cholesky",
    "ILU": "ilu",
    "spilu": "ilu",
    "block-jacobi": "block_jacobi",
}


@pytest.mark.parametrize("method", METHODS, ids=lambda f: f.__name__)
def test_a_preconditioner_named_by_a_word_is_answered_with_its_call(method):
    for word, name in WORDS.items():
        assert callable(getattr(js.precond, name))
        with pytest.raises((TypeError, ValueError), match=rf"take M=precond\.{name}\(A\)"):
            method(A, B, M=word)


def test_auto_is_answered_with_solve():
    with pytest.raises(TypeError, match=r"take solve\(A, b\)"):
        js.cg(A, B, M="auto")


@pytest.mark.parametrize(("word", "name"), [("cg", "cg"), ("GMRES", "gmres"), ("bicgstb", "bicgstab")])
def test_a_method_of_krylov_named_by_a_word_is_answered_with_the_function(word, name):
    krylov = pytest.importorskip("solvers.lineax").Krylov
    with pytest.raises(TypeError, match=rf"take Krylov\({name}\)"):
        krylov(word)
