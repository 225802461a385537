"""The command as a user meets it: exit codes, what it prints and where, and what it leaves on the disk."""

import pathlib
import re
import sys
import zipfile

import jax
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import jaxsparse_fmt
import solvers
from jaxsparse import commands, process
from jaxsparse_fmt.cli import main, measure
from jaxsparse_fmt.io import files
from tests.cli.conftest import POISSON, Terminal, written
from tests.marks import few
from tests.solvers.methods import neumann


def fact(out: str, name: str) -> str:
    """The value beside a name in a table, whose lines are joined."""
    found = re.search(rf"^ *{re.escape(name)}  +(.*(?:\n {{12,}}\S.*)*)", out, re.MULTILINE)
    assert found, f"no line {name!r} in:\n{out}"
    return " ".join(found[1].split())


# ------------------------------------------------------------------------------------------- solve


# The command hands the name on; that cg solves in every format is asked in tests/solvers.
@pytest.mark.parametrize("format", few(["auto", "csr", "pjds"], 1))
def test_solve_reaches_the_residual_asked_for_and_ends_with_the_whole_table(format, poisson, tmp_path, rng, capsys):
    b = rng.standard_normal(POISSON.shape[0])
    rhs, x = tmp_path / "b.npy", tmp_path / "x.npy"
    np.save(rhs, b)
    args = ["--rhs", str(rhs), "--out", str(x), "--format", format, "--rtol", "1e-9", "--method", "cg"]
    assert main.main(["solve", poisson, *args]) == 0
    residual = np.linalg.norm(b - POISSON @ np.load(x)) / np.linalg.norm(b)
    assert residual <= 1e-9 * (1 + 1e-6)
    out = capsys.readouterr().out
    assert fact(out, "true residual").split("; ")[1].startswith(f"{residual:.2e} of ‖b‖")
    assert fact(out, "status").startswith("CONVERGED")
    assert fact(out, "rows") == "216" and fact(out, "nnz") == f"{POISSON.nnz:,}" and int(fact(out, "iterations")) > 1
    assert fact(out, "format") == f"{format}, asked for" or (format == "auto" and "ranked first" in fact(out, "format"))
    assert fact(out, "stored").endswith(" × CSR") and "as float64" in fact(out, "stored")
    assert re.fullmatch(r"[\d.]+ [µm]?s, [\d.]+ GB/s on .+", fact(out, "product"))
    assert re.fullmatch(r"[\d.]+ m?s: read .+, check .+, convert .+, compile .+, solve .+", fact(out, "wall time"))


def test_by_default_it_takes_what_suits_the_matrix_and_says_so(tmp_path, capsys):
    S = scipy.sparse.csr_array(POISSON - 3 * scipy.sparse.eye_array(POISSON.shape[0]))  # indefinite
    assert main.main(["solve", written(tmp_path / "A.mtx", S), "-v"]) == 0
    out = capsys.readouterr().out
    assert fact(out, "method") == "direct" and fact(out, "tried").startswith("direct (")
    assert main.main(["solve", written(tmp_path / "A.mtx", S)]) == 0
    assert "tried" not in capsys.readouterr().out
    singular = scipy.sparse.csr_array(np.triu(np.ones((9, 9)), 1))  # a failure lists what was tried by itself
    np.savetxt(tmp_path / "b.txt", np.ones(9))
    assert main.main(["solve", written(tmp_path / "B.mtx", singular), "--rhs", str(tmp_path / "b.txt")]) == 1
    assert fact(capsys.readouterr().out, "tried").startswith("direct (")
    assert main.main(["solve", written(tmp_path / "A.mtx", S), "--precond", "ilu"]) == 0
    assert fact(capsys.readouterr().out, "method").endswith(" with ilu")
    assert main.main(["solve", written(tmp_path / "A.mtx", S), "--method", "gmres", "--precond", "auto"]) == 0
    assert fact(capsys.readouterr().out, "method") == "gmres with ilu"


