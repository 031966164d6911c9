"""Progress that is shown in another process: kept here until it is fetched, and shown there."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from distrlcc.runs.progress import Progress

_MOST = 10_000


@dataclass
class News:
    """What is to be shown."""

    lines: list[str] = field(default_factory=list)
    """Lines that stay."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest of each."""
    alarm: str | None = None
    table: Table | None = None
    said: list[str] = field(default_factory=list)
    """Text for standard output."""


class RemoteProgress:
    """Has the methods of a `Progress`; the process that shows it fetches `news`."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.below: Callable[[], Table] | None = None
        self._news = News()
        self._lock = threading.Lock()

    def __enter__(self) -> RemoteProgress:
        return self

    def __exit__(self, *error: object) -> None:
        """Keep what was not fetched."""

    def update(self, metrics: Mapping[str, Any], alarm: str | None = None) -> None:
        """See `Progress.update`."""
        with self._lock:
            self._news.metrics.update(metrics)
            self._news.alarm = alarm

    def note(self, line: str) -> None:
        """See `Progress.note`."""
        with self._lock:
            self._news.lines = [*self._news.lines[-_MOST:], line]

    def take_warnings(self, prefix: str = "") -> None:
        """Show this process's warnings as lines from now on; ``prefix`` comes first in each."""

        def taken(message: Any, category: type[Warning], *_: Any) -> None:
            kind = "" if category is UserWarning else f"{category.__name__}: "
            self.note(f"{prefix}{kind}{message}")

        warnings.showwarning = taken  # type: ignore[assignment]

    def redraw(self) -> None:
        """See `Progress.redraw`; the table is made when it is fetched."""

    def say(self, text: str) -> None:
        """Keep text for standard output."""
        with self._lock:
            self._news.said.append(text)

    def news(self) -> News:
        """Return what came since the last call."""
        with self._lock:
            news, self._news = self._news, News()
        news.table = self.below() if self.below is not None else None
        return news


def show(news: News, progress: Progress) -> None:
    """Show what was fetched, but for what is for standard output."""
    for line in news.lines:
        progress.note(line)
    if news.table is not None:
        table = news.table
        progress.below = lambda: table
    if news.metrics:
        progress.update(news.metrics, news.alarm)
    progress.redraw()
