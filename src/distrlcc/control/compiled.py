"""``njit`` with a disk cache that sees every edit.

numba's own cache misses edits to functions in other modules. So the cache folder's name holds a
hash of all sources of compiled functions: `distrlcc.control`, `distrlcc.sim`, `distrlcc.env`, the
package's own folder and `distrlcc.transport.recovery`. An edit means a new folder; another copy of
the same sources compiles nothing anew. A new folder replaces those unused for a month. Without a
writable place nothing is kept.
"""

import hashlib
import os
import shutil
import time
import warnings
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from distrlcc.errors import ConfigError, reading

with reading(ConfigError, "Numba cannot start", "; see its environment variables, NUMBA_…"):
    import numba
    from numba.core.caching import UserProvidedCacheLocator

    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise ValueError("NUMBA_DISABLE_JIT is set, but the simulator must be compiled")

_PACKAGE = Path(__file__).resolve().parent.parent
_UNUSED_S = 30 * 86400.0  # age of a folder that is removed, s since a process began with it


def _source_hash() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    files = [sorted((_PACKAGE / folder).glob("*.py")) for folder in ("", "control", "sim", "env")]
    for path in (*chain(*files), _PACKAGE / "transport" / "recovery.py"):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def kept_folders() -> list[Path]:
    """Return the folders of compiled code that this user has, of whatever version, oldest first."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = [path for path in (base / "distrlcc").glob("numba-*") if path.is_dir()]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _cache_folder() -> Path | None:
    """Return the folder for these sources; None where none can be written."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "distrlcc" / f"numba-{_source_hash()}"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            for other in kept_folders():
                if time.time() - other.stat().st_mtime > _UNUSED_S:  # noqa: TID251 - of a file
                    shutil.rmtree(other, ignore_errors=True)
        os.utime(folder)  # it is in use
        return folder if os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):  # the latter where there is no home
        return None


class PackageLocator(UserProvidedCacheLocator):
    """Names a source file by its place in the package, not on the disk."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Return the folder, below the cache's own, of what a source file compiles to."""
        path = Path(py_file).resolve()
        if path.is_relative_to(_PACKAGE):
            return "-".join(path.relative_to(_PACKAGE).parent.parts) or "root"
        return str(super().get_suitable_cache_subpath(py_file))  # type: ignore[no-untyped-call]


CACHE_FOLDER = _cache_folder()
numba.config.CACHE_DIR = str(CACHE_FOLDER or "")  # type: ignore[attr-defined]
numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.PackageLocator"  # type: ignore[attr-defined]


_FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""No interpreter lock, NumPy's division rules, and no reference counts of arrays, which would take
most of the time. Callers hold the arrays, and no compiled function makes one: numba refuses to
compile one that does."""


def njit(function: Any) -> Any:
    """Compile with numba, cached where the cache can be read and written."""
    compiled = numba.njit(cache=CACHE_FOLDER is not None, **_FLAGS)(function)
    if CACHE_FOLDER is not None:
        _make_optional(compiled._cache)
    return compiled


def _make_optional(kept: Any) -> None:
    """Let a cache that is full or damaged cost time alone."""
    load, save = kept.load_overload, kept.save_overload

    def try_to_load(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # what unpickling damaged bytes may raise
            with suppress(OSError):
                kept.flush()
            return None

    def try_to_save(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:
            warnings.warn(
                f"compiled code cannot be kept in {CACHE_FOLDER} ({error.strerror}), so each "
                "command compiles anew; make room there or set XDG_CACHE_HOME to another folder",
                stacklevel=2,
            )

    kept.load_overload, kept.save_overload = try_to_load, try_to_save


def njit_inner(function: Any) -> Any:
    """Compile for compiled callers alone, whose cached code holds it, in half of `njit`'s time."""
    without_wrappers: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(**_FLAGS, **without_wrappers)(function)
