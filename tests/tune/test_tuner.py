"""Real tuners on a Ray of their own, through the command line: ended, stopped, killed, resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distrlcc.policy.policy_file import load_policy
from distrlcc.recipes.registry import recipe
from distrlcc.tune.report import Report, read_reports

pytestmark = pytest.mark.slow

TINY = """--set num_envs=8 ppo.rollout_length=16 ppo.minibatch_size=64 held_out.links=3
    held_out.seconds=0.5 env.suites=["random"] env.suite_weights=[] env.episode_s=2.0"""
SYNCH = """tune pbt quickstart --population 3 --interval 2 --updates 6 --quantile 0.5 --synch
    --mutate ppo.lr=loguniform:1e-5:1e-2 ppo.clip_param=uniform:0.1:0.4"""


class Command:
    """A command line in a process group of its own."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distrlcc", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, seconds: float = 240.0) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()  # what Ray started ends with it
            out, err = self.process.communicate(timeout=20.0)
            pytest.fail(f"not ended within {seconds:.0f} s: {err}")
        return self.process.returncode, out, err

    def wait_for(self, path: Path, lines: int, seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not path.exists() or len(path.read_bytes().splitlines()) < lines:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                pytest.fail(f"no report: {self.process.communicate(timeout=20.0)[1]}")
            time.sleep(0.1)


def _left(marker: str) -> list[str]:
    """Return the processes that have a text in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def _none_left(marker: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while left := _left(marker):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _told(reports: list[Report]) -> list[tuple[object, ...]]:
    return sorted((r.member, r.update, r.steps, r.score, str(r.schedule)) for r in reports)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tuner that ran to its end."""
    out = tmp_path_factory.mktemp("ended") / "t"
    code, printed, err = Command(*SYNCH.split(), *TINY.split(), "--out", str(out)).end()
    assert code == 0, err
    assert "from update" in printed
    assert "Traceback" not in err
    return out


def test_values_are_copied_and_changed(ended: Path) -> None:
    reports = read_reports(ended / "reports.jsonl")
    assert {r.member for r in reports} == {0, 1, 2}
    assert max(r.update for r in reports) == 6
    copies = [r for r in reports if len(r.schedule) > 1]
    assert copies
    for report in copies:
        before, after = report.schedule[-2:]
        assert before.values != after.values
        assert all(1e-5 <= s.values["ppo.lr"] <= 1e-2 for s in report.schedule)
    assert {p.name for p in (ended / "checkpoints" / "members").glob("member-*")} == {
        f"member-{n:05}" for n in range(3)
    }


def test_the_best_is_kept(ended: Path) -> None:
    best = max(read_reports(ended / "reports.jsonl"), key=lambda r: r.score)
    notes = load_policy(ended / "policy.safetensors").notes
    assert (notes["held_out_reward"], notes["update"]) == (best.score, best.update)
    ppo = recipe(str(ended / "best.toml")).ppo
    assert ppo is not None
    assert ppo.clip_param == best.values["ppo.clip_param"]
    assert "best" in (ended / "table.txt").read_text()


@pytest.mark.long
def test_stopped_killed_and_resumed_is_the_same(
    ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_TEST_MARK", tmp_path.name)
    mark = f"DISTRLCC_TEST_MARK={tmp_path.name}"
    out = tmp_path / "t"
    command = Command(*SYNCH.split(), *TINY.split(), "--out", str(out))
    command.wait_for(out / "reports.jsonl", 4)
    os.kill(command.process.pid, signal.SIGTERM)
    code, _, err = command.end(20.0)
    assert code == 143, err
    assert f"distrlcc tune pbt --resume --out {out}" in err
    assert "Traceback" not in err
    _none_left(mark)

    done = len((out / "reports.jsonl").read_bytes().splitlines())
    command = Command("tune", "pbt", "--resume", "--out", str(out))
    command.wait_for(out / "reports.jsonl", done + 1)
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.communicate(timeout=20.0)

    code, _, err = Command("tune", "pbt", "--resume", "--out", str(out)).end()
    assert code == 0, err
    assert _told(read_reports(out / "reports.jsonl")) == _told(
        read_reports(ended / "reports.jsonl")
    )


@pytest.mark.long
def test_search_stops_bad_trials_early(tmp_path: Path) -> None:
    out = tmp_path / "s"
    words = """tune search quickstart --trials 4 --interval 1 --updates 4 --grace 1 --reduction 2
        --cpus-per-trial 1 --search ppo.lr=loguniform:1e-5:1e-2 network.hidden=choice:[8],[16,16]"""
    code, printed, err = Command(*words.split(), "--out", str(out), *TINY.split()).end()
    assert code == 0, err
    assert "network.hidden" in printed
    reports = read_reports(out / "reports.jsonl")
    assert {r.member for r in reports} == {0, 1, 2, 3}
    last = {r.member: r.update for r in reports}
    assert max(last.values()) == 4
    assert min(last.values()) < 4
    assert recipe(str(out / "best.toml")).network.hidden in ((8,), (16, 16))


CODE = """
import sys, time
from distrlcc.runs.stopper import Stopper
from distrlcc.tune import tuner
tuner.STOP_SECONDS = 0.3
stopper = Stopper()
with tuner.stop_in_time(stopper, "too late"):
    stopper.signal = int(sys.argv[1])
    time.sleep(float(sys.argv[2]))
"""


def _run(signal: int, seconds: float) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(signal), str(seconds)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_only_a_stop_that_takes_too_long_is_cut_short() -> None:
    assert _run(15, 30.0) == (143, "too late\n")
    assert _run(0, 0.8) == (0, "")
    assert _run(15, 0.0) == (0, "")
