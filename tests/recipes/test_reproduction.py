import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from distrlcc.cli.main import find, main
from distrlcc.cli.output import Countdown
from distrlcc.cli.run_arguments import run_config
from distrlcc.evaluation.scorecard import Benchmark
from distrlcc.policy.policy_file import load_policy
from distrlcc.recipes.experiment import EXPERIMENTS, Experiment
from distrlcc.recipes.reproduction import Reproduction, SeedRun
from distrlcc.recipes.result_row import ResultRow, read_result
from distrlcc.runs.held_out import HeldOut
from distrlcc.runs.source import EnvSource, Share
from distrlcc.sim.suites import SUITES
from tests.parallel.commands import settings

RECIPE = """
recipe = "tiny"
num_envs = 4
total_steps = 256
[env]
episode_s = 0.5
[network]
hidden = [8]
[held_out]
every = 1
links = 2
seconds = 0.5
[ppo]
rollout_length = 32
"""


class Commands:
    """Runs commands and remembers them; may stop half-way, as after Ctrl-C."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []
        self.stop = False

    def __call__(self, words: Sequence[str]) -> int:
        self.lines.append(list(words))
        if self.stop:
            return main(settings(*words, "--set", "total_steps=128")) or 130
        return main(words)


@pytest.fixture
def tiny(tmp_path: Path) -> Experiment:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return Experiment("tiny", "train FOLDER/../tiny.toml", (Benchmark("random", ("cubic",), 3),))


def _reproduce(tiny: Experiment, folder: Path, commands: Commands, seeds: int = 2) -> ResultRow:
    return Reproduction(tiny, folder, commands, lambda line: None, Countdown).row(range(seeds))


def test_what_was_stopped_goes_on_and_comes_out_the_same(tiny: Experiment, tmp_path: Path) -> None:
    commands = Commands()
    whole = _reproduce(tiny, tmp_path / "whole", commands)
    assert [line[3] for line in commands.lines] == ["0", "1"]

    commands.stop = True
    with pytest.raises(SystemExit) as stopped:
        _reproduce(tiny, tmp_path / "again", commands)
    assert stopped.value.code == 130
    commands.stop = False
    again = _reproduce(tiny, tmp_path / "again", commands)
    assert "--resume" in commands.lines[3]
    assert again.scores == whole.scores
    assert whole.differences(again) == []

    done = len(commands.lines)
    assert _reproduce(tiny, tmp_path / "again", commands) == again
    # Killed between the end of a training and the note of it, it goes on with scoring.
    (tmp_path / "again" / "seed-1.json").unlink()
    assert _reproduce(tiny, tmp_path / "again", commands).scores == whole.scores
    assert len(commands.lines) == done


def test_the_better_policy_is_shipped_with_its_row(tiny: Experiment, tmp_path: Path) -> None:
    reproduction = Reproduction(tiny, tmp_path / "runs", main, lambda line: None, Countdown)
    row = reproduction.row(range(2))
    assert row.steps == 256
    assert all(minutes > 0 for minutes in row.cpu_minutes)
    assert set(row.peers["random"]) == {"cubic"}
    package = tmp_path / "package"
    package.mkdir()
    reproduction.ship(row, package)
    trained = (tmp_path / f"runs/seed-{k}/policy.safetensors" for k in range(2))
    rewards = [load_policy(path).notes["held_out_reward"] for path in trained]
    (policy,) = package.glob("*.safetensors")
    assert load_policy(policy).notes["held_out_reward"] == max(rewards)


def test_what_never_happened_is_kept(tmp_path: Path) -> None:
    path, scores = (
        tmp_path / "seed-0.json",
        {"dynamic": {"recovery_rtts": math.inf, "power": 1 / 3}},
    )
    SeedRun(0, [], scores=scores).save(path)
    assert read_result(path, SeedRun, "result of a run", "remove it").scores == scores


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_every_experiment_ends_by_its_steps(experiment: Experiment) -> None:
    command, *words = experiment.train.split()
    assert {b.suite for b in experiment.benchmarks} <= set(SUITES)
    if command == "train":
        parser, _ = find("train")
        config = run_config(parser.parse_args(words))
        assert config.max_seconds == 0.0, "how far that is depends on the machine"
        spec = EnvSource(config, Share(0, config.env.unit)).spec
        HeldOut(config, spec)  # refuses links that it has no room for
