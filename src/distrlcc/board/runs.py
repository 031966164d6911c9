"""Runs as their folders show them, read while they are written: nothing is asked of a training.

A worker is gone once its lines end in ``workers.jsonl`` and others' go on. The metrics' ``events``
say which ranks, workers and members of Ray joined, left and healed.
"""

import json
import math
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from distrlcc.config import flat
from distrlcc.errors import ConfigError
from distrlcc.runs.metrics_log import Follower

MOST_RUNS = 500
MOST_ROWS = 20_000  # of a run in memory
MOST_POINTS = 600  # of a curve
_MOST_KEYS = 8  # metrics of a run whose points are kept
_DEPTH = 3  # folders below one that is given in which runs are looked for
QUIET_S = 30.0
"""Without a new line for so long, or for four updates if that is longer, a run is not running."""
COPY_QUIET_S = 120.0  # the same of a copy at a storage, whose owner is looked for now and then
_SCORE = "held_out_reward"  # what chooses the best checkpoint, of both ways to act
_LEFT = re.compile(r"^(gone|died|dead|left|lost|silent|refused)|: gone|has died|is gone", re.I)
_JOINED = re.compile(r"^joined|joined:|joins|healed|is back", re.I)


@dataclass
class Presence:
    """A worker from its first line to its last, in the run's seconds."""

    name: str
    begin: float
    end: float
    newest: dict[str, Any] = field(default_factory=dict)


