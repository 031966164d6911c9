"""Policies at the wheel: as in the environment, with preferences, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.contenders import contender
from distrlcc.cli.evaluate import EMULATED_AGAINST, known_to_the_kernel
from distrlcc.cli.main import find, main
from distrlcc.env.batch import LinkBatch
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.evaluation.contender import (
    Contender,
    contender_from_file,
)
from distrlcc.evaluation.fairness import run_shared
from distrlcc.evaluation.recovery import recovery_times
from distrlcc.net.kernel import tcp_flow
from distrlcc.policy.policy_file import Acting, PolicyFile, load_policy, save_policy
from distrlcc.policy.spec import PolicySpec
from distrlcc.recipes.registry import recipe
from distrlcc.runs.source import policy_spec
from distrlcc.sim.scenario import Flow
from distrlcc.sim.suites import scenario_by_id, with_scheme
from tests.evaluation.made import make_policy, policy_contender
from tests.policy.random_policies import random_arrays


def _write(path: Path, recipe_name: str = "preference") -> PolicySpec:
    config = recipe(recipe_name)
    spec = policy_spec(config, LinkVectorEnv(1, config.env))
    arrays = random_arrays(spec, 0.3)
    # The more delay is minded, the more often the window shrinks.
    arrays["trunk.0.weight"][:, -1] *= 20.0
    save_policy(path, PolicyFile(spec, arrays))
    return spec


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preference") / "demo.safetensors"
    _write(path)
    return path


def test_the_file_says_what_it_takes(policy: Path, tmp_path: Path) -> None:
    spec = load_policy(policy).spec
    assert (spec.preference, spec.delay_weights) == (0.5, (0.05, 5.0))
    plain = _write(tmp_path / "plain.safetensors", "quickstart")
    assert (plain.preference, plain.delay_weights) == (None, ())
    assert plain.options == {}
    assert spec.observation_size == plain.observation_size + 1
    weights = {"delay_weights": "0.1 1"}
    bad = [{"preference": "2"} | weights, {"preference": "0.5"}, {"preference": "x"} | weights]
    bad += [weights, {"ewma": "0.125"}, spec.options | {"ewma": "0.125"}]  # of another distrlcc
    for options in bad:
        with pytest.raises(ConfigError, match="options"):
            replace(spec, options=options)


@pytest.mark.parametrize("prefer", [None, 0.0, 0.9])
def test_a_preference_steers_as_in_the_environment(policy: Path, prefer: float | None) -> None:
    contender = contender_from_file(str(policy), prefer)
    assert contender.name == ("demo" if prefer is None else f"demo@{prefer:g}")
    assert contender.preference == (0.5 if prefer is None else prefer)
    _follow(contender)


def test_one_policy_is_several_contenders(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    words = ["--prefer", "0,0.5,1", "--against", "reno", "--links", "2", "--seeds", "1"]
    assert main(["evaluate", str(policy), *words, "--json", str(out)]) == 0
    found = json.loads(out.read_text())["schemes"]
    assert set(found) == {"demo@0", "demo@0.5", "demo@1", "reno"}
    sent = contender_from_file(str(policy), 0.25).words()
    assert sent == (str(policy), "--prefer", "0.25")


def test_a_policy_may_have_a_schemes_name(
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cubic.safetensors").write_bytes(policy.read_bytes())
    words = ["--links", "1", "--seeds", "1", "--json", "x.json"]
    for schemes in (["cubic", "--against", "none"], ["--against", "cubic"]):
        assert main(["evaluate", "./cubic.safetensors", *schemes, *words]) == 0
        found = json.loads(Path("x.json").read_text())["schemes"]
        learned = {name: one["learned"] for name, one in found.items()}
        assert learned == {"cubic'": True, "cubic": False}
    # What is shown as ours, or as no rival, is ours, also where that is not there.
    for name in ("bbr", "oracle"):
        path = Path(f"{name}.safetensors")
        path.write_bytes(policy.read_bytes())
        assert contender(find("map")[0].parse_args([f"./{path}"])).name == f"{name}'"
        assert main(["compare", f"./{path}", "cubic", "--links", "1"]) == 0
        assert f"{name}' less cubic" in capsys.readouterr().out


def test_what_does_not_fit_is_refused_in_a_line(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.safetensors"
    _write(plain, "quickstart")
    out = str(tmp_path / "r")
    for words, says in (
        (["evaluate", str(plain), "--prefer", "0.5"], "trained with preferences"),
        (["evaluate", str(policy), "--prefer", "0,1.5"], "from 0 to 1"),
        (["evaluate", str(policy), "--prefer", "much"], "from 0 to 1"),
        (["evaluate", str(policy), "--prefer", "nan"], "from 0 to 1"),
        (["evaluate", "--against", "reno", "--prefer", "1"], "there is none"),
        (["send", "127.0.0.1", str(plain), "--prefer", "1"], "trained with"),
        (["send", "127.0.0.1", "reno", "--prefer", "1"], "is a scheme"),
        (["send", "127.0.0.1", str(policy), "--prefer", "2"], "from 0 to 1"),
        (["train", "quickstart", "--start-from", str(policy), "--out", out], "observation_size"),
    ):
        assert main(words) == 2, words
        line = capsys.readouterr().err
        assert says in line
        assert line.count("\n") == 1


def test_shared_links_and_changes_are_measured_at_the_preference(policy: Path) -> None:
    ends = [contender_from_file(str(policy), prefer) for prefer in (0.0, 1.0)]
    flows = (Flow(), Flow(start_s=1.0))
    shared = [replace(scenario_by_id("shared-2/0"), flows=flows, duration_s=3.0)]
    low, high = (run_shared(one, shared, 0)[0].acked.sum() for one in ends)
    assert low != high
    # One that was trained recovers at all.
    trained = [contender_from_file("preference", prefer) for prefer in (0.0, 1.0)]
    changing = [scenario_by_id("dynamic/test/1")]
    low, high = (recovery_times(one, changing) for one in trained)
    assert np.isfinite([*low, *high]).any()
    assert not np.array_equal(low, high)


def test_who_joins_is_told_at_once() -> None:
    changes: Any = {"agents": 2, "suites": ("shared-2",), "suite_weights": (), "stagger": False}
    config = replace(recipe("preference").env, **changes)
    env = LinkVectorEnv(2, config, split="test", seed=0, preferences=np.array([0.7]))
    observation, info = env.reset()
    for _ in range(1000):
        before = info["active"]
        observation, _, _, _, info = env.step(np.full(2, 2))
        joined = info["active"] & ~before
        if joined.any():
            break
    assert observation[joined, -1] == pytest.approx(0.7)
    assert not observation[joined, :-1].any()


def _follow(contender: Contender) -> set[tuple[float, float]]:
    """Check that a sender's windows and rates are the environment's; return them."""
    batch = LinkBatch(1, contender.env_config())
    batch.load(0, with_scheme(scenario_by_id("random/3"), "agent"))
    if contender.preference is not None:
        batch.preference[:] = contender.preference
    actor, controller = contender.actor(1, 3), contender.controller(3)
    seen = batch.first_observation(np.array([0]))
    states = set()
    for _ in range(100):
        assert contender.preference is None or seen[0, -1] == np.float32(contender.preference)
        seen, _ = batch.step(actor.act(seen))
        cwnd, pacing = batch.held()
        assert (controller.cwnd, controller.pacing_rate) == (cwnd[0], pacing[0])
        states.add((controller.cwnd, controller.pacing_rate))
        controller.on_interval(batch.newest, now=0)
    assert controller.step_ns(0.1) == 10_000_000
    return states


@pytest.mark.parametrize("acting", ["argmax", "sample"])
@pytest.mark.parametrize(
    ("observation", "action"),
    [
        ("scale-free", "multiplicative"),
        ("scale-free-recent", "fine"),
        ("indigo-min-rtt", "indigo"),
        ("aurora", "fast-rate"),
        ("scale-free-spread", "multiplicative"),
    ],
)
def test_windows_are_those_of_the_environment(
    observation: str, action: str, acting: Acting
) -> None:
    guarded = {"guard": 0.05, "pacing": 2.0} if observation == "scale-free-spread" else {}
    policy = make_policy(acting, "lstm", observation=observation, action=action, **guarded)
    states = _follow(policy_contender(policy))
    assert acting == "argmax" or len(states) > 10


def test_real_packets_are_compared_with_what_the_kernel_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tcp_flow, "kernel_controls", lambda: ["reno", "cubic"])
    assert known_to_the_kernel(EMULATED_AGAINST) == "kernel-cubic,kernel-reno"
    assert "has only reno, cubic" in capsys.readouterr().err
