"""All errors; the command line turns each into one line and exit code 2."""

import difflib
import errno
import io
import os
import re
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST_VALUE, _LONGEST_LINE, _NAMES = 200, 800, 5
_VALUE = re.compile(r"""(?<!\w)'[^']{200,}'|"[^"]{200,}"|\[[^][]{200,}]|\S{200,}""")
"""A quoted text, a list or a word that is too long to be shown."""


def printable(text: str) -> str:
    """Return a line that a terminal may show, whatever its source.

    Values are cut at 200 characters and the line at 800, in its middle, as its end says what to do;
    control characters are escaped. Only a table's indented lines stay lines.
    """
    return "\n  ".join(map(_shown, text.split("\n  ")))


def _shown(line: str) -> str:
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    plain = _VALUE.sub(lambda found: f"{found[0][:_LONGEST_VALUE]}…", plain)
    if len(plain) > _LONGEST_LINE:
        plain = f"{plain[: _LONGEST_LINE // 2]}…{plain[-_LONGEST_LINE // 2 :]}"
    return plain


class DistrlccError(Exception):
    """The message says what is wrong, what was expected and what to do; it is `printable`."""

    exit_code = 2

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(DistrlccError):
    """A key, value, recipe, suite or scheme that does not exist or fit."""


class TraceError(DistrlccError):
    """A trace file that is malformed, empty, decreasing or too large."""


class PolicyFileError(DistrlccError):
    """A policy file that is truncated, foreign or of another shape."""


class CheckpointError(DistrlccError):
    """A checkpoint that is truncated or from another configuration."""


class DatasetError(DistrlccError):
    """A data set that is missing, unfinished, damaged or of another version."""


class OutputError(DistrlccError):
    """A place that cannot be written."""

    passing = False  # whether another try may succeed, as where a network's file system was silent


class LinkError(DistrlccError):
    """An emulated link that this system does not let us make."""


class KernelError(DistrlccError):
    """A kernel that lacks what its own TCP under a policy needs, or does not let us use it."""


class GroupError(DistrlccError):
    """Other processes that are gone, out of reach or of another version."""

    exit_code = 3

    def __init__(self, message: str, *, exit_code: int = 3) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NoGroupError(GroupError):
    """A group that this process cannot find, begin or join, for a reason that is its own."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=DistrlccError.exit_code)


LEFT_OUT = 4  # exit code of a `GroupError` in a process that the others do without from now on


class WireError(DistrlccError):
    """A datagram that is malformed, cut short, forged or not ours."""


class VersionError(WireError):
    """A datagram of another version of the format; what all versions share can be read."""

    def __init__(self, message: str, *, version: int, kind: int, session: int) -> None:
        """Take the message and the fields that stand in every version's header."""
        super().__init__(message)
        self.version, self.kind, self.session = version, kind, session


class _Notes(io.FileIO):
    """A stream that loses what cannot be written, as on a full disk, so that work goes on."""

    def write(self, data: Any) -> int:
        """Write what can be written."""
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


def warn_in_lines(rank: int = 0) -> None:
    """Let this process's warnings be one line each, which bears its rank but for rank 0.

    What standard error does not take ends no work. A stream that is closed is as /dev/null: Python
    would print standard error's lines on standard output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - stays
    with suppress(io.UnsupportedOperation):  # it is no file, as in a notebook
        notes = io.BufferedWriter(_Notes(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(notes, sys.stderr.encoding, "replace", line_buffering=True)
    who = f"rank {rank}: " if rank else ""

    def one_line(message: Any, category: type[Warning], *_: Any) -> str:
        kind = "" if category is UserWarning else f"{category.__name__}: "
        return f"distrlcc: {who}{kind}{printable(str(message))}\n"

    warnings.formatwarning = one_line  # type: ignore[assignment]


_PYTHON = (
    (r" \(--load [^)]*\)", ""),  # of runs on several machines
    (r"'distrlcc train --start-from (.+?)'", r"start_from='\1'"),
    (r"'distrlcc train RECIPE --print-config' shows all", "docs/keys.md has all"),
    (r"distrlcc evaluate --world emulated", "the command line, which has real packets"),
    (r"--set (?=\w+=)", ""),
    (r"--set", "keys"),
    (r"--resume", "resume=True"),
)
"""What Python's users write where a command line has flags; other flags are arguments."""


def _in_words(text: str) -> str:
    for flags, words in _PYTHON:
        text = re.sub(flags, words, text)
    # Commands stand in quotes, and stay.
    argument = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
    parts = re.split(r"('distrlcc [^']*')", text)
    parts[::2] = (argument.sub(lambda m: m[1].replace("-", "_"), part) for part in parts[::2])
    return "".join(parts)


def in_python(function: Callable[P, R]) -> Callable[P, R]:
    """Have the errors of a function say what its callers can do."""

    @wraps(function)
    def call(*args: P.args, **more: P.kwargs) -> R:
        try:
            return function(*args, **more)
        except DistrlccError as error:
            error.args = (_in_words(str(error)), *error.args[1:])
            raise

    return call


