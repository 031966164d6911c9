"""Families of links: what they share, what differs, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrlcc.config import from_toml, to_toml
from distrlcc.errors import ConfigError
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.link_family import NAMES, LinkFamily, LinkRanges
from distrlcc.sim.scenario import Scenario

FAMILY = LinkFamily(
    lowest_mbps=2.0, highest_mbps=8.0, rtt_ms=50.0, queue_bdp=1.5, loss=0.01, change_s=1.5
)


def test_links_of_a_family_differ_in_their_rates_alone() -> None:
    links = [FAMILY.scenario("x", index, seed=3, seconds=10.0).link for index in range(50)]
    assert {(e.delay_ms, e.loss) for e in links} == {(25.0, 0.01)}
    assert {e.queue_packets for e in links} == {round(1.5 * bdp_packets(8.0, 50.0))}
    assert [c.at_s for c in links[0].changes] == [1.5, 3.0, 4.5, 6.0, 7.5, 9.0]
    rates = [r for e in links for r in (e.rate_mbps, *(c.rate_mbps for c in e.changes)) if r]
    assert len(set(rates)) == 50 * 7
    assert 2.0 <= min(rates) < 2.2
    assert 7.2 < max(rates) <= 8.0
    # Log-uniform: as many below the geometric mean as above it.
    assert sum(rate < 4.0 for rate in rates) == pytest.approx(175, abs=30)


def test_index_and_seed_name_a_link() -> None:
    first, same, *others = (
        FAMILY.scenario("x", index, seed=seed, seconds=10.0)
        for index, seed in ((7, 3), (7, 3), (7, 4), (8, 3))
    )
    assert same == first
    assert all(other.link != first.link for other in others)


@given(st.tuples(*[st.floats(0.0, 1.0) for _ in NAMES]))
def test_every_place_is_a_family_within_the_ranges(place: tuple[float, ...]) -> None:
    ranges = LinkRanges()
    family = ranges.at(dict(zip(NAMES, place, strict=True)))
    near = 1 + 1e-9
    assert 0.1 / near <= family.lowest_mbps <= family.highest_mbps <= 100.0 * near
    assert 4.0 <= family.rtt_ms <= 400.0
    assert family.loss == 0.0 or 1e-4 <= family.loss <= 0.05
    scenario = family.scenario("x", 0, seed=0, seconds=10.0)
    assert from_toml(Scenario, to_toml(scenario)) == scenario


def test_the_corners_of_the_ranges() -> None:
    least, greatest = (LinkRanges().at(dict.fromkeys(NAMES, u)) for u in (0.0, 1.0))
    assert least == LinkFamily(0.1, 0.1, 4.0, 0.2, 0.0, 1.0)
    assert greatest.highest_mbps == pytest.approx(100.0)
    assert greatest.lowest_mbps == pytest.approx(100.0)
    assert (greatest.rtt_ms, greatest.queue_bdp) == (400.0, 3.0)
    assert (greatest.loss, greatest.change_s) == (pytest.approx(0.05), 30.0)
    # Longer than the episode: the rate stays.
    assert greatest.scenario("x", 0, seed=0, seconds=10.0).link.changes == ()


BAD = [("rate_mbps", 0.0, 1.0), ("rtt_ms", 20.0, 10.0), ("loss", 0.0, 1.0), ("change_s", 0.0, 1.0)]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [*BAD, ("lowest_share", 0.5, 1.5), ("queue_bdp", 1.0, float("nan"))],
)
def test_ranges_that_do_not_fit_are_refused(name: str, low: float, high: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*; expected two numbers in order"):
        LinkRanges(**{name: (low, high)})
