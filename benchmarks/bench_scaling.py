"""Measure training on several processes, learning included, each with as much work as one alone.

python -m benchmarks scaling --processes 1,2 --json -
python -m benchmarks scaling --processes 1,2 --slow 4 --project
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runs.run_config import RunConfig

_PROJECTED = tuple(2**k for k in range(1, 11))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--processes", default="1,2", metavar="N,…", help="counts to measure (default: 1,2)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")
    parser.add_argument(
        "--rounds", type=number(1, 1000, whole=True), default=12, metavar="R",
        help="how often processes train together, alone and side by side in turns of about a "
        "second; the median counts (default: 12)",
    )  # fmt: skip
    parser.add_argument(
        "--slow", type=number(1.0, 100.0), metavar="F",
        help="also train with one process whose steps take F times as long, with and without "
        "cutting its rollouts short, and compare speed and score",
    )  # fmt: skip
    parser.add_argument(
        "--slow-steps", type=number(1, 1e10), default=2e6, metavar="STEPS",
        help="environment steps of each of these two runs (default: 2e6)",
    )  # fmt: skip
    parser.add_argument(
        "--slow-seeds", type=number(1, 100, whole=True), default=1, metavar="K",
        help="train both so often; with one the interval of the reward is over links (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--slow-pace", type=number(0.0, 1000.0), default=10.0, metavar="MS",
        help="time that every process's steps take at least in these runs, as on real links; 0 is "
        "the simulator's own speed (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--project", action="store_true",
        help="measure exchanges between hosts made of namespaces (needs root) and project to 1024",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the quickstart recipe; may be repeated",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from benchmarks.slowness import check_slow_run
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe

    check_json_target(args.json)
    config = override(recipe("quickstart"), args.assignments)
    if config.ppo is None:
        raise ConfigError("this benchmark measures PPO")
    counts = _counts(args.processes)
    slow = replace(config, total_steps=int(args.slow_steps))
    slow = replace(slow, held_out=replace(slow.held_out, links=256))
    if args.slow:
        check_slow_run(slow, max(counts))
    quiet = args.json == "-"
    result, one = _scaling(config, counts, args.rounds, quiet=quiet)
    if args.slow:
        result["slow"] = _slow(slow, max(counts), args, quiet=quiet)
    if args.project:
        result["projection"] = _project(config, one, quiet=quiet)
    emit_json(args.json, result)
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1 or not 2 <= counts[-1] <= 64:
        raise ConfigError(f"--processes {text}: expected counts from 2 to 64, as in 1,2")
    return [count for count in counts if count > 1]  # one alone is measured with each of them


def _scaling(
    config: RunConfig, counts: list[int], rounds: int, *, quiet: bool
) -> tuple[dict[str, Any], float]:
    """Return the figures, and env-steps/s of one process alone."""
    import numpy as np

    from benchmarks.scaling import measure_scaling
    from distrlcc.evaluate.bootstrap import mean_intervals

    found = [measure_scaling(config, count, rounds) for count in counts]
    one = float(np.median([scaling.one for scaling in found]))
    if not quiet:
        print(f"  1 process:   {one:>9,.0f} env-steps/s")
    rows: dict[str, Any] = {"1": {"env_steps_per_second": one, "efficiency": 1.0}}
    for scaling in found:
        ratios = scaling.efficiencies()
        efficiency, bare = float(np.median(ratios)), float(np.median(scaling.without_exchange()))
        _, low, high = mean_intervals(np.array(ratios)[None, :, None])[0].tolist()
        several = len(ratios) > 1  # else there is no interval
        rows[str(scaling.processes)] = {
            "env_steps_per_second": scaling.all,
            "one_env_steps_per_second": scaling.one,
            "efficiency": efficiency,
            "efficiency_mean_interval": [low, high] if several else None,
            "efficiency_by_round": ratios,
            "efficiency_side_by_side": bare,
            "share_exchange": scaling.share_exchange,
            "share_wait": scaling.share_wait,
        }
        if not quiet:
            interval = f" (mean [{low:.2f}, {high:.2f}])" if several else ""
            print(
                f"{scaling.processes:>3} processes: {scaling.all:>9,.0f} env-steps/s, efficiency "
                f"{efficiency:.2f}{interval}, exchange "
                f"{scaling.share_exchange:.1%}, waiting {scaling.share_wait:.1%} of the time; side "
                f"by side without any exchange {bare:.2f}"
            )
    return {"scaling": rows}, one


def _slow(
    config: RunConfig, processes: int, args: argparse.Namespace, *, quiet: bool
) -> dict[str, Any]:
    """Train to the same number of steps with and without mitigation."""
    import numpy as np

    from benchmarks.slowness import SlowRun, measure_slow_run
    from distrlcc.evaluate.bootstrap import mean_intervals

    off = replace(config.distributed, straggler_share=0.0)
    pace = args.slow_pace / 1e3
    without, with_it = list[SlowRun](), list[SlowRun]()
    for seed in range(config.seed, config.seed + args.slow_seeds):
        seeded = replace(config, seed=seed)
        unmitigated = replace(seeded, distributed=off)
        without.append(measure_slow_run(unmitigated, processes, args.slow, pace))
        with_it.append(measure_slow_run(seeded, processes, args.slow, pace))
    speeds = np.array([[run.env_steps_per_second for run in runs] for runs in (without, with_it)])
    ratio = float(np.median(speeds[1] / speeds[0]))
    rewards = np.array([[run.rewards for run in runs] for runs in (without, with_it)])
    gain = rewards[1] - rewards[0]
    # One link of many seeds, or many links of one seed.
    units = gain.mean(1)[None] if len(gain) > 1 else gain.T
    mean, low, high = mean_intervals(units[None])[0].tolist()
    if not quiet:
        speed_of_all = f"at least {args.slow_pace:g} ms each" if pace else "as fast as simulated"
        print(
            f"{processes} processes, one {args.slow:g} times slower, {args.slow_steps:,.0f} steps, "
            f"{speed_of_all}:"
        )
        for name, runs in (("without", without), ("with", with_it)):
            reward = np.mean([r.rewards for r in runs])
            speed = np.median([r.env_steps_per_second for r in runs])
            update = np.median([r.update_seconds for r in runs]) * 1e3
            print(
                f"  {name:>7} mitigation {speed:>9,.0f} env-steps/s, held-out reward {reward:.4f} "
                f"per step, update {update:.0f} ms, learning "
                f"{np.median([r.share_update for r in runs]):.0%}, "
                f"{np.mean([r.cut_short for r in runs]):.2f} rollouts cut short per update"
            )
        print(f"  speed with / without {ratio:.2f}; reward {mean:+.4f} [{low:+.4f}, {high:+.4f}]")
    return {
        "processes": processes,
        "factor": args.slow,
        "pace_ms": args.slow_pace,
        "without": speeds[0].tolist(),
        "with": speeds[1].tolist(),
        "cut_short_without": [run.cut_short for run in without],
        "cut_short_with": [run.cut_short for run in with_it],
        "ratio": ratio,
        "reward_without": float(rewards[0].mean()),
        "reward_with": float(rewards[1].mean()),
        "reward_gain": [mean, low, high],
    }


def _project(config: RunConfig, one: float, *, quiet: bool) -> list[dict[str, Any]]:
    from distrlcc.runs.trainer import Share, Trainer

    from benchmarks.exchange import measure_exchange
    from benchmarks.scaling import project

    one_link = Share.least(config.env.agents)
    weights = Trainer(config, one_link).learner.shared_state()["model"]["parameters"].numel()
    rows: list[dict[str, Any]] = []
    for model in measure_exchange():
        name = f"{model.mbit:g} Mbit/s" if model.mbit else "unshaped"
        projected = [project(one, config, weights, model, ranks) for ranks in _PROJECTED]
        rows.append(
            {
                "mbit": model.mbit,
                "latency_us": model.latency * 1e6,
                "bandwidth_mbit": model.bandwidth * 8e-6,
                "model_error": model.error,
                "processes": list(_PROJECTED),
                "env_steps_per_second": [speed for speed, _ in projected],
                "efficiency": [efficiency for _, efficiency in projected],
            }
        )
        if not quiet:
            print(
                f"PROJECTION, {name} between hosts (one message {model.latency * 1e6:.0f} µs and "
                f"{model.bandwidth * 8e-6:,.0f} Mbit/s, model within {model.error:.0%}; meetings "
                "and waiting for the slowest are left out):"
            )
            for ranks, (speed, efficiency) in zip(_PROJECTED, projected, strict=True):
                print(f"  {ranks:>5} processes {speed:>13,.0f} env-steps/s, {efficiency:.2f}")
    return rows
