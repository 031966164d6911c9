"""What must hold of a run's folder, its logs and its machine once the run has ended."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distrlcc.errors import DistrlccError
from distrlcc.policy.policy_file import load_policy
from distrlcc.runs.checkpoint import load_checkpoint

_CRASHES = re.compile(
    r"^.*(?:Traceback \(most recent|Fatal Python error|terminate called|panicked at|"
    r"Segmentation fault|DamagedCheckpoint).*$",
    re.MULTILINE,
)
_LISTENS = "0A"


def row_faults(path: Path, *, whole: bool = True) -> list[str]:
    """Return what is wrong with a run's rows: they are in order, none missing, none twice.

    A second line of an update may add to the first, directly after it. Only the last line may be
    torn, and only where the end was not ``whole``.
    """
    found, newest, known = list[str](), 0, dict[str, Any]()
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    torn = lines.pop()
    if torn and whole:
        found.append(f"the last row is torn: {torn[:40]!r}")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            update = row["update"]
        except (ValueError, KeyError, TypeError):
            found.append(f"line {number} is no row: {line[:40]!r}")
            continue
        if update == newest and len(row) > 1:
            again = [key for key in row if key != "update" and known.get(key, ...) != ...]
            if len(again) == len(row) - 1 or any(row[key] != known[key] for key in again):
                found.append(f"row {update} is there twice")
            known |= row
            continue
        if update <= newest:
            found.append(f"row {update} stands behind row {newest}")
            continue
        if update > newest + 1:
            found.append(f"rows {newest + 1} to {update - 1} are missing before row {update}")
        newest, known = update, row
    return found


def file_faults(out: Path, newest: int, *, saved: bool = False) -> list[str]:
    """Return what is wrong with a run's checkpoints and policy: all load, with finite weights.

    None is newer than the ``newest`` row; where the end was ``saved``, the latest is as new.
    """
    found = []
    for path in sorted(out.glob("checkpoints/*.safetensors")):
        try:
            state = load_checkpoint(path)
        except DistrlccError as error:
            found.append(str(error))
            continue
        update = state["counters"]["update"]
        if update > newest or (saved and path.stem == "latest" and update < newest):
            found.append(f"{path.name} is of update {update}, the newest row of {newest}")
        if wrong := _not_finite([state.get("learner"), state.get("best")]):
            found.append(f"{path.name} holds what is not finite in {wrong} arrays")
    policy = out / "policy.safetensors"
    if policy.exists():
        try:
            if wrong := _not_finite(load_policy(policy).arrays):
                found.append(f"the policy holds what is not finite in {wrong} arrays")
        except DistrlccError as error:
            found.append(str(error))
    elif saved:
        found.append("there is no policy")
    return found


def _not_finite(tree: Any) -> int:
    """Count the arrays below a tree that hold what is not finite."""
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif hasattr(tree, "dtype"):
        array = np.asarray(tree)
        return int(array.dtype.kind == "f" and not np.isfinite(array).all())
    elif not isinstance(tree, list | tuple):
        return 0
    return sum(map(_not_finite, tree))


def log_faults(text: str) -> list[str]:
    """Return each crash that a log tells of."""
    return [f"in the log: {line[:120]}" for line in dict.fromkeys(_CRASHES.findall(text))]


def left_files(out: Path, temporary: Path, *, saved: bool) -> list[str]:
    """Return what should have been removed: what fork servers left, and temporary files.

    Of these some may be there where the end was not ``saved``; those who go on remove them.
    """
    files = [*temporary.glob("pymp-*"), *(out.rglob(".*.tmp") if saved else ())]
    return [f"{path} is left" for path in sorted(files)]


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the IPv4 addresses and TCP ports at which a process's host listens."""
    found = set()
    for path in (Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")):
        for fields in (line.split() for line in path.read_text().splitlines()[1:]):
            address, port = fields[1].split(":")
            if fields[3] == _LISTENS:
                four = reversed(bytes.fromhex(address[-8:]))
                found.add((".".join(map(str, four)), int(port, 16)))
    return found


def shared_memory(before: set[str]) -> set[str]:
    """Return what is new in /dev/shm and is held by no process."""
    new = {path.name for path in Path("/dev/shm").iterdir() if path.is_file()} - before
    if new:
        for path in Path("/proc").glob("[0-9]*/maps"):
            try:
                text = path.read_text(errors="replace")
            except OSError:
                continue
            new -= {each for each in new if f"/dev/shm/{each}" in text}
    return new
