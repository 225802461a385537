"""Arguments that make no sense are refused by every solver, in words that name the argument, its value and the cure."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from jax.experimental.sparse import BCOO

import jaxsparse_fmt as jsf
import solvers
from solvers import (
    Adjoint,
    cg,
    direct,
    eigsh,
    factorized,
    gmres,
    idrs,
    lobpcg,
    lsmr,
    precond,
    refine,
    solve,
    spsolve_triangular,
    svds,
)

E, ONES = np.eye(3), np.ones(3)
S = jsf.gallery.poisson(3, dim=2)
A, B = jsf.from_scipy(S, "csr"), np.ones(9)
LOWER = jsf.from_dense(np.tril(S.toarray()))
SUPERLU = spla.splu(sp.csc_array(E))
TREE = {"u": np.ones((2, 3)), "v": np.ones(4)}
CUT = (lambda v: v), (lambda u: u[:2])
UNROLLED = {"adjoint": "unrolled", "maxiter": 3}
NO_MASS = "and positive definite with finite entries"


def doubled(tree):
    return jax.tree.map(lambda a: 2 * a, tree)


class Opaque:
    """A class of a user's, which JAX takes for no pytree."""

    shape = (5, 5)

    def __matmul__(self, v):
        return 2 * v


def stored(a: Any) -> jsf.SparseMatrix:
    return jsf.from_scipy(sp.csr_array(a), "csr")


def sharded() -> Any:
    return jsf.shard(S, jax.sharding.Mesh(np.array(jax.devices()[:2]), ("rows",)))


def raises(_):
    raise ValueError("mine")


