"""Runs a contender's flows on links that they share, and keeps what each flow does over time.

All agents of a scenario run the policy, or the scheme where a scheme is measured; the other flows
run their own schemes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.shared import SharedBatch
from distrlcc.evaluate.contender import Contender
from distrlcc.evaluate.runner import reseed
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import with_scheme
from distrlcc.types import NANOSECONDS, PACKET_BYTES, FloatArray

BUCKET_S = 0.1
"""Length of a bucket, s."""
MBIT = 8e-6 * PACKET_BYTES

_FLOW = (col.STEP_ACKED, col.QUEUEING_SUM, col.SENT, col.DROPPED)
_CUMULATIVE = slice(1, 4)


@dataclass(frozen=True)
class SharedRun:
    """One link's run: F flows in B buckets of `BUCKET_S`; packets where nothing else is said."""

    scenario: Scenario
    """As it was run: with the agents as agents."""
    acked: FloatArray
    """Acknowledged, ``[F, B]``."""
    queueing_s: FloatArray
    """Time that these waited in the queue, s, summed, ``[F, B]``."""
    sent: FloatArray
    dropped: FloatArray
    """By the queue, ``[F, B]``."""
    capacity: FloatArray
    """What the link could carry, ``[B]``."""
    used: FloatArray
    """And carried, ``[B]``."""
    base_rtt_s: FloatArray
    """Each flow's round trip without a queue, ``[F]``, in the mean over time."""

    @property
    def agents(self) -> int:
        """How many of the flows are agents: the first ones."""
        return sum(flow.scheme == "agent" for flow in self.scenario.flows)

    @property
    def rates_mbps(self) -> FloatArray:
        """Throughput, ``[F, B]``."""
        return np.asarray(self.acked * MBIT / BUCKET_S)


def run_shared(
    contender: Contender, scenarios: Sequence[Scenario], seed: int = 0
) -> list[SharedRun]:
    """Run a contender once on every scenario, all in one batched simulator call.

    Args:
        contender: Whom the agents run.
        scenarios: L links.
        seed: Other seeds have other losses, random phases and draws of a sampling policy.
    """
    seeded = [reseed(scenario, seed) for scenario in scenarios]
    count, n_flows = len(scenarios), max(len(s.flows) for s in scenarios)
    agents = max(sum(flow.scheme == "agent" for flow in s.flows) for s in scenarios)
    config = replace(contender.env_config(), agents=agents)
    batch = SharedBatch(count, config, n_flows=n_flows, with_labels=False)
    for n, scenario in enumerate(seeded):
        batch.load(n, with_scheme(scenario, contender.scheme))
    contender.tell(batch)
    actor = contender.actor(count * agents, seed) if contender.policy is not None else None
    ends = np.array([round(s.duration_s * NANOSECONDS) for s in seeded])
    buckets = round(float(ends.max()) / NANOSECONDS / BUCKET_S) + 1
    flows = np.zeros((len(_FLOW), count, n_flows, buckets))
    links = np.zeros((3, count, buckets))  # capacity, used, base RTT * capacity
    everyone = np.arange(count)
    before = np.zeros((len(_FLOW), count, n_flows))
    observation = batch.first_observation(np.arange(count * agents))
    now = batch.simulator.links[:, col.NOW].copy()
    while (now < ends).any():
        if actor is None:
            batch.advance()
        else:
            acted = batch.active
            observation, _ = batch.step(actor.act(observation))
            actor.begin(batch.active & ~acted)
        running = now < ends
        bucket = np.minimum((now / (BUCKET_S * NANOSECONDS) + 1e-6).astype(int), buckets - 1)
        counts = batch.simulator.flows[:, _FLOW].T.reshape(before.shape).astype(float)
        done = counts.copy()
        done[_CUMULATIVE] -= before[_CUMULATIVE]
        before = counts
        flows[:, everyone, :, bucket] += (done * running[:, None]).transpose(1, 0, 2)
        results = batch.simulator.results
        links[:, everyone, bucket] += running * np.array([
            results[:, col.CAPACITY], results[:, col.USED],
            results[:, col.BASE_RTT] * results[:, col.CAPACITY],
        ])  # fmt: skip
        now = batch.simulator.links[:, col.NOW].copy()
    return [_run_of(scenario, flows[:, n], links[:, n]) for n, scenario in enumerate(scenarios)]


def _run_of(scenario: Scenario, flows: NDArray[np.float64], links: FloatArray) -> SharedRun:
    count, length = len(scenario.flows), round(scenario.duration_s / BUCKET_S)
    acked, queueing, sent, dropped = flows[:, :count, :length]
    capacity, used, weighted = links[:, :length]
    extra = np.array([flow.extra_rtt_ms * 1e-3 for flow in scenario.flows])
    return SharedRun(
        scenario=scenario,
        acked=acked,
        queueing_s=queueing / NANOSECONDS,
        sent=sent,
        dropped=dropped,
        capacity=capacity,
        used=used,
        base_rtt_s=weighted.sum() / max(capacity.sum(), 1e-9) + extra,
    )