class Run:
    """One run's folder; `refresh` reads what is new."""

    def __init__(self, key: str, path: Path, quiet_s: float = QUIET_S) -> None:
        """Take its name on the page, its folder, and how long it may be quiet, s."""
        self.key, self.path, self._quiet_s = key, path, quiet_s
        self.version = 0  # counts what was new
        self._wrote, self._state, self._unreadable = 0.0, "", False
        self._begin(0)

    def _begin(self, file: int) -> None:
        """Read it from the first row on; a resume or a copy puts another file there."""
        self.workers: dict[str, Presence] = {}
        self.present: set[str] = set()
        self.seconds = 0.0  # the newest time that a line has, s since the run began
        self._file, self._size = file, 0
        self._metrics, self._workers = (Follower(self.path / name) for name in _FILES)
        self.rows: dict[int, dict[str, Any]] = {}  # by update
        self._best: dict[str, float] = {}
        self._alarms, self._eventful, self._newest = set[int](), set[int](), 0
        self._points: dict[str, dict[int, tuple[float | None, float | None, float]]] = {}
        """Steps, seconds and value by update, of the metrics that were asked for last."""
        self._settings: dict[str, Any] = {}

    def refresh(self) -> bool:
        """Read new lines; say whether anything is new."""
        before = self.version
        with suppress(OSError):
            status = (self.path / _FILES[0]).stat()
            self._wrote = max(self._wrote, status.st_mtime)
            if status.st_ino != self._file or status.st_size < self._size:
                self._begin(status.st_ino)
            self._size = status.st_size
        with suppress(OSError):
            self._wrote = max(self._wrote, (self.path / _FILES[1]).stat().st_mtime)
        self._unreadable = False
        for row in self._news(self._metrics):
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                self._take(int(row["update"]), row)
                self.seconds = max(self.seconds, _number(row.get("seconds")) or 0.0)
                self.version += 1
        # Lines that were written together are all who were there then.
        times: dict[float, set[str]] = {}
        for line in self._news(self._workers):
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                now, name = float(line["seconds"]), f"{line['worker']} {line['host']}"
                name += f" ({line['process']})" if line.get("process") else ""
                one = self.workers.setdefault(name, Presence(name, now, now))
                one.end, one.newest = now, line
                times.setdefault(now, set()).add(name)
                self.seconds = max(self.seconds, now)
                self.version += 1
        if times:
            self.present = times[max(times)]
        state = self.state
        self.version += state != self._state
        self._state = state
        return self.version != before

    def _news(self, lines: Follower) -> list[dict[str, Any]]:
        try:
            return lines.news()
        except OSError:  # the other runs go on
            self._unreadable = True
            return []

    def _take(self, update: int, row: dict[str, Any]) -> None:
        """Keep a row; of very many every other older one goes, so that memory stays flat."""
        whole = self.rows.setdefault(update, {})
        whole.update(row)
        self._newest = max(self._newest, update)
        self._alarms |= {update} if row.get("alarm") else set()
        self._eventful |= {update} if row.get("alarm") or row.get("events") else set()
        for key in self._points.keys() & whole.keys():
            self._point(key, update)
        for key in (key for key in row if key.startswith(_SCORE)):
            if (best := _number(row[key])) is not None:
                self._best[key] = max(best, self._best.get(key, -math.inf))
        if len(self.rows) > MOST_ROWS:
            for old in sorted(self.rows)[: MOST_ROWS // 2 : 2]:
                if not any(key.startswith((_SCORE, "alarm", "events")) for key in self.rows[old]):
                    del self.rows[old]
            self._points.clear()

    def _point(self, key: str, update: int) -> None:
        row = self.rows[update]
        if (value := _number(row.get(key))) is not None:
            steps, seconds = (_number(row.get(name)) for name in ("steps", "seconds"))
            self._points[key][update] = steps, seconds, value

    @property
    def config(self) -> str:
        """Its configuration, TOML; empty where it cannot be read."""
        with suppress(OSError, UnicodeDecodeError):
            return (self.path / "config.toml").read_text("utf-8")
        return ""

    @property
    def settings(self) -> dict[str, Any]:
        """Its configuration by keys with dots."""
        if not self._settings:
            with suppress(Exception):  # whatever somebody else's file holds
                self._settings = flat(self.config)
        return self._settings

    @property
    def last(self) -> dict[str, Any]:
        """The newest update's row."""
        return self.rows.get(self._newest, {})

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``stopped``, ``unreadable``; ``begun`` before an update."""
        if self._unreadable:
            return "unreadable"
        newest = islice(reversed(self.rows.values()), 9)
        steps = [row["seconds"] for row in newest if _number(row.get("seconds"))]
        pace = median([a - b for a, b in pairwise(steps)] or [0.0])
        if self._done():
            return "finished"
        if self._wrote and _now() - self._wrote < max(self._quiet_s, 4 * pace):
            return "running"
        return "stopped" if self.rows or self.workers else "begun"

    def _done(self) -> bool:
        settings, last = self.settings, self.last
        for key, limit in _ENDS.items():
            most, has = _number(settings.get(limit)), _number(last.get(key))
            # The last update may be cut short of its time.
            if most and has is not None and has >= most * (0.95 if key == "seconds" else 1.0):
                quiet = _now() - self._wrote > 5.0
                return quiet or key != "seconds"
        return False

    def score_key(self) -> str:
        """Return the metric that chooses its best checkpoint; empty before the first."""
        return max(self._best, key=lambda key: self._best[key], default="")

    def summary(self) -> dict[str, Any]:
        """Return what the list of runs shows."""
        key, last = self.score_key(), self.last
        noted = self._noted()
        return {
            "key": self.key,
            "recipe": str(self.settings.get("recipe", "")),
            "state": self.state,
            "date": str(noted.get("date") or ""),
            "seconds": self.seconds,
            "quiet": max(_now() - self._wrote, 0.0) if self._wrote else None,
            "steps": _number(last.get("steps")),
            "total": _number(self.settings.get("total_steps")),
            "speed": _number(last.get("steps_per_second")),
            "score": key,
            "best": self._best.get(key),
            "updates": self._newest,
            "workers": len(self.present) if self.state == "running" else 0,
            "alarms": len(self._alarms),
            "version": self.version,
        }

    def detail(self) -> dict[str, Any]:
        """Return what the page of one run shows."""
        checkpoints = []
        with suppress(OSError):
            for path in sorted((self.path / "checkpoints").glob("*.safetensors")):
                status = path.stat()
                age = _now() - status.st_mtime
                checkpoints.append({"name": path.stem, "bytes": status.st_size, "age": age})
        events = self.events()
        return self.summary() | {
            "checkpoints": checkpoints,
            "policy": (self.path / "policy.safetensors").exists(),
            "versions": {k: v for k, v in self._noted().items() if isinstance(v, str)},
            "keys": self.keys(),
            "events": events[-200:],
            "timeline": self.timeline(),
            "config": self.config,
        }

    def _noted(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads((self.path / "versions.json").read_text("utf-8"))
            return found if isinstance(found, dict) else {}
        return {}

    def events(self) -> list[dict[str, Any]]:
        """Return what happened, in order: alarms, who joined and left, restorations."""
        found = []
        for update in sorted(self._eventful):
            row = self.rows[update]
            texts = [("alarm", str(row["alarm"]))] if row.get("alarm") else []
            said = row.get("events")
            for text in said if isinstance(said, list) else ():
                kind = "left" if _LEFT.search(str(text)) else "note"
                texts.append(("joined" if _JOINED.search(str(text)) else kind, str(text)))
            seconds = _number(row.get("seconds"))
            found += [
                {"update": update, "seconds": seconds, "kind": k, "text": t} for k, t in texts
            ]
        return found

    def timeline(self) -> list[dict[str, Any]]:
        """Return the workers, with when each was there; those of now have their newest figures."""
        found, is_running = [], self.state == "running"
        for one in sorted(self.workers.values(), key=lambda one: (one.begin, one.name)):
            told = {"name": one.name, "begin": one.begin, "end": one.end}
            told |= {"here": one.name in self.present and is_running}
            figures = {k: _number(one.newest.get(k)) for k in _FIGURES}
            found.append({**told, **figures, "link": str(one.newest.get("link", ""))})
        return found

    def keys(self) -> list[str]:
        """Return the names of numbers that it has measured."""
        rows = islice(reversed(self.rows.values()), 50)
        seen = {k for row in rows for k, v in row.items() if _number(v) is not None}
        seen |= {self.score_key()} - {""}
        return sorted(seen - {"update"})

    def curve(self, key: str) -> dict[str, Any]:
        """Return a metric over updates, steps and seconds, thinned to `MOST_POINTS`."""
        if key not in self._points:
            while len(self._points) >= _MOST_KEYS:
                del self._points[next(iter(self._points))]
            self._points[key] = {}
            for update in self.rows:
                self._point(key, update)
        found = self._points[key]
        updates = sorted(found)
        stride = max(1, math.ceil(len(updates) / MOST_POINTS))
        drawn = updates[::stride] + (updates[-1:] if (len(updates) - 1) % stride else [])
        points = [(update, *found[update]) for update in drawn]
        columns = list(zip(*points, strict=True)) or [(), (), (), ()]
        return dict(zip(("update", "steps", "seconds", "value"), columns, strict=True))


_FILES = ("metrics.jsonl", "workers.jsonl")
_ENDS = {"steps": "total_steps", "update": "epochs", "seconds": "max_seconds"}
_FIGURES = ("steps", "steps_per_second", "version", "lag", "heard_seconds")


def _now() -> float:
    """Return the wall clock, which files' times have."""
    return time.time()  # noqa: TID251


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    with suppress(OverflowError):  # an integer may be any
        return float(value) if math.isfinite(value) else None
    return None


class Runs:
    """All runs of some folders."""

    def __init__(self, folders: Sequence[Path], copies: Mapping[Path, str] | None = None) -> None:
        """Take folders of runs, or of one, which need not be there yet; and copies with URLs."""
        self._copies = copies or {}
        self._folders = list(dict.fromkeys((*folders, *self._copies)))
        self.runs: dict[str, Run] = {}
        self._looked = -math.inf
        self.lock = threading.Lock()
        """Held while runs are read anew, and by whoever reads them in another thread."""

    def refresh(self) -> list[str]:
        """Look for new runs now and then, read new lines; return the keys of what is new."""
        with self.lock:
            now = time.monotonic()
            if now - self._looked > 2.0:
                self._looked = now
                found = dict(self._found())
                for key in self.runs.keys() - found.keys():
                    del self.runs[key]
                for key, path in found.items():
                    if key not in self.runs:
                        copied = any(path.is_relative_to(folder) for folder in self._copies)
                        self.runs[key] = Run(key, path, COPY_QUIET_S if copied else QUIET_S)
            return [key for key, run in self.runs.items() if run.refresh()]

    def _found(self) -> Iterable[tuple[str, Path]]:
        folders, count = self._folders, 0
        several, names = len(folders) > 1, [folder.name for folder in folders]
        for folder in folders:
            for path in _below(folder, _DEPTH):
                inner = path.relative_to(folder).as_posix()
                top = folder.name if names.count(folder.name) == 1 else ""
                top = self._copies.get(folder, top or str(folder))
                key = top if inner == "." else f"{top}/{inner}" if several else inner
                yield key, path
                count += 1
                if count >= MOST_RUNS:
                    return

    def __getitem__(self, key: str) -> Run:
        if (run := self.runs.get(key)) is None:
            raise ConfigError(f"no run {key[:80]!r} on this page")
        return run

    def differences(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """Return the settings in which some runs differ, each with every run's value."""
        settings: list[Mapping[str, Any]] = [self[key].settings for key in keys]
        names = dict.fromkeys(name for each in settings for name in each)
        values = {name: [str(each.get(name, "-")) for each in settings] for name in names}
        return [{"key": k, "values": each} for k, each in values.items() if len({*each}) > 1]


def _below(folder: Path, depth: int) -> Iterable[Path]:
    """Yield runs' folders by their names; links are not followed, nor what cannot be read."""
    inner: list[Path] = []
    with suppress(OSError):
        if (folder / "config.toml").is_file() and (folder / "versions.json").is_file():
            yield folder
        elif depth:
            inner = [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    for each in sorted(inner, key=lambda path: path.name):
        if not each.name.startswith("."):
            yield from _below(each, depth - 1)
