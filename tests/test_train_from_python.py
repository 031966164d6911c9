"""``distrlcc.train`` over several processes: from a script, a pipe and a notebook."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import distrlcc
from distrlcc.errors import ConfigError
from distrlcc.runs.metrics_log import Follower, MetricsLog, read_metrics
from tests import trees
from tests.parallel.commands import Command, saved, session

pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("default")]  # Ray's own
TINY = trees.TINY | {"total_steps": 1024, "actors.envs_per_worker": 2}
SCRIPT = f"""
import sys

import numpy as np

import distrlcc

print("main", flush=True)


class Stops(distrlcc.Callbacks):  # of a script or a notebook: no other process can import it
    def on_update(self, metrics):
        print("update", metrics["update"], flush=True)
        return np.bool_(metrics["update"] != 3)

    def on_end(self, policy):
        print("end", flush=True)

    def on_stop(self):
        print("stop", flush=True)


small = {TINY}
small["total_steps"] = 10**9
policy = distrlcc.train("quickstart", out="run", processes=2, callbacks=[Stops()], **small)
print("acts", policy.act([[0.0] * policy.spec.observation_size]).shape, flush=True)
"""
"""Without ``if __name__ == "__main__"``."""


def _told(said: str) -> None:
    words = re.findall(r"^(main|update \d|end|stop|acts .*)$", said, re.M)
    assert words[:4] == ["main", "update 1", "update 2", "update 3"], said
    assert words[-2:] == ["end", "acts (1,)"], said
    assert words.count("main") == 1


@pytest.mark.parametrize("pipe", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_script_without_a_guard_trains_on_two_processes_until_it_says_no(
    pipe: bool, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "-" if pipe else "script.py"]
    done = subprocess.run(
        words, input=SCRIPT, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    _told(done.stdout)
    assert saved(tmp_path / "run")["counters"]["update"] >= 3


def test_a_notebook_does_the_same(tmp_path: Path) -> None:
    reason = "nbclient and ipykernel are not installed"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(SCRIPT)]
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    _told("".join(o.text for o in book.cells[0].outputs if o.get("name") == "stdout"))


def test_ctrl_c_saves_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    endless = SCRIPT.replace('np.bool_(metrics["update"] != 3)', "None")
    assert endless != SCRIPT
    with Command(tmp_path, "-c", endless) as run:
        run.until_updates(tmp_path / "run", 2, 200.0)
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        assert run.process.wait(120) != 0
        assert run.said[-1].startswith("KeyboardInterrupt"), run.said
        assert "stop" in run.said
        run.nothing_is_left()
        assert session(run.process.pid) == []
    assert saved(tmp_path / "run")["counters"]["update"] >= 2


class _Heard(distrlcc.Callbacks):
    def __init__(self) -> None:
        self.updates, self.scores = list[Any](), list[Any]()

    def on_update(self, metrics: Mapping[str, Any]) -> None:
        self.updates.append(metrics)

    def on_score(self, scores: Mapping[str, Any]) -> None:
        self.scores.append(scores)


WAYS: dict[str, dict[str, Any]] = {
    "ranks": {"processes": 2},
    "torch RPC": {"nodes": [[0, 1]]},
    "ranks on Ray": {"processes": 2, "engine": "ray"},
    "actors on Ray": {"nodes": [[0], [1]], "engine": "ray"},
}


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[pytest.mark.long] * (w != "torch RPC")) for w in WAYS]
)
def test_callbacks_hear_each_row_once_in_the_process_that_asked(
    way: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if "Ray" in way:
        pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    heard, out = _Heard(), tmp_path / "run"
    more = {"out": out, "callbacks": [heard], "show": False, **WAYS[way]}
    policy = distrlcc.train("quickstart", **more, **TINY)
    assert policy.path == out / "policy.safetensors"
    rows = read_metrics(out / "metrics.jsonl")
    assert [row["update"] for row in heard.updates] == [row["update"] for row in rows]
    assert heard.updates[-1]["steps"] >= 1024
    scored = [row["update"] for row in rows if "held_out_reward_argmax" in row]
    assert [scores["update"] for scores in heard.scores] == scored != []
    # A resume tells of what is new.
    del heard.updates[:]
    distrlcc.train(**more, resume=True, total_steps=1536)
    new = [row["update"] for row in read_metrics(out / "metrics.jsonl")][len(rows) :]
    assert [row["update"] for row in heard.updates] == new != []
    assert capfd.readouterr().out == ""


def test_ways_that_do_not_exist_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for given, said in (
        ({"processes": 0}, "processes is 0: expected a whole number of 1 or more"),
        ({"engine": "rays"}, r"unknown engine 'rays': did you mean ray\?"),
        (
            {"nodes": [[0], [1]]},
            "2 lists for 1 machines: .* engine ray",
        ),
        ({"nodes": [[0.5]]}, "nodes"),
        ({"nodes": [["no-such-suite"]]}, "no-such-suite"),
        ({"nodes": [[0]], "processes": 2}, "one worker is started for each of nodes"),
        ({"address": "auto", "processes": 2}, "address needs engine='ray'"),
    ):
        with pytest.raises(ConfigError, match=said):
            distrlcc.train("quickstart", out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_follower_reads_whole_lines_once_and_what_a_rewind_has_changed(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "metrics.jsonl")
    assert follower.news() == []
    log = MetricsLog(tmp_path, tensorboard=False)
    for update in (1, 2, 3):
        log.log(update, {"steps": 10 * update})
    assert [row["update"] for row in follower.news()] == [1, 2, 3]
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"update": 4, "st')
        file.flush()
        assert follower.news() == []
        file.write(b'eps": 40}\n')
    assert follower.news() == [{"update": 4, "steps": 40}]
    log.begin_after(2)
    assert follower.news() == []
    log.log(3, {"steps": 31})
    assert follower.news() == [{"update": 3, "steps": 31}]
    log.close()


@pytest.mark.long
def test_torch_multiprocessing_runs_our_environment_as_the_page_has_it(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", page, re.S) if "mp.spawn" in c)
    (tmp_path / "spawned.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "spawned.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    means = re.findall(r"-?\d+\.\d+", done.stdout)
    assert len(set(means)) == 2
