import numpy as np
import pytest

from distrlcc.data.writer import Episode
from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError
from distrlcc.runs.collect_data import CollectConfig
from distrlcc.runs.collect_data import ExpertRounds

ENV = EnvConfig(suites=("random", "cellular"), episode_s=1.0)


def _rounds(schemes: str) -> list[Episode]:
    config = CollectConfig(schemes, steps=0, episodes=16, num_envs=8, seed=3, env=ENV)
    rounds = ExpertRounds(config)
    return [episode for _ in range(2) for episode in rounds.run()]


def test_each_link_has_the_scheme_with_the_greatest_return() -> None:
    alone = [_rounds("cubic"), _rounds("vegas")]
    best = _rounds("cubic, vegas")
    winners = set()
    for chosen, *asked in zip(best, *alone, strict=True):
        assert len({episode.link for episode in (chosen, *asked)}) == 1
        returns = [episode.scores["return"] for episode in asked]
        winner = int(np.argmax(returns))
        winners.add(winner)
        assert chosen.scores["return"] == max(returns)
        np.testing.assert_array_equal(chosen.observations, asked[winner].observations)
        np.testing.assert_array_equal(chosen.expert_actions, asked[winner].expert_actions)
    assert winners == {0, 1}


def test_a_scheme_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="nope"):
        _rounds("cubic,nope")
