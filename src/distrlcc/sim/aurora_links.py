"""Aurora's links: those it is trained on, and sweeps of one number far beyond them.

Jay et al., "A Deep Reinforcement Learning Perspective on Internet Congestion Control", ICML 2019;
the ranges of training are those of its repository's `network_sim.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from distrlcc.sim.draws import bdp_packets, draws
from distrlcc.sim.scenario import Link, Scenario


def training_link(split: str, index: int) -> Scenario:
    """100-500 packets/s, 50-500 ms each way, queue of 2-2981 packets (log-uniform), loss to 5%.

    A link lasts 200 round trips: 400 monitor intervals.
    """
    u = draws("aurora", split, index, 4)
    delay = round(50.0 + 450.0 * u[1], 3)
    link = Link(
        rate_mbps=round((100.0 + 400.0 * u[0]) / bdp_packets(1.0, 1e3), 6),
        delay_ms=delay,
        queue_packets=1 + int(math.exp(8.0 * u[2])),
        loss=round(0.05 * u[3], 6),
    )
    return Scenario(f"aurora/{split}/{index}", link, duration_s=0.4 * delay, seed=index)


_BASE = Link(rate_mbps=30.0, delay_ms=30.0, queue_packets=1000)
SWEEPS = tuple(
    [
        *[(f"rate-{v:g}", replace(_BASE, rate_mbps=v)) for v in (1, 2, 4, 8, 16, 32, 64, 128)],
        *[(f"delay-{v:g}", replace(_BASE, delay_ms=v)) for v in (1, 4, 16, 32, 64, 128, 256)],
        *[(f"queue-{v}", replace(_BASE, queue_packets=v)) for v in (2, 5, 10, 50, 200, 1000, 5000)],
        *[(f"loss-{v:g}", replace(_BASE, loss=v / 100)) for v in (0, 0.1, 0.5, 1, 2, 3, 5, 8)],
    ]
)
"""Names and links of the suite ``aurora-sweep``: 30 Mbit/s, 30 ms each way, a queue of 1000 packets
and no loss, with one of them changed: Mbit/s, ms, packets or per cent."""
SWEEP_S = 60.0
"""Length of each, s."""