def test_without_rhs_the_solution_is_known_and_the_error_told(poisson: str, tmp_path, capsys):
    kind = ["--out", str(tmp_path / "x.dat"), "--out-format", "npy"]
    assert main.main(["solve", poisson, *kind, "--precond", "jacobi"]) == 0
    out = capsys.readouterr().out
    x = np.load(tmp_path / "x.dat")
    assert "no --rhs" in fact(out, "b")
    assert fact(out, "error").startswith(f"{np.linalg.norm(x - 1) / np.sqrt(x.size):.2e} ")
    np.testing.assert_allclose(x, 1, rtol=1e-4)


def test_x_goes_to_standard_output_and_the_table_beside_it(poisson: str, capsys):
    assert main.main(["solve", poisson, "--out", "-"]) == 0
    captured = capsys.readouterr()
    np.testing.assert_allclose([float(line) for line in captured.out.splitlines()], 1, rtol=1e-4)
    assert captured.out.count("\n") == POISSON.shape[0]
    assert "CONVERGED" in captured.err


@pytest.mark.parametrize("dtype", few(commands.DTYPES, 1))
def test_solve_computes_in_the_dtype_asked_for(dtype: str, tmp_path, capsys):
    is_complex = dtype.startswith("complex")
    turn = scipy.sparse.diags_array([0.2j, -0.2j], offsets=[1, -1], shape=POISSON.shape)
    S = POISSON + turn if is_complex else POISSON
    path, x = written(tmp_path / "A.mtx.gz", scipy.sparse.csr_array(S)), tmp_path / "x.npy"
    before = jax.config.jax_enable_x64
    assert main.main(["solve", path, "--dtype", dtype, "--out", str(x), "--rtol", "1e-5"]) == 0
    assert np.load(x).dtype.kind == np.dtype(dtype).kind
    out = capsys.readouterr().out
    assert f"as {dtype}," in fact(out, "stored")
    assert ("with A and b as in the files" in out) == (dtype in ("float32", "complex64"))
    assert jax.config.jax_enable_x64 == before


def test_a_tolerance_that_the_dtype_forbids_is_told_and_is_no_failure(poisson: str, capsys):
    assert main.main(["solve", poisson, "--dtype", "float32", "--rtol", "1e-15"]) == 0
    out = capsys.readouterr().out
    assert fact(out, "status").startswith("ROUNDED") and "1e-15 was asked" in fact(out, "true residual")


def test_solve_leaves_what_was_asked_for_and_nothing_else_and_prints_no_control_character(poisson, tmp_path, capfd):
    x, picture = tmp_path / "x.mtx.gz", tmp_path / "solve.png"
    x.write_text("old")
    assert main.main(["solve", poisson, "--out", str(x), "--plot", str(picture)]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"poisson.mtx", "x.mtx.gz", "solve.png"}
    np.testing.assert_allclose(files.read_vector(x), 1, rtol=1e-4)
    assert picture.read_bytes().startswith(b"\x89PNG")
    captured = capfd.readouterr()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", captured.out + captured.err)
    assert captured.err.splitlines()[0] == f"read: {poisson}"


def test_a_start_and_an_absolute_tolerance_count(poisson: str, tmp_path, capsys):
    np.save(tmp_path / "x0.npy", np.ones(POISSON.shape[0]))  # the solution
    assert main.main(["solve", poisson, "--method", "cg", "--x0", str(tmp_path / "x0.npy")]) == 0
    assert fact(capsys.readouterr().out, "iterations") == "0"
    far = 2 * float(np.linalg.norm(POISSON @ np.ones(POISSON.shape[0])))
    assert main.main(["solve", poisson, "--method", "cg", "--atol", f"{far}", "--rtol", "1e-9"]) == 0
    out = capsys.readouterr().out
    assert fact(out, "iterations") == "0" and f"1e-09, or {far:.0e} in all, was asked" in fact(out, "true residual")


# ---------------------------------------------------------------------------------- not converged


