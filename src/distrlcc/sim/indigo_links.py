"""Indigo's and DistRLCC's 30 links by id, and the author's evaluation grid.

One-way delays; an infinite queue unless said. The Poisson links' opportunities come from
`distrlcc.sim.synthetic`. Their best constant windows were searched for among all whole ones on 30 s
of the grid: nobody can follow their chance, and Indigo's expert holds one window too.
"""

from distrlcc.sim.scenario import Link

_POISSON = (
    Link(trace="poisson:0.57:0", delay_ms=28, loss=0.0477, queue_packets=14, best_cwnd=4),
    Link(trace="poisson:2.64:1", delay_ms=88, queue_packets=130, best_cwnd=42),
    Link(trace="poisson:3.04:2", delay_ms=130, queue_packets=426, best_cwnd=71),
)
_CALIBRATED = (
    Link(rate_mbps=100.42, delay_ms=27, queue_packets=173),
    Link(rate_mbps=77.72, delay_ms=51, loss=0.0006, queue_packets=94),
    Link(rate_mbps=114.68, delay_ms=45, queue_packets=450),
)
_DELAYS = (10, 20, 40, 80)


def _plain(*rates: int) -> tuple[Link, ...]:
    return tuple(Link(rate_mbps=r, delay_ms=d) for r in rates for d in _DELAYS)


LINKS: tuple[Link, ...] = (*_POISSON, *_plain(5, 10, 20, 50), *_CALIBRATED, *_plain(100, 200))
"""Ids 0 to 29."""

GRID: tuple[tuple[str, Link], ...] = (
    *((f"{link.rate_mbps}mbps-{link.delay_ms}ms", link) for link in _plain(5, 10, 20, 50, 100)),
    *((f"calibrated-{k}", link) for k, link in enumerate((*_POISSON, *_CALIBRATED))),
    ("satellite", Link(rate_mbps=42, delay_ms=400, loss=0.0074, queue_packets=1500)),
)
"""Name and link of each point of the grid."""