# Solver, arguments, options, and what stands in the message of a ValueError.
VALUES = [
    (cg, (E, np.ones(4)), {}, r"b has length 4; A of shape \(3, 3\) takes b of shape \(3,\) or \(3, k\)"),
    (cg, (np.ones((2, 3)), np.ones(2)), {}, r"needs \(2, 2\); lsmr takes a rectangular A"),
    (cg, (np.ones((3, 4)), ONES), {}, r"shape \(3, 4\)"),
    (cg, (E, np.ones((3, 2, 2))), {}, r"a vector of shape \(n,\).*got \(3, 2, 2\)"),
    (cg, (E, ONES, np.ones(4)), {}, r"x0 has shape \(4,\)"),
    (cg, (E, np.ones(0)), {}, "b is empty"),
    (cg, (E, ONES), {"rtol": -1}, "rtol must be a number from 0 up; got -1"),
    (cg, (E, ONES), {"atol": float("nan")}, "atol must be"),
    (cg, (E, ONES), {"maxiter": -1}, "maxiter must be"),
    (cg, (E, ONES), {"check_every": 0}, "check_every must be"),
    (cg, (E, ONES), {"history": -5}, "history must be at least 0; got -5"),
    (cg, (E, ONES), {"M": np.eye(4)}, r"M has shape \(4, 4\)"),
    (cg, (E, ONES), {"M": np.ones(4)}, r"M has shape \(4,\).* or \(3,\) for a diagonal"),
    (cg, (ONES, ONES), {}, "for a diagonal A pass"),
    (cg, (E, np.ones((2, 3))), {}, r"right-hand sides are columns, \(3, k\): pass b.T"),
    (cg, (E, ONES), {"M": precond.jacobi}, r"Pass M=jacobi\(A\)"),
    (cg, (lambda v: v[:2], ONES), {}, r"A·v must be a vector of shape \(3,\) like v; got \(2,\)"),
    (cg, (doubled, TREE, {"u": ONES}), {}, "x0 must have b's structure and shapes"),
    (cg, (doubled, ONES, [0.0] * 2), {}, r"x0 has shape \(2,\); it must have b's, \(3,\)"),
    (cg, (doubled, TREE, TREE | {"v": TREE["u"]}), {}, r"x0 must have.*got .*\(2, 3\).*\(2, 3\)"),
    (cg, (lambda t: t["u"], {"u": E}), {}, "A·v must have b's structure"),
    (cg, (E, ONES), UNROLLED | {"maxiter": None}, "needs maxiter=, the number of steps; got None"),
    (cg, (E, ONES), UNROLLED | {"callback": print}, "calls no callback; pass history=True"),
    (cg, (E, ONES), UNROLLED | {"progress": print}, "calls no progress; pass history=True"),
    (refine, (E, ONES), UNROLLED | {"dtype": "float32"}, "is not for refine; unroll the method itself"),
    (Adjoint, (), {"rtol": -1}, "rtol must be a number from 0 up; got -1"),
    (gmres, (lambda v: v, np.ones(10**7)), {"restart": 10**9}, "restart=10000000: 10000001 .* use a smaller restart"),
    (idrs, (E, ONES), {"s": 0}, "s must be"),
    (refine, (A.astype("float32"), B.astype("f")), {"dtype": "float32"}, "float32 is not narrower"),
    (refine, (A, B), {"dtype": "float64"}, "one of float32, bfloat16; got 'float64'"),
    (refine, (A, B), {"dtype": "int8"}, "got 'int8'"),
    (refine, (A, B), {"method": "lsqr"}, "one of cg, fcg, minres, bicgstab, gmres; got 'lsqr'"),
    (refine, (1j * A, B), {"dtype": "bfloat16"}, "dtype='bfloat16' is for real A and b"),
    (lsmr, (E[:, :2], np.ones(5)), {}, r"\(3, 2\), and b of length 5"),
    (lsmr, (E[:, :2], ONES), {"x0": ONES}, r"x0 has shape \(3,\)"),
    (lsmr, (E, ONES), {"damp": -1.0}, "damp must be a number from 0 up"),
    (lsmr, ((lambda v: v, lambda u: u[:2]), ONES), {}, "back to"),
    (lsmr, ((lambda v: v, lambda u: u), np.ones((4, 2))), {}, r"one right-hand side.*\(4, 2\).*jax.vmap.*b.ravel\(\)"),
    (lsmr, (np.zeros((0, 3)), np.zeros(0)), {}, "b is empty"),
    (eigsh, (np.ones((3, 4)), 1), {}, r"A must be square; got shape \(3, 4\)"),
    (eigsh, (doubled, 1), {}, "pass v0"),
    (eigsh, (lambda v: v[:2], 1), {"v0": np.ones(5)}, r"A·v must be a vector of shape \(5,\)"),
    (eigsh, (np.triu(np.ones((5, 5))), 1), {}, "differ by 1"),
    (eigsh, (E, 3), {}, r"k must be below n = 3; got 3. For all eigenpairs use jnp.linalg.eigh"),
    (eigsh, (E, 2), {"ncv": 2}, "ncv must be above k = 2 and at most 3, the length of its vectors; got 2"),
    (svds, (stored((2, 3)), 1), {"ncv": 6, "which": "SM"}, "at most 5, the length of its vectors; got 6"),
    (eigsh, (E, 2), {"which": "BE"}, "which must be one of LM, LA, SA, .*; got 'BE'"),
    (eigsh, (E, 2), {"which": "SM"}, r"those nearest to 0 eigsh\(A, k, sigma=0\)"),
    (eigsh, (E, 2), {"tol": -1}, "tol must be a number from 0 up"),
    (eigsh, (E, 2), {"v0": np.ones(4)}, r"v0 has shape \(4,\)"),
    (eigsh, (A, 2), {"sigma": 0.0, "which": "SA"}, "no which"),
    (eigsh, (A, 2), {"sigma": np.nan}, "sigma must be finite; got nan"),
    (eigsh, (A, 2), {"sigma": np.nan, "M": jsf.eye(9)}, "sigma must be finite; got nan"),
    (eigsh, (A, 2), {"M": -1.0 * A}, NO_MASS),
    (eigsh, (A, 2), {"M": 0.0 * A}, NO_MASS),
    (eigsh, (A, 2), {"M": A.with_data(A.data.at[0].set(jnp.nan))}, NO_MASS),
    (eigsh, (A, 2), {"M": stored(S + sp.triu(S))}, "M is not symmetric"),
    (eigsh, (A, 2), {"M": jsf.eye(10)}, "it must have the same"),
    (lobpcg, (E, 2), {"which": "SM"}, r"SA, LA, and for those nearest to 0 eigsh\(A, k, sigma=0\); got 'SM'"),
    (lobpcg, (E, 2), {"X0": np.ones((3, 1))}, "from 2 to 3"),
    (lobpcg, (E, 2), {"X0": ONES}, "as columns"),
    (lobpcg, (doubled, 2), {}, "pass X0"),
    (svds, (A, 2), {"shape": (3, 3)}, "shape= is for a pair of functions"),
    (svds, (A, 2), {"which": "SM", "v0": np.ones(2)}, r"v0 has shape \(2,\); A of shape \(9, 9\) needs \(9,\)"),
    (svds, (CUT, 2), {"shape": (3, 3)}, r"take \(3,\) to \(3,\) and back; got \(3,\), \(2,\)"),
    (svds, (np.ones((3, 1)), 1), {}, r"k must be below 1, the shorter side of A; got 1.* jnp\.linalg\.svd"),
    (solve, (A, B), {"method": "lu"}, "method must be one of auto, cg, .*; got 'lu'"),
    (solve, (A, B), {"M": "illu"}, r"got 'illu'; use M=precond.ilu\(A\)"),
    (solve, (A, B), {"method": "direct", "M": None}, "takes no M"),
    (solve, (A, B), {"rtol": -1}, "rtol must be a number from 0 up"),
    (solve, (A, B), {"maxiter": -1}, "maxiter"),
    (solve, (A, ONES), {}, "b has length 3; A of shape"),
    (solve, (A, B), {"M": raises}, "mine"),  # not swallowed
    (solve, (A, B), {"M": E}, r"M has shape \(3, 3\)"),
    (solve, (lambda v: A @ v, B), {"method": "minres"}, "diagonal"),
    (solve, (stored((0, 0)), np.ones(0)), {}, r"b is empty, of shape \(0,\)"),
    (solve, (sharded(), B), {"method": "direct"}, "sharded; gather it"),
    (factorized, (stored(np.ones((3, 4))),), {}, "square"),
    (cg, (sharded(), B), {"callback": print}, r"2 devices.*progress="),
    (spsolve_triangular, (LOWER, B), {"lower": False}, r"not upper triangular: it has an entry at \(.*triu\(A\)"),
    (spsolve_triangular, (stored(np.diag([1.0, 0, 2])), ONES), {}, "diagonal is zero in row 1"),
    (spsolve_triangular, (LOWER, ONES), {}, "shape"),
]
# The same of a TypeError.
TYPES = [
    (cg, (E, np.ones(3, np.longdouble)), {}, "b has dtype .*, which JAX cannot hold; convert it"),
    (cg, (E, np.array(["1", "2", "3"])), {}, "b has dtype <U1, which is not numeric"),
    (cg, (sp.eye_array(3), ONES), {}, "from_scipy"),
    (cg, ("matrix", ONES), {}, "got 'matrix'"),
    (cg, (E, ONES), {"maxiter": 2.5}, "maxiter must be a whole number; got 2.5"),
    (cg, (E, ONES), {"rtol": None}, "rtol must be one real number; got None"),
    (cg, (E, ONES), {"callback": 3}, "callback must be a function or None; got 3"),
    (cg, (doubled, TREE), {"callback": 0}, "callback must be a function or None; got 0"),
    (cg, (A, B), {"M": "auto"}, r"use solve\(A, b\)"),
    (cg, (E, ONES), {"M": 1j * ONES}, "drop its imaginary part; make b complex"),
    (cg, (E, ONES), {"one_reduction": "piped"}, "must be True or False; got 'piped'"),
    (cg, (spla.aslinearoperator(E), ONES), {}, "LinearOperator as a function"),
    (cg, (E, ONES), {"M": SUPERLU}, r"use M=precond.ilu\(A\) in place of spilu"),
    (cg, (E, ONES), {"M": SUPERLU.solve}, r"use M=precond.ilu\(A\) in place of spilu"),
    (cg, (np.eye(6), {"u": TREE["u"]}), {}, "b is a dict; a matrix A takes one array, and a function A a pytree"),
    (cg, (E, ONES), {"adjoint": "exact"}, r"a solvers\.Adjoint or 'unrolled'; got 'exact'"),
    (Adjoint, (), {"maxiter": 2.5}, "maxiter must be a whole number"),
    (Adjoint, (), {"truncated": 1}, "truncated must be True or False; got 1"),
    (Adjoint, (), {"report": 3}, "report must be a function or None; got 3"),
    (gmres, (E, ONES), {"flexible": "no"}, "flexible must be True or False; got 'no'"),
    (idrs, (E, ONES), {"s": 2.5}, "s must be"),
    (refine, (lambda v: A @ v, B), {}, "store it as a matrix"),
    (refine, (spla.aslinearoperator(S), B), {}, "A is SciPy's"),
    (lsmr, (E, {"a": ONES}), {}, r"b must be one array.*ravel_pytree"),
    (eigsh, (A, 2), {"sigma": "0"}, "a real number"),
    (eigsh, (A, 2), {"sigma": 1j}, "a real number"),
    (eigsh, (S, 2), {"sigma": 0, "M": A}, "is a csr_array: convert it with from_scipy"),
    (eigsh, (A, 2), {"sigma": 0, "M": S}, "is a csr_array: convert it with from_scipy"),
    (lobpcg, (E, np.ones((3, 2))), {}, r"lobpcg\(A, k, X0=X\)"),
    (lobpcg, (E, 2), {"M": lambda r: 1j * r}, "drop its imaginary part; make X0 complex"),
    (svds, (doubled,), {}, r"svds needs a matrix \[m, n\] with a shape and @; got function"),
    (svds, (ONES,), {}, r"svds needs a matrix .*; got shape \(3,\)"),
    (svds, (Opaque(), 2), {}, "a pytree, for its products with Aᵀ; got Opaque"),
    (svds, (S, 2), {}, r"A is SciPy's; convert"),
    (factorized, (S,), {}, "from_scipy"),
    (direct, (BCOO.fromdense(jnp.eye(3)), ONES), {}, "from_bcoo"),
    (direct, (A, B), {"adjoint": "unrolled"}, "for a direct solve; got 'unrolled'"),
    (solve, (A, B), {"tol": 1e-3}, "solve has no keyword 'tol': here it is 'rtol'"),
    (solve, (S, B), {}, "convert a sparse matrix once"),
    (solve, (A, sp.csr_array(np.ones((9, 1)))), {}, r"b is a sparse csr_array, .* b.todense\(\)"),
    (spsolve_triangular, (sp.tril(S), B), {}, "from_scipy"),
    (jax.jit(spsolve_triangular), (LOWER, B), {}, "traced"),
]
ROWS = [(error, *row) for error, rows in ((ValueError, VALUES), (TypeError, TYPES)) for row in rows]


