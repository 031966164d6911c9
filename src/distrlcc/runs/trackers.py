"""Logs a run to Weights & Biases and MLflow (extras ``wandb``, ``mlflow``), each by a process.

It follows metrics.jsonl, so each row is sent once, whichever rank writes it, and a slow or dead
server holds no rank up. A file in the run's folder keeps the tracker's run for a resume.
"""

import fcntl
import json
import math
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, process_time, sleep
from typing import Any

from distrlcc.config import flat
from distrlcc.errors import ConfigError
from distrlcc.extras import require
from distrlcc.limits import limits
from distrlcc.runs.metrics_log import Follower
from distrlcc.storage import say

AUTO = "auto"  # the project or the server that the tracker's own variables name
_LONGEST_PAUSE = 60.0
_WORKS = 0.5  # seconds of a core that a process does not spend by waiting
_SILENT = {"WANDB_SILENT": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}
_MOST_PARAMS = 100  # that MLflow takes in one request
_NEW: dict[str, Any] = {"run": "", "step": -1, "keys": []}
"""What is kept beside the place: the tracker's run, its newest step, and what that has."""


def _variables() -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if k.startswith(("WANDB_", "MLFLOW_"))}
    with suppress(OSError):  # it may be gone
        found["PWD"] = os.getcwd()
    return found


@dataclass(frozen=True)
class Trackers:
    """Where a run is logged; raises ConfigError at a project or URI that does not fit."""

    wandb: str = ""  # project, PROJECT or ENTITY/PROJECT; `AUTO`
    mlflow: str = ""  # URI of a server or of a store; `AUTO`
    variables: dict[str, str] = field(default_factory=_variables, repr=False)
    """Variables of the process that begins the run: on Ray another one may have its folder."""

    def __post_init__(self) -> None:
        if wrong := re.search(r"[\\#?%:]|/.*/|^/|/$", self.wandb):
            raise ConfigError(
                f"--wandb {self.wandb}: {wrong[0]!r} does not fit; expected PROJECT or "
                "ENTITY/PROJECT"
            )
        if re.match(r"\w+://[^/]*@", self.mlflow):
            raise ConfigError(
                "--mlflow: its URI has a password, which would be kept in the run's folder; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )

    def check(self) -> None:
        """Raise a ConfigError if a tracker is not installed."""
        require(*(kind for kind in _KINDS if getattr(self, kind)))

    @contextmanager
    def follow(self, folder: Path, *, show: bool = True) -> Iterator[list[str]]:
        """Log what is written to a run's folder meanwhile, and show what trackers say.

        The caller may put into the list that is yielded how the run ended, ``KILLED`` if not by
        itself; after an exception it is ``FAILED``.
        """
        # Those that are asked for, and those in which the run goes on.
        processes, how = dict[str, subprocess.Popen[str]](), list[str]()
        here = self.variables.get("PWD", "")
        for kind in _KINDS:
            kept = _kept(folder, kind)
            place = getattr(self, kind) or kept.get("place", "")
            if not place:
                continue
            if copied := _is_copy(folder, kind, kept):
                say(f"{folder} is a copy of {kept['folder']}: {kind} has it as a run of its own")
            if copied or kept.get("place") != place:  # a resume knows of it, however early it ends
                with suppress(OSError):
                    _keep(folder, kind, {"place": place, **_NEW})
            try:
                require(kind)
            except ConfigError as error:
                say(f"{error}; training goes on without it")
                continue
            words = ["-P", "-W", "ignore", "-m", __name__, kind, place, str(folder.absolute())]
            processes[kind] = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE,
                text=True,
                env={**({} if show else _SILENT), **os.environ, **self.variables},
                cwd=here if os.path.isdir(here) else None,
                process_group=0,  # which hears no Ctrl-C
            )
        end = "FAILED"
        try:
            yield how
            end = how[0] if how else "FINISHED"
        finally:
            # Let all end at once, and not for long.
            for process in processes.values():
                assert process.stdin is not None
                with suppress(OSError), process.stdin as told:  # it may be dead
                    told.write(f"{end}\n")
            for kind, process in processes.items():
                try:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(limits().patience)
                finally:
                    process.kill()
                if process.wait():
                    say(f"{_KINDS[kind].name} did not take all; metrics.jsonl has it")


