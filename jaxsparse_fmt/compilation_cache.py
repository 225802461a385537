"""Compiled programs kept on disk: JAX's persistent compilation cache, in the user's cache folder and of bounded size.

    $XDG_CACHE_HOME/jaxsparse/xla/NAME-HASH-cache      ~/.cache where that is not set

JAX's keys contain the program, the versions, the flags, the device and the instructions of the CPU, so machines of
several kinds may share a folder.

JAX can bound the size by itself, but then reads a small file of every stored program whenever it stores one, under a
lock, so that thousands of programs cost more than compiling. So `cache` bounds the size, once a call and without a
lock. If a program is deleted, or still being written, while another process reads it, JAX warns and that process
compiles it.
"""

import contextlib
import math
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax

from jaxsparse_fmt._types import check_max_bytes, exposed, foreign, make_private, user_cache

# JAX's names, so that no other file is deleted; "atime" is JAX's own note of the last use, where JAX bounds the size.
STORED = re.compile(r"(.+-[0-9a-f]{64})-cache")


def cache(folder: str | os.PathLike[str] | None = None, *, max_bytes: float | None = 2**30) -> Path | None:
    """Keeps compiled programs on disk, so that later processes load them instead of compiling them again.

        import jaxsparse_fmt as jsf
        jsf.cache()  # once, at the start of a program

    This switches on JAX's persistent compilation cache for all programs that the process compiles from now on, even
    those of other libraries and those that compile in less than a second. Programs compiled before the call are not
    stored. The call itself lists the folder. Afterwards each program costs one file, which is written if the program is
    new, and read if it is not. Tracing and lowering are not saved, and JAX 0.10 does not store programs that call
    Python, as a solve with `callback` or `progress` does. `JAX_ENABLE_COMPILATION_CACHE=false` in the environment
    switches the cache off.

    JAX runs what it finds in the folder. So the call refuses one that users beside you and root could change, and
    deletes programs that such users could have written. To share a folder with people whom you trust, name it in JAX's
    configuration: then it is not checked.

    Args:
      folder: where to keep the programs. None: the folder that JAX's `jax_compilation_cache_dir` (or the environment's
        `JAX_COMPILATION_CACHE_DIR`) names, and where it names none, `$XDG_CACHE_HOME/jaxsparse/xla` or
        `~/.cache/jaxsparse/xla`.
      max_bytes: the call deletes programs, the least recently used first, until the rest takes no more; the file
        system may note a use only once a day. Programs that the process then compiles come on top. With None, or in
        a folder that JAX's configuration names, it deletes nothing for its size.

    Returns:
      The folder. None where nothing is kept: JAX's cache is switched off, or, with a warning, the folder cannot be
      written, or others could write to it.

    Raises:
      TypeError: `folder` is not a path, or `max_bytes` not a number.
      ValueError: `folder` is empty or an address elsewhere, or `max_bytes` is negative or NaN.
    """
    check_max_bytes(max_bytes)
    given = None if folder is None else _local(folder)
    settings: Any = jax.config
    if not settings.jax_enable_compilation_cache:
        return None
    base, configured = user_cache(), settings.jax_compilation_cache_dir
    default = base and base / "xla"
    ours = given is not None or not configured or configured == str(default)  # else the user's, and so is its size
    path = (given or default) if ours else Path(configured)
    refused = "" if not ours and "://" in configured else _refused(path, ours)
    if path is None or refused:
        warnings.warn(
            f"compiled programs are not kept: {refused}; name a folder that only you can write to, by "
            "jsf.cache(folder) or XDG_CACHE_HOME",
            stacklevel=2,
        )
        return None
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if ours:
        from jax.experimental.compilation_cache import compilation_cache

        jax.config.update("jax_compilation_cache_max_size", -1)
        jax.config.update("jax_compilation_cache_dir", str(path))
        compilation_cache.reset_cache()  # JAX reads the two above once, at the first program
        _shrink(path, math.inf if max_bytes is None else max_bytes)
    return path


def _local(folder: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder on this machine, where a leading ~ is the user's home."""
    if not isinstance(folder, str | os.PathLike) or not isinstance(os.fspath(folder), str):
        raise TypeError(f"folder must be a path, say '~/programs'; got {folder!r}")
    name = os.fspath(folder)
    if not name or "://" in name:
        raise ValueError(
            f"folder must name a folder of this machine, say '~/programs'; got {name!r}; for others set JAX's "
            "jax_compilation_cache_dir"
        )
    return Path(os.path.expanduser(name)).absolute()


def _refused(path: Path | None, ours: bool) -> str:
    """Why the folder, which is made if it is missing, cannot be written or trusted; empty if it can."""
    if path is None:
        return "there is no home folder"
    try:
        make_private(path)
        with tempfile.TemporaryFile(dir=path):
            return exposed(path) if ours else ""
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        return f"{path} cannot be written: {getattr(error, 'strerror', None) or error}"


def _shrink(path: Path, max_bytes: float) -> None:
    """Deletes the programs that were used longest ago, until the rest takes no more than `max_bytes`.

    It also deletes empty files, left by processes that ended while writing: JAX would neither read nor replace them.
    And it deletes what other users could have written before the folder was closed to them, or in spite of that: JAX
    leaves modes to the umask, which matter where others may enter the folder.
    """
    found = []
    with contextlib.suppress(OSError), os.scandir(path) as files:
        writers = path.stat().st_mode << 1 & 0o022  # those of group and others who may enter
        for file in files:
            if match := STORED.fullmatch(file.name):
                with contextlib.suppress(OSError):  # deleted by now
                    about = file.stat(follow_symlinks=False)
                    size = 0 if foreign(about, writers) else about.st_size
                    found.append((max(about.st_atime, about.st_mtime), size, match[1]))
    total = 0
    for _, size, key in sorted(found, reverse=True):
        total += size
        if size == 0 or total > max_bytes:
            for kind in ("cache", "atime"):
                with contextlib.suppress(OSError):
                    (path / f"{key}-{kind}").unlink()
