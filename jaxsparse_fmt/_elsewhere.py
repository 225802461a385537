"""What names of other libraries are called here, for the errors of modules, matrices and solutions."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from jaxsparse_fmt._text import did_you_mean


def _each(calls: dict[str, str]) -> dict[str, str]:
    """One entry for each of the names of a key; {} in a call stands for the name."""
    return {name: call.format(name) for names, call in calls.items() for name in names.split()}


OF_MODULES = _each(
    {
        "linalg sparse": "jaxsparse itself, which stands for scipy.sparse and its linalg",
        "spsolve linsolve": "jaxsparse.direct(A, b)",
        "splu lu cholesky factorize factor cho_factor": "jaxsparse.factorized(A)",
        "inv": "F = jaxsparse.factorized(A), and F @ b",
        "pcg conjugate_gradient": "jaxsparse.cg(A, b, M=M)",
        "bicg cgs qmr tfqmr lgmres gcrotmk": "jaxsparse.gmres(A, b), or jaxsparse.bicgstab(A, b)",
        "lsqr lstsq": "jaxsparse.lsmr(A, b)",
        "spilu ilu ilu0": "jaxsparse.precond.ilu(A)",
        "ic ichol ic0": "jaxsparse.precond.incomplete_cholesky(A)",
        "amg gamg pyamg": "jaxsparse.precond.multigrid(A)",
        "ssor sor gauss_seidel": "jaxsparse.precond.chebyshev(A), or jaxsparse.precond.incomplete_cholesky(A)",
        "jacobi block_jacobi multigrid incomplete_cholesky incomplete_lu chebyshev": "jaxsparse.precond.{}(A)",
        "csr csr_matrix csr_array coo coo_matrix coo_array csc csc_matrix csc_array bsr bsr_matrix bsr_array dia "
        "dia_matrix dia_array lil_matrix lil_array dok_matrix dok_array array asarray matrix sparse_array": (
            "jaxsparse.from_scipy(S), jaxsparse.from_coo(i, j, a, shape) or jaxsparse.from_dense(D)"
        ),
        "from_numpy from_array fromdense": "jaxsparse.from_dense(D)",
        "from_jax": "jaxsparse.from_bcoo(B)",
        "identity eye_array speye": "jaxsparse.eye(n)",
        "diag spdiags diags_array": "jaxsparse.diags(d, offsets)",
        "bmat block_array concatenate": "jaxsparse.block([[A, B], [C, D]])",
        "rand random_array": "jaxsparse.random(m, n, density=0.1)",
        "to_scipy": "A.to_scipy()",
        "to_dense todense toarray": "A.todense()",
        "find": "A.row_ids, A.col_ids and A.data",
        "issparse isspmatrix": "isinstance(A, jaxsparse.SparseMatrix)",
        "matmul dot spmm spgemm": "A @ B",
        "eigh": "jaxsparse.eigsh(A, k)",
        "eig": "jaxsparse.eigs(A, k)",
        "svd": "jaxsparse.svds(A, k)",
        "expm": "jaxsparse.expm_multiply(A, v)",
        "slogdet det": "jaxsparse.logdet(A)",
        "laplacian": "jaxsparse.from_scipy(scipy.sparse.csgraph.laplacian(W))",
        "reverse_cuthill_mckee rcm": 'jaxsparse.order(A, "rcm")',
        "dirichlet": "jaxsparse.constrain(A, b, fixed, values)",
        "mmread read_matrix_market": "jaxsparse.read_mtx(path)",
        "mmwrite write_mtx": "jaxsparse.io.write_mtx(path, A)",
        "load_npz": "jaxsparse.from_scipy(scipy.sparse.load_npz(path))",
        "save_npz": "jaxsparse.save(path, A)",
        "LinearOperator aslinearoperator": "a function of jax.numpy, v -> A·v, as jaxsparse.cg(f, b) takes it",
        "spy": "jaxsparse.plot.spy(A)",
        "poisson convection_diffusion elasticity": "jaxsparse.gallery.{}(n)",
        "tune autotune": 'jaxsparse.from_scipy(S, "tune")',
        "distribute": "jaxsparse.shard(S, mesh)",
        "config enable_x64": 'jax.config.update("jax_enable_x64", True)',
    }
)
OF_MATRICES = _each(
    {
        "in_structure out_structure": "jaxsparse.lineax.SparseOperator(A) for lineax",
        "indices indptr": "A.csr_arrays()",
        "row col coords": "A.row_ids and A.col_ids",
        "format getformat": "A.name, or A.T.name of a transpose",
        "size getnnz": "A.nnz",
        "diag": "A.diagonal()",
        "conjugate": "A.conj()",
        "adjoint getH": "A.H",
        "getrow": "A[i]",
        "getcol": "A[:, j]",
        "convert tobsr todia tolil todok": 'A.asformat("csr"), or another of jaxsparse.FORMATS',
        "toscipy to_csr to_numpy numpy": "A.to_scipy(), or A.todense()",
        "to_dense": "A.todense()",
        "to_bcoo": "jaxsparse.to_bcoo(A)",
        "eliminate_zeros": "jaxsparse.prune(A)",
        "sum_duplicates sort_indices": "A as it is: its entries are summed and sorted",
        "solve": "jaxsparse.solve(A, b)",
        "inv": "F = jaxsparse.factorized(A), and F @ b",
        "plot spy": "jaxsparse.plot.spy(A)",
        "device devices to": "A.data.devices(), and jax.device_put(A, device)",
        "block_until_ready": "jax.block_until_ready(A)",
    }
)
OF_SOLUTIONS = _each(
    {
        "converged": "sol.success",
        "info": "sol.status, or x, info = sol",
        "niter nit num_iterations": "sol.iterations",
        "residual": "sol.residual_norm",
        "residuals": "sol.history, of a solve with history=True",
        "shape dtype ndim T": "sol.x.{}",
    }
)


def no_attribute(module: ModuleType, name: str, names: Iterable[str]) -> AttributeError:
    """The error of a module without a name, with the call that was meant."""
    call = OF_MODULES.get(name)
    hint = f"; use {call}" if call else did_you_mean(name, names)
    return AttributeError(f"module {module.__name__!r} has no attribute {name!r}{hint}", name=name, obj=module)


def missing(calls: dict[str, str]) -> Callable[[Any, str], Any]:
    """The `__getattr__` of a class, whose errors name these calls."""

    def __getattr__(self: Any, name: str) -> Any:
        if name not in calls:
            return object.__getattribute__(self, name)  # raises, also what a property has raised
        words = f"{type(self).__name__!r} object has no attribute {name!r}; use {calls[name]}"
        raise AttributeError(words, name=name, obj=self)

    return __getattr__
