"""What an example prints and draws, kept until its sources change."""

import os
import subprocess
import sys
from pathlib import Path

from kept import KEPT, ROOT, kept

STYLE = ROOT / "docs/matplotlibrc"
INKS = {"light": "#303030", "dark": "#e0e0e0"}
# Compiling is most of an example's time, and most of its programs survive a change of the packages.
PROGRAMS = {"JAX_COMPILATION_CACHE_DIR": str(KEPT / "xla"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
# How a program is asked to draw.
ASKED = {"savefig(sys.argv[1])": [], "savefig(args.picture)": ["--picture"]}


def of_example(path: Path) -> Path:
    """The folder with printed.txt and, if the example draws, picture.svg."""
    return kept(f"example_{path.stem}", [path, STYLE], lambda folder: _run(path, folder))


def _run(path: Path, folder: Path) -> None:
    command, source = [sys.executable, str(path)], path.read_text("utf-8")
    for sign, option in ASKED.items():
        if sign in source:
            command += [*option, str(folder / "picture.svg")]
    settings = PROGRAMS | os.environ | {"PYTHONPATH": str(ROOT), "MATPLOTLIBRC": str(STYLE)}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{path.name} failed:\n{done.stderr}")
    (folder / "printed.txt").write_text(done.stdout, encoding="utf-8")


def copy_pictures(outputs: Path, folder: Path, name: str) -> None:
    """Copies an example's picture into `folder`, for light and for dark pages."""
    drawn = (outputs / "picture.svg").read_text("utf-8")
    for look, ink in INKS.items():
        (folder / f"{name}_{look}.svg").write_text(drawn.replace(INKS["light"], ink), encoding="utf-8")
