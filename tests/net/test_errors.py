"""Bad input to `distrlcc emulate`: one line, exit code 2, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from distrlcc.cli.main import main

LINK = ("--up", "12", "--down", "12")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--up", "12"), "no link: give --up and --down"),
        (("--up", "12mbit", "--down", "101gbit"), "rate 101gbit is out of range"),
        (("--up", "12mb", "--down", "1"), "12mb: cannot be read"),
        (("--up", "{}/none", "--down", "1"), "cannot be read"),
        ((*LINK, "--queue", "dropptail:packets=9"), "did you mean droptail"),
        ((*LINK, "--delay", "-1"), "'-1' is not a number from 0 to 60000"),
        ((*LINK, "--loss", "1.1"), "'1.1' is not a number from 0 to 1"),
        ((*LINK, "--seed", "1.5"), "'1.5' is not a whole number"),
        ((*LINK, "--log", "/proc/none/log"), "cannot write /proc/none/log"),
        ((*LINK, "--log", "{}/l", "--log-down", "{}/l"), "name two files"),
        ((*LINK, "--log", "{}/l", "--log-port", "4730", "{}/l"), "name two files"),
        ((*LINK, "--log-port", "0", "{}/l"), "expected a port from 1 to 65535"),
        ((*LINK, "--emulator", "mahimahi", "--log-port", "1", "{}/l"), "leave one out"),
        ((*LINK, "--outside", ""), "--outside is empty"),
        ((*LINK, "--outside", "'"), "expected a command line"),
        ((*LINK, "--quue", "x"), "did you mean --queue"),
        (("--scenario", "random/tset/3"), "did you mean test"),
        (("--scenario", "random"), "links; expected one"),
        (("--scenario", "random/test/3", "--delay", "5"), "--delay and --scenario"),
        (("--scenario", "random/test/3", "--log-down", "{}/l"), "give --down"),
        (("--scenario", "random/test/3", "--queue-down", "droptail:packets=5"), "give --down"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: tuple[str, ...], says: str
) -> None:
    words = [flag.replace("{}", str(tmp_path)) for flag in flags]
    assert main(("emulate", *words, "--", "true")) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("distrlcc: error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert captured.out == ""
