"""Output of commands: a console for tables, and ``--json FILE|-``."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from distrlcc.errors import printable
from distrlcc.files import require_writable, write_output

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
_QUIET_S = 5.0
_EARLY = 0.05


def console(target: str | None) -> "Console":
    """Return where tables are printed: standard error if standard output takes the JSON."""
    from rich.console import Console

    result = Console(stderr=target == "-")
    result.width = max(result.width, 80)  # a table that wraps is better than one without digits
    return result


def check_report(folder: Path | None) -> None:
    """Refuse a report that cannot be drawn here, or not be written there; None is no report."""
    if folder is not None:
        from distrlcc.extras import require

        require("jinja2", "matplotlib")
        require_writable(folder)


def command_line() -> str:
    """Return the command as it was called, for reports."""
    return "distrlcc " + shlex.join(sys.argv[1:])


def note(line: str) -> None:
    """Say something beside what the command prints."""
    print(printable(line), file=sys.stderr, flush=True)


class Countdown(Generic[T]):
    """Yields things, names each before, and from a twentieth on says how long is left.

    It may be called with the share of a thing that is done.
    """

    def __init__(self, things: Sequence[T], name: Callable[[T], str]) -> None:
        self._things, self._name = things, name
        self._done, self._line, self._said = 0, "", ("", 0.0)
        self._begin = monotonic()

    def __iter__(self) -> Iterator[T]:
        for done, thing in enumerate(self._things):
            self._done, self._line = done, self._name(thing)
            self(0.0)
            yield thing

    def __call__(self, share: float) -> None:
        """Take the share of the present thing that is done."""
        now, done = monotonic(), self._done + share
        said, when = self._said
        if self._line != said or now >= when + _QUIET_S:
            share = done / len(self._things)
            left = (now - self._begin) * (1 - share) / max(share, _EARLY)
            note(f"{self._line}{f', about {left:.0f} s left' if share >= _EARLY else ''} ...")
            self._said = self._line, now


def exposition(
    prefix: str,
    things: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]],
    counters: Collection[str] = (),
) -> str:
    """Return figures in Prometheus' text format: labels of each thing, and its figures by name.

    ``counters`` name the figures that only grow.
    """
    found: dict[str, list[str]] = {}
    for labels, figures in things:
        marks = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        for name, value in figures.items():
            with suppress(OverflowError):  # an integer may be any
                if not isinstance(value, int | float):
                    continue
                number = repr(float(value)).replace("inf", "Inf")
                grows = name in counters
                plain = f"{prefix}_{name}".encode("ascii", "backslashreplace").decode()
                full = re.sub(r"\W", "_", plain) + "_total" * grows
                lines = found.setdefault(full, [f"# TYPE {full} {'counter' if grows else 'gauge'}"])
                lines.append(f"{full}{{{marks}}} {number}")
    return "".join(f"{line}\n" for lines in found.values() for line in lines)


def _escaped(text: str) -> str:
    text = text.encode(errors="replace").decode()  # a folder's name may be any bytes
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def emit_json(target: str | None, value: Any) -> None:
    """Write a value as JSON to a file, or to standard output for ``-``; None writes nothing."""
    emit_text(target, [json.dumps(value, indent=2), "\n"])


def emit_text(target: str | None, pieces: Iterable[str]) -> None:
    """Write a text in pieces, as `emit_json` does."""
    if target == "-":
        sys.stdout.writelines(pieces)
    elif target is not None:
        write_output(Path(target), (piece.encode() for piece in pieces))
