"""argparse with one-line errors that name the nearest flag."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from distrlcc.errors import ConfigError, here_for, unknown_name


class _Once(argparse._StoreAction):
    """Stores a value; of a flag that is given twice one would hide the other."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        """Store it."""
        if option in parser.given:
            both = f"{getattr(namespace, self.dest)},{values}"
            remedy = both if isinstance(values, str) else self.metavar
            remedy = f"write {option} {remedy}" if _is_list(self) else "leave one out"
            raise ConfigError(f"{option} is given twice: {remedy}")
        parser.given |= {option} - {None}
        super().__call__(parser, namespace, values, option)


def _is_list(action: argparse.Action | None) -> bool:
    return action is not None and "…" in str(action.metavar)


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
        self.register("action", None, _Once)
        self.given: set[str] = set()
        """Options that were parsed so far; see `_Once`."""
        self.intermixed = False
        """Whether arguments that are known by their place may stand after those with dashes."""
        self._keys: dict[str, str] = {}
        self.set_defaults(keys=self._keys)

    def add(
        self,
        name: str,
        text: str = "",
        kind: Callable[[str], Any] | None = None,
        default: Any = None,
        *,
        to: argparse._ActionsContainer | None = None,
        key: str = "",
        **more: Any,
    ) -> None:
        """Add an argument.

        Args:
            name: As ``--out DIR``, the second word being how its value is shown in the help;
                without dashes it is known by its place.
            text: Its help; the default is named after it, where there is one.
            kind: Its type; `bool` for a flag without a value, which clears a ``dest`` of its own,
                `list` for one with several.
            default: Its value where it is not given.
            to: The group that it belongs to.
            key: The configuration's key that it is short for; see `assignments`.
            more: What else `argparse` knows.
        """
        # The name, and the help with its default.
        name, *words = name.split()
        metavar = tuple(words) if words[1:] else words[0] if words else None
        if default and kind is not list and "default" not in text:
            shown = f"default: {default:g}" if isinstance(default, float) else f"default: {default}"
            text = f"{text} ({shown})" if text else shown
        # The kind as argparse has it.
        if kind is bool:
            more = {"action": "store_false" if "dest" in more else "store_true"} | more
        elif kind is list:
            text += "; may be repeated"
            more |= {"action": "extend", "nargs": "+", "default": [], "metavar": metavar}
        else:
            more |= {
                "type": _path if kind is Path else kind,
                "default": default,
                "metavar": metavar,
            }
        action = (to or self).add_argument(name, help=text, **more)
        if key:
            self._keys[key] = action.dest

    def gone(self, flag: str, why: str) -> None:
        """Refuse a flag that other commands or projects have, and say what to write."""

        def refuse(text: str) -> NoReturn:
            raise ConfigError(f"there is no {flag}{why}")

        self.add(flag, argparse.SUPPRESS, refuse, nargs="?", const="")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, as argparse does; of a list that is parted by spaces say that it has commas."""
        self.given.clear()
        found, rest = super().parse_known_args(args, namespace)
        words = list(args or ())
        found.flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        if rest and rest[0] in words and not self.intermixed:
            before = words[: words.index(rest[0])]
            flag = next((word for word in reversed(before) if word.startswith("-")), "")
            if _is_list(self._option_string_actions.get(flag)):
                raise ConfigError(f"{rest[0]} after {flag}: lists have commas, as in {flag} A,B")
        return found, rest

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Read a flag's values, none of which may be empty, as a shell's unset variable is."""
        if action.option_strings and "" in arg_strings:
            flag = action.option_strings[0]
            raise ConfigError(f"{flag} is empty; leave it out, or write {flag} {action.metavar}")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage."""
        known = self._option_string_actions
        flags = [flag for flag in known if known[flag].help != argparse.SUPPRESS]  # not gone ones
        words = [re.split("[=:,/]", word)[0] for word in message.split() if word.startswith("--")]
        words = [word for word in words if word not in known]
        here = [found for word in words if (found := here_for(word))]
        near = [found for word in words for found in difflib.get_close_matches(word, flags, 1)]
        hint = f"did you mean {near[0]}? " if near else ""
        if here:
            hint = f"{here[0]}{' (keys by --set KEY=VALUE)' if '--set' in known else ''}; "
        raise ConfigError(f"{message}; {hint}see '{self.prog} --help'")

    def choose(
        self,
        words: Sequence[str],
        commands: Mapping[str, str],
        sections: Mapping[str, Sequence[str]] | None = None,
    ) -> str:
        """Return which command is called; print help and exit when that is asked for.

        The help has the commands by ``sections``, if there are any.
        """
        width = max(len(name) for name in commands) + 2
        lines = [
            "\n".join([f"{title}:", *(f"  {n:<{width}}{commands[n]}" for n in names)])
            for title, names in (sections or {"commands": list(commands)}).items()
        ]
        self.epilog = "\n\n".join(lines)
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


def assignments(args: argparse.Namespace) -> list[str]:
    """Return ``--set``'s assignments, and after them those of the flags that are short for one.

    Raises:
        ConfigError: One of them would take another's place.
    """
    short = {key: getattr(args, name) for key, name in args.keys.items()}
    given = {k: json.dumps(v, ensure_ascii=False) for k, v in short.items() if v is not None}
    found = [*args.assignments, *(f"{key}={value}" for key, value in given.items())]
    # A section may be given before its keys, which then change it, but not after them.
    before: dict[str, str] = {}
    for text in found:
        key = text.partition("=")[0].strip()
        for other, lost in before.items():
            if other == key or other.startswith(f"{key}."):
                raise ConfigError(f"{key} is given twice: {lost} and {text}; leave one out")
        before[key] = text
    return found


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


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; expected a path")
    return Path(text)
