"""The command lines given to mahimahi, with programs in its place that note their words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.net.emulator.link_config import opportunities

RECORD = """#!{python} -S
import json, os, sys
own = sys.argv[0].rpartition("/")[2]
traces = [open(word).read() for word in sys.argv if word.endswith(".trace")]
with open(os.environ["RECORD"], "a") as record:
    print(json.dumps([own, sys.argv[1:], traces]), file=record)
words = sys.argv[1:]
if own == "mm-link":
    words = words[words.index("--") + 1:]
else:
    words = words[2 if own == "mm-loss" else 1:]
os.execvp(words[0], words)
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-ins for mm-delay, mm-loss and mm-link write their arguments."""
    for name in ("mm-delay", "mm-loss", "mm-link"):
        (tmp_path / name).write_text(RECORD.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    return tmp_path / "record"


def _main(*words: str) -> int:
    return main(("emulate", "--emulator", "mahimahi", *words))


def _calls(record: Path) -> list[tuple[str, list[str], list[str]]]:
    return [tuple(json.loads(line)) for line in record.read_text().splitlines()]


def test_the_same_link_by_mahimahi(record: Path) -> None:
    flags = (
        "--up 12 --down cellular:3 --delay 20 --loss 0.01 --loss-down 0.5 --log-down down.log "
        "--queue droptail:packets=100 --queue-down codel:bytes=60000"
    )
    assert _main(*flags.split(), "--log", "up log", "--", "sh", "-c", "exit 6") == 6
    (delay, delayed, _), (up, _, _), (down, _, _), (link, words, traces) = _calls(record)
    assert (delay, up, down, link) == ("mm-delay", "mm-loss", "mm-loss", "mm-link")
    assert delayed[:7] == ["20", "mm-loss", "uplink", "0.01", "mm-loss", "downlink", "0.5"]
    assert "|".join(words[2:]) == (
        "--uplink-queue=droptail|--uplink-queue-args=packets=100|--uplink-log=up log|"
        "--downlink-queue=codel|--downlink-queue-args=bytes=60000, target=5, interval=100|"
        "--downlink-log=down.log|--|sh|-c|exit 6"
    )
    assert traces[0] == "1\n"
    assert tuple(int(line) for line in traces[1].split()) == opportunities("cellular:3")
    assert not any(Path(word).exists() for word in words[:2])


def test_what_is_not_asked_for_is_left_out_and_a_signal_is_in_the_exit_code(record: Path) -> None:
    assert _main("--up", "6", "--down", "24", "--", "sh", "-c", "kill -TERM $$") == 143
    ((link, given, traces),) = _calls(record)
    assert (link, traces) == ("mm-link", ["2\n", "1\n1\n"])
    assert given[2:] == ["--uplink-queue=infinite", "--downlink-queue=infinite", *given[4:]]
    assert given[4:] == ["--", "sh", "-c", "kill -TERM $$"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--up", "1", "--down", "1", "--delay", "1.5"), "takes whole milliseconds"),
        (("--scenario", "random/test/1"), "leave --scenario out"),
        (("--scenario", "beside-cubic/test/0"), "the link alone is emulated, none of its 2 flows"),
        (("--up", "1", "--down", "1", "--jitter", "4"), "leave --jitter, --reorder or --scen"),
        (("--up", "1", "--down", "1", "--queue", "pie:packets=9,ecn=1"), "leave ecn and mark out"),
    ],
)
def test_what_mahimahi_cannot_do(
    record: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str
) -> None:
    assert _main(*flags, "--", "true") == 2
    assert says in capsys.readouterr().err
    assert not record.exists()


def test_without_mahimahi_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _main("--up", "1", "--down", "1", "--delay", "3", "--", "true") == 2
    assert capsys.readouterr().err == (
        "distrlcc: error: mm-delay, mm-link not found; install mahimahi, or leave --emulator out\n"
    )
