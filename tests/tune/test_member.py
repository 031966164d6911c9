"""A member without Ray: what it trains with, and what it takes from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distrlcc.config import override
from distrlcc.errors import CheckpointError
from distrlcc.policy.policy_file import load_policy
from distrlcc.recipes.registry import recipe
from distrlcc.tune.member import Member
from distrlcc.tune.outcome import POLICY
from distrlcc.tune.report import decode
from distrlcc.tune.tune_config import SearchConfig, TuneConfig

CHANGES = """num_envs=8 ppo.rollout_length=16 ppo.minibatch_size=64 held_out.links=3
    held_out.seconds=0.5 env.suites=["random"] env.suite_weights=[] env.episode_s=2.0
    total_steps=768 max_seconds=0.0"""
CONFIG = override(recipe("quickstart"), CHANGES.split())
SPACE = ("ppo.lr=loguniform:1e-5:1e-2", "ppo.clip_param=uniform:0.1:0.4")
TUNER = TuneConfig(CONFIG, SPACE, report_every=2, search=SearchConfig())
FIRST = {"ppo.lr": 1e-3, "ppo.clip_param": 0.2}
OTHER = {"ppo.lr": 2.5e-4, "ppo.clip_param": 0.3}


def _weights(member: Member) -> np.ndarray:
    arrays = member.trainer.learner.weights().arrays
    return np.concatenate([a.ravel() for a in arrays.values()])


def test_a_copy_trains_with_its_own_values_from_the_others_state(tmp_path: Path) -> None:
    parent = Member(TUNER, FIRST, 0)
    report = parent.advance()
    assert (report.update, report.steps) == (2, 256)
    parent.save(tmp_path, report)
    assert decode((tmp_path / "report.json").read_bytes()) == report
    assert load_policy(tmp_path / POLICY).notes["update"] == 2

    copy = Member(TUNER, OTHER, 3)
    copy.load(tmp_path)
    np.testing.assert_array_equal(_weights(copy), _weights(parent))
    config = copy.trainer.learner.config
    assert (config.lr, config.clip_param) == (2.5e-4, 0.3)
    found = copy.advance()
    assert [(s.update, s.member, s.values) for s in found.schedule] == [
        (0, 0, FIRST),
        (2, 3, OTHER),
    ]

    # The same member goes on as if nothing had happened, bit for bit.
    again = Member(TUNER, FIRST, 0)
    again.load(tmp_path)
    later, expected = again.advance(), parent.advance()
    np.testing.assert_array_equal(_weights(again), _weights(parent))
    assert (later.score, later.schedule) == (expected.score, expected.schedule)
    assert np.any(_weights(copy) != _weights(parent))
    assert not again.done
    assert again.advance().update == 6
    assert again.done


def test_a_member_goes_on_with_the_links_that_it_began_with(tmp_path: Path) -> None:
    links = tmp_path / "links.toml"
    links.write_text('name = "x"\n[link]\nrate_mbps = 12.0\n')
    run = override(CONFIG, [f'env.suites=["{links}"]'])
    tuner = TuneConfig(run, SPACE, report_every=1, search=SearchConfig())
    member = Member(tuner, FIRST, 0)
    member.save(tmp_path, member.advance())
    Member(tuner, OTHER, 1).load(tmp_path)
    links.write_text('name = "x"\n[link]\nrate_mbps = 3.0\n')
    with pytest.raises(CheckpointError, match=f"the links of {links} have changed since"):
        Member(tuner, FIRST, 0).load(tmp_path)
