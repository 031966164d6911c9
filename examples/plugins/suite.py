"""A link generator: Wi-Fi in a house, the nearer the faster; every second one beside CUBIC.

distrlcc evaluate --suite examples/plugins/suite.py:house
"""

from distrlcc.sim.families import between, draws
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.suites import Suite


def build(split, index):
    distance, wait, rival = draws("house", split, index, 3)  # from 0 to 1, named by what they are
    link = Link(
        rate_mbps=round(between(distance, 100.0, 4.0), 3),
        delay_ms=round(between(wait, 5.0, 40.0), 3),
        queue_packets=200,
        loss=0.002 * distance,
    )
    flows = (Flow(), Flow("cubic", start_s=2.0)) if rival < 0.5 else (Flow(),)
    return Scenario(f"house/{split}/{index}", link, flows, seed=index)


house = Suite(build, held_out=64, most_flows=2)
