"""Files that grow by a line per update, and lose those after a checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

_BLOCK_BYTES = 1 << 16


def cut_after(path: Path, update: int) -> None:
    """Drop the lines at a file's end that are torn, or of later updates.

    Args:
        path: A JSON object per line, each with its ``update``, in order; there may be millions.
        update: The last that is kept.
    """
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end or tail:
            begin = tail.rfind(b"\n", 0, -1) + 1
            if not begin and end:  # the line's start is still to be read
                block = min(end, _BLOCK_BYTES)
                end = file.seek(end - block)
                tail = file.read(block) + tail
            elif _kept(tail[begin:], update):
                break
            else:
                tail = tail[:begin]
        file.truncate(end + len(tail))


def _kept(line: bytes, update: int) -> bool:
    """Say whether a line is whole and of an update that the checkpoint has."""
    try:
        return bool(json.loads(line)["update"] <= update) and line.endswith(b"\n")
    except (ValueError, KeyError, TypeError):
        return False
