"""Makes a command's parser of its help: what a docstring says of flags is what they are.

Flags, and rules on which of them go together, are sections of a docstring, as here::

    Flags:
        recipe? RECIPE  see 'distrlcc list recipes'
        --out! DIR {path}  a new folder
        --seed N {0..} =0 sets seed  of all that is drawn at random
        --kind {cdf|box} =cdf  what is drawn
        --no-elastic  end all processes when one of them is gone

    With --engine ray:
        --address HOST:PORT  the cluster

    Rules:
        --metric --color: for --kind cdf|box
        --budget: not with --links; they take the time that they take

A row has a name, its value as shown, its type in braces, its default after ``=``, the key of the
configuration that it is short for, and after two spaces its text. Without dashes its place names
it. A mark behind the name says how often it is given.

* `?` may be left out; a flag's value may be, and the word after ``or`` stands for it.
* `*` takes several values.
* `+` takes one value each time, and may be repeated.
* `...` takes all words that follow.
* `!` is a flag that must be given.

Names beside it, parted by ``/``, are other flags for the same, or the attribute that it becomes;
else that is its own name, and ``--no-elastic`` clears ``elastic``. A number's type has the least
and the greatest, with a point in the first if it need not be whole. Another type is a function of
the command's module. A value that is shown with ``…`` is a list with commas; its type is that of
each item. The type ``gone`` refuses a flag that others have, and the text says what to write.
``$NAME`` stands for the rows of that name in the command's module or in `distrlcc.cli.shared`.
"""

import argparse
import difflib
import importlib
import json
import math
import os
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any, NoReturn

from distrlcc.config import keys
from distrlcc.errors import ConfigError, here_for, listed, unknown_name

_ROW = re.compile(
    r"(?P<name>[\w-]+)(?P<others>(?:/[\w-]+)*)(?P<many>[?*+!]|\.\.\.|)(?P<shown>(?: [^ ]+)*?)"
    r"(?: {(?P<kind>[^ ]+)})?(?: =(?P<default>[^ ]*))?(?: or (?P<alone>[^ ]+))?"
    r"(?: sets (?P<key>[^ =]+)=?(?P<const>[^ ]*))?(?:  +(?P<text>.+))?"
)
_RULE = re.compile(r"(?P<flags>--[^:]+): (?P<verb>for|needs|not with) (?P<what>[^;]+)(?:; (.*))?")


