"""A solve that chooses: it looks at the matrix, tries the cheapest method that may do, and goes on where one fails.

The table `ON_ONE_DEVICE` holds the rule: each row is a method, its preconditioner, the steps that it gets and the
matrices that it is meant for. Outside jit the rows are tried in order until one succeeds, and a row that fails costs
little beside those below it. Inside jit, where no failure is seen, the first row is taken that is not a mere try.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._types import check_choice, concrete, in_trace, nearest
from jaxsparse_fmt.convert import from_dense
from solvers import precond
from solvers.bicgstab import bicgstab
from solvers.cg import cg
from solvers.core import arguments
from solvers.core.settings import Settings, settled, solver
from solvers.direct import direct, prepared, reachable, solved
from solvers.fcg import fcg
from solvers.gmres import gmres
from solvers.host import Host, hosted
from solvers.idrs import idrs
from solvers.minres import minres
from solvers.solution import Solution, SolverError, Status, Told

METHODS: dict[str, Callable[..., Solution]] = {
    **{"cg": cg, "fcg": fcg, "minres": minres, "gmres": gmres, "bicgstab": bicgstab, "idrs": idrs},
    "direct": lambda A, b, x0, **settings: solved(A, b, x0, settings),
}
SMALL = 3_000  # unknowns: even full factors take a second or two
LITTLE, MUCH, TOO_MANY = 4e8, 4e9, 1e13  # multiplications of a factorization; TOO_MANY take hours


class Facts(NamedTuple):
    """What is known of a matrix.

    Attributes:
      n: unknowns.
      tries: whether another method may follow one that fails; not inside jit.
      finite: whether all numbers of A and b are finite, or unknown.
      look: what tells its diagonal and whether it is symmetric; None where its numbers are not known.
    """

    A: Any
    n: int
    tries: bool
    finite: bool = True
    look: "Host | Probe | None" = None

    @property
    def symmetric(self) -> bool:
        """Whether A is known to be symmetric (Hermitian)."""
        return self.look is not None and self.look.symmetric

    @property
    def maybe_definite(self) -> bool:
        """Symmetric with a positive diagonal."""
        return self.look is not None and self.look.symmetric and bool((self.look.diagonal.real > 0).all())

    @property
    def indefinite(self) -> bool:
        """Symmetric with another diagonal, or a semidefinite matrix with a zero row."""
        return self.symmetric and not self.maybe_definite

    @property
    def full_diagonal(self) -> bool:
        return self.look is not None and bool((self.look.diagonal != 0).all())

    @property
    def work(self) -> float:
        """Multiplications of a factorization, mostly from above; infinite where the numbers are not known."""
        return self.look.envelope[1] if isinstance(self.look, Host) else np.inf


class Probe:
    """Of a sharded matrix, which the host does not hold."""

    def __init__(self, A: Any):
        self.A = A

    @functools.cached_property
    def symmetric(self) -> bool:
        """Whether vᴴ·A·u is the conjugate of uᴴ·A·v for random u and v."""
        rng, A = np.random.default_rng(0), self.A
        u, v = (jnp.asarray(rng.standard_normal(A.shape[0]), A.dtype) for _ in range(2))
        Au = A @ u
        difference = jnp.abs(jnp.vdot(v, Au) - jnp.vdot(A @ v, u))
        return bool(difference <= 100 * jnp.finfo(A.dtype).eps * jnp.linalg.norm(v) * jnp.linalg.norm(Au))

    @functools.cached_property
    def diagonal(self) -> Any:
        return self.A.diagonal()


class Trial(NamedTuple):
    """A row of a table.

    Attributes:
      method, M: names, of METHODS and MAKERS.
      limit: most steps; None: the method's own.
      when: whether it is meant for a matrix.
      why: that in words.
    """

    method: str
    M: str | None
    limit: int | None
    when: Callable[[Facts], bool]
    why: str

    @property
    def name(self) -> str:
        return f"{self.method} with {self.M}" if self.M and self.method != "direct" else self.method


ON_ONE_DEVICE = (
    Trial("gmres", None, 1, lambda f: not f.finite, "A or b has a NaN or an infinity"),
    Trial("direct", "factors", None, lambda f: f.n <= SMALL or f.work <= LITTLE, "factors cost milliseconds"),
    Trial("cg", "jacobi", 400, lambda f: f.tries and f.maybe_definite, "symmetric, positive diagonal; no set-up"),
    Trial("minres", "|jacobi|", 100, lambda f: f.tries and f.indefinite, "symmetric, indefinite; no set-up"),
    Trial("bicgstab", "jacobi", 150, lambda f: f.tries and f.full_diagonal and not f.symmetric, "no set-up"),
    Trial("direct", "factors", None, lambda f: f.work <= MUCH, "factors cost a second or two"),
    Trial("cg", "multigrid", 100, lambda f: f.maybe_definite, "symmetric, positive diagonal; factors may be large"),
    Trial("gmres", "ilu", 100, lambda f: True, "for any matrix; factors may be large"),
    Trial("direct", "factors", None, lambda f: f.tries, "the last resort"),
    Trial("minres", None, 2000, lambda f: f.tries and f.symmetric, "symmetric, perhaps singular"),
    Trial("gmres", None, 300, lambda f: f.tries and not f.symmetric, "perhaps singular"),
)
GIVEN = "the given M"
WITH_GIVEN_M = (
    Trial("cg", GIVEN, 1000, lambda f: f.maybe_definite, "symmetric, positive diagonal"),
    Trial("minres", GIVEN, 1000, lambda f: f.indefinite, "symmetric, indefinite"),
    Trial("gmres", GIVEN, 1000, lambda f: True, "for any matrix"),
    Trial("direct", "factors", None, lambda f: f.tries, "the last resort"),
)
ON_MANY_DEVICES = (
    Trial("cg", "block_jacobi", None, lambda f: f.maybe_definite, "symmetric as a probe shows, positive diagonal"),
    Trial("minres", None, None, lambda f: f.symmetric, "symmetric as a probe shows"),
    Trial("gmres", "block_jacobi", None, lambda f: True, "for any matrix over several devices"),
)
OF_A_FUNCTION = (Trial("gmres", None, None, lambda f: True, "of A only products are known"),)
# For a method that the caller names: preconditioners that suit it.
SUITED = {
    "cg": (("jacobi", 200), ("multigrid", None)),
    "fcg": (("jacobi", 200), ("multigrid", None)),
    "minres": (("|jacobi|", None),),
    **dict.fromkeys(("gmres", "bicgstab", "idrs"), (("ilu", None), (None, None))),
    "direct": (("factors", None),),
}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "jacobi": precond.jacobi,
    "|jacobi|": lambda A: precond.jacobi(abs(A)),
    "block_jacobi": lambda A: precond.block_jacobi(A, BLOCK),
    "multigrid": precond.multigrid,
    "ilu": precond.ilu,
}
BLOCK = 16  # rows of a block of `block_jacobi`


@solver(M="auto")
def solve(A: Any, b: Any, x0: Any = None, *, method: str = "auto", **settings: Unpack[Settings]) -> Solution:
    """Solves A·x = b by the method that suits A, and by the next if that fails; `sol.method` tells which it was.

    It looks at the size of A, its symmetry, its diagonal, and how large its factors may be. Small systems, and larger
    ones whose factors stay small, are solved directly. Others get some steps of `cg`, `minres` or `bicgstab` without
    set-up; then the direct method if the factors are of medium size; then steps of `cg` with `multigrid` or of `gmres`
    with `ilu`; then the direct method unless its factors would take hours or more memory than is free; and at last
    `minres` or `gmres`, as for a singular A.

    Inside jit one method is taken when the function is traced, and its status reports a failure. For a matrix that the
    function closes over it is the first of those above with a set-up. Of a traced one only the size is known: up to
    3,000 unknowns the direct method is taken, by calls of the host, and above `gmres` with `ilu`; name a method that
    suits A better, such as method="cg".

    For a sharded A two products with random vectors show whether it is symmetric; it takes `cg` with `block_jacobi`,
    `minres` or `gmres` with `block_jacobi`. For a function A it takes `gmres` without M.

    Args:
      method: "auto", "cg", "fcg", "minres", "gmres", "bicgstab", "idrs" or "direct".
      M: "auto" makes a preconditioner that suits the method. Anything else, None too, is the M of all methods but the
        direct one.
      maxiter: most iterations of each method; None stops a method after 100 to 2,000 where another may follow.
      rtol: as in `cg`, but an rtol below the dtype's eps is taken as eps: 0 asks for an x as accurate as that allows.
      The others, and the errors: as in `cg`; callbacks and history are those of each method.

    Returns:
      A `Solution`, differentiable as that of `cg`. Its `method` is for example "cg with multigrid", and `tried` has a
      line for each method with the reason and the outcome. If all fail, x is the best one, and the status is SINGULAR
      if the factors were and x is no least-squares solution.
    """
    given: Any = settings
    M = given["M"]
    check_choice("method", method, ("auto", *METHODS))
    if isinstance(M, str) and M != "auto":
        near = nearest(M, precond.__all__) or "jacobi"
        raise ValueError(f"M must be 'auto', None, a matrix or a function; got {M!r}. Try M=precond.{near}(A)")
    if method == "direct" and not isinstance(M, str):
        raise ValueError("method='direct' takes no M; leave it out")
    n = arguments.unknowns(A, b)
    settled(settings, b, n, 10 * n)  # which refuses wrong ones before factors are made
    A = arguments.linear_map(A, n, "A")
    if not arguments.is_function(A):
        b = arguments.vectors(b, "b")
        given = given | {"rtol": reachable(given["rtol"], A, b)}
    numbers = [given[name] for name in ("rtol", "atol", "maxiter")]
    known, table = _known(A, b, n, tries=not (in_trace() or arguments.is_traced(arguments.still((b, x0, numbers)))))
    name = None if M is None else GIVEN
    if method != "auto":
        suited = SUITED[method] if isinstance(M, str) else ((name, None),)
        table = [Trial(method, made, limit, lambda f: True, "asked for") for made, limit in suited]
    elif not isinstance(M, str):
        table = WITH_GIVEN_M if table is ON_ONE_DEVICE else table
        table = [row if row.method == "direct" else row._replace(M=name) for row in table]
    return _first_success(A, b, x0, given, known, table)


def _known(A: Any, b: Any, n: int, tries: bool) -> tuple[Facts, Sequence[Trial]]:
    """What is known of A, and the table for its kind."""
    held, b = arguments.still(A), arguments.still(b)
    many = getattr(getattr(held, "A", held), "name", "") == "sharded"
    if isinstance(held, jax.Array) and not arguments.is_traced(held):
        with concrete():
            held = from_dense(held, "csr")
    if arguments.is_function(A) or not hasattr(held, "to_scipy"):
        return Facts(A, n, tries), OF_A_FUNCTION
    if arguments.is_traced(held):
        return Facts(held, n, False), ON_MANY_DEVICES if many else ON_ONE_DEVICE
    if many:
        return Facts(held, n, tries, True, Probe(held)), ON_MANY_DEVICES
    host = hosted(held)
    finite = host.finite and (arguments.is_traced(b) or bool(np.isfinite(np.asarray(b)).all()))
    return Facts(held, n, tries, finite, host), ON_ONE_DEVICE


def _first_success(A: Any, b: Any, x0: Any, settings: Any, known: Facts, table: Sequence[Trial]) -> Solution:
    """The solution of the first trial that succeeds, else the best one; inside jit that of the first."""
    tried: list[str] = []
    done: set[tuple[str, str | None]] = set()
    best, least, singular, refused = None, np.inf, False, ValueError("no method fits")
    for trial in table:
        if (trial.method, trial.M) in done or not trial.when(known):
            continue
        done.add((trial.method, trial.M))
        words = f"{trial.name} ({trial.why})"
        try:
            M = settings["M"] if trial.M == GIVEN else _made(trial.M, known)
            maxiter = trial.limit if settings["maxiter"] is None and known.tries else settings["maxiter"]
            sol = METHODS[trial.method](A, b, x0, **settings | {"M": M, "maxiter": maxiter})
        except (ValueError, MemoryError, SolverError) as error:
            status, refused = getattr(error, "status", None), error
            tried.append(f"{words}: refused, {status or str(error).partition(';')[0]}")
            singular |= status is Status.SINGULAR
            continue
        if not known.tries:
            return _telling(sol, trial.name, *tried, words)
        code = np.asarray(sol.code)  # on the host: `success` would take 30 µs
        tried.append(f"{words}: {Status(int(np.max(code)))}")
        sol = _telling(sol, trial.name, *tried)
        if np.all((code == Status.CONVERGED) | (code == Status.ROUNDED)):
            return sol
        norm = np.max(np.asarray(arguments.still(sol.residual_norm)), initial=0)
        if best is None or norm < least:
            best, least = sol, norm
        if not known.finite:
            break
        singular |= bool(np.any(code == Status.SINGULAR))
    if best is None:
        if not singular:
            raise refused
        best = _telling(direct(A, b), "direct")
    failed = jnp.logical_not(best.success) & (best.code != Status.LEAST_SQUARES)
    code = jnp.where(failed & singular, jnp.int32(Status.SINGULAR), best.code)
    return _telling(dataclasses.replace(best, code=code), best.method, *tried)


def _telling(sol: Solution, *words: str) -> Solution:
    return dataclasses.replace(sol, _told=Told(words))


def _made(name: str | None, known: Facts) -> Any:
    A = known.A
    if name is None:
        return None
    if name == "factors":
        if known.n > SMALL and known.look is not None and known.work > TOO_MANY:
            text = f"the factors may take {known.work:.1g} multiplications, which is hours"
            raise ValueError(f"{text}; direct(A, b) tries all the same")
        return prepared(A, known.tries)
    with concrete() if not arguments.is_traced(A) else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a multigrid cycle that diverges: the trial shows it
        return MAKERS[name](A)
