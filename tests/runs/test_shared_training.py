"""Training with several agents on a link: resumes, shares of processes, scores, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.actors.start import actor_state
from distrlcc.cli import main as cli
from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.parallel.start import TrainJob
from distrlcc.recipes.registry import recipe
from distrlcc.runs.metrics_log import read_metrics
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import env_run, rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.train import iterate
from tests.trees import same

SMALL = """num_envs=16 ppo.rollout_length=24 ppo.minibatch_size=64
    network.hidden=[8] env.episode_s=0.5 held_out.links=3 held_out.seconds=0.6"""

AGENTS = [
    "env.agents=4",
    "env.suites=['shared', 'shared-rtt', 'beside-cubic', 'random']",
    "env.suite_weights=[0.4, 0.1, 0.2, 0.3]",
    "env.reward.fairness_weight=0.55",
]


def _config(*changes: str) -> RunConfig:
    return override(recipe("quickstart"), [*AGENTS, *SMALL.split(), *changes])


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_resume_is_bit_identical(network: str) -> None:
    config = _config(f"network.kind={network}")
    whole, half, resumed = (env_run(config) for _ in range(3))
    metrics: list[Any] = [iterate(whole)[0] for _ in range(4)]
    for _ in range(2):
        iterate(half)
    resumed.load_state_dict(half.state_dict())
    again = [iterate(resumed)[0] for _ in range(2)]
    for first, second in zip(metrics[2:], again, strict=True):
        same(first, second, {key for key in first if "second" in key or "share_" in key})
    same(whole.learner.state_dict(), resumed.learner.state_dict())
    assert 0 < whole.counters.steps < 4 * 16 * 24


def test_nothing_is_learned_while_no_agent_has_begun(tmp_path: Path) -> None:
    suite = tmp_path / f"{'late' * 20}.toml"
    agent = "{scheme = 'agent', start_s = 0.3}"
    link = "name = 'late'\nduration_s = 0.5\nlink = {rate_mbps = 9.0}\n"
    suite.write_text(f"{link}flows = [{agent}, {agent}]\n")
    late = ["env.agents=2", "env.stagger=false", f"env.suites=['{suite}']", "env.suite_weights=[]"]
    for processes in (1, 2):
        out = tmp_path / str(processes)
        settings = [*SMALL.split(), *late, "total_steps=600", "distributed.straggler_share=0"]
        command = ["train", "quickstart", "--processes", str(processes), "--out", str(out)]
        assert cli.main([*command, "--no-tensorboard", "--set", *settings]) == 0
        rows = [row for row in read_metrics(out / "metrics.jsonl") if "steps" in row]
        assert rows[-1]["steps"] >= 600
        assert [("entropy" in row) for row in rows] == [row["steps_per_second"] > 0 for row in rows]
        assert "entropy" not in rows[0]


def test_processes_share_whole_links() -> None:
    config = override(recipe("quickstart"), AGENTS)
    shares = [Share.of(replace(config, num_envs=40), slot, 3) for slot in range(4)]
    assert [(s.first, s.count) for s in shares] == [(0, 12), (12, 12), (24, 16), (40, 12)]
    with pytest.raises(ConfigError, match="at least 4, one link's agents, for each of 3"):
        Share.of(replace(config, num_envs=8), 0, 3)
    # One link is enough to see that a configuration fits.
    rehearse(config)
    rehearse(config, Share.of(config, 0, 2).first)


def test_held_out_scores_are_of_links() -> None:
    trainer = env_run(_config("env.suites=['shared']", "env.suite_weights=[]"))
    scores = trainer.held_out.by_link(trainer.learner.weights(), "sample")
    assert scores.shape == (4, 3)
    assert np.isfinite(scores).all()
    assert (scores[1] > 0).all()
    assert (scores[1] <= 1.01).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("num_envs=18",), "num_envs is 18; expected a multiple of 4"),
        (("env.agents=2", "num_envs=18"), r"has [34] agents; expected 2 agents first"),
        (("env.reward.fairness_weight=-1",), "fairness_weight is -1"),
        (("env.agents=1",), "fairness_weight is 0.55: expected 0, as an agent alone has no share"),
        (("env.reward.window_weight=nan",), "window_weight is nan"),
    ],
)
def test_what_does_not_fit_is_refused(changes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        env_run(_config(*changes))


def test_gail_takes_one_agent_and_workers_whole_links(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GAIL's demonstrations are of one agent"):
        override(recipe("gail"), ["env.agents=4"])
    with pytest.raises(ConfigError, match="envs_per_worker is 6; expected a multiple"):
        actor_state(TrainJob(_config("actors.envs_per_worker=6"), tmp_path))