class _Once(argparse._StoreAction):
    """Stores a value; of a flag that is given twice one would hide the other."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
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

    def __init__(self, prog: str, text: str, home: str = "") -> None:
        """Make a parser of a command's help; ``home`` is the module of functions that are types."""
        about, *sections = re.split(r"^((?:Flags|With --|Rules).*):\n", text, flags=re.M)
        super().__init__(
            prog=prog,
            description=about.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.register("action", None, _Once)
        self.given: set[str] = set()  # options that were parsed so far; see `_Once`
        self._words: list[str] = []
        self._home = home
        self._in_any_order = False
        self._rules: list[re.Match[str]] = []
        self._keys: dict[str, str] = {}
        self.set_defaults(keys=self._keys, flags=frozenset())
        for title, rows in zip(sections[::2], sections[1::2], strict=True):
            joined = re.sub(r"\n +", " ", cleandoc(f"\n{rows}")).replace("| ", "|")
            self._add_section(title, [row for row in joined.splitlines() if row])

    def _add_section(self, title: str, rows: Sequence[str]) -> None:
        """Add a section's flags, or its rules; where flags stand beside one, it is their rule."""
        if title == "Rules":
            self.epilog = "\n".join(["rules:", *(f"  {row}" for row in rows)])
        else:
            self._in_any_order |= title.endswith(", in any order")
            apart = title.startswith("With ")
            group = self.add_argument_group(title.lower()) if apart else self
            flags = " ".join([self._add_row(group, row) for row in rows])
            rows = [f"{flags}: needs {title.removeprefix('With ')}"] if apart else []
        for row in rows:
            rule = _RULE.fullmatch(row)
            assert rule is not None, row
            self._rules.append(rule)

    def _add_row(self, group: argparse._ActionsContainer, row: str) -> str:
        """Add a row's argument; return its name."""
        found = _ROW.fullmatch(row)
        assert found is not None, row
        name, kind, key, text = found.group("name", "kind", "key", "text")
        is_flag, many, shown = name.startswith("--"), found["many"], found["shown"].split()
        default = None if found["default"] is None else _literal(found["default"])
        text = (text or "").replace("%", "%%")
        more: dict[str, Any]
        if kind == "gone":
            why = f"there is no {name}{found['others'].replace('/', ' or ')}: {text}"
            more = {"type": partial(_refuse, why), "nargs": "?", "const": ""}
            text = argparse.SUPPRESS
        elif is_flag and not shown and kind is None:  # it has no value
            more = {"action": "store_true"}
            if name.startswith("--no-"):
                more = {"action": "store_false", "dest": name[5:].replace("-", "_")}
            elif found["const"]:
                more = {"action": "store_const", "const": json.loads(found["const"])}
        else:
            metavar = tuple(shown) if shown[1:] else "".join(shown) or None
            more = {"default": default, "metavar": metavar}
            more |= self._type(kind, name if "…" in found["shown"] else "")
            more |= (_FLAGS if is_flag else _PLACES)[many]
            if more.get("action") in ("append", "extend"):
                text += "; may be repeated"
                more |= {"default": None if key else []}
                more |= {"nargs": len(shown)} if shown[1:] else {}
            more |= {"const": found["alone"]} if found["alone"] else {}
            if default and "default" not in text:
                shown = f"{default:g}" if isinstance(default, float) else default
                text += f" (default: {shown})"
        # What else it may be called, and the attribute that it becomes.
        others = found["others"].split("/")[1:]
        flags = [each for each in (name, *others) if each.startswith("--")]
        if is_flag and len(flags) <= len(others):
            more["dest"] = others[-1]
        action = group.add_argument(*(flags or [name]), help=text.strip(), **more)
        if key:
            self._keys[key] = action.dest
        return name

    def _type(self, kind: str | None, listed_by: str) -> dict[str, Any]:
        """Return a value's type or choices, as argparse has them; of a list those of its items."""
        if kind is None:
            return {}
        if "|" in kind:
            return {"choices": [each for each in kind.split("|") if each]}
        low, dots, high = kind.partition("..")
        parse = _KINDS.get(kind) or partial(_call, self._home, kind)
        if dots:
            parse = number(float(low), float(high or "inf"), whole="." not in low)
        return {"type": partial(listed, what=listed_by, kind=parse) if listed_by else parse}

    def read(self, words: Sequence[str]) -> Namespace:
        """Return what a command's words say; raises ConfigError where they do not fit together."""
        args = self.parse_intermixed_args(words) if self._in_any_order else self.parse_args(words)
        for rule in self._rules:
            flags, verb, what, why = rule.groups()
            name, _, values = what.partition(" ")
            known = self._option_string_actions.get(name)
            value = str(getattr(args, known.dest if known else name, None))
            met = value in values.split("|") if values else name in args.flags
            for flag in flags.split():
                if flag not in args.flags or met != (verb == "not with"):
                    continue
                if met:
                    why = why or f"leave out {flag}, or {name}"
                    raise ConfigError(f"{flag} and {what} are not allowed with each other: {why}")
                shown = f" {known.metavar}" if known and known.metavar and not values else ""
                said = f"{flag} {verb.replace('for', 'is for')} {what}{shown}"
                raise ConfigError(f"{said}: {why}" if why else said)
        return args

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, as argparse does; of a list that is parted by spaces say that it has commas."""
        self.given.clear()
        words, last = list(args or ()), self._actions[-1]
        self._words = [] if last.nargs == argparse.REMAINDER else words
        found, rest = super().parse_known_args(args, namespace)
        if last.nargs == argparse.REMAINDER:  # another command, with flags of its own
            words = words[: len(words) - len(getattr(found, last.dest))]
        found.flags |= {word.partition("=")[0] for word in words if word.startswith("--")}
        if found.flags & _WRITTEN:
            _check_written(words)
        if rest and rest[0] in words and not self._in_any_order:
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
        """Raise the error instead of printing the usage, with what strange words are here."""
        known, said = self._option_string_actions, message.split()
        words = [word for word in (*said, *self._words) if re.match("--?[A-Za-z_]", word)]
        if "--set" in known:
            words += [word for word in said if re.match(r"[A-Za-z_][\w.]*=", word)]
        hints: dict[str, list[str]] = {}
        for name in dict.fromkeys(re.split("[=:,/]", word)[0] for word in words):
            hints.setdefault(self._meant(name), []).append(name)
        found = [f"{', '.join(names)}: {hint}" for hint, names in hints.items() if hint]
        if "--set" in known and " it is " in "".join(found):
            found[-1] += " (keys by --set KEY=VALUE)"
        raise ConfigError("; ".join([message, *found, f"see '{self.prog} --help'"]))

    def _meant(self, name: str) -> str:
        """Say what a strange flag, or a key without --set, is here; empty: it is known, or none."""
        known = self._option_string_actions
        if name in known:
            return ""
        found, word = here_for(name), name.lstrip("-").replace("-", "_")
        command = self.prog.split()[1:2]
        if command in (["train"], ["node"], ["tune"], ["imitate"]):
            from distrlcc.runs import run_config  # takes a second

            config = run_config.ImitateConfig if command == ["imitate"] else run_config.RunConfig
            last = word.rpartition(".")[2]
            ours = " or ".join(key for key in keys(config) if key.rpartition(".")[2] == last)
            found = f"it is {ours}{', ' if found else ''}{found}" if ours else found
        flags = {flag.lstrip("-"): flag for flag in known if known[flag].help != argparse.SUPPRESS}
        near = difflib.get_close_matches(name.lstrip("-"), flags, 1, 0.7)
        return found or (f"did you mean {flags[near[0]]}?" if near else "")

    def choose(
        self,
        words: Sequence[str],
        sections: Mapping[str, Sequence[str]],
        about: Callable[[str], str],
    ) -> str:
        """Return which command of ``sections`` is called; print help and exit where it is asked."""
        commands = [name for names in sections.values() for name in names]
        place = next((k for k, word in enumerate(words) if not word.startswith("-")), len(words))
        if place > 0:
            width = max(map(len, commands)) + 2
            lines = [
                "\n".join([f"{title}:", *(f"  {name:<{width}}{about(name)}" for name in names)])
                for title, names in sections.items()
            ]
            self.epilog, self.usage = "\n\n".join(lines), f"{self.prog} COMMAND ..."
            self.parse_args(words[:place])
        if place == len(words):
            raise ConfigError(
                f"no command; expected one of {', '.join(commands)}; see '{self.prog} --help'"
            )
        if words[place] not in commands:
            raise unknown_name("command", words[place], commands)
        return words[place]


_WRITTEN = {"--json", "--out", "--plot", "--onnx", "--log", "--log-down", "--log-port"}


def _check_written(words: Sequence[str]) -> None:
    """Raise ConfigError if a file that would be written is named by a word that is read, too."""
    written, read = set[str](), set[str]()
    for k, word in enumerate(words):
        before = {word.partition("=")[0], *words[max(k - 1, 0) : k]}
        before |= {"--log-port"} & {*words[max(k - 2, 0) : k]}
        path = os.path.realpath(word.partition("=")[2] or word)
        (written if before & _WRITTEN else read).add(path)
    for path in filter(os.path.isfile, written & read):
        raise ConfigError(f"{path} is the file that is read; write to another")


def assignments(args: argparse.Namespace) -> list[str]:
    """Return ``--set``'s assignments, and after them those of the flags that are short for one."""
    short = {key: getattr(args, name) for key, name in args.keys.items()}
    given = {k: json.dumps(v, ensure_ascii=False) for k, v in short.items() if v is not None}
    found = [*args.assignments, *(f"{key}={value}" for key, value in given.items())]
    # A section may be given before its keys, which then change it, but not after them.
    before: dict[str, str] = {}
    for text in found:
        key = text.partition("=")[0].strip()
        if key == "recipe":
            raise ConfigError(f"{text}: the recipe's name; give it as RECIPE, instead of --set")
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


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; expected a path")
    return Path(text)


def _json_target(text: str) -> str:
    from distrlcc.files import require_output  # imports NumPy, which help needs not wait for

    if text != "-":
        require_output(Path(text))
    return text


def _literal(text: str) -> int | float | str:
    """Return a default as the number that it is, else as it is."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _refuse(why: str, text: str) -> NoReturn:
    raise ConfigError(why)


def _call(home: str, name: str, text: str) -> Any:
    """Read a value by a function of the command's module, or of another one beside it."""
    module, _, function = name.rpartition(".")
    home = f"{home.rpartition('.')[0]}.{module}" if module else home
    return getattr(importlib.import_module(home), function)(text)


_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "path": _path,
    "json": _json_target,
}
_PLACES: dict[str, dict[str, Any]] = {
    "": {},
    "?": {"nargs": "?"},
    "*": {"nargs": "*"},
    "...": {"nargs": argparse.REMAINDER},
}
_FLAGS: dict[str, dict[str, Any]] = {
    "": {},
    "?": {"nargs": "?", "const": ""},
    "*": {"action": "extend", "nargs": "+"},
    "+": {"action": "append"},
    "!": {"required": True},
}
"""How many values there are, by what stands behind a name."""
