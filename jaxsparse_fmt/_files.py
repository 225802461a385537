"""Files that are written whole or not at all, and files that only the user can change."""

import contextlib
import functools
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def user_cache() -> Path | None:
    """The folder of this library in the user's cache folder, by default `~/.cache`; None for a user without a home."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():  # as the XDG specification asks
        folder = Path(os.path.expanduser("~")) / ".cache"
    return folder / "jaxsparse" if folder.is_absolute() else None


def exposed(folder: Path) -> str:
    """How users other than this one and root could change the content of a folder; empty if they cannot.

    As sshd's StrictModes asks, every folder on the way belongs to the user or root, and nobody else can write to it. A
    sticky folder, such as /tmp, may lie on the way: there only owners rename. The walk begins at the root, so that
    nobody else can change a part after its check. OSError: there is no such folder.
    """
    last = folder.stat()  # raises for a circle of links
    for part in _way(folder.absolute()):
        about = part.lstat()
        if about.st_uid not in (0, os.geteuid()):
            return f"{part} belongs to user {about.st_uid}"
        if foreign(about):
            if not about.st_mode & stat.S_ISVTX:
                return f"others can write to {part} (chmod go-w '{part}' ends that)"
            if os.path.samestat(about, last):
                return f"others can write to {part}"
    return ""


def _way(path: Path) -> Iterator[Path]:
    """The folders and links that lead to an absolute path, from the root, and those to which its links lead."""
    for part in (*reversed(path.parents), path):
        yield part
        if part.is_symlink():
            yield from _way(part.parent / os.readlink(part))


def foreign(about: os.stat_result) -> bool:
    """Whether users other than this one and root could write a file."""
    writable = about.st_mode & 0o022 and not stat.S_ISLNK(about.st_mode)  # the modes of links mean nothing
    return about.st_uid not in (0, os.geteuid()) or bool(writable)


def read_private(path: Path) -> bytes:
    """The content of a file that only the user and root could write. OSError: it is none, or others could write it."""
    if reason := exposed(path.parent):
        raise PermissionError(reason)
    extra = os.O_NOFOLLOW | os.O_NONBLOCK  # no link, and no wait for a pipe
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as file:
        about = os.fstat(file.fileno())
        if foreign(about) or not stat.S_ISREG(about.st_mode):
            raise PermissionError(f"others can write to {path}")
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """Writes a file for `read_private`, whole or not at all, whatever the umask; a link at its place is replaced."""
    with _renamed_to(path, 0o644) as file:
        file.write(content)


def make_private(folder: Path) -> None:
    """Makes a folder and its missing parents, for the user alone (`Path.mkdir` opens the parents to others)."""
    for part in (*reversed(folder.parents), folder):
        part.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file in the folder of `path` that replaces it when the block succeeds, and is removed when the block fails.

    Pipes and devices stay, and get the bytes of a block that succeeds.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file, tempfile.TemporaryFile() as scratch:  # in which the block may seek
            yield scratch
            scratch.seek(0)
            shutil.copyfileobj(scratch, file)
        return
    with _renamed_to(Path(os.path.realpath(path)), 0o666) as file:  # a link stays a link
        yield file


@contextlib.contextmanager
def _renamed_to(target: Path, mode: int) -> Iterator[BinaryIO]:
    """A file of this mode, less the umask, that becomes `target` when the block succeeds."""
    scratch = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        with open(scratch, "xb", opener=functools.partial(os.open, mode=mode)) as file:
            yield file
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
