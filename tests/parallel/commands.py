"""Commands in a session of their own, and what runs have written so far."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distrlcc.runs.checkpoint import load_checkpoint
from distrlcc.runs.metrics_log import read_metrics
from distrlcc.storage import LATEST
from tests.hosts import wait_until


def rows(out: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return the whole lines of a file in a run's folder; of metrics a row for each update."""
    path = out / name
    if name == "metrics.jsonl":
        return read_metrics(path) if path.exists() else []
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def saved(out: Path) -> dict[str, Any]:
    """Return the newest checkpoint of a run."""
    return load_checkpoint(out / LATEST)


def updates(out: Path) -> list[int]:
    """Return the updates that a run has logged."""
    return [row["update"] for row in rows(out)]


def session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def settings(*words: str) -> list[str]:
    """Return words of a command line; of the settings of a key, the last alone."""
    keys = [word.partition("=")[0] for word in words]
    last = (
        "=" not in w or w[0] == "-" or keys[k] not in keys[k + 1 :] for k, w in enumerate(words)
    )
    return [word for word, kept in zip(words, last, strict=True) if kept]


class Command:
    """A Python command in a session of its own, killed in the end; its output goes to a file."""

    def __init__(
        self, folder: Path, *words: str, python: Sequence[str] = (sys.executable,)
    ) -> None:
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*python, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)

    @property
    def said(self) -> list[str]:
        return self._log.read_text().splitlines()

    def until_updates(self, out: Path, least: int, seconds: float = 90.0) -> None:
        """Wait until its run has logged some updates."""

        def done() -> bool:
            assert self.process.poll() is None, "\n".join(self.said)
            return len(rows(out)) >= least

        wait_until(done, seconds, f"{least} updates")

    def nothing_is_left(self, seconds: float = 5.0) -> None:
        wait_until(lambda: not session(self.process.pid), seconds, "the end of all its processes")
