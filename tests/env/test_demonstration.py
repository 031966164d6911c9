"""Links that a scheme drives: the scheme is not disturbed, and the labels follow it."""

import numpy as np
import pytest

from distrlcc.env.batch import DemonstrationBatch, LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.sim import layout as col
from distrlcc.sim.suites import load_suite, with_scheme
from tests.env.steps import check_same

N = 16


def _beside(scheme: str, plain_scheme: str = "agent") -> tuple[DemonstrationBatch, LinkBatch]:
    """Return links that a scheme drives, and the same links with an agent or another scheme."""
    config = EnvConfig()
    shown, plain = DemonstrationBatch(N, config, scheme=scheme), LinkBatch(N, config)
    for n, scenario in enumerate(load_suite("random").scenarios("test", N)):
        shown.load(n, scenario)
        plain.load(n, with_scheme(scenario, plain_scheme))
    return shown, plain


@pytest.mark.parametrize("scheme", ["cubic", "bbr"])
def test_the_scheme_runs_as_it_does_in_evaluation(scheme: str) -> None:
    shown, plain = _beside(scheme, scheme)
    for _ in range(200):
        shown.step(shown.labels())
        plain.advance()
    columns = [col.SENT, col.DELIVERED, col.DROPPED, col.RANDOM_LOST, col.MIN_RTT]
    one, other = (batch.simulator.flows[:, columns] for batch in (shown, plain))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("scheme", "action", "median", "most"),
    [
        ("cubic", "multiplicative", 0.03, 0.06),
        ("vegas", "multiplicative", 0.03, 0.06),
        ("bbr", "multiplicative", 0.04, 0.20),
        ("cubic", "indigo", 0.04, 0.25),
        ("cubic", "fast-rate", 1e-3, 1e-2),
        ("bbr", "fast-rate", 1e-3, 1e-2),
    ],
)
def test_labels_reproduce_the_scheme(scheme: str, action: str, median: float, most: float) -> None:
    """The labels alone, replayed from the start, stay near the scheme's window or rate."""
    env = LinkVectorEnv(N, EnvConfig(action=action, stagger=False), seed=1, expert=scheme)
    _, info = env.reset()
    actions = env.batch.actions
    window, rate = np.full(N, actions.initial[0]), np.full(N, actions.initial[1])
    errors = []
    for _ in range(400):
        batch = env.batch
        assert isinstance(batch, DemonstrationBatch)
        target, rtt = batch.target(), np.maximum(batch.stats().rtt_last, 1e-6)
        label = info["expert_action"]
        window, rate = actions.apply(label, window, rate)
        held = rate * rtt if "rate" in action else window
        errors.append(np.abs(np.log(held / np.maximum(target, 2.0))))
        env.step(label)
        info = {"expert_action": batch.labels()}
    settled = np.array(errors)[100:]
    assert np.median(settled) < median
    assert np.percentile(settled, 90) < most


def test_observations_are_those_of_an_agent_with_the_same_window() -> None:
    """A scheme that holds still looks exactly like an agent that keeps its first window."""
    shown, agent = _beside("fixed")
    keep = np.full(N, 2)
    for _ in range(100):
        label = shown.labels()
        np.testing.assert_array_equal(label, keep)
        check_same([shown.step(label)], [agent.step(keep)])


def test_link_names_are_those_of_the_episodes() -> None:
    env = LinkVectorEnv(8, EnvConfig(episode_s=0.1, stagger=False), seed=5)
    _, info = env.reset()
    first = env.link_names()
    assert all(name.startswith("random/train/") for name in first)
    for _ in range(10):
        _, _, _, truncated, info = env.step(info["expert_action"])
    assert truncated.all()
    second = env.link_names()
    assert not set(first) & set(second)
    env.reset(seed=5)
    assert env.link_names() == first
