"""The alarm rings once a collapse; the answer is the last good state and more entropy."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from distrlcc.learn.collapse import CollapseAlarm, Restorer
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.config import AlarmConfig, PPOConfig
from distrlcc.learn.ppo import PPO, ExtraEntropy
from tests.learn.toys import collected, setup

FINE = CollectStats(steps=100, entropy=80)
CERTAIN = CollectStats(steps=100, entropy=0.1)
BROKEN = CollectStats(steps=100, entropy=float("nan"))
CONFIG = AlarmConfig(patience=2, keep_every=3, most_restores=2)
SILENT = CollectStats(steps=100, entropy=80, episodes=10, silent_episodes=3)


def test_rings_once_and_again_after_it_passed() -> None:
    alarm = CollapseAlarm(entropy_bound=0.02, silent_share_bound=0.2)
    said = [alarm.check(stats) for stats in (FINE, CERTAIN, CERTAIN, FINE, CERTAIN)]
    assert [line is not None for line in said] == [False, True, False, False, True]
    assert "entropy fell to 0.001 nats" in str(said[1])
    assert alarm.check(CollectStats()) is None  # no step says nothing of it
    assert alarm.on


def test_silence_alone_both_at_once_and_off() -> None:
    alarm = CollapseAlarm()
    assert "30% of episodes kept the window at its minimum" in str(alarm.check(SILENT))
    # A few episodes say little: they are judged ten or more at a time.
    few = CollectStats(steps=100, entropy=80, episodes=4, silent_episodes=1)
    slow, resumed = CollapseAlarm(), CollapseAlarm()
    said = [slow.check(few) for _ in range(2)]
    resumed.load_state_dict(slow.state_dict())
    assert [*said, resumed.on] == [None, None, False]
    assert "25% of episodes" in str(resumed.check(few))
    one = CollectStats(steps=100, entropy=80, episodes=1, silent_episodes=1)
    assert [bool(resumed.check(one)) or resumed.on for _ in range(25)] == [True] * 25
    # A collection in which no episode ended says nothing about silence.
    assert alarm.check(FINE) is None
    assert alarm.check(SILENT) is None
    again = CollapseAlarm()  # a resume does not ring again
    again.load_state_dict(alarm.state_dict())
    assert again.check(SILENT) is None
    assert again.check(CERTAIN) is not None
    both = CollectStats(steps=100, entropy=0, episodes=10, silent_episodes=10)
    message = str(CollapseAlarm().check(both))
    assert "explores" in message
    assert "silent" in message
    off = CollapseAlarm(entropy_bound=-np.inf)
    assert off.check(CERTAIN) is CollapseAlarm().check(CollectStats()) is None
    assert off.check(BROKEN) is not None


class _Run:
    """A run whose learner's state is the update at which it was asked for it."""

    def __init__(self, config: AlarmConfig = CONFIG) -> None:
        self.update, self.restored, self.lines = 0, list[int](), list[tuple[int, str]]()
        self.alarm, self.recovery = CollapseAlarm(), Restorer(config, self)  # type: ignore[arg-type]

    def shared_state(self) -> dict[str, Any]:
        return {"update": self.update}

    def recover(self, good: dict[str, Any], alarm: AlarmConfig) -> None:
        self.restored.append(good["update"])

    def see(self, *stats: CollectStats) -> None:
        for each in stats:
            self.update += 1
            self.alarm.check(each)
            line = self.recovery.watch(self.alarm, self.update)
            if line:
                self.alarm.reset()
                self.lines.append((self.update, line))


def test_the_copy_before_the_newest_comes_back_then_it_rests_and_at_last_only_warns() -> None:
    run = _Run()
    run.see(*[FINE] * 7, CERTAIN)  # copies at 3 and 6
    again = _Run()  # a resumed one does the same
    again.update = run.update
    again.alarm.load_state_dict(run.alarm.state_dict())
    again.recovery.load_state_dict(run.recovery.state_dict())
    for each in (run, again):
        restored = []
        for _ in range(5):
            each.see(CERTAIN)
            restored.append(list(each.restored))
        assert restored == [[3], [3], [3], [3, 3], [3, 3]]  # it rests until 12
    assert run.lines == again.lines
    (update, line), (_, last) = run.lines
    assert update == 9
    assert "restore 1 of 2" in line
    assert "\n" not in line
    assert "from now on the alarm only warns" in last
    run.see(*[CERTAIN] * 30)
    assert len(run.restored) == 2


def test_silence_is_not_counted_where_no_episode_ended() -> None:
    silent = CollectStats(steps=100, entropy=80, episodes=10, silent_episodes=10)
    run = _Run()
    run.see(silent, FINE, FINE, FINE)
    assert run.restored == []
    assert run.alarm.on  # nothing has shown that it passed
    run.see(silent)
    assert run.restored == [0]


def test_one_bad_update_is_forgiven_and_nothing_bad_is_kept() -> None:
    run = _Run()
    run.see(FINE, FINE, CERTAIN, FINE, CERTAIN, FINE, FINE, FINE, CERTAIN, CERTAIN)
    assert run.restored == [0]  # at 3 and 9 the alarm was on, at 6 there was a copy
    run = _Run(AlarmConfig(patience=5))
    run.see(FINE, BROKEN)
    assert run.restored == [0]
    run.see(FINE, BROKEN)  # numbers that are none wait for no rest
    assert run.restored == [0, 0]


def test_extra_entropy_falls_to_nothing() -> None:
    config = AlarmConfig(entropy_factor=5.0, entropy_floor=0.01, decay_updates=4)
    extra = ExtraEntropy.after(config, 0.02, 10)
    assert [extra.at(v) for v in range(10, 16)] == pytest.approx([0.08, 0.06, 0.04, 0.02, 0, 0])
    assert ExtraEntropy.after(config, 0.0, 0).at(0) == pytest.approx(0.05)
    assert ExtraEntropy.after(dataclasses.replace(config, entropy_factor=1.0), 0.02, 0).at(0) == 0
    assert ExtraEntropy().at(0) == 0.0


def test_a_policy_that_collapsed_learns_again_as_it_is_restored() -> None:
    # Two updates at a learning rate of 3 make a policy that does the same everywhere.
    steps = 32 * 16
    ends = (25 * steps, 27 * steps)
    spikes = ((0, 1e-2), (ends[0], 1e-2), (ends[0] + 1, 3.0), (ends[1], 3.0), (ends[1] + 1, 1e-2))
    config = PPOConfig(
        gamma=0.5, lr_schedule=spikes, minibatch_size=512, rollout_length=16, entropy_coeff=0.0
    )
    learner, collector, rollout = setup(PPO, config)
    alarm = CollapseAlarm(silent_share_bound=1.0)
    recovery = Restorer(AlarmConfig(patience=2, keep_every=5), learner)
    rewards = []
    for update in range(1, 51):
        stats = collected(learner, collector, rollout)
        rewards.append(stats.metrics()["reward"])
        version = learner.version
        learner.update(rollout)
        alarm.check(stats)
        if recovery.watch(alarm, update):
            alarm.reset()
        assert learner.version == version + 1  # actors and draws go by it
    assert rewards[24] > 0.6
    assert recovery.restores == 1
    assert np.mean(rewards[-5:]) > 0.7, rewards
