"""argparse with one-line errors that name the nearest flag."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from distrlcc.errors import ConfigError, unknown_name


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `ConfigError`, one line each."""

    def __init__(self, prog: str, description: str) -> None:
        """Make a parser of a command."""
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add(
        self,
        name: str,
        text: str = "",
        kind: Callable[[str], Any] | None = None,
        default: Any = None,
        *,
        to: argparse._ActionsContainer | None = None,
        **more: Any,
    ) -> None:
        """Add an argument.

        Args:
            name: As ``--out DIR``, the second word being how its value is shown in the help;
                without dashes it is known by its place.
            text: Its help; the default is named after it, where there is one.
            kind: Its type; `bool` for a flag without a value, `list` for one with several.
            default: Its value where it is not given.
            to: The group that it belongs to.
            more: What else `argparse` knows.
        """
        name, *words = name.split()
        metavar = tuple(words) if words[1:] else words[0] if words else None
        if default and kind is not list and "default" not in text:
            shown = f"default: {default:g}" if isinstance(default, float) else f"default: {default}"
            text = f"{text} ({shown})" if text else shown
        if kind is bool:
            more |= {"action": "store_true"}
        elif kind is list:
            more |= {"action": "extend", "nargs": "+", "default": [], "metavar": metavar}
        else:
            more |= {"type": kind, "default": default, "metavar": metavar}
        (to or self).add_argument(name, help=text, **more)

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage."""
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        words = [re.split("[=:,/]", word)[0] for word in message.split() if word.startswith("--")]
        near = [n for w in words if w not in flags for n in difflib.get_close_matches(w, flags, 1)]
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"{message}; {hint}see '{self.prog} --help'")

    def choose(self, words: Sequence[str], commands: Mapping[str, str]) -> str:
        """Return which command is called; print help and exit when that is asked for.

        Raises:
            ConfigError: No command is given, or one that does not exist.
        """
        width = max(len(name) for name in commands) + 2
        lines = (f"  {name:<{width}}{text}" for name, text in commands.items())
        self.epilog = "commands:\n" + "\n".join(lines)
        self.usage = f"{self.prog} COMMAND ..."
        place = next((k for k, word in enumerate(words) if not word.startswith("-")), len(words))
        self.parse_args(words[:place])
        if place == len(words):
            raise ConfigError(
                f"no command; expected one of {', '.join(commands)}; see '{self.prog} --help'"
            )
        if words[place] not in commands:
            raise unknown_name("command", words[place], commands)
        return words[place]


def number(low: float, high: float = math.inf, *, whole: bool = False) -> Callable[[str], Any]:
    """Return an argument type: a number from ``low`` to ``high``, whole if asked for."""

    def parse(text: str) -> float | int:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            kind = "a whole number" if whole else "a number"
            bounds = f"of {low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind} {bounds}")
        return value

    return parse


whole = partial(number, whole=True)
