"""Runs of several processes on a tiny configuration, whole, resumed, disturbed and compared."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.bench_parity import check_parity
from distrlcc.cli import main as cli
from distrlcc.config import override
from distrlcc.errors import ConfigError, GroupError
from distrlcc.parallel.decentralized import ElasticGroup, check_sync
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.membership import Member
from distrlcc.parallel.process_group import Quorum
from distrlcc.parallel.start import TrainJob
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import load_policy
from distrlcc.recipes.registry import recipe
from distrlcc.runs.options import RankSpec
from distrlcc.runs.source import Share
from tests.parallel.commands import Command, rows, saved, updates
from tests.parallel.group_targets import Disturbed, disturbed
from tests.runs.test_shared_training import AGENTS
from tests.support.verdict import row_faults

SMALL = """num_envs=5 checkpoint_every=7 held_out.every=8 held_out.links=2 held_out.seconds=0.3
    env.episode_s=0.5 network.hidden=[8] distributed.straggler_share=0 """
PPO = f"{SMALL} ppo.rollout_length=16 ppo.minibatch_size=64".split()
DAGGER = f"{SMALL} dagger.rollout_length=16 dagger.minibatch_size=64 dagger.num_epochs=2".split()
UPDATE = 5 * 16


def _run(
    out: Path,
    what: str,
    *settings: str,
    size: int = 2,
    update: int = 0,
    ended: Sequence[int] = (),
    elastic: bool = True,
    restarts: int = 0,
) -> None:
    """Train while something happens; all ranks end well, or those in `ended`."""
    config = override(recipe("quickstart"), [*PPO, *settings])
    seconds = config.distributed.timeout_s
    specs = [
        RankSpec(
            *("127.0.0.1", 0, slot, size),
            timeout_seconds=seconds,
            join_seconds=60.0,
            elastic=elastic,
        )
        for slot in range(size)
    ]
    job = Disturbed(TrainJob(config, out, tensorboard=False), what, update)
    outcome = Launcher(disturbed, job, specs, restarts=restarts).run()
    assert (outcome.code, outcome.results) == (0, dict.fromkeys(ended or range(size), 0))


def _train(*words: object) -> None:
    """Run the command in this process, which starts the ranks."""
    assert cli.main(["train", "--no-tensorboard", *map(str, words)]) == 0


def _check_whole(out: Path, count: int) -> None:
    """Check that a run is complete, whichever process did which part of it."""
    metrics = rows(out)
    assert updates(out) == list(range(1, count + 1))
    assert [line["steps"] for line in metrics] == [UPDATE * (k + 1) for k in range(count)]
    assert not [line for line in metrics if "events" in line or line.get("rollouts_cut_short")]
    seconds = [line["seconds"] for line in metrics]
    assert seconds == sorted(seconds)
    counters = saved(out)["counters"]
    assert (counters["update"], counters["steps"]) == (count, UPDATE * count)
    assert counters["episodes"] == sum(line["episodes"] for line in metrics)
    assert counters["best_update"] > 0
    assert NumpyPolicy.load(out / "policy.safetensors").notes["steps"] == UPDATE * count
    assert not list(out.rglob("*.tmp"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 10 updates on two processes, whose rank 0 scores slowly."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTRLCC_LIMITS", "stop=4,silence=20")  # no rank is gone that stands still
        _run(out, "score_slowly", f"total_steps={10 * UPDATE}", "distributed.timeout_s=3.0")
    return out


def test_a_run_is_whole_though_rank_0_scores_for_longer_than_any_limit(finished: Path) -> None:
    _check_whole(finished, 10)
    names = {path.name for path in finished.glob("[!.]*")}
    written = "config.toml versions.json metrics.jsonl checkpoints policy.safetensors"
    assert names == set(written.split())
    stems = {path.stem for path in (finished / "checkpoints").iterdir()}
    assert stems == {"latest", "previous", "best"}
    metrics = rows(finished)
    assert {line["ranks"] for line in metrics} == {2.0}
    for line in metrics:
        assert all(0 <= line[name] <= 1 for name in line if name.startswith("share_"))
    assert "held_out_reward_sample" in metrics[7]


def test_a_resume_may_use_another_number_of_processes(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    best = saved(out)["counters"]["best_score"]
    _train("--resume", "--out", out, "--set", f"total_steps={13 * UPDATE}")
    _check_whole(out, 13)
    _train("--resume", "--processes", 3, "--out", out, "--set", f"total_steps={17 * UPDATE}")
    _check_whole(out, 17)
    assert [line.get("ranks", 1.0) for line in rows(out)] == [2.0] * 10 + [1.0] * 3 + [3.0] * 4
    assert saved(out)["counters"]["best_score"] >= best
    noted = json.loads((out / "versions.json").read_text())
    assert len(noted["resumed"]) == 2
    before = _contents(out)
    capsys.readouterr()
    assert cli.main(["train", "--resume", "--processes", "2", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"has done {17 * UPDATE} of {17 * UPDATE} steps already" in line
    assert before == _contents(out)


def _contents(out: Path) -> dict[Path, bytes]:
    """Return a run's files except for the notes of which process writes to it now."""
    return {p: p.read_bytes() for p in out.rglob("[!.]*") if p.is_file()}


