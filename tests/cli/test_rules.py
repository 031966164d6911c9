"""What a command's help says of flags that go together, and of those that do not, holds."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distrlcc.cli.main import NAMES, find
from distrlcc.cli.parser import Parser
from distrlcc.errors import ConfigError

VALUES = ("1", "0.5", "600", "1:1", "nodes.toml", "a.svg")
"""One of these is a value of each flag."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes.toml").write_text("nodes = [[0]]")


def words_of(parser: Parser, flag: str) -> list[str]:
    """Return a flag with a value that it takes."""
    action = parser._option_string_actions[flag]
    if action.nargs == 0:
        return [flag]
    if action.choices:
        return [flag, next(iter(action.choices))]
    for value in VALUES:
        try:
            parser._get_value(action, value)
        except Exception:
            continue
        return [flag, *[value] * (action.nargs if isinstance(action.nargs, int) else 1)]
    raise AssertionError(f"no value of {flag} is known here")


def needed(parser: Parser) -> Iterator[str]:
    """Yield what a command cannot do without."""
    for action in parser._actions:
        if action.required and action.option_strings:
            yield from words_of(parser, action.option_strings[0])
        elif action.required:
            yield "x"


def broken(parser: Parser) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each flag that has a rule, what the rule names, and words that break it."""
    for rule in parser._rules:
        flags, verb, what, _ = rule.groups()
        name, _, values = what.partition(" ")
        action = parser._option_string_actions[name]
        for flag in flags.split():
            beside: list[str] = []
            if verb == "not with":
                beside = [name, values.split("|")[0]] if values else words_of(parser, name)
            elif values and str(action.default) in values.split("|"):
                beside = [name, next(v for v in action.choices or () if v not in values.split("|"))]
            yield flag, what, [*words_of(parser, flag), *beside, *needed(parser)]


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_refuses_what_breaks_it(name: str) -> None:
    parser, _ = find(name)
    for flag, what, words in broken(parser):
        with pytest.raises(ConfigError) as caught:
            parser.read(words)
        line = str(caught.value)
        assert re.search(r"^--[\w-]+ (is for|needs|and) --.*", line), (words, line)
        assert line.startswith(f"{flag} ") or what.split()[0] in line, (words, line)


def test_flags_of_a_command_behind_the_link_are_its_own() -> None:
    parser, _ = find("emulate")
    for bar in ([], ["--"]):
        args = parser.read(["--scenario", "x", *bar, "send", "--delay", "5", "--log-down", "y"])
        assert args.command[-4:] == ["--delay", "5", "--log-down", "y"]
        assert args.flags - {"--"} == {"--scenario"}


def test_rules_are_as_many_as_ever() -> None:
    assert sum(len(list(broken(find(name)[0]))) for name in NAMES) > 60


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_each_flag_and_rule(name: str) -> None:
    parser, _ = find(name)
    text = parser.format_help()
    assert all(flag in text for flag, _, _ in broken(parser))
    assert not re.search(r"\$_?[A-Z]{3,}\b(?!_BASE)|{\w+\.\.|  =", text.replace("$SHELL", "")), text


def test_no_help_waits_for_what_takes_long_to_import() -> None:
    code = (
        "import sys; from distrlcc.cli.main import find\n"
        "for name in sys.argv[1:]: find(name)[0].format_help()\n"
        "sys.exit(' '.join({'numpy', 'numba', 'torch', 'ray', 'rich'} & {*sys.modules}) or 0)"
    )
    words = [sys.executable, "-c", code, *NAMES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
