"""Commands that begin at their start times, and end together when one fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from distrlcc.errors import LinkError
from distrlcc.net.emulator.command_group import Part, run_group, wait_for_start
from distrlcc.processes import find_process
from tests.hosts import wait_until

SENDER = """
import sys, time
from pathlib import Path
from distrlcc.net.emulator.command_group import wait_for_start
time.sleep({slow})
wait_for_start(sys.stdout)
Path({path!r}).write_text(str(time.monotonic()))
"""


def _sender(path: Path, start_s: float, slow: float = 0.0) -> Part:
    code = SENDER.format(slow=slow, path=str(path))
    return Part(path.name, (sys.executable, "-c", code), start_s)


def _python(name: str, code: str, start_s: float | None = None) -> Part:
    return Part(name, (sys.executable, "-S", "-c", code), start_s)


def _staying(path: Path) -> str:
    """Return a program that writes its pid into a file and stays."""
    return f"import os, time; open({str(path)!r}, 'w').write(str(os.getpid())); time.sleep(60)"


def _see_it_end(path: Path) -> None:
    pid = int(path.read_text())
    wait_until(lambda: find_process(pid) is None, 30.0, "the command's end")


def test_each_begins_at_its_start_time_although_one_is_late_to_be_ready(tmp_path: Path) -> None:
    run_group([_sender(tmp_path / "a", 0.0, slow=0.8), _sender(tmp_path / "b", 1.5)])
    a, b = (float((tmp_path / name).read_text()) for name in "ab")
    assert 0.0 < b - a < 10.0


def test_the_base_address_stands_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAHIMAHI_BASE", "100.64.0.1")
    code = f"import sys; open({str(tmp_path / 'said')!r}, 'w').write(sys.argv[1])"
    run_group([Part("one", (sys.executable, "-S", "-c", code, "$MAHIMAHI_BASE:4730"))])
    assert (tmp_path / "said").read_text() == "100.64.0.1:4730"


def test_a_command_that_fails_is_named_and_ends_the_others(tmp_path: Path) -> None:
    fails = f"""
import os, sys, time
while not os.path.exists({str(tmp_path / "pid")!r}):
    time.sleep(0.01)
time.sleep(0.1)
sys.exit('distrlcc: error: no room')
"""
    with pytest.raises(LinkError, match=r"^flow 2: no room$"):
        run_group([_python("flow 1", _staying(tmp_path / "pid")), _python("flow 2", fails)])
    _see_it_end(tmp_path / "pid")
    with pytest.raises(LinkError, match=r"^quiet: exit code 3$"):
        run_group([_python("quiet", "raise SystemExit(3)")])


def test_a_sender_that_is_never_ready_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "start=4")
    silent = _python("silent", "import time; time.sleep(60)", 0.0)
    with pytest.raises(LinkError, match=r"^silent: not ready to send within 4 s$"):
        run_group([silent, _sender(tmp_path / "a", 0.0)])
    with pytest.raises(LinkError, match=r"^hasty: exit code 0$"):
        run_group([_python("hasty", "pass", 0.0)])


def test_all_end_with_the_process_that_runs_them(tmp_path: Path) -> None:
    parts = [_python("stays", _staying(tmp_path / "pid"))]
    (tmp_path / "parts.json").write_bytes(msgspec.json.encode(parts))
    process = subprocess.Popen(
        [sys.executable, "-m", "distrlcc.net.emulator.command_group", str(tmp_path / "parts.json")]
    )
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text() != "", 30.0, "the command's start")
    process.kill()
    process.wait(10.0)
    _see_it_end(pid)


def _told(line: bytes, **words: object) -> str:
    source, told = os.pipe()
    out = StringIO()
    with os.fdopen(told, "wb") as file:
        file.write(line)
    try:
        wait_for_start(out, source=source, **words)  # type: ignore[arg-type]
    finally:
        os.close(source)
    return out.getvalue()


def test_a_start_time_is_s_of_the_monotonic_clock_or_now() -> None:
    begin = time.monotonic()
    assert _told(f"{begin + 0.25!r}\n".encode()) == "ready\n"
    assert time.monotonic() - begin >= 0.25
    assert _told(b"\n") == _told(b"1.5\n") == "ready\n"
    assert time.monotonic() - begin < 20.0


@pytest.mark.parametrize("line", [b"soon\n", b"nan\n", b"inf\n", b"-inf\n", b"\xff\n", b"9" * 300])
def test_what_is_no_start_time_is_one_line(line: bytes) -> None:
    with pytest.raises(LinkError, match="is not a start time; expected s of"):
        _told(line)


def test_the_wait_ends_with_its_input_or_when_it_is_stopped() -> None:
    with pytest.raises(LinkError, match="ended before it named"):
        _told(b"12")
    later = f"{time.monotonic() + 60!r}\n".encode()
    with pytest.raises(LinkError, match="stopped before"):
        _told(later, stopping=lambda: True)
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(LinkError, match="stopped before"):
        _told(later, stopping=stop.is_set)