def test_sigterm_saves_and_time_ends_a_run(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    words = ("--processes", "2", "--resume", "--out", str(out), "--set")
    command = ("-m", "distrlcc", "train", "--no-tensorboard")
    with Command(tmp_path, *command, *words, "total_steps=100_000_000") as run:
        run.until_updates(out, 13, 60)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(30) == 128 + signal.SIGTERM
    line = f"distrlcc train --resume --out {out} --processes 2"
    assert run.said[-1] == f"distrlcc: stopped; saved. Go on with: {line}"
    count = saved(out)["counters"]["update"]
    assert count >= 13
    _check_whole(out, count)

    seconds = saved(out)["counters"]["seconds"] + 1.0
    _train(*words, "total_steps=100_000_000", f"max_seconds={seconds}")
    more = saved(out)["counters"]["update"]
    assert more > count
    _check_whole(out, more)
    assert rows(out)[-1]["seconds"] >= seconds > rows(out)[-2]["seconds"]


def test_dagger_goes_on_with_another_number_of_processes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    _train("imitation", "--out", out, "--set", *DAGGER, f"total_steps={2 * UPDATE}")
    _train("--resume", "--processes", 2, "--out", out, "--set", f"total_steps={4 * UPDATE}")
    assert updates(out) == [1, 2, 3, 4]
    assert rows(out)[3]["dataset_samples"] == 2 * UPDATE  # data begin anew with other environments
    assert capfd.readouterr().err.count("the data set fills anew: it was of several ") == 1
    with pytest.warns(UserWarning, match="the data set fills anew"):
        _train("--resume", "--out", out, "--set", f"total_steps={5 * UPDATE}")
    assert saved(out)["counters"]["steps"] == 5 * UPDATE


def test_a_flipped_bit_ends_the_run_and_names_the_rank(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ["num_envs=6", "distributed.sync_check_every=1", "checkpoint_every=1"]
    settings.append(f"total_steps={20 * UPDATE}")
    line = r"^weights or optimizer differ between ranks after update 4: rank 1 \("
    with pytest.raises(GroupError, match=line) as caught:
        _run(out, "flip_a_bit", *settings, size=3, update=3)
    assert caught.value.exit_code == 1
    assert saved(out)["counters"]["update"] == 3
    assert updates(out) == [1, 2, 3]


@pytest.mark.parametrize("elastic", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_is_not_finite_is_refused_and_who_sends_it_twice_is_left_out(
    tmp_path: Path, elastic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=2")
    out, count = tmp_path / "run", 9
    settings = ("num_envs=6", "distributed.sync_check_every=1", f"total_steps={count * 96}")
    ends = nullcontext() if elastic else pytest.raises(GroupError, match=r"rank 1 .* is left out: ")
    with ends:
        # That it may be started again changes nothing.
        more: Any = {"elastic": elastic, "restarts": 2}
        _run(out, "send_nan", *settings, size=3, update=2, ended=(0, 2), **more)
    metrics = rows(out)
    refused = {
        row["update"]: event
        for row in metrics
        for event in row.get("events", [])
        if event.startswith("refused")
    }
    gradient = r"refused: the mean gradient is not finite, from rank 1 \(process \d+ on 127.0.0.1\)"
    for update in (3, 6):
        assert re.fullmatch(gradient, refused.pop(update))
    assert re.match("refused: a sum of statistics is not finite, from rank 2", refused.pop(4))
    assert not refused
    # A refused update counts, with the steps of those whose statistics are finite.
    assert [row["update"] for row in metrics] == list(range(1, len(metrics) + 1))
    assert [row["steps"] for row in metrics[:6]] == [96, 192, 288, 352, 448, 544]
    assert "lr" not in metrics[2]
    (left,) = (event for row in metrics for event in row.get("events", []) if "left out" in event)
    assert left.startswith("left out: rank 1 (process")
    if elastic:
        assert [row["ranks"] for row in metrics] == [3.0] * 6 + [2.0] * (len(metrics) - 6)
        assert saved(out)["counters"]["steps"] >= count * 96
        assert all(
            np.isfinite(a).all() for a in load_policy(out / "policy.safetensors").arrays.values()
        )


def test_nothing_is_learned_of_what_was_late_and_all_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ("num_envs=6", "distributed.sync_check_every=1", f"total_steps={6 * 96}")
    _run(out, "be_late", *settings, size=2, update=2)
    metrics = rows(out)
    assert [row["steps"] for row in metrics] == [96 * count for count in range(1, 7)]
    assert [row["late_batches"] for row in metrics] == [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]
    assert ["lr" in row for row in metrics] == [True] * 3 + [False] + [True] * 2
    assert [row["late_steps"] for row in metrics[1:4]] == pytest.approx([0.2, 0.3, 0.4])
    one = r"refused: 40% of the steps of rank {} \(process \d+ on 127.0.0.1\) were late \("
    for row, slots in zip(metrics, ("", "", "1", "01", "", ""), strict=True):
        said = row.get("events", [])
        assert len(said) == len(slots)
        assert all(re.match(one.format(slot), line) for slot, line in zip(slots, said, strict=True))


@pytest.mark.parametrize(
    ("checksums", "named"),
    [("55", ""), ("56", "01"), ("565", "1"), ("6555", "0"), ("5656", "0123"), ("123", "012")],
)
def test_whose_weights_differ_is_judged_by_the_majority(checksums: str, named: str) -> None:
    members = [Member(slot, f"{slot}-x", "10.0.0.1", 7) for slot in range(len(checksums))]
    group: Any = SimpleNamespace(members=members, size=len(members))
    expected = pytest.raises(GroupError, match="after update 9") if named else nullcontext()
    with expected as caught:
        check_sync([int(checksum) for checksum in checksums], group, 9)
    if caught is not None:
        found = [str(slot) for slot in range(len(members)) if f"rank {slot} " in str(caught.value)]
        assert ("".join(found), caught.value.exit_code) == (named, 1)


class _Meeting:
    """A group of two threads, as `ElasticGroup` uses one."""

    def __init__(self, members: list[Member]) -> None:
        self.members, self.size = members, len(members)
        self.barrier, self.kept = threading.Barrier(self.size), dict[int, Any]()

    def seen_by(self, rank: int) -> Any:
        def gathered(own: Any) -> dict[int, Any]:
            self.kept[rank] = own
            self.barrier.wait(60.0)
            found = dict(self.kept)
            self.barrier.wait(60.0)
            return found

        return SimpleNamespace(
            **{"rank": rank, "members": self.members, "size": self.size, "leads": rank == 0},
            sum=lambda numbers: sum(gathered(numbers).values()),
            broadcast=lambda data, source: gathered(data)[source],
        )


@pytest.mark.parametrize(("apart", "meet"), [(True, True), (False, True), (True, False)])
def test_who_learned_as_much_apart_goes_on_from_one_state(apart: bool, meet: bool) -> None:
    # Both have made update 29 of the same saved run, each alone, and meet; or were together.
    meeting = _Meeting([Member(slot, f"{slot}-x", "10.0.0.1", 7 + slot) for slot in range(2)])
    joined = tuple(meeting.members[:meet])
    quorum, found = Quorum((), joined, 0, True, False, True), dict[int, Any]()

    def go_on(rank: int) -> None:
        state: dict[str, Any] = {"learner": {"w": np.full(3, float(rank * apart))}, "update": 29}
        held: Any = SimpleNamespace(
            learner=SimpleNamespace(shared_state=lambda: state["learner"]),
            **{"shared_state": lambda: state, "load_shared_state": state.update},
            **{"paused": lambda: False, "counters": SimpleNamespace(update=29)},
        )
        batch = SimpleNamespace(steps=8)
        kept = {"rows": {29: {"of": rank}}, "saved": (28, ""), "close": lambda: None}
        recorder: Any = SimpleNamespace(**kept, lead=lambda may_go_back: False)
        group = ElasticGroup(meeting.seen_by(rank), SimpleNamespace(), recorder)  # type: ignore[arg-type]
        try:
            other = group._go_on_together(held, batch, quorum)
        except GroupError as error:
            found[rank] = str(error)
            return
        found[rank] = other, batch.steps, state["learner"]["w"][0], recorder.rows, group._events

    threads = [threading.Thread(target=go_on, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    if not meet:
        assert all("weights or optimizer differ" in found[rank] for rank in range(2))
        return
    said = (
        "other weights: rank 1 (process 8 on 10.0.0.1); all go on from those of rank 0 (process 7"
    )
    events = [f"{said} on 10.0.0.1)"] * apart
    own = {29: {"of": 0}}
    assert found[0] == (False, 8, 0.0, own, events)
    assert found[1] == (apart, 8 * (not apart), 0.0, own if apart else {29: {"of": 1}}, events)


def test_a_slow_rank_is_cut_short_and_only_where_it_may_be(tmp_path: Path) -> None:
    envs, length, count = 4, 32, 5
    settings = (f"num_envs={envs}", f"ppo.rollout_length={length}", "held_out.every=100")
    cut, slow = tmp_path / "cut", tmp_path / "slow"
    total = f"total_steps={envs * length * count}"
    _run(cut, "slow_steps", *settings, total, "distributed.straggler_share=0.6")
    lines, before = rows(cut), 0.0
    for line in lines:
        done, before = line["steps"] - before, line["steps"]
        # Two environments on each: a rank that is cut short does a quarter of its rollout at least.
        # On a busy machine that may be the fast one, too.
        cuts = line["rollouts_cut_short"]
        assert envs * length * (1 - cuts * 3 / 8) <= done
        assert (done < envs * length) is (cuts > 0.0)
    assert sum(line["rollouts_cut_short"] > 0.0 for line in lines) >= len(lines) // 2
    # Without the rule it does all.
    _run(slow, "slow_steps", *settings, total)
    assert [line["rollouts_cut_short"] for line in rows(slow)] == [0.0] * count
    assert rows(slow)[-1]["steps"] == envs * length * count


@pytest.mark.parametrize(
    ("what", "update"),
    [
        ("die_unrecorded", 2),
        *(
            pytest.param(*c, marks=pytest.mark.long)
            for c in (("die_saving", 0), ("die_unrecorded", 4))
        ),
    ],
)
def test_where_rank_0_dies_the_next_one_writes_what_is_missing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], what: str, update: int
) -> None:
    out, count = tmp_path / "run", 4
    _run(out, what, f"total_steps={count * UPDATE}", update=update, ended=(1,))
    said = capfd.readouterr().err.splitlines()
    assert sum(line.startswith("distrlcc: rank 0 (process ") for line in said) == 1
    # Rank 0's warnings bear no name, rank 1's do.
    warned = [line for line in said if "odd on" in line]
    assert sorted(line.startswith("distrlcc: rank 1: ") for line in warned) == [False, True]
    assert row_faults(out / "metrics.jsonl") == []
    assert saved(out)["counters"]["update"] == len(updates(out)) >= count
    assert NumpyPolicy.load(out / "policy.safetensors").notes["update"] > 0


@pytest.mark.parametrize("case", ["ppo-lstm", "dagger", "agents"])
def test_two_processes_learn_what_one_learns(case: str) -> None:
    settings = DAGGER if case == "dagger" else PPO
    # Three links of four agents: one for a rank, two for the other.
    more = [*AGENTS, "num_envs=12"] if case == "agents" else []
    config = override(recipe("imitation" if case == "dagger" else "quickstart"), [*settings, *more])
    if case == "ppo-lstm":
        config = replace(config, network=replace(config.network, kind="lstm"))
    assert config.env.agents == (4 if case == "agents" else 1)
    parity = check_parity(config, 2)
    assert parity.holds, parity
    assert max(parity.weights, *parity.metrics.values()) < 1e-4


def test_batches_of_each_ones_own_and_rates_follow_a_death(tmp_path: Path) -> None:
    own = ["distributed.batch=per-process", "distributed.warm_up=2", "total_steps=1840"]
    out = tmp_path / "run"
    _run(out, "die_later", *own, size=3, update=5, ended=(0, 2))
    metrics = rows(out)
    # An update has as many steps as there are processes, until the run has all that it wants.
    before = [0.0, *(row["steps"] for row in metrics)]
    ranks = [(b - a) / UPDATE for a, b in pairwise(before)]
    assert ranks == [3.0] * 5 + [2.0] * 4
    # The rate rises in two updates to its root, and falls at once.
    factors = [row["lr"] / 1e-3 for row in metrics]
    assert factors == pytest.approx([2**0.5] + [3**0.5] * 4 + [2**0.5] * 4)
    # More ranks than one tell the noise scale, which a run's end and a joiner's state have, too.
    assert any(row.get("noise_scale", 0.0) > 0.0 for row in metrics)
    assert "noise_scale" in saved(out)["learner"]["model"]


def test_any_number_of_processes_trains_the_recipe_of_links_with_many_agents() -> None:
    config = override(recipe("one"), ["distributed.batch=per-process"])
    for slot in (0, 31, 40):
        assert Share.of(config, slot, 32) == Share(500 * slot, 500)
    with pytest.raises(ConfigError, match=r"set distributed\.batch=per-process, and each has as"):
        Share.of(recipe("one"), 0, 32)
