"""Real tuners on a Ray of their own, through the command line: ended, stopped, killed, resumed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from distrlcc.errors import OutputError
from distrlcc.policy.policy_file import load_policy
from distrlcc.recipes.registry import recipe
from distrlcc.tune.report import Report, read_reports
from tests.hosts import wait_until

TINY = """--set num_envs=8 ppo.rollout_length=16 ppo.minibatch_size=64 held_out.links=3
    held_out.seconds=0.5 env.suites=["random"] env.suite_weights=[] env.episode_s=2.0"""
SYNCH = """tune pbt quickstart --population 2 --interval 2 --updates 6 --quantile 0.5 --synch
    --mutate ppo.lr=loguniform:1e-5:1e-2 ppo.clip_param=uniform:0.1:0.4"""


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "distrlcc", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], seconds: float = 240.0) -> tuple[int, str, str]:
    """Wait for a command; return exit code, output and errors."""
    with process:
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()  # what Ray started ends with it
    return process.returncode, out, err


def left(marker: bytes) -> list[Path]:
    """Return the processes that have a text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if marker in path.read_bytes():
                found.append(path)
    return found


def _done(*words: str) -> str:
    """Run a command to its end, which must be good; return its output."""
    code, printed, err = end(start(*words))
    assert code == 0, err
    assert "Traceback" not in err
    return printed


def _told(reports: list[Report]) -> list[tuple[object, ...]]:
    return sorted((r.member, r.update, r.steps, r.score, str(r.schedule)) for r in reports)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tuner that ran to its end."""
    out = tmp_path_factory.mktemp("ended") / "t"
    assert "from update" in _done(*SYNCH.split(), *TINY.split(), "--out", str(out))
    return out


def test_values_are_copied_and_changed_and_the_best_is_kept(ended: Path) -> None:
    reports = read_reports(ended / "reports.jsonl")
    assert {r.member for r in reports} == {0, 1}
    assert max(r.update for r in reports) == 6
    copies = [r.schedule for r in reports if len(r.schedule) > 1]
    assert copies
    for schedule in copies:
        assert schedule[-2].values != schedule[-1].values
        assert all(1e-5 <= float(s.values["ppo.lr"]) <= 1e-2 for s in schedule)
    members = {p.name for p in (ended / "checkpoints" / "members").glob("member-*")}
    assert members == {f"member-{n:05}" for n in range(2)}
    best = max(reports, key=lambda r: r.score)
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
    mark = f"DISTRLCC_TEST_MARK={tmp_path.name}".encode()
    out = tmp_path / "t"
    reports = out / "reports.jsonl"
    process = start(*SYNCH.split(), *TINY.split(), "--out", str(out))
    wait_until(lambda: len(read_reports(reports)) >= 2, 90, "reports")
    process.terminate()
    code, _, err = end(process, 20.0)
    assert code == 143, err
    assert f"distrlcc tune pbt --resume --out {out}" in err
    assert "Traceback" not in err
    wait_until(lambda: not left(mark), 30, "all processes end")

    done = len(read_reports(reports))
    process = start("tune", "pbt", "--resume", "--out", str(out))
    wait_until(lambda: len(read_reports(reports)) > done, 90, "a further report")
    process.kill()
    process.communicate(timeout=20.0)

    _done("tune", "pbt", "--resume", "--out", str(out))
    assert _told(read_reports(reports)) == _told(read_reports(ended / "reports.jsonl"))


@pytest.mark.long
def test_search_stops_bad_trials_early(tmp_path: Path) -> None:
    out = tmp_path / "s"
    words = """tune search quickstart --trials 4 --report-every 1 --updates 4 --grace 1
        --reduction 2 --cpus-per-trial 1
        --search ppo.lr=loguniform:1e-5:1e-2 network.hidden=choice:[8],[16,16]"""
    assert "network.hidden" in _done(*words.split(), "--out", str(out), *TINY.split())
    reports = read_reports(out / "reports.jsonl")
    assert {r.member for r in reports} == {0, 1, 2, 3}
    last = {r.member: r.update for r in reports}
    assert max(last.values()) == 4
    assert min(last.values()) < 4
    assert recipe(str(out / "best.toml")).network.hidden in ((8,), (16, 16))


STOPS = """def late(report):
    return report.update >= 2 and {}["nothing"]

def explore(values):
    return values[0]
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--stop bad.py:late", "bad.py, line 2: KeyError: 'nothing'"),
        ("--explore bad.py:explore", "bad.py, line 5: KeyError: 0"),
    ],
)
def test_a_users_function_that_fails_is_told_in_a_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(STOPS)
    code, _, err = end(start(*SYNCH.split(), *words.split(), "--out", "t", *TINY.split()))
    assert (code, err.splitlines()[-1]) == (2, f"distrlcc: error: {tmp_path}/{said}")
    assert "Traceback" not in err


@pytest.mark.long
def test_a_best_policy_that_cannot_be_kept_ends_it_and_it_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "t"
    process = start(*SYNCH.split(), *TINY.split(), "--out", str(out))
    wait_until(out.exists, 30, "its folder")
    (out / "policy.safetensors").mkdir()
    code, _, err = end(process)
    assert code == OutputError.exit_code, err
    assert f"distrlcc: error: cannot write {out / 'policy.safetensors'}" in err
    assert "Traceback" not in err
    (out / "policy.safetensors").rmdir()
    _done("tune", "pbt", "--resume", "--out", str(out))
    reports = read_reports(out / "reports.jsonl")
    assert max(r.update for r in reports) == 6
    notes = load_policy(out / "policy.safetensors").notes
    assert notes["held_out_reward"] == max(r.score for r in reports)


CODE = """
import sys, time
from distrlcc.runs.stopper import Stopper
from distrlcc.tune.tuner import stop_in_time
stopper = Stopper()
with stop_in_time(stopper, "too late"):
    stopper.signal = int(sys.argv[1])
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.long
def test_only_a_stop_that_takes_too_long_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "worker_silence=0.3")
    for words, expected in ((("15", "30"), (143, "too late\n")), (("0", "0.8"), (0, ""))):
        command = [sys.executable, "-c", CODE, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == expected
