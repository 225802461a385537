"""Files that are written whole or not at all, and files that only the user can change."""

import contextlib
import errno
import itertools
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
PART = ".part"  # the end of the name of a file that is being written


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
    with open(path, "rb", opener=_open_itself) as file:
        about = os.fstat(file.fileno())
        if foreign(about) or not stat.S_ISREG(about.st_mode):
            raise PermissionError(f"others can write to {path}")
        return file.read()


def _open_itself(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # no link, and no wait for a pipe


def write_private(path: Path, content: bytes) -> None:
    """Writes a file for `read_private`, whole or not at all, whatever the umask; a link at its place is replaced."""
    with _renamed_to(path, 0o644) as file:
        file.write(content)


def make_private(folder: Path) -> None:
    """Makes a folder and its missing parents, for the user alone (`Path.mkdir` opens the parents to others)."""
    for part in (*reversed(folder.parents), folder):
        part.mkdir(mode=0o700, exist_ok=True)


def regular(path: AnyPath) -> Path:
    """The path of a file that can be read from any place. OSError: no such file; ValueError: a pipe or a device."""
    name = os.fsdecode(path)
    mode = os.stat(name).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "names a folder; name a file in it", name)
    if not stat.S_ISREG(mode):
        raise ValueError(f"{name}: a pipe or a device, whose end is not known; copy its content into a file")
    return Path(name)


def replaceable(path: AnyPath) -> tuple[Path, os.stat_result | None]:
    """Where links lead from a path, and what stands there. OSError, with the cure: no file can be written there."""
    name = os.fsdecode(path)
    try:
        old = os.stat(name)  # raises for a circle of links
    except FileNotFoundError:
        old = None
    folder, last = os.path.split(name)
    if last in ("", ".", "..") or (old and stat.S_ISDIR(old.st_mode)):
        raise IsADirectoryError(errno.EISDIR, "names a folder; name a file in it", name)
    if not old and not os.path.isdir(folder or "."):
        raise FileNotFoundError(errno.ENOENT, f"no folder {folder}; create it first", name)
    if old and not (old.st_mode & 0o222 and os.access(name, os.W_OK)):  # root may write to what is read-only
        raise PermissionError(errno.EACCES, "is read-only; chmod u+w it, or name another file", name)
    target = Path(os.path.realpath(name))
    if not (old and not stat.S_ISREG(old.st_mode)) and not os.access(target.parent, os.W_OK):
        raise PermissionError(errno.EACCES, f"no new file can be made in {target.parent}; chmod u+w it", name)
    return target, old


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """A file that takes the place and the mode of `path` when the block succeeds, and is removed when the block fails.

    Pipes and devices stay, and get the bytes of a block that succeeds. OSError: as of `replaceable`.
    """
    target, old = replaceable(path)
    if old and not stat.S_ISREG(old.st_mode):
        with open(path, "wb") as file, tempfile.TemporaryFile() as scratch:  # in which the block may seek
            yield scratch
            scratch.seek(0)
            shutil.copyfileobj(scratch, file)
        return
    try:
        with _renamed_to(target, 0o666, old) as file:
            yield file
    except OSError as error:
        if not str(error.filename).endswith(PART):
            raise
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error


@contextlib.contextmanager
def _renamed_to(target: Path, mode: int, old: os.stat_result | None = None) -> Iterator[BinaryIO]:
    """A file of this mode, less the umask, or of that of `old`, that becomes `target` when the block succeeds."""
    scratch, held = _scratch(target, 0o600 if old else mode)
    try:
        if old:
            for owners in ((-1, old.st_gid), (old.st_uid, -1)):
                with contextlib.suppress(OSError):
                    os.fchown(held, *owners)
            # What one group may do is no matter of another one.
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(held, old.st_mode & (0o777 if os.fstat(held).st_gid == old.st_gid else 0o707))
        with open(os.dup(held), "wb") as file:  # its end may report a full disk; the lock lasts longer
            yield file
        os.replace(scratch, target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)


def _scratch(target: Path, mode: int) -> tuple[Path, int]:
    """A new file beside a target, with a short name, and its descriptor.

    A lock shows that its writer lives: a file without one, of a process that was killed, is removed. Only the process
    whose lock is on the file of such a name renames or removes it.
    """
    import fcntl  # which only POSIX has

    for k in itertools.count():
        scratch = target.with_name(f".{zlib.crc32(os.fsencode(target.name)):08x}-{k}{PART}")
        with contextlib.suppress(OSError), open(scratch, "r+b", opener=_open_itself) as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(left.fileno()), scratch.lstat()):
                scratch.unlink()
        with contextlib.suppress(FileExistsError):
            held = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):  # removed by another process, before the lock
                if os.path.samestat(os.fstat(held), scratch.lstat()):
                    return scratch, held
            os.close(held)
    raise AssertionError
