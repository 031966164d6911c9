"""The launcher with real processes: results, errors, signals, deaths, and what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from distrlcc.errors import GroupError, warn_in_lines
from distrlcc.parallel.launcher import Launcher, Outcome
from distrlcc.processes import find_process
from distrlcc.runs.options import RankSpec
from tests.hosts import fork_server, rank_processes, wait_until
from tests.parallel import group_targets
from tests.parallel.commands import Command

SIZE = 2


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that processes and signal handlers are after a test what they were before."""
    monkeypatch.setenv("DISTRLCC_LIMITS", "stop=3")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert not [pid for pid in _pids(tmp_path) if find_process(pid)]


def _run(folder: Path, kind: str, *, elastic: bool = True, restarts: int = 0) -> Outcome:
    """Run a kind of job on two ranks."""
    specs = [RankSpec("127.0.0.1", 0, slot, SIZE, elastic=elastic) for slot in range(SIZE)]
    job = group_targets.Job(kind, folder)
    return Launcher(group_targets.simple, job, specs, restarts=restarts).run()


def _pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("*.pid") if path.read_text()]


def test_results_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path, "answer")
    # Whatever its fork server began with, a process is where its launcher is.
    monkeypatch.setenv("DISTRLCC_TEST_PLACE", "here")
    outcome = _run(tmp_path, "answer")
    assert outcome.code == 0
    assert outcome.results[0]["place"] == ("here", str(Path.cwd()))
    assert [outcome.results[slot]["slot"] for slot in range(SIZE)] == [0, 1]
    assert np.array_equal(outcome.results[1]["large"], np.arange(100_000) + 1)


@pytest.mark.parametrize("elastic", [True, False])
def test_an_error_ends_all_with_one_line_and_its_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], elastic: bool
) -> None:
    with pytest.raises(GroupError, match=r"^this rank would rather not$") as caught:
        _run(tmp_path, "refuse", elastic=elastic)
    assert caught.value.exit_code == 2
    assert capfd.readouterr() == ("", "")


def test_a_crash_prints_a_traceback_that_bears_its_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GroupError, match=r"^rank 1 \(process \d+\) crashed$") as caught:
        _run(tmp_path, "crash", elastic=False)
    assert caught.value.exit_code == 3
    out, err = capfd.readouterr()
    first, *middle, error, rest = err.splitlines()
    assert (out, first) == ("", "rank 1: Traceback (most recent call last):")
    assert (error, rest) == ("rank 1: ZeroDivisionError: a bug", "rank 1: of two lines")
    assert all(line.startswith("rank 1: ") for line in middle)


def test_a_frozen_process_is_killed_at_the_end(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert _run(tmp_path, "freeze").code == 0
    assert time.monotonic() - begin >= 3
    assert len(_pids(tmp_path)) == SIZE


def test_an_error_after_the_others_were_done_is_not_lost(tmp_path: Path) -> None:
    with pytest.raises(GroupError, match="no space left"):
        _run(tmp_path, "late_error")


@pytest.mark.parametrize("elastic", [True, False])
def test_restarts_begin_the_dead_one_or_all_again_and_resume(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], elastic: bool
) -> None:
    outcome = _run(tmp_path, "die_once", elastic=elastic, restarts=1)
    assert (outcome.code, outcome.results) == (0, {0: 0, 1: 0})
    err = capfd.readouterr().err
    assert err.startswith("distrlcc: rank 1 (process ")
    told = "starting it again" if elastic else "starting all again from the last checkpoint"
    assert err.endswith(f"was killed by SIGKILL; {told}\n")
    resumed = [(tmp_path / f"{slot}.resumed").read_text() for slot in range(SIZE)]
    assert resumed == (["False", "True"] if elastic else ["True", "True"])
    attempts = {path.name for path in tmp_path.glob("*.pid")}
    assert attempts >= ({"0-0.pid", "1-0.pid"} if elastic else {"1-0.pid", "0-1.pid", "1-1.pid"})
    assert ("0-1.pid" in attempts) is not elastic


def _started(folder: Path, kind: str, *more: str) -> Command:
    """Start a launcher in a session of its own."""
    return Command(folder, str(group_targets.__file__), kind, str(folder), *more)


def _until_ready(launcher: Command, folder: Path, count: int = SIZE) -> None:
    def ready() -> bool:
        assert launcher.process.poll() is None, launcher.said
        return len(list(folder.glob("*.ready"))) == count

    wait_until(ready, 60, "all ranks")


def _until_forked(launcher: Command) -> None:
    wait_until(lambda: len(rank_processes(launcher.process.pid)) == SIZE, 60, "all ranks")


