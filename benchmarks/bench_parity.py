"""Check that several processes learn what one process learns, from the same seeds.

python -m benchmarks parity --processes 2
python -m benchmarks parity quickstart --set learner=./mine.py:Mine

It compares actions, losses and weights after some updates, and then learning curves.

Flags:
    recipe? RECIPE =quickstart
    --processes N {2..64} =2
    --updates U {1..1000000} =3
    --seeds S {0..100} =3  seeds whose learning curves are compared as well, two or more; 0: none
    --curve-updates U {4..1000000} =40  updates of a learning curve
    --set/assignments* KEY=VALUE  change a key of the configuration
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.launched import measured
from distrlcc.cli.output import Countdown, note
from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.evaluation.bootstrap import mean_intervals
from distrlcc.learn.learner import Weights
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.recipes.registry import recipe
from distrlcc.runs.identity import identity
from distrlcc.runs.options import RankSpec
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import env_run
from distrlcc.runs.source import Share
from distrlcc.types import FloatArray

TOLERANCE = 1e-4
"""Greatest relative difference of weights and losses."""


def run(args: Namespace) -> int:
    """Train, and print what differs; 1 where the same is not learned."""
    if args.seeds == 1:
        raise ConfigError("--seeds 1: of one seed there is no interval; expected 2 or more, or 0")
    config = override(recipe(args.recipe), args.assignments)
    note(f"training {args.updates} updates in one process and in {args.processes} ...")
    parity = check_parity(config, args.processes, args.updates)
    print(f"after {args.updates} updates, {args.processes} processes beside one:")
    print(f"  actions that are the same        {parity.same_actions:.6%}")
    print(f"  weights, relative difference     {parity.weights:.1e}")
    for name, difference in parity.metrics.items():
        print(f"  {name + ', relative difference':<32} {difference:.1e}")
    print(f"  ranks' weights equal bit for bit {'yes' if parity.ranks_equal else 'NO'}")
    print("the same" if parity.holds else f"NOT the same (bound {TOLERANCE:.0e})")
    if not parity.holds or not args.seeds:
        return 0 if parity.holds else 1
    work = f"{args.curve_updates} updates in one process and in {args.processes}"
    seeds = Countdown(
        range(config.seed, config.seed + args.seeds),
        lambda seed: f"training seed {seed}, {work}",
    )
    found = learning_curves(config, args.processes, args.curve_updates, seeds)
    curves = [intervals(each) for each in found]
    print(f"reward per step over {args.curve_updates} updates, {args.seeds} seeds, 95% intervals:")
    for quarter, (one, several) in enumerate(zip(*curves, strict=True), 1):
        shown = (f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in (one, several))
        print(f"  quarter {quarter}: {'  '.join(shown)}")
    within = agree(*curves)
    print(f"learning curves {'' if within else 'NOT '}within each other's interval")
    return 0 if within else 1


@dataclass(frozen=True)
class Learned:
    """One process's actions, and what it learned from them."""

    actions: NDArray[Any]
    """``[U, T, N]``, of all updates."""
    metrics: list[dict[str, float]]
    weights: Weights
    rewards: NDArray[np.float64]
    """Of each update the sum of this process's rewards, and its steps, ``[U, 2]``."""


@dataclass(frozen=True)
class Parity:
    """How far several processes are from one."""

    same_actions: float
    """Share of actions that are the same."""
    metrics: dict[str, float]
    """Greatest relative difference of each of the learner's metrics that ranks share."""
    weights: float
    """Greatest difference of a weight, relative to the greatest weight of its layer."""
    ranks_equal: bool
    """Whether all ranks have the same weights, bit for bit."""

    @property
    def holds(self) -> bool:
        """Whether they learned the same."""
        close = max(self.weights, *self.metrics.values()) <= TOLERANCE
        return close and self.same_actions == 1.0 and self.ranks_equal


def check_parity(config: RunConfig, processes: int, updates: int = 3) -> Parity:
    """Train some updates in one process and in several, from the same seeds."""
    (one,), together = (learn(config, updates, count) for count in (1, processes))
    first, *others = together
    # Did all environments see the same actions?
    same = np.mean(np.concatenate([rank.actions for rank in together], axis=2) == one.actions)
    # How far are losses and weights from those of one process?
    differences = {
        name: max(
            _difference(a[name], b[name]) for a, b in zip(first.metrics, one.metrics, strict=True)
        )
        for name in one.metrics[0]
    }
    weights = max(
        _difference(array, one.weights.arrays[name]) for name, array in first.weights.arrays.items()
    )
    # Have all ranks the same weights?
    equal = all(
        np.array_equal(array, other.weights.arrays[name])
        for other in others
        for name, array in first.weights.arrays.items()
    )
    return Parity(float(same), differences, weights, equal)


def _difference(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-3))


def learn(config: RunConfig, updates: int, processes: int) -> list[Learned]:
    """Train some updates in so many processes; return what each learned."""
    specs = [RankSpec("127.0.0.1", 0, slot, processes, elastic=False) for slot in range(processes)]
    return measured(Launcher(learn_rank, (config, updates), specs))


def learn_rank(spec: RankSpec, job: tuple[RunConfig, int]) -> Learned:
    """Train some updates as one of the processes."""
    config, updates = job
    group = ProcessGroup(spec, identity(config))
    share = Share.of(config, spec.slot, spec.size)
    state = env_run(config, share, group)
    actions, metrics, rewards = [], [], []
    with group:
        group.agree(0, ready=False)
        for update in range(updates):
            found = state.source.next(state.learner.weights(), None)
            assert found is not None
            rollout, stats = found
            actions.append(rollout.actions.copy())
            rewards.append((stats.reward, stats.steps))
            group.agree(update, ready=True)
            metrics.append(state.learner.update(rollout))
    return Learned(np.array(actions), metrics, state.learner.weights(), np.array(rewards))


def learning_curves(
    config: RunConfig, processes: int, updates: int, seeds: Iterable[int]
) -> tuple[FloatArray, FloatArray]:
    """Train from several seeds, in one process and in several.

    Returns:
        Of one and of several the mean reward per step in each quarter of the updates, ``[S, 4]``.
    """
    curves: list[list[FloatArray]] = [[], []]
    for seed in seeds:
        seeded = replace(config, seed=seed)
        for curve, count in zip(curves, (1, processes), strict=True):
            sums = np.sum([one.rewards for one in learn(seeded, updates, count)], axis=0)
            quarters = np.array_split(sums, 4)
            curve.append(np.array([part[:, 0].sum() / part[:, 1].sum() for part in quarters]))
    return np.array(curves[0]), np.array(curves[1])


def intervals(curves: FloatArray) -> FloatArray:
    """Return mean, low and high over S seeds of curves in Q parts, ``[S, Q]``: ``[Q, 3]``."""
    return mean_intervals(curves.T[:, None, :])


def agree(one: FloatArray, other: FloatArray) -> bool:
    """Return whether each one's means, of ``[Q, 3]``, lie within the other's intervals."""
    return all(
        bool(((b[:, 1] <= a[:, 0]) & (a[:, 0] <= b[:, 2])).all())
        for a, b in ((one, other), (other, one))
    )