def unknown_name(
    kind: str,
    name: str,
    valid: Iterable[str],
    see: str = "",
    deeper: Iterable[str] = (),
    *,
    place: str = "",
    within: str = "",
) -> ConfigError:
    """Build the error for a name that does not exist, nearest valid names first.

    If ``valid`` names are many, only the first are shown, and ``see`` says where all are. A name of
    ``deeper`` may be meant, put in the wrong place. ``place`` stands before the name, as
    ``"link.changes[0]."``, and ``within`` before valid ones.
    """
    name, names = str(name), list(valid)
    folded = {each.casefold(): each for each in [*names, *deeper]}
    script = name.rpartition("/")[2]
    last = script.removesuffix(".py").casefold().rpartition(".")[2].replace("-", "_")
    # A name that was put in the wrong place; else another project's, or one with a slip, or both.
    found = [each for each in folded if each.rpartition(".")[2].replace("-", "_") == last]
    here = here_for(name) if kind in ("key", "setting", "recipe") and not found else ""
    if kind == "command":
        here = here_for(script) or here_for(f"{last}.py")
    least, wanted = 0.85 if here else 0.6, last if kind == "command" else name.casefold()
    found = found or difflib.get_close_matches(wanted, folded, n=3, cutoff=least)
    near = [within + folded[each] for each in found]
    hint = f": did you mean {' or '.join(near)}?" if near else f": {here}" if here else ""
    hint += f" ({here})" if near and here else ""
    shown = ", ".join(within + n for n in names)
    if len(shown) > 2 * _LONGEST_VALUE:
        first = ", ".join(within + n for n in names[:_NAMES])
        shown = f"{first} and {len(names) - _NAMES} more{see}"
    return ConfigError(f"unknown {kind} {place + name!r}{hint} (valid: {shown})")


@cache
def foreign_names() -> dict[str, dict[str, str]]:
    """Return other projects' names and what each is here; ``about`` is a sentence on them all."""
    path = Path(__file__).with_name("foreign_names.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def here_for(name: str) -> str:
    """Say what is here for a name of another project, a key or a flag; empty: nobody has it."""
    whole = name.lstrip("-").replace("-", "_").casefold()
    for wanted in (whole, whole.rpartition(".")[2]):
        owners: dict[str, list[str]] = {}
        for project, names in foreign_names().items():
            if name.startswith("-") and project == "ray":
                continue  # its names are commands
            for theirs, ours in names.items():
                words = (word.split()[0].lstrip("-") for word in theirs.split(", "))
                known = {word.replace("-", "_").casefold() for word in words} - {"about"}
                if wanted in known:
                    plain = re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", ours)
                    owners.setdefault(plain, []).append(f"{project}'s")
        if owners:
            return ", ".join(f"as {', '.join(who)} it is {ours}" for ours, who in owners.items())
    return ""


def listed(text: str, what: str, kind: Callable[[str], Any] = str) -> list[Any]:
    """Return the items of a list with commas, of an empty text none; ``kind`` makes an item."""
    words = [word.strip() for word in text.split(",")] if text else []
    if "" in words:
        raise ConfigError(f"{what} {text!r}: nothing stands before or after a comma; expected A,B")
    return once([kind(word) for word in words], f"{what} {text!r}: ")


def counted(number: int, noun: str = "link") -> str:
    """Return a number with its noun: ``1 link``, ``12 links``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def once(items: list[Any], what: str = "") -> list[Any]:
    """Return items; raise ConfigError, which begins with ``what``, if one is there twice."""
    for item in items:
        if items.count(item) > 1:
            raise ConfigError(f"{what}{item} is there twice; leave one out")
    return items


@contextmanager
def reading(kind: type[DistrlccError], what: str, remedy: str = "") -> Iterator[None]:
    """Turn whatever decoders raise over a stranger's text into one error: ``what (why)remedy``."""
    try:
        yield
    except (kind, MemoryError):
        raise
    except Exception as error:
        raise kind(f"{what} ({_reason(error)}){remedy}") from error


@contextmanager
def writing(what: object, remedy: str = "") -> Iterator[None]:
    """Turn an `OSError` over what is written into ``cannot write what: whyremedy``."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            remedy = remedy or "; make room there"
        failure = OutputError(f"cannot write {what}: {_reason(error)}{remedy}")
        failure.passing = error.errno in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)
        raise failure from None


def is_byte(error: UnicodeEncodeError) -> bool:
    """Say whether it is at a byte that is no text, as names of files may have."""
    return "\udc80" <= error.object[error.start] <= "\udcff"


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if "int_max_str_digits" in str(error):
        return "a number has too many digits"
    if isinstance(error, UnicodeEncodeError) and is_byte(error):
        return "a name is no text in UTF-8: rename it"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8: save it as such"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(reason).splitlines()[0]