@pytest.mark.parametrize(("error", "solver", "arguments", "options", "words"), ROWS, ids=range(len(ROWS)))
def test_is_a_bad_argument_refused_in_words(error, solver, arguments, options, words):
    with pytest.raises(error, match=words):
        solver(*arguments, **options)


@pytest.mark.parametrize("name", ["cg", "fcg", "minres", "gmres", "bicgstab", "refine"])
@pytest.mark.parametrize(("keyword", "told"), [("tol", "here it is 'rtol'"), ("rtoll", "it has x0, M, rtol")])
def test_is_an_unknown_keyword_told_what_there_is(name, keyword, told):
    with pytest.raises(TypeError, match=rf"{name} has no keyword '{keyword}'.*{told}"):
        getattr(solvers, name)(E, ONES, **{keyword: 1e-3})


# What users of other libraries call preconditioners, and what they are called here.
METHODS = ["cg", "fcg", "minres", "gmres", "bicgstab", "idrs", "refine", "solve"]
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


@pytest.mark.parametrize("name", METHODS)
def test_is_a_preconditioner_named_by_a_word_answered_with_its_call(name):
    for word, maker in WORDS.items():
        assert callable(getattr(precond, maker))
        with pytest.raises((TypeError, ValueError), match=rf"use M=precond\.{maker}\(A\)"):
            getattr(solvers, name)(A, B, M=word)


@pytest.mark.parametrize(("word", "name"), [("cg", "cg"), ("GMRES", "gmres"), ("bicgstb", "bicgstab")])
def test_is_a_method_of_krylov_named_by_a_word_answered_with_the_function(word, name):
    krylov = pytest.importorskip("solvers.lineax").Krylov
    with pytest.raises(TypeError, match=rf"use Krylov\({name}\)"):
        krylov(word)
