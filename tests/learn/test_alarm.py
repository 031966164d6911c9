"""The alarm rings once for each collapse."""

import math

from distrlcc.learn.collapse import CollapseAlarm
from distrlcc.learn.collect import CollectStats

FINE = CollectStats(steps=100, entropy=80, episodes=10, silent_episodes=1)
CERTAIN = CollectStats(steps=100, entropy=0.5, episodes=10)
SILENT = CollectStats(steps=100, entropy=80, episodes=10, silent_episodes=3)


def test_rings_once_and_again_after_it_passed() -> None:
    alarm = CollapseAlarm(entropy_bound=0.02, silent_share_bound=0.2)
    assert alarm.check(FINE) is None
    first = alarm.check(CERTAIN)
    assert first is not None
    assert "entropy fell to 0.005 nats" in first
    assert alarm.check(CERTAIN) is None
    assert alarm.check(FINE) is None
    assert alarm.check(CERTAIN) is not None


def test_silence() -> None:
    alarm = CollapseAlarm()
    message = alarm.check(SILENT)
    assert message is not None
    assert "30% of episodes kept the window at its minimum" in message
    # A collection in which no episode ended says nothing about silence.
    assert alarm.check(CollectStats(steps=100, entropy=80)) is None
    assert alarm.check(SILENT) is None


def test_both_at_once_and_off() -> None:
    both = CollectStats(steps=100, entropy=0, episodes=1, silent_episodes=1)
    message = CollapseAlarm().check(both)
    assert message is not None
    assert "explores" in message
    assert "silent" in message
    assert CollapseAlarm(entropy_bound=-math.inf).check(CERTAIN) is None
    assert CollapseAlarm().check(CollectStats()) is None
    diverged = CollectStats(steps=100, entropy=math.nan)
    assert CollapseAlarm(entropy_bound=-math.inf).check(diverged) is not None


def test_resume_does_not_ring_again() -> None:
    alarm, again = CollapseAlarm(), CollapseAlarm()
    alarm.check(SILENT)
    again.load_state_dict(alarm.state_dict())
    assert again.check(SILENT) is None
    assert again.check(CERTAIN) is not None
