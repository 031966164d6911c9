import itertools
from ipaddress import IPv4Network

from distrlcc.net.emulator.device import free_blocks, parse_routes, rested

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
lcc000000\t00004064\t00000000\t0001\t0\t0\t0\t00C0FFFF\t0\t0\t0
"""


def test_the_first_link_takes_the_first_block() -> None:
    block = free_blocks(None, [])[0]
    assert (block.outer, block.inner, block.name) == ("100.64.0.1", "100.64.0.2", "lcc000000")
    assert len(free_blocks(None, [])) == 256


def test_what_has_a_route_is_left_alone() -> None:
    assert parse_routes(ROUTES) == [IPv4Network("100.64.0.0/18")]
    assert free_blocks(None, parse_routes(ROUTES))[0].outer == "100.64.64.1"
    assert free_blocks(None, [IPv4Network("100.64.0.0/10")]) == []
    assert free_blocks(None, [IPv4Network("100.65.0.7/32")])[4].outer == "100.65.64.1"


def test_a_link_takes_addresses_that_none_had_for_long() -> None:
    blocks = free_blocks(None, [])
    firsts = [rested(blocks, seconds=k / 2)[0].outer for k in range(256)]
    assert len(set(firsts)) == 256
    assert set(rested(blocks, seconds=77.7)) == set(blocks)
    assert rested([], seconds=1.0) == []


def test_links_nest_in_each_others_blocks() -> None:
    blocks = [free_blocks(None, [])[0]]
    while candidates := free_blocks(blocks[-1].network, [blocks[-1].network]):
        blocks.append(candidates[0])
    assert len(blocks) == 4
    ends = [end for block in blocks for end in (block.outer, block.inner)]
    assert len(set(ends)) == 8
    for outside, inside in itertools.pairwise(blocks):
        assert inside.network.subnet_of(outside.network)
        assert len(inside.name) <= 15
        sibling = free_blocks(outside.network, [outside.network, inside.network])[0]
        assert not inside.network.overlaps(sibling.network)
