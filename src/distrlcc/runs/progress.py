"""Progress of a run: a live table in a terminal, plain lines elsewhere.

A value of :data:`COLUMNS` stays until a newer one comes. Speed is measured over the last seconds,
so pauses count. It is drawn when something is reported: no thread competes with training.
"""

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distrlcc.errors import printable

COLUMNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("return", ("episode_return", "return", "reward"), "{:.3g}"),
    ("utilisation", ("utilisation",), "{:.3f}"),
    ("queueing delay", ("queueing_delay_rtt", "queueing_delay"), "{:.3f} RTT"),
    ("entropy", ("policy_entropy", "entropy"), "{:.3f}"),
    ("accuracy", ("validation_accuracy", "imitation_accuracy"), "{:.3f}"),
)
"""Label, the metric's keys (the first that an update bears is shown) and format."""

LINE_SECONDS = 10.0  # time between two plain lines, s
MOST_CALLS = 10_000  # calls that are kept for another process, at most; the oldest go
_REDRAW_SECONDS = 0.1
_SPEED_SECONDS = 15.0


class _Console(Console):
    """A console that falls silent when its reader goes away; the run goes on."""

    def on_broken_pipe(self) -> None:
        """Write nothing any more."""
        self.quiet = True


class Progress:
    """Shows how far a run is; a context manager."""

    def __init__(
        self,
        total_steps: int | None = None,
        *,
        max_seconds: float | None = None,
        show: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show nothing yet, by default on standard error; a run ends at these steps or seconds."""
        self._total_steps, self._max_seconds = total_steps or 0, max_seconds or 0.0
        self._console = console or _Console(stderr=True, quiet=not show)
        self._clock = clock
        self._begin = clock()
        self._values: dict[str, float] = {}
        self._alarm = ""
        self._marks: deque[tuple[float, float]] = deque()  # (clock, steps) of the last seconds
        self._drawn = -math.inf
        self._stale = False
        self.below: Callable[[], Table] | None = None  # a table to show below, in a terminal
        self._live: Live | None = None
        if show and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._stale:
            self._draw()
        if self._live is not None:
            self._live.stop()

    def update(self, metrics: Mapping[str, Any], alarm: str | None = None) -> None:
        """Report an update's metrics, and what is wrong with the training, if anything.

        Shown are ``steps``, ``seconds`` of training (measured here if absent) and :data:`COLUMNS`.
        """
        now = self._clock()
        for key, value in metrics.items():
            if isinstance(value, int | float) or hasattr(value, "__float__"):
                self._values[key] = float(value)
        if "steps" in metrics:
            self._marks.append((now, self._values["steps"]))
            while len(self._marks) > 2 and now - self._marks[0][0] > _SPEED_SECONDS:
                self._marks.popleft()
        new_alarm = bool(alarm) and alarm != self._alarm
        self._alarm, self._stale = alarm or "", True
        wait = LINE_SECONDS if self._live is None else _REDRAW_SECONDS
        if new_alarm or now - self._drawn >= wait:
            self._draw()

    def note(self, line: str) -> None:
        """Show a line that stays, above the table."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def show_below(self, table: Table) -> None:
        """Show a table below, in a terminal."""
        self.below = lambda: table
        self.redraw()

    def redraw(self) -> None:
        """Show what has changed below, in a terminal."""
        if self._live is not None and self._clock() - self._drawn >= _REDRAW_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._drawn, self._stale = self._clock(), False
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
            return
        cells = [f"{label} {value}" for label, value in self._cells()]
        left = self._left()
        line = "  ".join([*cells, f"{left} left" if left else ""]).rstrip()
        self._console.print(Text(line), soft_wrap=True)
        if self._alarm:
            self._console.print(Text(f"alarm: {self._alarm}"), soft_wrap=True)

    def _panel(self) -> Group:
        done = self._done()
        left = self._left()
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=1.0, completed=done, width=40)
        head.add_row(bar, f"{done:.0%}", f"{left} left" if left else "")
        cells = self._cells()
        table = Table.grid(padding=(0, 2))
        table.add_row(*(Text(label, style="dim") for label, _ in cells))
        table.add_row(*(Text(value, style="bold") for _, value in cells))
        alarm = [Text(f"alarm: {self._alarm}", style="bold red")] if self._alarm else []
        below = [self.below()] if self.below is not None else []
        return Group(head, table, *alarm, *below)

    def _cells(self) -> list[tuple[str, str]]:
        steps = _short(self._values.get("steps", 0.0))
        if self._total_steps:
            steps += f"/{_short(self._total_steps)}"
        cells = [("steps", steps)]
        if speed := self._speed():
            cells.append(("steps/s", _short(speed)))
        for label, keys, form in COLUMNS:
            if (key := next((k for k in keys if k in self._values), None)) is not None:
                cells.append((label, form.format(self._values[key])))
        return cells

    def _speed(self) -> float:
        """Return environment steps per second of late; 0 if unknown."""
        if len(self._marks) > 1:
            (begin, first), (end, last) = self._marks[0], self._marks[-1]
            if end > begin and last > first:
                return (last - first) / (end - begin)
        return self._values.get("steps_per_second", 0.0)

    def _seconds(self) -> float:
        return self._values.get("seconds", self._clock() - self._begin)

    def _done(self) -> float:
        """Return the share of the run that is done: of its steps or its time, the greater."""
        steps = self._values.get("steps", 0.0) / self._total_steps if self._total_steps else 0.0
        seconds = self._seconds() / self._max_seconds if self._max_seconds else 0.0
        return min(max(steps, seconds), 1.0)

    def _left(self) -> str:
        """Return the time left, or nothing if it is unknown."""
        times = []
        speed = self._speed()
        if self._total_steps and speed:
            times.append((self._total_steps - self._values.get("steps", 0.0)) / speed)
        if self._max_seconds:
            times.append(self._max_seconds - self._seconds())
        return duration(max(min(times), 0.0)) if times else ""


