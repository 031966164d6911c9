"""A run's folder: what ran, what it measured, and all it needs to go on.

docs/training.md shows what is in it. Files are written whole under a temporary name and renamed,
except those that are appended to. After a resume, lines of updates later than the checkpoint are
dropped, so no update occurs twice.
"""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import MISSING, fields, replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from msgspec import convert

from distrlcc.config import flat, from_toml, to_toml, toml_differences
from distrlcc.errors import CheckpointError, ConfigError, OutputError, reading, writing
from distrlcc.files import refuse_links, rename, require_vacant, temporary_path, write_atomically
from distrlcc.plugins import portable
from distrlcc.policy.policy_file import save_policy
from distrlcc.runs.checkpoint import DamagedCheckpointError, load_checkpoint, save_checkpoint
from distrlcc.runs.identity import package_versions, versions
from distrlcc.runs.leadership import Leadership, mark_run
from distrlcc.runs.metrics_log import MetricsLog
from distrlcc.storage import StorageKeeper, say

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from distrlcc.policy.policy_file import PolicyFile
    from distrlcc.storage import Storage

C = TypeVar("C", bound="DataclassInstance")

_METRICS = "metrics_file"  # key of a checkpoint: what `MetricsLog.durable` said as it was saved


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """One run's folder. Make it with :meth:`create` or :meth:`resume`; close it at the end."""

    def __init__(self, path: Path, config: DataclassInstance, *, tensorboard: bool = True) -> None:
        """Open a folder; :meth:`create` and :meth:`resume` check that it fits."""
        self.path = path
        self.storage: Storage | None = None  # where its durable copy goes
        self._keeper: StorageKeeper | None = None
        self._config = config
        self._lock = ExitStack()
        self._run = ""
        self._leadership: Leadership | None = None
        self._epoch = 0
        self._whole = True  # whether the newest checkpoint, if there is one, is not damaged
        settings = flat(to_toml(config)) if tensorboard else {}
        self.metrics = MetricsLog(path, tensorboard=tensorboard, settings=settings)

    @classmethod
    def open(
        cls, path: Path, config: DataclassInstance, *, resume: bool, tensorboard: bool
    ) -> RunDirectory:
        """Begin a run, or go on with one."""
        return (cls.resume if resume else cls.create)(path, config, tensorboard=tensorboard)

    @classmethod
    def create(
        cls, path: Path, config: DataclassInstance, *, tensorboard: bool = True
    ) -> RunDirectory:
        """Begin a run in a new or empty folder; raises ConfigError and OutputError.

        A class of configurations may name, as ``EXTENDABLE``, keys that a resume may change.
        """
        # Refuse a folder that holds something else.
        run = cls(path, config, tensorboard=tensorboard)
        text = to_toml(config)
        a_run = (
            "already holds a run: add --resume to go on with it (--load in place of --out where "
            "workers act for a trainer), or give another --out"
        )
        other = "is not empty and is not a run: give an empty or new folder as --out"
        with writing(path):
            require_vacant(path, {"config.toml": a_run}, other)
            path.mkdir(parents=True, exist_ok=True)
            try:
                (path / "checkpoints").mkdir()
            except FileExistsError:
                raise OutputError(
                    f"another process begins a run in {path} at this moment: give another --out"
                ) from None
            try:  # from here on the folder is a run
                write_atomically(path / "config.toml", text.encode())
            except BaseException:
                (path / "checkpoints").rmdir()
                raise
        seeds = {k: v for k, v in flat(text).items() if k.rpartition(".")[2] == "seed"}
        noted = {**versions(), "seeds": seeds, "resumed": []}
        run._write("versions.json", json.dumps(noted, indent=2) + "\n")
        return run

    @classmethod
    def resume(
        cls, out: Path, config: DataclassInstance, *, tensorboard: bool = True
    ) -> RunDirectory:
        """Open a run to go on with it; follow with :meth:`load` and :meth:`rewind`.

        Extendable keys are as given from now on; others that differ are a CheckpointError. Raises
        OutputError if there is no run.
        """
        began = cls.read_config(out, type(config))
        if changed := toml_differences(_identity(began), _identity(config)):
            raise CheckpointError(
                f"{out} is a run of another config (its value != this one's): {'; '.join(changed)}"
            )
        return cls(out, config, tensorboard=tensorboard)

    @staticmethod
    def read_config(out: Path, cls: type[C], note: Callable[[str], None] | None = None) -> C:
        """Read a run's configuration, with `from_toml`'s note; raises ConfigError, OutputError.

        It has no ``start_from`` once there is a checkpoint, whose weights are newer.
        """
        path = out / "config.toml"
        if not path.exists():
            raise OutputError(
                f"{out} holds no run to resume: leave out --resume to begin one there"
            )
        refuse_links(out, out / "checkpoints", out / "tensorboard")
        with reading(ConfigError, f"{path} cannot be read"):
            text = path.read_text(encoding="utf-8")
        try:
            return resumed(from_toml(cls, text, source=str(path), note=note), out, None)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; use the distrlcc that wrote it, or begin anew from its policy (the key "
                "start_from)"
            ) from None

    @property
    def policy_path(self) -> Path:
        """Where the policy file goes."""
        return self.path / "policy.safetensors"

    def checkpoint_path(self, name: str) -> Path:
        """Return the place of the checkpoint ``latest``, ``previous`` or ``best``."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def belong_to(self, run: str, *, new: bool = True) -> None:
        """Take the id that a run's processes have in common, and write it down if it is new."""
        self._run = run
        if new:
            mark_run(self.path, run)

    def lead(self, epoch: int = 1, still_leads: Callable[[], bool] = lambda: True) -> None:
        """Become who writes checkpoints, policy and metrics; raises what `Leadership` does."""
        self._leadership, self._epoch = Leadership(self.path, self._run, epoch, still_leads), epoch

    def check(self) -> None:
        """See that no other process has taken this folder over; see `Leadership.check`."""
        if self._leadership is not None:
            self._leadership.check()

    def save(self, state: Mapping[str, Any], *, best: bool = False) -> Path:
        """Save a checkpoint as the best, or as the latest; the one before becomes the previous."""
        path, previous = self.checkpoint_path("best" if best else "latest"), None
        if not best:
            state = {**state, _METRICS: self.metrics.durable()}
        if path.exists() and not best and self._whole:
            previous = temporary_path(self.checkpoint_path("previous"), self._epoch)
            try:  # so that the newest exists at every moment
                previous.hardlink_to(path)
            except OSError:  # a file system without hard links
                with writing(previous):
                    shutil.copyfile(path, previous)

        def keep() -> None:
            self.check()
            if previous is not None:
                rename(previous, self.checkpoint_path("previous"), self.check)

        try:
            text, found, epoch = _identity(self._config), package_versions(), self._epoch
            save_checkpoint(
                path, state, config_toml=text, versions=found, before_rename=keep, epoch=epoch
            )
            self._whole = self._whole or not best
        finally:
            if previous is not None:  # it is there still where both were the same file already
                previous.unlink(missing_ok=True)
        return path

    def save_policy(self, policy: PolicyFile) -> None:
        """Write the run's policy."""
        self.check()
        save_policy(self.policy_path, policy, before_rename=self.check, epoch=self._epoch)

    def load(self, note: Callable[[str], None] = say) -> dict[str, Any] | None:
        """Load the newest whole checkpoint, if there is one, and note; raises CheckpointError."""
        damage: CheckpointError | None = None
        latest, previous = map(self.checkpoint_path, ("latest", "previous"))
        if previous.exists() and not latest.exists():
            damage = CheckpointError(f"{latest} is missing")
        for path in (latest, previous):
            try:
                if path.exists():
                    state = load_checkpoint(
                        path, config_toml=_identity(self._config), fill=self._filled
                    )
                    if damage is not None:
                        note(f"warning: {damage}; going on from {path}, which is older")
                    with reading(CheckpointError, f"{path} has an odd note of its metrics"):
                        kept = convert(state.pop(_METRICS, {"bytes": 0, "crc": 0}), dict[str, int])
                        rows = self.metrics.damage(kept)
                    if rows:
                        note(f"warning: {rows}; what is whole is kept")
                    return state
            except DamagedCheckpointError as error:
                damage = damage or error
                self._whole = False  # the next one leaves `previous` as it is
        if damage is not None:
            raise CheckpointError(
                f"{damage}; no other one is whole: copy one back, or begin a new run, as with "
                f"'distrlcc train --start-from {self.path}' from its policy"
            )
        # A policy is written with the first checkpoint, or later.
        metrics = self.metrics.path
        if metrics.exists() and self.policy_path.exists() and metrics.read_bytes().strip():
            raise CheckpointError(
                f"{self.path} has metrics and a policy but no checkpoint; restore "
                f"{self.checkpoint_path('latest')}, or begin a new run"
            )
        note(f"{self.path} has no checkpoint yet: nothing was saved, and it begins anew")
        return None

    def _filled(self, text: str) -> str:
        """Return a checkpoint's configuration with the keys that an older distrlcc lacked."""
        with suppress(ConfigError):
            return _identity(from_toml(type(self._config), text))
        return text

    def rewind(self, update: int, note: Callable[[str], None] = say) -> None:
        """Begin to go on after an update: note it, and drop later metrics; after :meth:`load`."""
        self._write("config.toml", to_toml(self._config))
        with suppress(OSError, ValueError, AttributeError, TypeError):
            # A lost note of versions does not stop a run.
            noted = json.loads((self.path / "versions.json").read_text(encoding="utf-8"))
            parts = noted.setdefault("resumed", [])
            before, now = parts[-1] if parts else noted, package_versions()
            others = [f"{k} {before.get(k)} != {now[k]}" for k in now if before.get(k) != now[k]]
            if others:
                note(f"{self.path} had other versions (old != new): {'; '.join(others)}")
            parts.append(versions())
            self._write("versions.json", json.dumps(noted, indent=2) + "\n")
        self.go_on(update)
        if (self.path / "workers.jsonl").exists():
            workers = MetricsLog(self.path, "workers.jsonl", tensorboard=False)
            workers.begin_after(update, check=self.check, epoch=self._epoch)
            workers.close()

    def go_on(self, kept: int | None, groups: Mapping[int, str] | None = None) -> None:
        """Go on with the metrics that are there; see `MetricsLog.begin_after`."""
        self.metrics.begin_after(kept, groups, check=self.check, epoch=self._epoch)

    def log(self, update: int, row: Mapping[str, Any]) -> None:
        """Append a row of metrics; raises OutputError, FencedError where another process leads."""
        try:
            self.metrics.log(update, row)
        except OutputError:
            self.check()  # that one has replaced the file
            raise
        self.check()

    def _write(self, name: str, text: str) -> None:
        data, epoch = text.encode(), self._epoch
        write_atomically(self.path / name, data, before_rename=self.check, epoch=epoch)

    def store(self) -> None:
        """Begin to store the newest checkpoint and all else, where there is a storage."""
        if self.storage is None:
            return
        self._keeper = self._keeper or StorageKeeper(
            self.storage, self.path, self.check, (self._run, self._epoch)
        )
        self._keeper.wake()

    def storage_news(self) -> list[str]:
        """Return what the user should hear of the storage since the last call."""
        return [] if self._keeper is None else self._keeper.news()

    def discard(self) -> None:
        """Remove what :meth:`create` made, unless something was measured or saved since."""
        folder = self.path / "checkpoints"
        metrics = self.metrics.path
        if (metrics.exists() and metrics.stat().st_size) or any(folder.glob("*")):
            return
        names = "config.toml", "versions.json", "*.jsonl", "tracker-*.json", ".run", ".lock"
        with suppress(OSError):
            for path in chain(*map(self.path.glob, (*names, ".epoch-*", ".tracker-*"))):
                path.unlink(missing_ok=True)
            folder.rmdir()
            self.path.rmdir()

    def lock(self) -> None:
        """Keep other processes from writing here until :meth:`close`; see `take_lock`."""
        self._lock.enter_context(take_lock(self.path) or nullcontext())

    def close(self) -> None:
        """Close the files that are appended to, and release the lock."""
        self._lock.close()
        self.metrics.close()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def __exit__(self, *error: object) -> None:
        self.close()


