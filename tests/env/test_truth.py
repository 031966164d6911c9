"""What a critic may know of a link."""

import numpy as np
import pytest

from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.sim.suites import scenario_by_id
from distrlcc.types import TRUTH

CONFIG = EnvConfig(suites=("world",), agents=4, rooms=(1, 1, 2, 4), guard=0.05, kernel=0.5)


def test_it_is_of_the_agents_own_links_and_goes_with_the_state() -> None:
    env = LinkVectorEnv(64, CONFIG, seed=3, with_labels=False, with_truth=True)
    env.reset()
    for _ in range(60):
        truth = env.step(np.full(64, 4))[4]["truth"]
    assert truth.shape == (64, len(TRUTH))
    assert np.isfinite(truth).all()
    assert np.abs(truth).max() < 8
    column = dict(zip(TRUTH, truth.T, strict=True))
    for n, name in enumerate(env.link_names()):
        assert isinstance(env.batch, LinkBatch)
        link, row = scenario_by_id(name).link, int(env.batch.first[n])
        assert column["loss"][row] == pytest.approx(20 * min(link.loss, 0.1))
        assert column["aqm"][row] == (link.aqm is not None)
        assert column["policer"][row] == (link.policer_mbps is not None)
        rate = np.exp(2.0 * column["rate"][row] + 7.0)
        assert rate == pytest.approx(env.batch.mean_rate[row], rel=1e-4)
    assert env.batch.disturbance is not None
    np.testing.assert_array_equal(column["kernel"] == 1, env.batch.disturbance.in_kernel)
    again = LinkVectorEnv(64, CONFIG, seed=8, with_labels=False, with_truth=True)
    again.reset()
    again.load_state_dict(env.state_dict())
    following = [each.step(np.full(64, 4))[4]["truth"] for each in (env, again)]
    np.testing.assert_array_equal(*following)
