"""``--json FILE|-`` and output files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from distrlcc.errors import OutputError


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it.

    Raises:
        OutputError: The place cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as stream:
                stream.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}; choose a place you may write to"
        ) from None


def emit_json(target: str | None, value: Any) -> None:
    """Write a value as JSON to a file, or to standard output for ``-``; None writes nothing."""
    if target is None:
        return
    text = json.dumps(value, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        write_text(Path(target), text)


def require_writable(folder: Path) -> None:
    """Make a folder and try to write in it, before work begins that would be lost.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder)
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise OutputError(
            f"cannot write in {folder}: {error.strerror}; choose another --out"
        ) from None
