"""``--json FILE|-``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from distrlcc.files import check_writable, require_writable, write_atomically


def check_json_target(target: str | None) -> None:
    """See that ``--json``'s file can be written, before the work whose result it takes.

    Raises:
        OutputError: It cannot.
    """
    if target not in (None, "-"):
        check_writable(Path(str(target)).resolve().parent)


def emit_json(target: str | None, value: Any) -> None:
    """Write a value as JSON to a file, or to standard output for ``-``; None writes nothing."""
    if target is None:
        return
    text = json.dumps(value, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        require_writable(Path(target).resolve().parent)
        write_atomically(Path(target), text.encode())