def resumed(config: C, out: Path, note: Callable[[str], None] | None = say) -> C:
    """Return what a resume reads: no ``start_from`` once a checkpoint has newer weights."""
    if not getattr(config, "start_from", "") or not any(out.glob("checkpoints/*.safetensors")):
        return config
    if note is not None:
        note(f"start_from is not read: {out} has a checkpoint, whose weights are newer")
    return replace(config, start_from="")


def _identity(config: DataclassInstance) -> str:
    """Return the configuration's TOML without what may differ: extendable keys, users' folders."""
    defaults = {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(config)
        if f.name in getattr(config, "EXTENDABLE", ())
    }
    return portable(to_toml(replace(config, **defaults)))


def make_fresh(root: Path, recipe: str) -> Path:
    """Make ``<root>/<recipe>-<time>``; several processes that ask at once have one each."""
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    stem = f"{recipe}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for number in count(1):
        with writing(root), suppress(FileExistsError):
            (folder := root / (f"{stem}-{number}" if number > 1 else stem)).mkdir()
            return folder
    raise AssertionError


def take_lock(path: Path) -> TextIO | None:
    """Lock a run's folder; None where files have no locks, OutputError if another trains it."""
    file = None
    try:
        file = (path / ".lock").open("a")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if file is not None:
            file.close()
        if file is None and error.errno in (errno.EACCES, errno.EROFS):
            raise OutputError(f"cannot write {path}: {error.strerror}") from None
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return None
        raise OutputError(f"{path} is being trained by another process") from None
    return file