@pytest.mark.parametrize(
    ("S", "args", "cure"),
    few(
        [
            (POISSON - 3 * scipy.sparse.eye_array(POISSON.shape[0]), ["--method", "cg"], "not definite.*minres"),
            (POISSON, ["--maxiter", "2", "--method", "cg"], "maxiter reached.*raise --maxiter"),
            (POISSON * np.nan, [], "NaN or infinity"),
            (
                POISSON,
                ["--dtype", "float32", "--rtol", "1e-15", "--method", "cg"],
                "float64 where x is float32|zero residual",
            ),
        ],
        1,
    ),
    ids=["indefinite", "maxiter", "NaN", "float32"],
)
def test_no_convergence_is_exit_1_with_the_cure(S, args: list[str], cure: str, tmp_path, capsys):
    path = written(tmp_path / "A.mtx", S)
    assert main.main(["solve", path, *args]) == 1
    told = capsys.readouterr()
    last = told.err.splitlines()[-1]
    assert last.startswith(f"jaxsparse: {path}: ")
    assert re.search(cure, last) and not re.search(cure, told.out)  # once
    assert "auto with auto" not in told.out  # where no method was tried


# -------------------------------------------------------------------------------------- bad input


def refused(capsys, *args: str) -> str:
    """The one line with which the command refuses."""
    assert main.main(args) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("jaxsparse: ")]
    assert len(lines) == 1 and captured.err.endswith(lines[0] + "\n")
    assert captured.out == "" and "Traceback" not in captured.err
    return lines[0].removeprefix("jaxsparse: ")


def test_a_malformed_file_is_named_with_its_line(tmp_path, capsys):
    path = tmp_path / "bad.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1.0\n3 1 2.0\n")
    assert refused(capsys, "info", str(path)).startswith(f"{path}, line 4: ")


def test_files_of_scipy_and_matlab_are_read(tmp_path, capsys):
    scipy.sparse.save_npz(tmp_path / "A.npz", POISSON)
    scipy.io.savemat(tmp_path / "A.mat", {"A": POISSON, "b": np.ones((216, 1))})
    for name in ("A.npz", "A.mat"):
        assert main.main(["info", str(tmp_path / name)]) == 0
        assert fact(capsys.readouterr().out, "nnz").startswith(f"{POISSON.nnz:,}, ")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("A.mat", {"A": POISSON, "B": POISSON}, "one sparse matrix is needed; this one has A, B"),
        ("A.mat", {"A": np.eye(3)}, "one sparse matrix is needed; this one has none"),
        ("A.mat", b"MATLAB 5.0 MAT-file" + bytes(200), "no whole .mat file"),
        ("A.npz", "format.npy", "no whole file of scipy.sparse.save_npz"),
        ("A.npz", b"nothing", "A.npz: it is no whole file of `save`"),
        ("A.npz", b"PK\5\6" + b"\1" * 16 + bytes(2), "no whole file of `save` (Bad offset"),
    ],
)
def test_a_file_without_one_matrix_is_refused(name, content, text, tmp_path, capsys):
    path = tmp_path / name
    if isinstance(content, dict):
        scipy.io.savemat(path, content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(content, b"nothing")
    assert text in refused(capsys, "info", str(path))


def test_an_error_is_broken_between_words_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "50")
    process.complain("a" * 30 + " words " * 12)
    lines = sys.stderr.getvalue().splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 50
    assert " ".join(line.strip() for line in lines).split() == ["jaxsparse:", "a" * 30, *["words"] * 12]


def test_an_error_names_options_for_what_python_would_name():
    told = main._in_options("use M=precond.jacobi(A) or a better M, raise maxiter; or dtype='float32'")
    assert told == "use --precond jacobi or another --precond, raise --maxiter; or --dtype float32"
    of_statuses = " ".join(status.message for status in solvers.Status)
    assert all(cure in of_statuses for cure in [*main.OPTIONS][:4])


