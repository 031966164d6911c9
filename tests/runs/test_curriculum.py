"""The curriculum: gaps that are truly there, searches that repeat, runs that go on alike."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.config import from_toml, override, to_toml
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from distrlcc.actors.start import start_actors
from distrlcc.runs.checkpoint import checksum, load_checkpoint
from distrlcc.runs.curriculum import Curriculum
from distrlcc.runs.curriculum_config import CurriculumConfig
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from distrlcc.runs.reward_gap import baseline_rewards, policy_rewards
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.trainer import Trainer
from distrlcc.sim.link_family import LinkRanges
from distrlcc.sim.suites import load_suite

TINY = CurriculumConfig(baselines=("cubic",), every=2, trials=12, links=2, seconds=0.5)
SMALL = (
    "num_envs=5", "checkpoint_every=3", "held_out.every=100", "held_out.links=2",
    "held_out.seconds=0.2", "env.episode_s=0.5", "network.hidden=[8]", "ppo.rollout_length=16",
    "ppo.minibatch_size=64", "distributed.straggler_share=0", "distributed.sync_check_every=1",
)  # fmt: skip
UPDATE = 5 * 16


def _config(**changes: Any) -> RunConfig:
    config = override(recipe("quickstart"), list(SMALL))
    return replace(config, curriculum=TINY, **changes)


def _curriculum(seed: int = 0, config: CurriculumConfig = TINY) -> Curriculum:
    return Curriculum(config, EnvConfig(), seed)


def _policy() -> Any:
    return Trainer(_config()).policy()


def test_rewards_are_those_of_the_environment() -> None:
    config = EnvConfig(suites=("random/test/3",), episode_s=1.0, stagger=False)
    scenario = replace(load_suite("random").scenario("test", 3), duration_s=1.0)
    env = LinkVectorEnv(1, config, split="test", seed=0, expert="cubic", autoreset=False)
    _, info = env.reset()
    rewards, done = [], False
    while not done:
        _, reward, _, truncated, info = env.step(info["expert_action"])
        rewards.append(reward[0])
        done = bool(truncated[0])
    assert baseline_rewards("cubic", config, [scenario])[0] == pytest.approx(np.mean(rewards))


def test_the_oracle_earns_most_and_a_link_earns_alike_in_any_company() -> None:
    drawn = load_suite("random").scenarios("test", 6)
    scenarios = [replace(scenario, duration_s=2.0) for scenario in drawn]
    config, policy = EnvConfig(), _policy()
    oracle, cubic = (baseline_rewards(name, config, scenarios) for name in ("oracle", "cubic"))
    assert (oracle > cubic).all()
    alone = baseline_rewards("cubic", config, scenarios[4:5])
    assert alone[0] == cubic[4]
    greedy = replace(policy, acting="argmax")
    own = policy_rewards(greedy, config, scenarios, 0)
    assert policy_rewards(greedy, config, scenarios[2:3], 9)[0] == pytest.approx(own[2])
    assert (own < oracle).all()


def test_a_search_finds_the_greatest_gap_it_measured_and_repeats() -> None:
    policy = _policy()
    ranges = replace(LinkRanges(), rate_mbps=(5.0, 20.0), rtt_ms=(20.0, 40.0))
    config = replace(TINY, ranges=ranges)
    one, two, other = _curriculum(7, config), _curriculum(7, config), _curriculum(8, config)
    found = one.search(policy, 10)
    assert two.search(policy, 10) == found
    assert other.search(policy, 10).family != found.family
    assert one.search(policy, 20).family != found.family
    assert 5.0 <= found.family.highest_mbps <= 20.0
    assert 20.0 <= found.family.rtt_ms <= 40.0
    # The gap is what it says: measured again on the same links.
    links = [found.family.scenario("", k, 10, TINY.seconds) for k in range(TINY.links)]
    theirs = baseline_rewards("cubic", EnvConfig(), links)
    assert found.baseline == pytest.approx(theirs.mean())
    random = [_curriculum(7, replace(config, trials=k)).search(policy, 10) for k in (1, 10)]
    gaps = [proposal.gap for proposal in (*random, found)]
    assert gaps == sorted(gaps)


def test_shares_are_genets() -> None:
    curriculum = _curriculum(config=replace(TINY, trials=1))
    assert curriculum.shares([]) == []
    for update in (2, 4, 6):
        curriculum.search(_policy(), update)
    shares = curriculum.shares(curriculum.proposals)
    assert shares == pytest.approx([0.3 * 0.49, 0.3 * 0.7, 0.3])
    config = EnvConfig(suites=("random", "cellular"), suite_weights=(3.0, 1.0))
    env = LinkVectorEnv(2000, config, seed=1, with_labels=False)
    before = [s.name for s in env._scenarios(np.arange(2000), np.zeros(2000, np.int64))]
    curriculum.mix_into(env, 2)  # a proposal counts after the update that follows it
    assert [s.name for s in env._scenarios(np.arange(2000), np.zeros(2000, np.int64))] == before
    curriculum.mix_into(env, 7)
    drawn = env._scenarios(np.arange(2000), np.zeros(2000, np.int64))
    counts = Counter(scenario.name.split("/")[0] for scenario in drawn)
    base = 2000 * 0.7**3
    expected = {"random": 0.75 * base, "cellular": 0.25 * base, "curriculum-2": 2000 * shares[0],
                "curriculum-4": 2000 * shares[1], "curriculum-6": 2000 * shares[2]}  # fmt: skip
    assert counts == pytest.approx(expected, rel=0.15)
    again = LinkVectorEnv(10, config, seed=1, first_index=100, with_labels=False)
    curriculum.mix_into(again, 7)
    assert again._scenarios(np.arange(10), np.zeros(10, np.int64)) == drawn[100:110]


def _train(*words: object) -> int:
    return main(["train", "--no-tensorboard", *map(str, words)])


def _rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def _recipe(tmp_path: Path, updates: int) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(_config(total_steps=updates * UPDATE)))
    return path


def _bits(out: Path) -> dict[str, Any]:
    state = load_checkpoint(out / "checkpoints" / "latest.safetensors")
    state["counters"]["seconds"] = 0.0
    return state


def test_a_resumed_run_is_bit_identical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert _train(_recipe(tmp_path, 7), "--out", whole) == 0
    assert "curriculum: gap" in capsys.readouterr().err
    # Stopped after update 4, whose search no rollout has seen yet.
    assert _train(_recipe(tmp_path, 4), "--out", cut) == 0
    assert _train("--resume", "--out", cut, "--set", f"total_steps={7 * UPDATE}") == 0
    assert checksum(_bits(cut)) == checksum(_bits(whole))
    for name in ("reward", "curriculum_gap", "events"):
        assert [r.get(name) for r in _rows(cut)] == [r.get(name) for r in _rows(whole)]
    assert [row["update"] for row in _rows(whole) if "curriculum_gap" in row] == [2, 4, 6]
    assert _rows(whole)[1]["events"][0].startswith("curriculum: gap")
    table = json.loads((whole / "curriculum.json").read_text())
    assert [entry["update"] for entry in table] == [2, 4, 6]
    assert table[-1]["gap"] == _rows(whole)[5]["curriculum_gap"]


@pytest.mark.slow
def test_two_processes_draw_from_the_same_curriculum(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert _train(_recipe(tmp_path, 6), "--out", alone) == 0
    # Not from here: the fork server that it starts would have this process's standard error.
    words = ("train", _recipe(tmp_path, 6), "--out", both, "--processes", 2)
    subprocess.run([sys.executable, "-m", "distrlcc", *map(str, words)], check=True, timeout=120)
    one, two = _rows(alone), _rows(both)
    # The first search is of weights that are equal but for rounding, and finds the same.
    assert one[1]["events"] == two[1]["events"]
    # Update 4 is the first whose rollout may draw from it: the same links on both ranks as alone.
    for a, b in zip(one[:4], two[:4], strict=True):
        assert a["reward"] == pytest.approx(b["reward"], rel=1e-3)
    assert len(_bits(both)["curriculum"]["proposals"]) == 3


def test_what_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown baseline 'bbrr': did you mean bbr"):
        CurriculumConfig(baselines=("bbrr",))
    for name, value in (("every", 0), ("trials", 0), ("share", 1.0), ("seconds", 0.0)):
        with pytest.raises(ConfigError, match=f"{name} is {value}; expected"):
            CurriculumConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"curriculum needs env\.world=simulated"):
        override(_config(), ["env.world=emulated"])
    with pytest.raises(ConfigError, match="does not go with actor-learner training"):
        start_actors(_config(), RunOptions(None), GroupOptions(), Node())
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'distrlcc\[curriculum\]'"):
        _curriculum()


def test_the_section_is_set_in_a_file_or_on_the_command_line() -> None:
    config = override(recipe("quickstart"), ["curriculum={trials=3}", "curriculum.every=9"])
    assert config.curriculum == CurriculumConfig(trials=3, every=9)
    text = to_toml(recipe("quickstart")) + "\n[curriculum.ranges]\nrate_mbps = [1, 20]\n"
    assert from_toml(RunConfig, text).curriculum == CurriculumConfig(
        ranges=LinkRanges(rate_mbps=(1.0, 20.0))
    )
    assert override(recipe("genet"), ["curriculum=none"]).curriculum is None