class _Wandb:
    """A run of W&B: its id ``run``, and the steps that a row has at ``least`` to be new to it."""

    name = "Weights & Biases"

    def __init__(self, place: str, run: str, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb  # noqa: PLC0415 - of an extra

        project = os.environ.get("WANDB_PROJECT", "distrlcc") if place == AUTO else place
        entity, _, project = project.rpartition("/")
        self._run: Any = wandb.init(
            entity=entity or None,
            project=project,
            id=run or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex,
            resume="allow",
            name=os.environ.get("WANDB_NAME") or folder.name,
            settings=wandb.Settings(console="off"),
        )
        self._run.config.update(dict(config), allow_val_change=True)
        self.run, self.least = self._run.id, self._run.step

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def end(self, how: str, policy: Path) -> None:
        if how == "FINISHED" and policy.exists():
            self._run.log_artifact(policy, name="policy", type="model")
        self._run.finish(exit_code=int(how != "FINISHED"))


class _MLflow:
    """The same of MLflow."""

    name = "MLflow"

    def __init__(self, place: str, run: str, folder: Path, config: Mapping[str, Any]) -> None:
        import mlflow  # noqa: PLC0415 - of an extra

        self._mlflow, self.least = mlflow, 0
        if place != AUTO:
            mlflow.set_tracking_uri(place)
        mlflow.end_run()  # of a try before
        self.run = mlflow.start_run(run or None, run_name=None if run else folder.name).info.run_id
        if run:
            self.least = int(mlflow.get_run(run).data.metrics.get("steps", -1)) + 1
            return
        params = [(key, str(value)[:500]) for key, value in config.items()]
        for k in range(0, len(params), _MOST_PARAMS):
            mlflow.log_params(dict(params[k : k + _MOST_PARAMS]))

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(metrics, step=step)

    def end(self, how: str, policy: Path) -> None:
        if how == "FINISHED" and policy.exists():
            self._mlflow.log_artifact(str(policy))
        self._mlflow.end_run(how)


_KINDS: dict[str, type[_Wandb | _MLflow]] = {"wandb": _Wandb, "mlflow": _MLflow}


def _kept(folder: Path, kind: str) -> dict[str, Any]:
    """Return what `_keep` has kept of the tracker's run that a folder's run is logged to."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / f"tracker-{kind}.json").read_text())
        if isinstance(found, dict):
            return found
    return {}


def adopt(folder: Path) -> None:
    """Let a run that was fetched into a folder go on in its trackers' runs; it is no copy."""
    for kind in _KINDS:
        if kept := _kept(folder, kind):
            with suppress(OSError):
                _keep(folder, kind, kept)


def _is_copy(folder: Path, kind: str, kept: Mapping[str, Any]) -> bool:
    """Say whether what a folder keeps is another one's, which is still there."""
    with suppress(OSError, KeyError, TypeError, ValueError):  # it is gone, moved or not readable
        other = Path(kept["folder"])
        return not os.path.samefile(other, folder) and kept["run"] == _kept(other, kind)["run"]
    return False


def _hear(ended: SimpleQueue[str]) -> None:
    """Tell how the run ended, or that its process is gone; exit if it then waits for too long."""
    ended.put(sys.stdin.readline().strip() or "FAILED")
    worked, since = process_time(), monotonic()
    while monotonic() - since < limits().stop:
        sleep(limits().tick)
        if process_time() > worked + _WORKS:
            worked, since = process_time(), monotonic()
    os._exit(1)


def _follow(kind: str, place: str, folder: Path) -> int:
    """Log a run until it ends; return the exit code."""
    ended = SimpleQueue[str]()
    Thread(target=_hear, args=(ended,), daemon=True).start()
    # Let the process of a training that was killed send what it has, and end: `_hear` ends it.
    with suppress(OSError):  # of a file system without locks
        fcntl.flock(os.open(folder / f".tracker-{kind}.lock", os.O_CREAT), fcntl.LOCK_EX)
    made, follower = _KINDS[kind], Follower(folder / "metrics.jsonl")
    kept = _NEW | _kept(folder, kind)
    kept = kept if kept.get("place") == place else {"place": place, **_NEW}
    tracker: _Wandb | _MLflow | None = None
    rows, step, pause, how, said = list[dict[str, Any]](), 0, limits().retry, "", False
    while True:
        with suppress(Empty):
            how = how or ended.get(timeout=pause)
        rows += follower.news()
        try:
            # Begin; then send what is new. A row without steps is of the update before it.
            if tracker is None:
                config = flat((folder / "config.toml").read_text())
                tracker = made(place, kept["run"], folder, config)
                kept["run"] = tracker.run
                _keep(folder, kind, kept)
            while rows:
                step = int(rows[0].get("steps", step))
                found = {k: float(v) for k, v in rows[0].items() if isinstance(v, int | float)}
                had = kept["keys"] if step == kept["step"] else []
                new = {k: v for k, v in found.items() if math.isfinite(v) and k not in had}
                newer = step > kept["step"]
                if new and (step >= tracker.least if newer else step == kept["step"]):
                    tracker.log(new, max(step, tracker.least))
                if step >= kept["step"]:
                    kept |= {"step": step, "keys": [*had, *found]}
                del rows[0]
                if not rows:
                    _keep(folder, kind, kept)
            if how:
                tracker.end(how, folder / "policy.safetensors")
                return 0
            pause = limits().retry
        except Exception as error:  # of the tracker, its server or its store
            if not said:
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                say(f"{made.name} fails: {why}; training goes on, and metrics.jsonl has all")
                said = True
            if how:
                return 1
            pause = min(2 * pause, _LONGEST_PAUSE)


def _keep(folder: Path, kind: str, kept: dict[str, Any]) -> None:
    hidden = folder / f".tracker-{kind}"
    hidden.write_text(json.dumps(kept | {"folder": str(folder.absolute())}))
    hidden.replace(folder / f"tracker-{kind}.json")


if __name__ == "__main__":
    sys.exit(_follow(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
