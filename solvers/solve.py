"""A solve that chooses: it estimates what each way would cost, takes the cheapest, and goes on if that one fails."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt._tracing import in_trace, is_traced
from solvers.core import arguments
from solvers.core.operators import Wrapped, call_for, is_function, operator, preconditioner
from solvers.core.solve import Keywords, Settings, by_method, solver
from solvers.direct import placed_like, reachable
from solvers.facts import Facts, Memory, NotFinite, Success, is_plain, recalled
from solvers.on_host import refined
from solvers.shortest import as_small_as, for_all_of, shortened
from solvers.solution import Solution, Status, Told
from solvers.trials import first_success
from solvers.ways import (
    GIVEN,
    METHODS,
    OF_A_FUNCTION,
    ON_MANY_DEVICES,
    SUITED,
    WAYS,
    WITH_GIVEN_M,
    Way,
    without_null_space,
)


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
    **settings: Unpack[Keywords],
) -> Solution:
    """Solves A·x = b as an expert would: by the strategy that costs least, and by the next one if that fails.

    A strategy is a method with a preconditioner. `solve` estimates the seconds that each would take on this device.
    Methods without set-up (`cg`, `minres`, `bicgstab` with a diagonal) are abandoned if the rate at which the residual
    falls predicts a longer solve than by factors, `multigrid` or `ilu`. A singular A gets the shortest least-squares
    solution, as far as factors or vectors constant on its connected parts show the null space, and LEAST_SQUARES if
    that does not solve the system. A RuntimeWarning announces, with its estimate, what is expected to take a solve
    beyond ten seconds, or twice what was announced before; factors that take more than an hour are left to `direct`.

    A second solve with the same matrix begins with what succeeded, and uses the preconditioner or the factors made
    then; a matrix with the same pattern (`A.with_data`) begins with the same strategy, and its factors
    take the order of the first ones. Eight patterns are remembered, with preconditioners or factors of at most 1 GB
    each, of which `tried` tells, until the arrays of the pattern are freed. Arrays of NumPy, which may change, are not
    remembered.

    Inside jit one strategy is chosen when the function is traced, and its status reports a failure: the cheapest of
    those with a set-up, or of all that suit the hints. A matrix that the function closes over is known; so is the
    pattern of `A.with_data(data)`. Otherwise `direct` solves up to 3,000 unknowns, through calls of the host, and
    `gmres` with `ilu` more, unless symmetric=True asks for `minres`, or definite=True for `cg`. A sharded A gets `cg`
    with `block_jacobi` or `multigrid`, `minres`, or `gmres` with `block_jacobi`; a function A `gmres`.

    Args:
      method: "auto", "cg", "fcg", "minres", "gmres", "bicgstab", "idrs" or "direct".
      symmetric, definite: whether A is symmetric (Hermitian), and positive definite; None: `solve` looks at its values.
      remember: whether to use and keep what an earlier solve found out.
      M: "auto" makes a preconditioner that suits the method. Anything else, None too, is the M of all methods but the
        direct one.
      maxiter: most iterations, of all methods together; None: for each method 10·n, and about a minute.
      nullspace, left_nullspace: as in `cg`; then only Krylov methods are tried, and nothing is remembered.
      rtol: as in `cg`, but an rtol below the dtype's eps is taken as eps: 0 asks for an x as accurate as that allows.

    Other arguments and the errors are those of `cg`; callbacks and history are those of each method.

    Returns:
      A `Solution`, differentiable as that of `cg`. Its `method` is for example "cg with multigrid", and `tried` has a
      line for each strategy with the reason, the estimate and the outcome. If all fail, x is the best one, and the
      status is SINGULAR if the factors were and x is no least-squares solution. If A looks singular, the last line
      tells by which vectors, as far as that is known without more work, and so does `repr`; `nullspace(A)` finds them.

    Examples:
      >>> sol = js.solve(A, b, rtol=1e-8)
      >>> sol.status, sol.method
      (<Status.CONVERGED: 0>, 'direct')
    """
    asked = options = Settings(**({"M": "auto"} | settings))
    M, singular = options.M, options.nullspace is not None or options.left_nullspace is not None
    if remember and x0 is None and method == "auto" and not singular and (sol := _again(A, b, options)) is not None:
        return sol
    _check_together(method, M, singular)
    n = arguments.unknowns(A, b)
    checked = operator(A, n, "A")
    A = checked.A if isinstance(checked, Wrapped) else A if is_function(A) else checked
    vectors = {"b": b, "x0": x0}
    if not is_function(A):
        b = arguments.vectors(b, "b")
        x0 = None if x0 is None else arguments.vectors(x0, "x0")
        options = dataclasses.replace(options, rtol=reachable(options.rtol, A, b))
        if not isinstance(M, str):
            preconditioner(M, b)  # which refuses a wrong one
    # Before the first program over several processes, which would wait for one that has refused its arguments.
    choice = {"method": method, "symmetric": symmetric, "definite": definite, "remember": remember}
    checked.basis.agree(lambda: vectors | choice | {"M": M})
    numbers = options.rtol, options.atol, options.maxiter
    facts = Facts(A, b, not (in_trace() or is_traced(arguments.still((b, x0, numbers)))), symmetric, definite)
    ways = _ways(facts, method, M)
    if singular:
        ways = without_null_space(ways, facts, options.left_nullspace is None)
    if not facts.tries or facts.kind == "function":
        return first_success(A, b, x0, options, facts, ways)
    memory = Memory(arguments.still(A), b, asked, options) if remember and ways in (WAYS, ON_MANY_DEVICES) else None
    if memory is not None and len({*checked.basis._of_all(memory.in_words)}) > 1:
        memory.found = None  # what one process has lost all leave, so that all begin with the same way
    limits, rest, part = (options.rtol, options.atol), b, None
    if ways is WAYS and x0 is None and facts.is_plain and (part := facts.lost(b, *limits)) is not None:
        rest, rtol = b - part, as_small_as(part, b, limits[0])
        options = dataclasses.replace(options, rtol=reachable(rtol, A, b))
    try:
        sol = first_success(A, rest, x0, options, facts, ways, memory)
        return sol if part is None else for_all_of(b, sol, facts.host, *limits)
    except NotFinite as found:
        return _of_finite_columns(found.columns, A, b, x0, options, facts, ways)


def _check_together(method: str, M: Any, singular: bool) -> None:
    """ValueError: no such method, or none that takes this M, or null spaces."""
    check_choice("method", method, ("auto", *METHODS, "direct"))
    if isinstance(M, str) and M != "auto":
        raise ValueError(f"M must be 'auto', None, a matrix or a function; got {M!r}; {call_for(M)}")
    if method == "direct" and not isinstance(M, str):
        raise ValueError("method='direct' takes no M; leave it out")
    if method == "direct" and singular:
        raise ValueError("method='direct' takes no nullspace; direct(A, b, nullspace=…) does")


def _ways(facts: Facts, method: str, M: Any) -> Sequence[Way]:
    """The table of ways by a method, or "auto", and an M, or "auto"."""
    is_given, name = not isinstance(M, str), None if M is None else GIVEN
    if method != "auto":
        return [Way(method, made, lambda f: True, "asked for") for made in ((name,) if is_given else SUITED[method])]
    ways = {"function": OF_A_FUNCTION, "sharded": ON_MANY_DEVICES}.get(facts.kind, WAYS)
    if not is_given:
        return ways
    ways = WITH_GIVEN_M if ways is WAYS else ways
    return [way if way.method == "direct" else way._replace(M=name) for way in ways]


def _of_finite_columns(wrong: Any, A: Any, b: Any, x0: Any, settings: Settings, facts: Facts, ways: Any) -> Solution:
    """The solution of the columns without a NaN or an infinity; NON_FINITE in the others."""
    if is_traced(A, b, x0):  # a derivative, which is NaN there
        M = settings.M if not isinstance(settings.M, str) else None
        return by_method(METHODS["gmres"](facts.n), A, b, x0, dataclasses.replace(settings, M=M))
    if np.all(wrong):
        x = jnp.zeros(b.shape, facts.dtype(b))
        ends = ((Status.NON_FINITE, jnp.int32), (0, jnp.int32), (jnp.nan, x.real.dtype))
        ends = (jnp.full(b.shape[1:], value, dtype) for value, dtype in ends)
        return Solution(x, *ends, norms=None, _told=Told(("", "A, b or x0 has a NaN or an infinity")))
    b, x0 = (None if v is None else jnp.where(wrong, 0, v) for v in (b, x0))
    sol = first_success(A, b, x0, settings, facts, ways)
    code, size = jnp.where(wrong, jnp.int32(Status.NON_FINITE), sol.code), jnp.where(wrong, jnp.nan, sol.residual_norm)
    return dataclasses.replace(sol, code=code, residual_norm=size)


def _again(A: Any, b: Any, settings: Settings) -> Solution | None:
    """The solution by the factors that an earlier call with these settings kept; None: there are none, or they fail."""
    found: Success | None = recalled(A, of_values=True)
    if found is None or found.asked is None or not is_plain(settings):
        return None
    if not isinstance(b, (np.ndarray, jax.Array)) or isinstance(b, Tracer) or found.asked != (settings, b.dtype):
        return None
    if b.ndim not in (1, 2) or not b.size or len(b) != found.M.factors.host.n:
        return None
    if isinstance(b, jax.Array) and len(b.devices()) > 1:
        return None
    if not np.isfinite(np.asarray(b)).all():
        return None
    x, code, *ends, _ = refined(found.M.factors, b, found.limits, found.dtype)
    status = Status(int(np.max(code)))
    if status not in (Status.CONVERGED, Status.ROUNDED):
        return None
    sol = placed_like(b, (x, code, *ends), "direct", f"direct (factors of an earlier solve): {status.name}")
    return shortened(sol, b, found.M.factors.host, found.M.factors.null_space, found.limits.rtol, found.limits.atol)
