"""The links of the suite `genet`: within the paper's ranges, over all of them, each of its own."""

from __future__ import annotations

import numpy as np

from distrlcc.config import from_toml, to_toml
from distrlcc.sim.families import bdp_packets, genet_link
from distrlcc.sim.scenario import Scenario


def test_links_fill_the_ranges() -> None:
    scenarios = [genet_link("train", index) for index in range(400)]
    assert from_toml(Scenario, to_toml(scenarios[7])) == scenarios[7]
    links = [scenario.link for scenario in scenarios]
    rates = [[e.rate_mbps, *(c.rate_mbps for c in e.changes)] for e in links]
    flat = np.array([rate for of_link in rates for rate in of_link], float)
    assert 0.1 <= flat.min() < 0.2
    assert 60.0 < flat.max() <= 100.0
    rtts = np.array([2 * e.delay_ms for e in links])
    assert 4.0 <= rtts.min() < 8.0
    assert 390.0 < rtts.max() <= 400.0
    losses = np.array([e.loss for e in links])
    assert ((losses == 0.0) | ((losses >= 1e-4) & (losses <= 0.05))).all()
    assert 0.1 < (losses == 0.0).mean() < 0.5  # log-uniform from 1e-5, and none below 1e-4
    gaps = [e.changes[0].at_s for e in links if e.changes]
    assert 1.0 <= min(gaps) < 1.5
    assert 25.0 < max(gaps) < 30.0
    for link, of_link in zip(links, rates, strict=True):
        bdp = bdp_packets(100.0, 2 * link.delay_ms)
        assert 2 <= link.queue_packets <= max(2, 3.0 * bdp + 1)
        assert len(set(of_link)) == len(of_link)


def test_split_and_index_name_a_link() -> None:
    assert genet_link("test", 3) == genet_link("test", 3)
    assert genet_link("train", 3).link != genet_link("test", 3).link
    assert genet_link("test", 3).link != genet_link("test", 4).link
