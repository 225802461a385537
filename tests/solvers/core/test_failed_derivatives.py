"""Are all derivatives of a failed solve NaN, and those of its neighbours right? Dense arithmetic answers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsparse_fmt as jsf
import solvers
from solvers import Status, cg, gmres
from tests.lowering import quick_jit
from tests.marks import deep
from tests.solvers.endings import (
    BY_B,
    CASES,
    DA,
    DB,
    DEFINITE,
    GENERAL,
    NAN,
    SYSTEMS,
    WAYS,
    ZERO,
    B,
    N,
    W,
    dense,
    derivatives,
    jitted,
    kinds,
    of_cases,
)

SOME = ("cg", "gmres", "refine", "lsmr", "direct", "solve")  # one of each kind
EIGENVECTORS = np.linalg.eigh(DEFINITE)[1]


def second(name: str, A: Any, b: Any, dA: Any, db: Any, rtol: Any, maxiter: Any) -> Any:
    """Second derivatives of Σ sin x along dA and db, by A and b: forward over reverse, and reverse over reverse."""

    def loss(A: Any, b: Any) -> Any:
        of_dense = name == "dense"
        x = jnp.linalg.solve(A, b) if of_dense else CASES[name].solver(A, b, rtol=rtol, maxiter=maxiter).x
        return jnp.sum(jnp.sin(x))

    gradient = jax.grad(loss, (0, 1))
    slope = lambda A, b: sum(map(jnp.vdot, gradient(A, b), (dA, db)))  # noqa: E731
    return jax.jvp(gradient, (A, b), (dA, db))[1], jax.grad(slope, (0, 1))(A, b)


SECOND = jitted(second)


@of_cases("cg jit, cg eager, lsmr jit, direct jit, direct eager, solve jit, cg truncated jit")
def test_are_all_derivatives_of_a_failed_solve_nan_and_those_of_a_truncated_one_implicit(name, how):
    """Those of zero weights and tangents are zero, so that `jnp.where(sol.success, x, 0)` masks a failure."""
    of, told, want = functools.partial(WAYS[how], name), {}, {}
    for system, status in CASES[name].endings(how):
        A, b, *limits = SYSTEMS[system]
        code, x, found = of(A, b, DA, DB, W, *limits)
        accepted = [Status.CONVERGED, *((Status.MAXITER, Status.STAGNATION) if "truncated" in name else ())]
        if status in accepted:
            right = dense(A, b, DA, DB, W, x, "lsmr" in name)
            told[system], want[system] = (Status(int(code)), kinds(found, right)), (status, "right right right")
            continue
        by_A, of_b = of(A, b, DA, ZERO, W, *limits)[2], of(A, b, 0 * DA, DB, W, *limits)[2]
        masked = of(A, b, 0 * DA, ZERO, ZERO, *limits)[2]
        told[system] = Status(int(code)), kinds(found), kinds((by_A[2], of_b[2])), kinds(masked)
        want[system] = status, "NaN NaN NaN", "NaN NaN", "0 0 0"
    assert told == want


@of_cases("direct eager, solve by factors jit", [*SOME, "klu", "cholmod", "factorized", "solve by factors"])
def test_are_the_derivatives_by_b_alone_nan_too(name, how):
    """Of one system for each status: in a direct solve outside of jit every matrix has programs of its own."""
    told, want = {}, {}
    for status, system in {status: system for system, status in CASES[name].endings()}.items():
        A, b, *limits = SYSTEMS[system]
        if (name, how) == ("factorized", "eager") and (status is Status.SINGULAR or system == "NaN in A"):
            continue  # `factorized` raises
        found = BY_B[how](name, A, b, DB, W, *limits)
        right = dense(A, b, 0 * DA, DB, W)[1:] if status is Status.CONVERGED else None
        told[system], want[system] = kinds(found, right), "NaN NaN" if right is None else "right right"
    assert told == want


@of_cases("direct jit", SOME, ("jit",))
def test_are_second_derivatives_nan(name, how):
    del how
    told, want = {}, {}
    for system, status in CASES[name].endings():
        A, b, *limits = SYSTEMS[system]
        found = SECOND(name, A, b, DA, DB, *limits)
        right = SECOND("dense", A, b, DA, DB, *limits) if status is Status.CONVERGED else None
        told[system], want[system] = kinds(found, right), " ".join(4 * ["NaN" if right is None else "right"])
    assert told == want


MAPPED = jitted(lambda name, axes, *a: jax.vmap(functools.partial(derivatives, name), axes)(*a), static_argnums=(0, 1))
MEMBERS = 8


@of_cases("cg jit, direct jit", [*SOME, "idrs", "klu"], ("jit",))
def test_do_failed_members_of_a_batch_leave_the_others_their_derivatives(name, how):
    """Of eight matrices and right-hand sides three fail, of which a loss that masks them has no derivative."""
    endings = CASES[name].endings(how)
    fails = [name for name, status in endings if status is not Status.CONVERGED][::2]
    names = [fails.pop(0) if i in (1, 4, 5) and fails else endings[0][0] for i in range(MEMBERS)]
    failed = np.array([status is not Status.CONVERGED for status in map(dict(endings).get, names)])
    A, b, *limits = map(np.stack, zip(*(SYSTEMS[name] for name in names), strict=True))
    axes = (0, 0, None, None, 0, 0, 0)
    code, _, found = MAPPED(name, axes, A, b, DA, DB, np.tile(W, (MEMBERS, 1)), *limits)
    assert [Status(int(c)) for c in code] == [dict(endings)[name] for name in names]
    right = dense(A[0], B, DA, DB, W)
    told = [kinds([part[i] for part in found], right) for i in range(MEMBERS)]
    assert told == ["NaN NaN NaN" if f else "right right right" for f in failed]
    _, _, found = MAPPED(name, axes, A, b, DA, DB, np.where(failed[:, None], 0, W), *limits)
    told = [kinds([part[i] for part in found[:2]], right[:2]) for i in range(MEMBERS)]
    assert told == ["0 0" if f else "right right" for f in failed]


@of_cases("cg jit", ["cg", "minres", "gmres", "bicgstab", "lsmr", "direct", "factorized"], ("jit",))
@pytest.mark.parametrize("mapped", [deep(True), False])
def test_do_failed_columns_leave_the_others_their_derivatives(name, how, mapped):
    """Two steps solve for an eigenvector as b, and for zeros; as columns, whose gradients by A add up, and by vmap."""
    limits, columns = SYSTEMS["two steps"][2:], np.tile(B[:, None], MEMBERS)
    columns[:, ::2] = EIGENVECTORS[:, ::5]
    columns[:, 6:] = 0 * B[:, None] + np.stack([ZERO, NAN], 1)
    w, db = (np.tile(v[:, None], MEMBERS) for v in (W, DB))
    rights = [dense(DEFINITE, np.nan_to_num(b), DA, DB, W) for b in columns.T]
    of = (
        functools.partial(MAPPED, name, (None, 1, None, 1, 1, None, None))
        if mapped
        else functools.partial(WAYS[how], name)
    )
    failed = np.zeros(MEMBERS, bool)
    for word in ("NaN", "0"):  # of all columns, and of those that are solved
        codes, _, (by_A, of_b, forward) = of(DEFINITE, columns, DA, db, np.where(failed, 0, w), *limits)
        failed = ~np.isin(codes, [Status.CONVERGED, Status.ROUNDED])
        assert failed[7] and not np.any(failed[::2]) and ("direct" in name or not failed[1] or codes[1] != codes[7])
        of_b, forward = (of_b, forward) if mapped else (of_b.T, forward.T)
        told = [kinds((of_b[i], forward[i]), rights[i][1:]) for i in range(MEMBERS)]
        assert told == [f"{word} NaN" if f else "right right" for f in failed]
        if mapped:
            told = [kinds(by_A[i], 0 if f and word == "0" else rights[i][0]) for i, f in enumerate(failed)]
            assert told == ["NaN" if f and word == "NaN" else "right" for f in failed]
        else:
            total = sum(rights[i][0] for i in np.flatnonzero(~failed))
            assert kinds(by_A, total) == ("NaN" if word == "NaN" else "right")


@of_cases("cg jit, lsmr jit", ["cg", "gmres", "lsmr"], ("jit",))
def test_are_derivatives_by_M_and_x0_of_a_failed_solve_nan_and_else_zero(name, how):
    @quick_jit
    def of(M: Any, x0: Any, A: Any, b: Any, rtol: Any, maxiter: Any) -> Any:
        x = lambda M, x0: CASES[name].solver(A, b, x0, M=M, rtol=rtol, maxiter=maxiter).x  # noqa: E731
        forward = [jax.jvp(x, (M, x0), tangents)[1] for tangents in ((DB, ZERO), (ZERO, DB))]
        return jax.vjp(x, M, x0)[1](jnp.asarray(W)), forward

    told = {
        system: kinds(of(1 + 0.1 * np.abs(DB), W, *SYSTEMS[system])) for system in ("definite", "two steps", "NaN in b")
    }
    assert told == {"definite": "0 0 0 0", "two steps": "NaN NaN NaN NaN", "NaN in b": "NaN NaN NaN NaN"}


@pytest.mark.parametrize("name", ["cg", deep("gmres"), deep("direct"), deep("solve")])
@pytest.mark.parametrize("masks", [deep(True), False])
def test_is_a_step_of_a_scan_that_fails_nan_to_what_it_reads(name, masks):
    """b of a step is that of the step before, and more: the last step reads what the failed one, the second, found."""
    systems = [SYSTEMS["definite"], SYSTEMS["two steps"], SYSTEMS["definite"]]
    A, b, rtol, maxiter = map(np.stack, zip(*systems, strict=True))
    if name in ("direct", "solve"):
        A[1] = 0

    def last(A: Any, b: Any, solved: Any) -> Any:
        return W @ jax.lax.scan(lambda x, system: (solved(x, *system), None), jnp.zeros(N), (A, b, rtol, maxiter))[0]

    def step(x: Any, A: Any, b: Any, rtol: Any, maxiter: Any) -> Any:
        sol = CASES[name].solver(A, b + 0.1 * x, rtol=rtol, maxiter=maxiter)
        return jnp.where(sol.success, sol.x, x) if masks else sol.x

    def exact(x: Any, A: Any, b: Any, rtol: Any, maxiter: Any) -> Any:
        is_solved = (maxiter > 2) & jnp.any(A != 0)
        return jnp.where(is_solved, jnp.linalg.solve(jnp.where(is_solved, A, jnp.eye(N)), b + 0.1 * x), x)

    found, right = (quick_jit(jax.grad(functools.partial(last, solved=f), (0, 1)))(A, b) for f in (step, exact))
    told = [kinds([part[i] for part in found], [part[i] for part in right]) for i in range(3)]
    if masks:
        assert told == ["right right"] * 3  # zero in the second
    else:
        assert told[:2] == ["NaN NaN", "NaN NaN"] and kinds(found[1][2], right[1][2]) == "right"


@pytest.mark.deep
@pytest.mark.parametrize("solver", [solvers.fcg, gmres])
def test_is_a_solve_of_three_steps_as_a_preconditioner_no_failure(solver):
    flexible = {"flexible": True} if solver is gmres else {}
    x = lambda A, b: solver(A, b, M=lambda r: cg(A, r, maxiter=3).x, rtol=1e-11, **flexible).x  # noqa: E731
    found = quick_jit(lambda A, b: jax.vjp(x, A, b)[1](jnp.asarray(W)))(DEFINITE, B)
    assert kinds(found, dense(DEFINITE, B, DA, DB, W)[:2]) == "right right"


PAIRS = {
    "eigsh": functools.partial(solvers.eigsh, k=2, which="SA", ncv=8),
    "lobpcg": functools.partial(solvers.lobpcg, k=2),
    "svds": functools.partial(solvers.svds, k=2, ncv=8),
}


@functools.partial(quick_jit, static_argnums=0)
def of_pairs(name: str, A: Any, maxiter: Any, weights: Any) -> Any:
    """The code, and the gradient by A of the results times their weights."""

    def found(A: Any) -> Any:
        sol = PAIRS[name](A, maxiter=maxiter)
        return tuple(sol), sol.code

    results, back, code = jax.vjp(found, A, has_aux=True)
    each = zip(weights, results, strict=True)
    return code, back(tuple(w * jnp.cos(1.0 + jnp.arange(a.size)).reshape(a.shape) for w, a in each))


@pytest.mark.parametrize("name", [deep("eigsh"), "lobpcg", deep("svds")])
def test_are_the_derivatives_of_pairs_that_were_not_found_nan(name):
    """Of each result alone; those of zero weights are zero."""
    count = 3 if name == "svds" else 2
    systems = {Status.MAXITER: (DEFINITE, 1)}
    if name != "svds":  # which multiplies by A after the search
        systems |= {Status.NON_FINITE: (DEFINITE + np.diag(NAN), 1000), Status.NOT_SYMMETRIC: (GENERAL, 1000)}
    told = {}
    for status, (A, maxiter) in systems.items():
        code, masked = of_pairs(name, A, maxiter, ZERO[:count])
        each = [kinds(of_pairs(name, A, maxiter, w)[1]) for w in np.eye(count)]
        told[status] = Status(int(code)), kinds(masked), each
    assert told == {status: (status, "0", count * ["NaN"]) for status in systems}
    code, found = of_pairs(name, DEFINITE, 1000, np.ones(count))
    assert code == Status.CONVERGED and np.all(np.isfinite(found[0]))


@pytest.mark.deep
def test_are_the_derivatives_of_pairs_that_lie_too_close_nan():
    d = jnp.asarray(np.r_[1e-7 * np.arange(195), 1:6])
    found = lambda d: solvers.eigsh(jnp.diag(d), 1, which="SA", ncv=6)  # noqa: E731
    assert found(d).status is Status.STAGNATION
    assert kinds(jax.jvp(lambda d: tuple(found(d)), (d,), (jnp.cos(d),))[1]) == "NaN NaN"


@pytest.mark.deep
@pytest.mark.parametrize("solver", [cg, gmres])
def test_are_the_derivatives_of_a_failed_solve_over_devices_nan(solver):
    A = jsf.shard(jsf.gallery.poisson(4), jax.make_mesh((8,), ("rows",)))
    b, ones = jnp.sin(jnp.arange(1.0, A.shape[0] + 1)), jnp.ones(A.shape[0])

    @quick_jit
    def of(data, w, maxiter):
        x = lambda data, b: solver(A.with_data(data), b, rtol=1e-11, maxiter=maxiter).x  # noqa: E731
        return jax.vjp(x, data, b)[1](w), jax.jvp(x, (data, b), (data, b))[1]

    assert kinds(of(A.data, ones, 2)) == "NaN NaN NaN"
    assert kinds(of(A.data, 0 * ones, 2)) == "0 0 NaN"
    (by_data, by_b), forward = of(A.data, ones, 1000)
    right = np.linalg.solve(jsf.gallery.poisson(4).toarray(), ones)
    assert kinds((by_b,), (right,)) == "right" and np.all(np.isfinite(by_data))
    np.testing.assert_allclose(forward, 0, atol=1e-9)  # where A and b grow alike, x stays
