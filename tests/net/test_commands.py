"""The commands: what they print and leave, and how they end when the other end does not."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distrlcc.cli import send as send_module
from distrlcc.cli.main import main
from distrlcc.net import flow_record
from tests.hosts import Command

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def begin(*words: str) -> Command:
        started.append(Command(tmp_path, *words))
        return started[-1]

    yield begin
    for command in started:
        command.process.kill()
        command.process.wait(10.0)


def _receive(start: Callable[..., Command], *words: str) -> tuple[Command, str]:
    receiver = start("receive", "--listen", "127.0.0.1:0", *words)
    return receiver, receiver.until(r"listening on (\S+)")


def test_a_measurement_is_summed_up_and_drawn(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    receiver, address = _receive(start, "--count", "1", "--json", "r.json")
    words = "fixed --cwnd 8 --seconds 1 --json s.json --plot flow.png"
    sender = start("send", address, *words.split())
    assert sender.end() == 0, sender.said
    assert receiver.end() == 0, receiver.said
    sent = json.loads((tmp_path / "s.json").read_text())
    (session,) = json.loads((tmp_path / "r.json").read_text())["sessions"]
    assert sent["acked"] > 0
    assert sent["mbps"] > 0
    assert session["packets"] >= sent["acked"]
    # The two count the same packets, the receiver without headers, and each says what it counts.
    assert sent["bytes"] == 1504 * sent["acked"]
    assert session["bytes"] == 1472 * session["packets"]
    assert f"{session['mbps']:.2f} Mbit/s of payload" in receiver.said
    steps = sent["steps_columns"]
    assert len(steps["time"]) == sent["steps"]
    assert sent["min_rtt_ms"] / 1e3 <= steps["smoothed_rtt"][-1] + 1e-6 < 1.0
    assert (tmp_path / "flow.png").read_bytes()[:4] == b"\x89PNG"
    assert "Mbit/s; RTT mean" in sender.said


@pytest.mark.parametrize("always", [False, True])
def test_a_policy_leaves_a_short_path_to_cubics_rule_and_says_so(
    start: Callable[..., Command], tmp_path: Path, always: bool
) -> None:
    _, address = _receive(start, "--count", "1")
    words = ["--seconds", "1", "--json", "s.json", *["--always"] * always]
    sender = start("send", address, "one", *words)
    assert sender.end() == 0, sender.said
    sent = json.loads((tmp_path / "s.json").read_text())
    assert (sent["outside_s"] > 0) != always
    assert (sent["short_path_entries"] > 0) != always
    text = r"CUBIC's rule sent for [\d.]+ s, .*\(RTT under 2 ms \d+x.*\); --always"
    assert bool(re.search(text, sender.said)) != always


def test_a_sender_that_is_held_begins_when_it_is_told(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    _, address = _receive(start)
    words = ("send", address, "fixed", "--cwnd", "8", "--seconds", "0.5", "--hold")
    nobody = start(*words)  # its standard input is at its end
    command, pipe = [sys.executable, "-m", "distrlcc", *words, "--json", "s.json"], subprocess.PIPE
    sender = subprocess.Popen(command, cwd=tmp_path, text=True, stdin=pipe, stdout=pipe)
    with sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        assert sender.stdout.readline() == "ready\n"
        begin = time.monotonic()
        sender.stdin.write(f"{begin + 3.0}\n")
        sender.stdin.flush()
        assert "Mbit/s; RTT mean" in sender.stdout.read()
    assert time.monotonic() - begin > 3.5
    seconds = json.loads((tmp_path / "s.json").read_text())["seconds"]
    assert seconds < 2.5  # it would be 3.5 with the wait
    assert nobody.end() == 2
    assert "standard input ended before it named a start time" in nobody.said


@pytest.mark.parametrize("held", [False, True])
def test_figures_that_do_not_count_are_an_exit_code(
    held: bool,
    start: Callable[..., Command],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Where another says when it begins, that one judges them."""
    _, address = _receive(start)
    monkeypatch.setattr(flow_record, "MOST_LATE", -1.0)  # every sender is late
    monkeypatch.setattr(send_module, "wait_for_start", lambda *_, **__: None)
    words = ["send", address, "fixed", "--cwnd", "8", "--seconds", "0.5", *["--hold"] * held]
    assert main(words) == (0 if held else 1)
    assert "too busy for these figures to count" in capfd.readouterr().err


def test_a_receiver_that_vanishes_ends_the_flow(start: Callable[..., Command]) -> None:
    receiver, address = _receive(start)
    words = ("fixed", "--cwnd", "2", "--seconds", "60", "--timeout", "3")
    sender = start("send", address, *words)
    receiver.until("begins")
    receiver.process.send_signal(signal.SIGKILL)
    assert sender.end(30.0) == 1, sender.said
    assert "the other end is gone" in sender.said


def test_a_sender_that_vanishes_is_told_from_one_that_is_stopped(
    start: Callable[..., Command],
) -> None:
    receiver, address = _receive(start, "--timeout", "3", "--count", "2")
    words = ("send", address, "fixed", "--cwnd", "2", "--seconds", "60")
    sender = start(*words)
    receiver.until("begins")
    sender.process.send_signal(signal.SIGKILL)
    receiver.until("ended: the sender has said nothing")
    sender = start(*words)  # and one that is stopped says so
    receiver.until("begins[^$]*begins")
    time.sleep(0.5)  # until the sender has heard of it, too
    sender.process.send_signal(signal.SIGINT)
    assert sender.end(10.0) == 130, sender.said
    assert receiver.end(20.0) == 1
    assert receiver.said.count("ended:") == 2
    assert "packets" in receiver.said.splitlines()[-1]


def test_a_host_that_does_not_answer_is_one_line(start: Callable[..., Command]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        sender = start("send", address, "cubic", "--timeout", "1")
        assert sender.end(30.0) == 2
    assert sender.said == (
        f"distrlcc: error: {address}: no answer within 1 s; is 'distrlcc receive' there, and UDP "
        "let through?\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["send", "127.0.0.1", "cubik"], "did you mean cubic"),
        (["send", "127.0.0.1", "oracle"], "unknown scheme 'oracle'"),
        (["send", "127.0.0.1", "cubic", "--cwnd", "3"], "--cwnd is for the scheme fixed"),
        (["send", "127.0.0.1", "cubic", "--plot", "x.gif"], ".png, .svg or .html"),
        (["send", "127.0.0.1", "none.safetensors"], "none.safetensors"),
        (["send", "127.0.0.1", "--policy", "one"], "name it after the receiver"),
    ],
)
def test_bad_words_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_what_steers_may_stand_after_the_flags(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["send", "127.0.0.1", "--seconds", "0.5", "cubik"]) == 2
    assert "did you mean cubic" in capfd.readouterr().err
