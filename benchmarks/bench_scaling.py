"""Measure training on several processes, learning included, each with as much work as one alone.

python -m benchmarks scaling --processes 1,2 --json -
python -m benchmarks scaling --processes 1,2 --slow 4 --project

The machine's own speed drifts by more than an exchange costs. So the same processes train together,
then one of them alone, then all side by side without any exchange, in turns of a second each, and
only turns of one round are compared.

Flags:
    --processes N,… {1..64} =1,2  counts to measure
    $JSON
    --rounds R {1..1000} =12  rounds of turns
    --slow F {1.0..100}  also train with one process whose steps take F times as long, with and
        without cuts
    --slow-steps STEPS {1.0..10000000000} =2000000.0  environment steps of each of these two runs
    --slow-seeds K {1..100} =1  train both so often; with one the interval of the reward is over
        links
    --slow-pace MS {0.0..1000} =10.0  least time of every process's steps in these runs, as on real
        links
    --project  measure exchanges between hosts made of namespaces (needs root) and project to 1024
    --set/assignments* KEY=VALUE  change a key of the quickstart recipe
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.exchange import measure_exchange, project
from benchmarks.launched import measured
from distrlcc.cli.output import emit_json
from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.evaluation.bootstrap import mean_intervals
from distrlcc.learn.learner import Weights
from distrlcc.parallel.decentralized import ElasticGroup
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.recipes.registry import recipe
from distrlcc.runs.identity import identity
from distrlcc.runs.options import RankSpec
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import RunState, build_learner, env_run
from distrlcc.runs.source import EnvSource, Share, Stop
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import iterate, train

_TURN = 8
"""Updates in a turn."""
_WARM_UP, _COUNTED = 3, 2
"""Updates of a slow run that are not counted, and the least that must be."""
_NEVER = 10**12


def run(args: Namespace) -> int:
    """Measure and print."""
    config = override(recipe("quickstart"), args.assignments)
    if config.ppo is None:
        raise ConfigError("this benchmark measures PPO")
    counts = [count for count in args.processes if count > 1]  # each is measured beside one alone
    if not counts:
        raise ConfigError("--processes 1: expected a count from 2 to 64, too, as in 1,2")
    # What does not fit is found before anything is measured.
    slow = replace(config, total_steps=int(args.slow_steps))
    slow = _grown(replace(slow, held_out=replace(slow.held_out, links=256)), max(counts))
    least = (_WARM_UP + _COUNTED) * slow.num_envs * slow.rollout_length
    if args.slow and slow.total_steps < least:
        raise ConfigError(
            f"--slow-steps {slow.total_steps}: expected {least} or more, {_WARM_UP + _COUNTED} "
            f"updates of {max(counts)} processes"
        )
    shown = (lambda line: None) if args.json == "-" else print
    rows = [_scaling(config, count, args.rounds, shown) for count in counts]
    one = median(row["one_env_steps_per_second"] for row in rows)
    shown(f"  1 process:   {one:>9,.0f} env-steps/s")
    alone = {"env_steps_per_second": one, "efficiency": 1.0}
    by_count = {str(count): row for count, row in zip(counts, rows, strict=True)}
    result: dict[str, Any] = {"scaling": {"1": alone, **by_count}}
    if args.slow:
        result["slow"] = _slow(slow, max(counts), args, shown)
    if args.project:
        weights = env_run(config, Share(0, config.env.unit)).learner.shared_state()
        size = weights["model"]["parameters"].numel()
        result["projection"] = [
            project(one, config, size, model, shown) for model in measure_exchange()
        ]
    emit_json(args.json, result)
    return 0


def _grown(config: RunConfig, processes: int) -> RunConfig:
    """Return as much work for each of several processes as one has, without scores and saves."""
    assert config.ppo is not None
    return replace(
        config,
        num_envs=config.num_envs * processes,
        ppo=replace(config.ppo, minibatch_size=config.ppo.minibatch_size * processes),
        checkpoint_every=_NEVER,
        held_out=replace(config.held_out, every=_NEVER),
        max_seconds=0.0,
    )


class _Probe(Recorder):
    """Keeps what a recorder would write."""

    def __init__(self) -> None:
        self.rows, self.saved = {}, (0, "")
        self.measured: list[dict[str, float]] = []
        self.times: list[float] = []

    def record(self, metrics: dict[str, float], events: Sequence[str] = ()) -> None:
        self.measured.append(metrics)
        self.times.append(time.perf_counter())

    def lead(self, *, may_go_back: bool = False) -> bool:
        """Open nothing."""
        return False

    def finish(self, *, scored: bool = True) -> bool:
        """Write nothing."""
        return True


@dataclass(frozen=True)
class _Job:
    """What each process does: ``rounds`` of turns, or one slow run."""

    config: RunConfig
    own: RunConfig
    """Of one process alone."""
    rounds: int = 0
    slow: float = 1.0
    """How many times as long the last rank's steps take."""
    pace: float = 0.0
    """Least time of every rank's steps, s."""


