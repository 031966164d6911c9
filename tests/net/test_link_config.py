from distrlcc.config import from_toml
from distrlcc.net.link_config import LinkChange, downlink, uplink
from distrlcc.sim.queues import QueueSpec
from distrlcc.sim.scenario import Scenario

TOML = """
name = "tunnel"
duration_s = 5.0
[link]
rate_mbps = 12.032
delay_ms = 20.0
queue_packets = 7
changes = [
  {at_s = 1.5, rate_mbps = 0.0},
  {at_s = 2.0, rate_mbps = 6.016, delay_ms = 5.0, loss = 0.5},
]
[[flows]]
"""


def test_a_scenarios_link_has_its_packets_per_second_and_its_changes() -> None:
    link = from_toml(Scenario, TOML).link
    up = uplink(link)
    assert (up.times, up.delay_ms, up.queue) == ((1,), 20.0, QueueSpec("droptail", 7))
    assert up.changes == (LinkChange(1500, ()), LinkChange(2000, (2,), 5.0, 0.5))
    down = downlink(link)
    assert (down.times, down.delay_ms) == (None, 20.0)
    assert down.changes == (LinkChange(2000, delay_ms=5.0),)