def test_a_right_hand_side_of_another_length_is_told_with_both(poisson: str, tmp_path, capsys):
    np.save(tmp_path / "b.npy", np.ones(7))
    line = refused(capsys, "solve", poisson, "--rhs", str(tmp_path / "b.npy"))
    assert line.startswith(f"{tmp_path / 'b.npy'}: holds 7 numbers, but {poisson} has 216 rows")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("--method lsmr --precond ilu", "--precond ilu: lsmr takes none; leave --precond out"),
        ("--method direct --precond ilu", "--precond ilu: direct takes none; leave --precond out"),
        ("--method direct --devices 2", "--method direct works on one device; leave --devices out"),
        ("--format tune --devices 2", "--format tune works on one device; leave --devices out"),
    ],
)
def test_options_that_exclude_each_other_are_refused_before_reading(args, text, capsys):
    assert text in refused(capsys, "solve", "A.mtx", *args.split())


def test_direct_solves_if_no_preconditioner_is_asked_for(poisson: str, capsys):
    assert main.main(["solve", poisson, "--method", "direct", "--precond", "none"]) == 0
    assert fact(capsys.readouterr().out, "method") == "direct"


def with_one_entry_more() -> scipy.sparse.csr_array:
    S = scipy.sparse.lil_array(POISSON)
    S[4, 7] = 0.5
    return scipy.sparse.csr_array(S)


@pytest.mark.parametrize(
    ("S", "args", "text"),
    [
        (with_one_entry_more(), ["--method", "cg"], r"entry \(5, 8\) is 0.5 .* entry \(8, 5\), implies 0;.*gmres"),
        (POISSON * (1 + 1j), ["--method", "cg"], "cg needs a Hermitian matrix"),
        (scipy.sparse.csr_array((3, 4)), [], "3 × 4; .* --method lsmr"),
        (scipy.sparse.csr_array((0, 0)), [], "0 × 0; "),
        (POISSON.astype(complex), ["--dtype", "float64"], "imaginary"),
        (
            scipy.sparse.diags_array([1.0, 0.0, 2.0]).tocsr(),
            ["--precond", "multigrid"],
            "--precond multigrid: A has a zero on its diagonal, first in row 1",
        ),
    ],
)
def test_a_matrix_that_does_not_suit_is_refused_with_the_cure(S, args, text, tmp_path, capsys):
    assert re.search(text, refused(capsys, "solve", written(tmp_path / "A.mtx", S), *args))


def test_lsmr_solves_a_matrix_of_another_shape(tmp_path, rng):
    S, b, x = scipy.sparse.csr_array(rng.standard_normal((9, 4))), rng.standard_normal(9), tmp_path / "x.npy"
    np.save(tmp_path / "b.npy", b)
    args = ["--method", "lsmr", "--rtol", "1e-10", "--rhs", str(tmp_path / "b.npy"), "--out", str(x)]
    assert main.main(["solve", written(tmp_path / "A.mtx", S), *args]) == 0
    np.testing.assert_allclose(np.load(x), np.linalg.lstsq(S.toarray(), b)[0], rtol=1e-6)


def test_a_right_hand_side_that_a_singular_matrix_makes_zero_is_told(tmp_path, capsys):
    assert main.main(["solve", written(tmp_path / "A.mtx", neumann(5))]) == 0
    assert "the matrix is singular" in fact(capsys.readouterr().out, "error")


@pytest.mark.parametrize(
    "args", [["info"], ["solve"], ["bench", "--formats", "3"], ["solve", "--maxiter", "2", "--method", "cg"]]
)
def test_no_line_off_a_terminal_is_longer_than_80(args, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main.main([args[0], written(pathlib.Path("A.mtx"), POISSON), *args[1:]])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("solve A.mtx --out x.csv", r"x\.csv: .*\.mtx, \.mtx\.gz, \.npy, \.txt"),
        ("solve A.mtx --out nowhere/x.npy", "no folder nowhere"),
        ("solve A.mtx --out nowhere/X.NPY", "no folder nowhere"),  # as a name it would do
        ("solve A.mtx --plot a.bmp", r"a\.bmp: .*\.png"),
        ("solve A.mtx --plot nowhere/a.png", "no folder nowhere"),
        ("solve A.mtx --out ./A.mtx", "overwrite"),
        ("solve A.mtx --out .", "names a folder; name a file in it"),
        ("solve A.mtx --plot nowhere/", "nowhere/: names a folder; name a file in it"),
        ("convert A.mtx a.txt", "end it in .mtx"),
        ("convert A.mtx A.mtx", "overwrite the input"),
    ],
)
def test_results_that_cannot_be_written_are_refused_before_reading(args: str, text: str, capsys):
    assert re.search(text, refused(capsys, *args.split()))


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="needs a machine without a GPU")
def test_a_gpu_backend_without_a_gpu_is_refused(poisson: str, capsys):
    assert "needs an NVIDIA GPU" in refused(capsys, "solve", poisson, "--backend", "triton")


