"""What steers a sender acts as the policy does in the environment."""

from __future__ import annotations

import numpy as np
import pytest

from distrlcc.env.actions import ACTIONS
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.evaluate.contender import Contender, PolicyController, contender_from_policy
from distrlcc.policy.policy_file import PolicyFile
from distrlcc.policy.spec import PolicySpec, expected_shapes
from distrlcc.sim.suites import scenario_by_id, with_scheme


def _random_contender(observation: str, action: str, acting: str) -> Contender:
    batch = LinkBatch(1, EnvConfig(observation=observation, action=action))
    discrete = action != "fast-rate"
    spec = PolicySpec(
        observation=observation,
        observation_size=batch.observation_size,
        action=action,
        action_kind="discrete" if discrete else "continuous",
        action_size=ACTIONS[action].size if discrete else 1,
        kind="lstm",
        hidden=(8,),
    )
    rng = np.random.default_rng(5)
    arrays = {
        name: rng.normal(0.0, 0.5, shape).astype(np.float32)
        for name, shape in expected_shapes(spec).items()
    }
    arrays["normalizer.std"] = np.abs(arrays["normalizer.std"]) + 0.5
    return contender_from_policy("p", PolicyFile(spec, arrays, acting, {}))


@pytest.mark.parametrize("acting", ["argmax", "sample"])
@pytest.mark.parametrize(
    ("observation", "action"),
    [
        ("scale-free", "multiplicative"),
        ("scale-free-recent", "fine"),
        ("indigo-min-rtt", "indigo"),
        ("aurora", "fast-rate"),
    ],
)
def test_windows_are_those_of_the_environment(observation: str, action: str, acting: str) -> None:
    contender = _random_contender(observation, action, acting)
    batch = LinkBatch(1, contender.env_config())
    batch.load(0, with_scheme(scenario_by_id("random/3"), "agent"))
    actor, controller = contender.actor(1, 3), PolicyController(contender, seed=3)
    seen = batch.first_observation(np.array([0]))
    states = set()
    for _ in range(100):
        seen, _ = batch.step(actor.act(seen))
        cwnd, pacing = batch.held()
        assert (controller.cwnd, controller.pacing_rate) == (cwnd[0], pacing[0])
        states.add((controller.cwnd, controller.pacing_rate))
        controller.on_interval(batch.newest, now=0)
    assert acting == "argmax" or len(states) > 10
    assert controller.step_ns(0.1) == 10_000_000
