"""What XLA calls: refused where the interface is another, an error in words for what it must not run, never a crash."""

import dataclasses
import hashlib
import itertools
import pathlib
import re

import jax
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.kernels.cpu import abi, ffi, machine_code
from solvers import cg
from tests.process import printed

pytest.importorskip("numba")
binding = pytest.importorskip("llvmlite.binding")

HANDLER = pathlib.Path(machine_code.__file__).with_name("handler.ll")
TEXT = HANDLER.read_text(encoding="utf-8")
S = jsf.gallery.poisson(6, dim=2)
X = np.ones(S.shape[1])
NAMES = itertools.count()


def registered(*changes: tuple[str, str]) -> None:
    """Registers the handler, with changes of how it answers XLA's first question, under a name of its own."""
    assert ffi.works()
    before, name, rest = TEXT.partition("@asks_version(ptr %frame) {")
    changed, other, after = rest.partition("define ")
    for old, new in changes:
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    engine = machine_code._engine(0)
    binding.add_symbol("jaxsparse_table", ffi._table.ctypes.data)
    engine.add_module(binding.parse_assembly(before + name + changed + other + after))
    engine.finalize_object()
    capsule = jax.ffi.pycapsule(engine.get_function_address(abi.TARGET))
    jax.ffi.register_ffi_target(f"{abi.TARGET}_{next(NAMES)}", capsule, platform="cpu")


def test_the_text_for_llvm_is_of_these_sources():
    """Else run `make handler`, which needs Clang."""
    source = (HANDLER.with_suffix(".c")).read_bytes()
    assert TEXT.splitlines()[0].endswith(hashlib.blake2b(source, digest_size=16).hexdigest())


def test_the_handler_reads_the_sizes_in_the_order_in_which_programs_write_them():
    fields = re.search(r"typedef struct {\s*Int (kernel[\w, ]+);\s*} Sizes;", HANDLER.with_suffix(".c").read_text())
    assert fields and tuple(fields[1].split(", ")) == abi.SIZES[: fields[1].count(",") + 1]


def test_a_handler_for_the_interface_of_this_xla_is_taken():
    registered()


# The versions that the handler answers, the least bytes of a frame and of the API, and those of a frame's parts.
CHANGES = {
    "select i1 %cmp14, i32 3, i32 0": "select i1 %cmp14, i32 99, i32 0",
    "store i32 0, ptr %major_version": "store i32 1, ptr %major_version",
    **{f"{words}, {size}\n": f"{words}, 9999\n" for words, size in (("ugt i64 %3", 167), ("ugt i64 %5", 151))},
    **{
        f"{words}, {size}\n": f"{words}, 56\n"
        for words, size in (("eq i64 %6", 40), ("eq i64 %7", 40), ("eq i64 %8", 48))
    },
}


@pytest.mark.parametrize("change", CHANGES.items(), ids=str)
def test_a_handler_for_another_interface_is_refused_before_any_call(change):
    with pytest.raises(Exception, match=r"API version \(\d+\.\d+\) is incompatible"):
        registered(change)


WITHOUT = """
import warnings
import jax, numpy as np
register = jax.ffi.register_ffi_target
def refuse(name, *args, **keywords):
    if name.startswith("jaxsparse"):
        raise ValueError("the handler's API version is incompatible")
    return register(name, *args, **keywords)
jax.ffi.register_ffi_target = refuse
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import jaxsparse_fmt as jsf
    from solvers import cg
    S = jsf.gallery.poisson(6, dim=2)
    A, b = jsf.from_scipy(S, "csr"), np.ones(36)
    residual = np.linalg.norm(S @ np.asarray(cg(A, b).x) - b)
    gradient = jax.grad(lambda data: (A.with_data(data) @ b).sum())(A.data)
print(len([w for w in said if "products run as plain XLA" in str(w.message)]), residual < 1e-4, float(gradient.sum()))
"""


def test_an_xla_that_refuses_the_handlers_gets_plain_programs_after_one_warning():
    assert printed("-c", WITHOUT).split() == ["1", "True", str(float(S.nnz))]


def test_pointers_beyond_the_entries_are_refused_in_words():
    """They would be read out of bounds."""
    A = jsf.from_scipy(S, "csr", backend="numba")
    for change in (lambda a: 2 * a, lambda a: -a):
        broken = dataclasses.replace(A, row_ptr=change(A.row_ptr))
        for product in (lambda B: B @ X, lambda B: B.T @ X):
            with pytest.raises(Exception, match=r"lead beyond its entries, as after jax.tree.map"):
                jax.block_until_ready(product(broken))
    np.testing.assert_allclose(A @ X, S @ X)


CHANGED = """
import dataclasses, sys
import jax, numpy as np
import jaxsparse_fmt as jsf
jax.config.update("jax_enable_x64", True)
S = jsf.gallery.poisson(12)
X, Y = np.ones((S.shape[1], 3)), np.ones(S.nnz)
largest = lambda a: np.full(a.shape, np.iinfo(a.dtype).max if a.dtype.kind in "iu" else 1, a.dtype)
far = lambda a: a - np.asarray(10**7).astype(a.dtype)
changes = [lambda a: 2 * a, lambda a: -a, lambda a: a[::-1], lambda a: 0 * a, far, largest]
for layout in sys.argv[1:]:
    A = jsf.from_scipy(S, layout, backend="numba")
    faces = jax.jit(lambda B: (B @ X[:, 0], B @ X, B.T @ X[:, 0], B.T @ X))
    for change in changes:
        try:
            arrays = {name: change(a) for name, a in vars(A).items() if isinstance(a, jax.Array)}
            jax.block_until_ready(faces(dataclasses.replace(A, **arrays)))
        except Exception as error:
            assert 'pointers' in str(error), error
    np.testing.assert_allclose(faces(A)[0], S @ X[:, 0])
    print(layout)
"""


@pytest.mark.deep
def test_index_arrays_of_any_content_end_no_process():
    """What glibc's allocator would notice: it fills freed memory, and checks its lists."""
    layouts = ["csr", "dia"]
    assert printed("-c", CHANGED, *layouts, MALLOC_PERTURB_="165", MALLOC_CHECK_="3").split() == layouts


def test_an_interrupt_whenever_code_is_linked_leaves_the_next_call_right(monkeypatch):
    finalize, calls = binding.ExecutionEngine.finalize_object, itertools.count()

    def interrupted(self):
        if next(calls) % 2 == 0:
            raise KeyboardInterrupt
        finalize(self)

    monkeypatch.setattr(binding.ExecutionEngine, "finalize_object", interrupted)
    addresses, ffi._table[:] = ffi._table.copy(), 0
    T = jsf.gallery.poisson(7, dim=2)  # of a size that no other test solves, so that its program is new
    A, b, x, interrupts = jsf.from_scipy(T, "csr"), np.arange(49.0), None, 0
    while x is None:
        try:
            x = np.asarray(cg(A, b, rtol=1e-8).x)
        except KeyboardInterrupt:
            interrupts += 1
    ffi._table[:] = np.maximum(ffi._table, addresses)
    assert interrupts > 0
    assert np.linalg.norm(T @ x - b) <= 1.1e-8 * np.linalg.norm(b)
