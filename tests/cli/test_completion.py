"""The printed script completes commands, options, values and files in a real bash, and zsh loads it."""

import os
import shutil
import subprocess

import pytest

from jaxsparse_fmt.cli import main

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    (folder / "matrix.mtx").touch()
    text = "\n".join(main.completion.script(main._parser()))

    def complete(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=(jaxsparse {typed}); COMP_CWORD={len(words)}; _jaxsparse; echo ${{COMPREPLY[@]}}"
        return subprocess.check_output(["bash", "-c", f"{text}\n{ask}"], text=True, cwd=folder).split()

    return complete


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sol"], ["solve"]),
        ([""], list(main.COMMANDS)),
        (["bench", "--ba"], ["--backend"]),
        (["bench", "--dtype", "float"], ["float32", "float64"]),
        (["info", "mat"], ["matrix.mtx"]),
        (["convert", "matrix.mtx", "--format", "sel"], ["sell"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_a_word_is_completed(words, found, completed):
    assert completed(*words) == found


def test_the_command_prints_the_script(capsys):
    assert main.main(["completion", "bash"]) == 0
    assert capsys.readouterr().out.splitlines() == list(main.completion.script(main._parser()))


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_with_the_script(tmp_path, capsys):
    assert main.main(["completion", "zsh"]) == 0
    ask = capsys.readouterr().out + "print -r -- $_comps[jaxsparse]"
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["zsh", "-fc", ask], capture_output=True, text=True, env=env, timeout=60)
    assert "-F _jaxsparse" in done.stdout and not done.stderr