class _InTurns(EnvSource):
    """Collects with the others, and every few updates lets all train alone and side by side."""

    def __init__(self, config: RunConfig, share: Share, ranks: ProcessGroup, own: RunState) -> None:
        super().__init__(config, share)
        self._ranks, self._alone, self._resumed = ranks, own, time.perf_counter()
        self.rounds: list[list[float]] = []
        """Of each round the seconds of a turn alone, together and side by side."""

    def next(self, weights: Weights, stop: Stop | None = None) -> Any:
        if weights.version and weights.version % _TURN == 0:
            self._take_turns(time.perf_counter() - self._resumed)
            self._resumed = time.perf_counter()
        return super().next(weights, stop)

    def _take_turns(self, together: float) -> None:
        ranks, alone = self._ranks, 0.0
        ranks.agree(0, ready=False)
        if len(self.rounds) % ranks.size == ranks.rank:
            alone = ranks.size * self._train_alone()
        ranks.agree(0, ready=False)
        beside = self._train_alone()
        ranks.agree(0, ready=False)
        sums = ranks.sum(np.array([alone, together, beside]))
        self.rounds.append((sums / ranks.size).tolist())

    def _train_alone(self) -> float:
        begin = time.perf_counter()
        for _ in range(_TURN):
            iterate(self._alone)
        return time.perf_counter() - begin


def _measure(job: _Job, processes: int) -> Any:
    """Return what rank 0 saw; each process is pinned to a core in turn."""
    places = [RankSpec("127.0.0.1", 0, slot, processes, elastic=False) for slot in range(processes)]
    results = measured(Launcher(_rank, job, places))
    return next(result for result in results if result is not None)