def test_a_killed_launcher_takes_its_children_and_its_folder_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as temporary:  # a socket's path is short
        monkeypatch.setenv("TMPDIR", temporary)
        with _started(tmp_path, "deaf") as launcher:
            _until_ready(launcher, tmp_path)
            assert list(Path(temporary).glob("*/listener-*"))
            launcher.process.kill()
            launcher.nothing_is_left()
        assert not list(Path(temporary).iterdir())


def test_a_fork_servers_folder_goes_with_a_launcher_that_was_gone_before(tmp_path: Path) -> None:
    with TemporaryDirectory() as temporary:
        place = Path(temporary, "pymp-x", "listener-x")
        place.parent.mkdir()
        script = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({str(place)!r})"
        script += "; import distrlcc.parallel.fork_server"
        gone = subprocess.Popen(["true"])
        gone.wait()
        own = os.environ | {"DISTRLCC_LAUNCHER": str(gone.pid)}
        subprocess.run([sys.executable, "-c", script], env=own, check=True)
        assert not list(Path(temporary).iterdir())


def test_a_warning_is_one_line_that_a_terminal_may_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    warn_in_lines(1)
    line = warnings.formatwarning("\x1b[31m" + 3000 * "x" + "\n", UserWarning, "file", 1)
    assert line.startswith("distrlcc: rank 1: \\x1b[31mxxx")
    assert len(line) < 900
    assert line.count("\n") == 1


def test_a_launcher_killed_while_its_children_start_leaves_none(tmp_path: Path) -> None:
    with _started(tmp_path, "deaf") as launcher:
        _until_forked(launcher)
        launcher.process.kill()
        launcher.nothing_is_left(30)


@pytest.mark.parametrize("more", [(), ("elastic",)])
def test_the_fork_servers_death_is_named_and_ends_all(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    with _started(tmp_path, "deaf", *more) as launcher:
        _until_ready(launcher, tmp_path)
        server = fork_server(launcher.process.pid)
        assert server is not None
        os.kill(server, signal.SIGKILL)
        assert launcher.process.wait(20) == 3
        how = "was killed by SIGKILL, and all processes of this machine with it"
        assert launcher.said == [f"distrlcc: error: the fork server (process {server}) {how}"]
        launcher.nothing_is_left()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a folder whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_node_0_serves_the_others_only_while_one_is_heard(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "absence=3,retry=0.3")
    monkeypatch.setenv("TMPDIR", str(temporary))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    with (
        _started(folders[0], "deaf", "0", port) as first,
        _started(folders[1], "deaf", "1", port) as second,
    ):
        for launcher, folder in zip((first, second), folders, strict=True):
            _until_ready(launcher, folder, 1)
        _kill_rank(first)
        time.sleep(4.0)
        assert first.process.poll() is None
        assert first.said[-1].endswith("none is left here; it serves the others while they live")
        assert len(list(temporary.iterdir())) == 1, "more than the second's is left"
        _kill_rank(second)
        assert second.process.wait(5) == 3
        assert first.process.wait(8) == 3
        assert first.said[-1].endswith("no other machine has been heard for 3 s")
        first.nothing_is_left()


def _kill_rank(launcher: Command) -> None:
    (rank,) = rank_processes(launcher.process.pid)
    os.kill(rank, signal.SIGKILL)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(s, marks=pytest.mark.long) for s in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_a_signal_to_all_stops_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with _started(tmp_path, "stop") as launcher:
        _until_ready(launcher, tmp_path)
        os.killpg(launcher.process.pid, number)
        assert (launcher.process.wait(20), launcher.said) == (128 + number, [])
        assert len(list(tmp_path.glob("*.saved"))) == SIZE
        launcher.nothing_is_left()


def test_a_last_save_that_fails_is_said(tmp_path: Path) -> None:
    with _started(tmp_path, "cannot_save") as launcher:
        _until_ready(launcher, tmp_path)
        os.killpg(launcher.process.pid, signal.SIGTERM)
        assert launcher.process.wait(20) == 2
        assert "cannot write the checkpoint: no space left" in "".join(launcher.said)
        launcher.nothing_is_left()


def test_ctrl_c_while_the_children_start_is_quiet(tmp_path: Path) -> None:
    with _started(tmp_path, "stop") as launcher:
        _until_forked(launcher)
        time.sleep(0.5)
        os.killpg(launcher.process.pid, signal.SIGINT)
        assert (launcher.process.wait(20), launcher.said) == (130, [])
        launcher.nothing_is_left()


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    with _started(tmp_path, "deaf") as launcher:
        _until_ready(launcher, tmp_path)
        os.killpg(launcher.process.pid, signal.SIGINT)
        time.sleep(1.5)  # a second one that comes at once counts as the first
        assert launcher.process.poll() is None
        os.killpg(launcher.process.pid, signal.SIGINT)
        assert launcher.process.wait(60) == 130  # the first alone would end them much later
        launcher.nothing_is_left()