News = list[tuple[str, tuple[Any, ...]]]
"""Calls of methods of a `Progress`, and of ``say``, that another process is to make."""


class RemoteProgress(AbstractContextManager["RemoteProgress"]):
    """Keeps what a `Progress` would show until the process that shows it fetches `news`."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.below: Callable[[], Table] | None = None
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=MOST_CALLS)

    def __exit__(self, *error: object) -> None:
        """Keep what was not fetched."""

    def update(self, metrics: Mapping[str, Any], alarm: str | None = None) -> None:
        """See `Progress.update`."""
        # Only the newest of several updates is shown; lines must not be pushed out by them.
        if self._calls and self._calls[-1][0] == "update":
            self._calls.pop()
        self._calls.append(("update", (dict(metrics), alarm)))

    def note(self, line: str) -> None:
        """See `Progress.note`."""
        self._calls.append(("note", (line,)))

    def say(self, text: str) -> None:
        """Keep text for standard output."""
        self._calls.append(("say", (text,)))

    def redraw(self) -> None:
        """See `Progress.redraw`; the table is made when it is fetched."""

    def take_warnings(self, prefix: str = "") -> None:
        """Show this process's warnings as lines from now on; ``prefix`` comes first in each."""

        def taken(message: Any, category: type[Warning], *_: Any) -> None:
            kind = "" if category is UserWarning else f"{category.__name__}: "
            self.note(f"{prefix}{kind}{message}")

        warnings.showwarning = taken  # type: ignore[assignment]

    def news(self) -> News:
        """Return what came since the last call."""
        news = [self._calls.popleft() for _ in range(len(self._calls))]
        if self.below is not None:
            news.append(("show_below", (self.below(),)))
        return news


def show(news: News, progress: Progress) -> list[str]:
    """Show what was fetched; return what is for standard output."""
    for name, arguments in news:
        if name != "say":
            getattr(progress, name)(*arguments)
    return [arguments[0] for name, arguments in news if name == "say"]


Display = Progress | RemoteProgress  # where a run is shown: here, or in another process


def _short(value: float) -> str:
    """Write a count with three digits and a suffix: 1.23M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:#.3g}".rstrip(".") + suffix
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Write a time as minutes and seconds, or hours as well."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