def _rank(place: RankSpec, job: _Job) -> Any:
    """Train as one of the processes; rank 0 returns its rows, times, rounds and state's scores."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[place.slot % len(cores)]})
    config, probe = job.config, _Probe()
    share = Share.of(config, place.slot, place.size)
    ranks, source = ProcessGroup(place, identity(config)), EnvSource(config, share)
    if job.rounds:
        own = env_run(job.own, Share(place.slot * job.own.num_envs, job.own.num_envs))
        source = _InTurns(config, share, ranks, own)
    else:
        _slow_down(source.env, job.slow if place.slot == place.size - 1 else 1.0, job.pace)
    learner = build_learner(config, source.spec, ranks)
    state = RunState(config, source, learner, total_steps=config.total_steps)
    with ranks, Stopper(launched=True) as stopper:
        train(state, ElasticGroup(ranks, stopper, probe), probe, stopper)
    if place.slot or stopper.signal:
        return None
    if isinstance(source, _InTurns):
        return probe.measured[_TURN:], source.rounds[1:]
    rewards = state.held_out.by_link(state.learner.weights(), "sample")[0]
    return probe.measured[_WARM_UP:], probe.times[_WARM_UP:], rewards


def _scaling(config: RunConfig, processes: int, rounds: int, shown: Any) -> dict[str, Any]:
    """Measure some processes beside one."""
    grown = _grown(config, processes)
    steps = grown.num_envs * grown.rollout_length
    # The first round warms up; the last turns are taken when an update is begun after them. All
    # rollouts are whole, so that turns of as many updates are the same work.
    whole = replace(grown.distributed, straggler_share=0.0)
    grown = replace(grown, total_steps=steps * (_TURN * (rounds + 1) + 1), distributed=whole)
    job = _Job(grown, _grown(config, 1), rounds)
    rows, turns = _measure(job, processes)
    alone, together, beside = np.array(turns).T
    ratios = (alone / together).tolist()
    low, high = mean_intervals(np.array(ratios)[None, :, None])[0].tolist()[1:]
    found = {
        "env_steps_per_second": _TURN * steps / median(together),
        "one_env_steps_per_second": _TURN * steps / processes / median(alone),
        "efficiency": median(ratios),
        "efficiency_mean_interval": [low, high] if rounds > 1 else None,
        "efficiency_by_round": ratios,
        "efficiency_side_by_side": float(np.median(alone / beside)),
        "share_exchange": median(row["share_exchange"] for row in rows),
        "share_wait": median(row["share_wait"] for row in rows),
    }
    shown(
        f"{processes:>3} processes: {found['env_steps_per_second']:>9,.0f} env-steps/s, efficiency "
        f"{found['efficiency']:.2f} (mean [{low:.2f}, {high:.2f}]), exchange "
        f"{found['share_exchange']:.1%}, waiting {found['share_wait']:.1%} of the time; side by "
        f"side without any exchange {found['efficiency_side_by_side']:.2f}"
    )
    return found


def _slow(config: RunConfig, processes: int, args: Namespace, shown: Any) -> dict[str, Any]:
    """Train to the same number of steps with and without cutting slow ranks short."""
    off = replace(config, distributed=replace(config.distributed, straggler_share=0.0))
    speeds, cuts, rewards = np.zeros((3, 2, args.slow_seeds)).tolist()
    for seed in range(args.slow_seeds):
        for kind, run_config in enumerate((off, config)):
            seeded = replace(run_config, seed=config.seed + seed)
            job = _Job(seeded, seeded, slow=args.slow, pace=args.slow_pace / 1e3)
            rows, times, rewards[kind][seed] = _measure(job, processes)
            steps = rows[-1]["steps"] - rows[0]["steps"]
            speeds[kind][seed] = steps / (times[-1] - times[0])
            cuts[kind][seed] = float(np.mean([row["rollouts_cut_short"] for row in rows]))
    ratio = float(np.median(np.array(speeds[1]) / speeds[0]))
    gain = np.array(rewards[1]) - np.array(rewards[0])
    # One link of many seeds, or many links of one seed.
    units = gain.mean(1)[None] if len(gain) > 1 else gain.T
    mean, low, high = mean_intervals(units[None])[0].tolist()
    shown(f"{processes} processes, one {args.slow:g} times slower, {args.slow_steps:,.0f} steps:")
    for kind, name in enumerate(("without", "with")):
        shown(
            f"  {name:>7} mitigation {median(speeds[kind]):>9,.0f} env-steps/s, held-out reward "
            f"{np.mean(rewards[kind]):.4f} per step, {np.mean(cuts[kind]):.2f} rollouts cut short "
            "per update"
        )
    shown(f"  speed with / without {ratio:.2f}; reward {mean:+.4f} [{low:+.4f}, {high:+.4f}]")
    return {
        "processes": processes,
        "factor": args.slow,
        "pace_ms": args.slow_pace,
        "without": speeds[0],
        "with": speeds[1],
        "cut_short_without": cuts[0],
        "cut_short_with": cuts[1],
        "ratio": ratio,
        "reward_without": float(np.mean(rewards[0])),
        "reward_with": float(np.mean(rewards[1])),
        "reward_gain": [mean, low, high],
    }


def _slow_down(env: LinkVectorEnv, factor: float, pace: float) -> None:
    """Let an environment sleep in every step, which takes at least ``pace`` s.

    Acting and stepping take ``factor`` times as long as usual.
    """
    step, last, usual = env.step, 0.0, 0.0

    def slowed(actions: Any) -> Any:
        nonlocal last, usual
        result = step(actions)
        took = time.perf_counter() - last
        if last and not (usual and took > 3.0 * usual):  # else an update lay between
            usual = 0.9 * usual + 0.1 * took if usual else took
        time.sleep(factor * max(usual, pace) - usual)
        last = time.perf_counter()
        return result

    env.step = slowed  # type: ignore[method-assign]
