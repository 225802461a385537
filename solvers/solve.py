"""A solve that chooses: it estimates what each way would cost, takes the cheapest, and goes on if that one fails."""

import dataclasses
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt._tracing import in_trace
from solvers.core import arguments
from solvers.core.settings import Settings, settled, solver
from solvers.core.solve import solve as by_method
from solvers.direct import reachable
from solvers.facts import Facts
from solvers.solution import Solution, Status, Told
from solvers.ways import GIVEN, METHODS, OF_A_FUNCTION, ON_MANY_DEVICES, SUITED, WAYS, WITH_GIVEN_M, Way, first_success


@solver(M="auto")
def solve(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    method: str = "auto",
    symmetric: bool | None = None,
    definite: bool | None = None,
    remember: bool = True,
    **settings: Unpack[Settings],
) -> Solution:
    """Solves A·x = b as an expert would: by the way that costs least, and by the next if that fails.

    A way is a method with a preconditioner. `solve` estimates the seconds that each would take on this device, from the
    size of A, its symmetry, its diagonal, and the entries of its factors. Methods without set-up (`cg`, `minres`,
    `bicgstab` with a diagonal) are left if their rate of fall predicts a longer solve than by factors, `multigrid` or
    `ilu`. For a singular A it computes a least-squares solution, the shortest one, and says so by LEAST_SQUARES if that
    does not solve the system.

    A second solve with the same matrix begins with what succeeded, and takes the preconditioner or the factors made
    then; a matrix with the same pattern (`A.with_data`) begins with the same way. At most four preconditioners are
    kept, of at most 1 GB each, until the arrays of the pattern are freed.

    Inside jit one way is taken when the function is traced, and its status reports a failure: the cheapest of those
    with a set-up, or of all that suit the hints. Of a matrix that the function closes over everything is known. Of a
    traced one the pattern is, if its arrays are not traced (`A.with_data(data)`). Otherwise up to 3,000 unknowns are
    solved by `direct`, through calls of the host, and more by `gmres` with `ilu`, unless symmetric=True asks for
    `minres`, or definite=True for `cg`.

    For a sharded A two products with random vectors show whether it is symmetric; it takes `cg` with `block_jacobi`,
    `minres` or `gmres` with `block_jacobi`. For a function A it takes `gmres` without M.

    Args:
      method: "auto", "cg", "fcg", "minres", "gmres", "bicgstab", "idrs" or "direct".
      symmetric, definite: whether A is symmetric (Hermitian), and positive definite; None: `solve` looks at its values.
      remember: whether to use and keep what an earlier solve found out.
      M: "auto" makes a preconditioner that suits the method. Anything else, None too, is the M of all methods but the
        direct one.
      maxiter: most iterations of each method; None: 10·n, and about a minute.
      rtol: as in `cg`, but an rtol below the dtype's eps is taken as eps: 0 asks for an x as accurate as that allows.

    Other arguments and the errors are those of `cg`; callbacks and history are those of each method.

    Returns:
      A `Solution`, differentiable as that of `cg`. Its `method` is for example "cg with multigrid", and `tried` has a
      line for each way with the reason, the estimate and the outcome. If all fail, x is the best one, and the status is
      SINGULAR if the factors were and x is no least-squares solution.

    Examples:
      >>> sol = js.solve(A, b, rtol=1e-8)
      >>> sol.status, sol.method
      (<Status.CONVERGED: 0>, 'direct')
    """
    given: Any = settings
    M = given["M"]
    check_choice("method", method, ("auto", *METHODS, "direct"))
    if isinstance(M, str) and M != "auto":
        raise ValueError(f"M must be 'auto', None, a matrix or a function; got {M!r}; {arguments.call_for(M)}")
    if method == "direct" and not isinstance(M, str):
        raise ValueError("method='direct' takes no M; leave it out")
    n = arguments.unknowns(A, b)
    settled(settings, b, n, 10 * n)  # which refuses wrong ones before factors are made
    A = arguments.linear_map(A, n, "A")
    vectors = {"b": b, "x0": x0}
    if not arguments.is_function(A):
        b = arguments.vectors(b, "b")
        x0 = None if x0 is None else arguments.vectors(x0, "x0")
        given = given | {"rtol": reachable(given["rtol"], A, b)}
        if not isinstance(M, str):
            arguments.preconditioner(M, b)  # which refuses a wrong one
    # Before the first program over several processes, which would wait for one that has refused its arguments.
    choice = {"method": method, "symmetric": symmetric, "definite": definite, "remember": remember}
    arguments.in_basis(A)[1].agree(lambda: vectors | choice | {"M": arguments.described(M)})
    numbers = [given[name] for name in ("rtol", "atol", "maxiter")]
    tries = not (in_trace() or arguments.is_traced(arguments.still((b, x0, numbers))))
    remember = remember and method == "auto" and isinstance(M, str)
    facts = Facts(A, b, tries, symmetric, definite, remember)
    ways = {"function": OF_A_FUNCTION, "sharded": ON_MANY_DEVICES}.get(facts.kind, WAYS)
    name = None if M is None else GIVEN
    if method != "auto":
        suited = SUITED[method] if isinstance(M, str) else (name,)
        ways = [Way(method, made, lambda f: True, "asked for") for made in suited]
    elif not isinstance(M, str):
        ways = WITH_GIVEN_M if ways is WAYS else ways
        ways = [way if way.method == "direct" else way._replace(M=name) for way in ways]
    wrong = facts.wrong_columns(*arguments.still((b, x0))) if facts.tries and facts.kind != "function" else False
    if not np.any(wrong):
        return first_success(A, b, x0, given, facts, ways)
    return _of_finite_columns(wrong, A, b, x0, given, facts, ways)


def _of_finite_columns(wrong: Any, A: Any, b: Any, x0: Any, settings: Any, facts: Facts, ways: Any) -> Solution:
    """The solution of the columns without a NaN or an infinity; NON_FINITE in the others."""
    facts.memory = None
    if arguments.is_traced(A, b, x0):  # a derivative, which is NaN there
        M = settings["M"] if not isinstance(settings["M"], str) else None
        return by_method(METHODS["gmres"](facts.n), A, b, x0, settings | {"M": M})
    code, x = jnp.int32(Status.NON_FINITE), jnp.zeros(b.shape, facts.dtype(b))
    size = jnp.full(b.shape[1:], jnp.nan, x.real.dtype)
    if np.all(wrong):
        told = Told(("", "A, b or x0 has a NaN or an infinity"))
        return Solution(
            x, jnp.full_like(size, code, jnp.int32), jnp.zeros_like(size, jnp.int32), size, None, _told=told
        )
    b, x0 = (None if v is None else jnp.where(wrong, 0, v) for v in (b, x0))
    sol = first_success(A, b, x0, settings, facts, ways)
    code, size = jnp.where(wrong, code, sol.code), jnp.where(wrong, size, sol.residual_norm)
    return dataclasses.replace(sol, code=code, residual_norm=size)
