"""Made-up scores that look like real ones, for tests and for looking at the report."""

from dataclasses import replace
from typing import Any

import numpy as np

from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.scores import SchemeScores, Series
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import Acting, PolicyFile
from distrlcc.policy.spec import PolicySpec
from tests.policy.random_policies import random_arrays

PROFILES = {
    # utilisation, queueing delay in RTTs, first second, excess loss
    "quickstart": (0.968, 0.075, 0.86, 0.0008),
    "cubic": (0.985, 0.92, 0.79, 0.012),
    "bbr": (0.955, 0.31, 0.90, 0.004),
    "vegas": (0.905, 0.085, 0.62, 0.0002),
    "copa": (0.93, 0.13, 0.75, 0.0004),
    "reno": (0.93, 0.71, 0.74, 0.009),
    "oracle": (0.998, 0.012, 0.99, 0.0),
}


def make_scores(scheme: str, links: int = 512, seeds: int = 5) -> SchemeScores:
    shared, rng = np.random.default_rng(11), np.random.default_rng(list(scheme.encode()))
    capacity = np.exp(shared.uniform(np.log(5), np.log(100), size=(links, 1)))
    base = shared.uniform(10, 100, size=(links, 1)) * np.ones((1, seeds))
    mean, delay, first, excess = PROFILES[scheme]

    def around(centre: float, spread: float) -> np.ndarray:
        link = rng.normal(0, spread, size=(links, 1))
        return centre + link + rng.normal(0, spread / 5, size=(links, seeds))

    utilisation = np.clip(around(mean, 0.04), 0.05, 1.0)
    queueing = delay * np.exp(around(0.0, 0.5))
    excess_loss = excess * np.exp(around(0.0, 0.8))
    names = tuple(f"random-{i:03d} {c[0]:.1f} Mbit/s" for i, c in enumerate(capacity))
    figures = {
        "throughput_mbps": capacity * utilisation,
        "utilisation": utilisation,
        "first_second_utilisation": np.clip(around(first, 0.1), 0, 1),
        "mean_queueing_delay_ms": base * queueing,
        "p95_queueing_delay_ms": base * queueing * 1.9,
        "mean_rtt_ms": base * (1 + queueing),
        "p95_rtt_ms": base * (1 + queueing * 1.9),
        "queueing_delay_rtt": queueing,
        "loss": excess_loss + 0.01 * shared.random((links, 1)),
        "excess_loss": excess_loss,
        "guarded": np.zeros_like(excess_loss),
        "power": utilisation / (1 + queueing),
    }
    return SchemeScores(scheme, names, figures, learned=scheme == "quickstart")


def with_figures(scores: SchemeScores, **figures: np.ndarray) -> SchemeScores:
    return replace(scores, figures=scores.figures | figures)


def make_series(scheme: str, link: str = "cellular-3", buckets: int = 300) -> Series:
    """A link whose capacity wanders, and a scheme that lags behind it."""
    rng = np.random.default_rng(list(scheme.encode()))
    edges = np.arange(buckets + 1, dtype=float) * 0.1
    time = edges[1:] - 0.05
    capacity = 12 * np.exp(0.6 * np.sin(time / 3))
    mean, delay, _, _ = PROFILES[scheme]
    rate = mean * np.roll(capacity, 1 + round(10 * delay))
    queueing = 60 * delay * np.exp(rng.normal(0, 0.2, buckets))
    queueing[:2] = np.nan
    learned = scheme == "quickstart"
    return Series(scheme, link, edges, capacity, rate, queueing, queueing, learned)


def failed_on(scores: SchemeScores, *links: int) -> SchemeScores:
    """Return scores of which all runs on some links failed."""
    gaps = {key: values.copy() for key, values in scores.figures.items()}
    for values in gaps.values():
        values[list(links)] = np.nan
    return replace(scores, figures=gaps)


def make_policy(acting: Acting = "sample", kind: Any = "mlp", **changes: Any) -> PolicyFile:
    """Return a policy at random for a changed default environment."""
    config = EnvConfig(**changes)
    batch = LinkBatch(1, config)
    spec = PolicySpec(
        config.observation,
        batch.observation_size,
        config.action,
        batch.actions.kind,
        batch.actions.size,
        kind=kind,
        hidden=(8,),
        interval_rtts=config.interval_rtts or None,
        pacing=config.pacing,
        guard=config.guard,
    )
    return PolicyFile(spec, random_arrays(spec, 0.5), acting)


def policy_contender(policy: PolicyFile) -> Contender:
    """Return a policy that is in memory as a contender."""
    return Contender("p", NumpyPolicy(policy), policy.spec.preference)