def test_a_fault_of_the_library_is_not_blamed_on_the_file(poisson: str, monkeypatch):
    for error in (ValueError, jax.errors.JaxRuntimeError):

        def broken(*args, error=error, **options):
            raise error("INTERNAL: a bug")

        monkeypatch.setattr(measure, "prepare", broken)
        with pytest.raises(error, match="a bug"):
            main.main(["solve", poisson])


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (MemoryError("Unable to allocate 16.0 GiB"), "Unable to allocate 16.0 GiB.*--devices"),
        (MemoryError(), "out of memory; .*--devices"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\non a device"), "Out of memory.*--devices"),
    ],
)
def test_too_little_memory_is_one_line_with_the_cure(error, cure: str, poisson: str, monkeypatch, capsys):
    def large(*args, **options):
        raise error

    monkeypatch.setattr(measure, "prepare", large)
    line = refused(capsys, "solve", poisson)
    assert line.startswith(f"{poisson}: ") and re.search(cure, line)


def test_an_interruption_is_exit_130(poisson: str, monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "read_scipy", interrupted)
    assert main.main(["solve", poisson]) == 130
    assert capsys.readouterr().err.endswith("jaxsparse: interrupted\n")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["solve"], "FILE"),
        (["solve", "A.mtx", "--format", "abc"], "'abc'.*csr"),
        (["solve", "A.mtx", "--rtol", "0"], "'0' is not a number between 0 and 1"),
        (["solve", "A.mtx", "--rtol", "small"], "'small' is not a number between 0 and 1"),
        (["solve", "A.mtx", "--maxiter", "0"], "'0' is not a whole number from 1 up"),
        (["demo", "--n", "many"], "'many' is not a whole number from 1 up"),
        (["sovle", "A.mtx"], "'sovle'.* did you mean 'solve'\\?\n$"),
        (["solve", "A.mtx", "--method", "gmrs"], "did you mean 'gmres'\\?\n$"),
        (["solve", "A.mtx", "--format", "sel"], "did you mean 'sell'\\?\n$"),
        (["solve", "A.mtx", "--rtoll=1e-8"], "'--rtoll=1e-8'; did you mean '--rtol'\\?\n$"),
        (["solve", "A.mtx", "--atol", "-1"], "'-1' is not a number from 0 up"),
        (["info", "A.mtx", "B.mtx"], "unknown argument 'B.mtx'\n$"),
    ],
)
def test_bad_arguments_are_exit_2(args: list[str], text: str, capsys):
    with pytest.raises(SystemExit) as exit:
        main.main(args)
    assert exit.value.code == 2
    assert re.search(text, capsys.readouterr().err)


def test_the_names_that_the_parser_knows_are_those_of_the_library():
    assert tuple(jaxsparse_fmt.FORMATS) == commands.FORMATS and commands.BACKENDS == jaxsparse_fmt.BACKENDS
    assert commands.VECTORS == files.VECTOR_SUFFIXES and {*commands.PRECONDITIONERS} <= {*solvers.precond.__all__}


def test_without_a_command_the_help_is_shown(capsys):
    with pytest.raises(SystemExit, match="2"):
        main.main([])
    assert "solve" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], *([name] for name in commands.COMMANDS)], ids=str)
def test_help_fits_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main.main([*command, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
