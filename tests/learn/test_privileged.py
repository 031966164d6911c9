"""The critic that knows the link."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from numpy.typing import NDArray

from distrlcc.errors import ConfigError
from distrlcc.learn.collect import Collector
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout
from distrlcc.types import TRUTH
from tests.learn.toys import ToyEnv, collected, make_spec
from tests.trees import same

CONFIG = PPOConfig(gamma=0.5, lr=3e-3, minibatch_size=256, sequence_length=1)
COUNT, LENGTH = 64, 32


class LuckyEnv(ToyEnv):
    """``match``, in which half of the environments pay 3 more: only the truth says which."""

    def step(self, actions: NDArray[Any]) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, rewards + 3.0 * self.luck, *rest


def _trained(config: PPOConfig, updates: int) -> tuple[PPO, Rollout, list[dict[str, float]]]:
    spec = make_spec("match")
    learner, collector = PPO(config, spec, 0), Collector(LuckyEnv(COUNT, "match"), spec, 0)
    rollout = Rollout.allocate(spec, LENGTH, COUNT, truth=len(TRUTH))
    metrics = []
    for _ in range(updates):
        collected(learner, collector, rollout)
        metrics.append(learner.update(rollout))
    return learner, rollout, metrics


@pytest.mark.slow
def test_it_explains_what_the_policys_own_cannot_and_the_policy_stays_as_it_is() -> None:
    plain, _, without = _trained(CONFIG, 25)
    learner, rollout, found = _trained(replace(CONFIG, privileged_critic=True), 25)
    assert without[-1]["explained_variance"] < 0.2
    assert found[-1]["explained_variance"] > 0.95
    shapes = [{k: v.shape for k, v in each.weights().arrays.items()} for each in (plain, learner)]
    assert shapes[0] == shapes[1]
    # What it learned is in the state, and is the same on all ranks.
    again = PPO(learner.config, learner.spec, 0)
    again.load_state_dict(learner.state_dict())
    assert learner.update(rollout.copy()) == again.update(rollout.copy())
    same(learner.state_dict(), again.state_dict())


def test_at_first_it_adds_nothing() -> None:
    first = [_trained(replace(CONFIG, privileged_critic=on), 1)[2][0] for on in (False, True)]
    assert first[0]["explained_variance"] == first[1]["explained_variance"]


def test_without_a_critic_it_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="privileged_critic is True: expected False, as it needs a critic"
    ):
        PPOConfig(use_critic=False, use_gae=False, privileged_critic=True)
