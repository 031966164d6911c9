"""Measure training on several processes, learning included, each with as much work as one alone.

distrlcc bench scaling --processes 1,2 --json -
distrlcc bench scaling --processes 1,2 --slow 4 --project
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runtime.run_config import RunConfig
    from distrlcc.runtime.scaling import Speed

_PROJECTED = tuple(2**k for k in range(1, 11))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--processes", default="1,2", metavar="N,…", help="counts to measure (default: 1,2)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")
    parser.add_argument(
        "--seconds", type=number(2.0), default=12.0, help="time for each measurement, s"
    )
    parser.add_argument(
        "--rounds", type=number(1, 100, whole=True), default=2, metavar="R",
        help="how often all counts are measured, in turns; the best counts (default: 2)",
    )  # fmt: skip
    parser.add_argument(
        "--slow", type=number(1.0, 100.0), metavar="F",
        help="also train with one process whose steps take F times as long, with and without "
        "cutting its rollouts short, and compare speed and score",
    )  # fmt: skip
    parser.add_argument(
        "--slow-steps", type=number(10_000, 1e10), default=2e6, metavar="STEPS",
        help="environment steps of each of these two runs (default: 2e6)",
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
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe

    check_json_target(args.json)
    config = override(recipe("quickstart"), args.assignments)
    if config.ppo is None:
        raise ConfigError("bench scaling measures PPO")
    counts = _counts(args.processes)
    if args.slow and max(counts) < 2:
        raise ConfigError("--slow needs --processes of 2 or more: one of them is slowed")
    quiet = args.json == "-"
    result, one = _scaling(config, counts, args, quiet=quiet)
    if args.slow:
        result["slow"] = _slow(config, max(counts), args, quiet=quiet)
    if args.project:
        result["projection"] = _project(config, one, quiet=quiet)
    emit_json(args.json, result)
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1 or counts[-1] > 64:
        raise ConfigError(f"--processes {text}: expected counts from 1 to 64, as in 1,2")
    return counts if counts[0] == 1 else [1, *counts]


def _scaling(
    config: RunConfig, counts: list[int], args: argparse.Namespace, *, quiet: bool
) -> tuple[dict[str, Any], Speed]:
    from distrlcc.runtime.scaling import measure_side_by_side, measure_speed

    best: dict[int, Speed] = {}
    beside: dict[int, list[float]] = {}
    for _ in range(args.rounds):
        for count in counts:
            alone = measure_side_by_side(config, count, args.seconds)
            beside[count] = max(beside.get(count, [0.0]), alone, key=sum)
            speed = measure_speed(config, count, args.seconds)
            if count not in best or (speed.env_steps_per_second > best[count].env_steps_per_second):
                best[count] = speed
    one = best[1]
    rows = {}
    for count, speed in best.items():
        efficiency = speed.env_steps_per_second / (count * one.env_steps_per_second)
        rows[str(count)] = {
            "env_steps_per_second": speed.env_steps_per_second,
            "efficiency": efficiency,
            "side_by_side": beside[count],
            "share_exchange": speed.share_exchange,
            "share_wait": speed.share_wait,
            "update_ms": speed.update_seconds * 1e3,
            "updates": speed.updates,
        }
        if not quiet:
            print(
                f"{count:>3} processes: {speed.env_steps_per_second:>9,.0f} env-steps/s, "
                f"efficiency {efficiency:.2f}, exchange {speed.share_exchange:.1%}, waiting "
                f"{speed.share_wait:.1%} of the time"
            )
            print(
                f"    without any exchange, side by side: {sum(beside[count]):>9,.0f} env-steps/s, "
                f"efficiency {sum(beside[count]) / (count * one.env_steps_per_second):.2f}"
            )
    return {"scaling": rows}, one


def _slow(
    config: RunConfig, processes: int, args: argparse.Namespace, *, quiet: bool
) -> dict[str, Any]:
    """Train to the same number of steps with and without mitigation."""
    from dataclasses import replace

    from distrlcc.evaluate.bootstrap import mean_intervals
    from distrlcc.runtime.scaling import measure_speed

    config = replace(config, total_steps=int(args.slow_steps), max_seconds=0.0)
    config = replace(config, held_out=replace(config.held_out, links=256))
    off = replace(config, distributed=replace(config.distributed, straggler_share=0.0))
    without = measure_speed(off, processes, 0.0, args.slow)
    with_it = measure_speed(config, processes, 0.0, args.slow)
    ratio = with_it.env_steps_per_second / without.env_steps_per_second
    gain = (with_it.rewards - without.rewards)[None, :, None]
    mean, low, high = mean_intervals(gain)[0].tolist()
    if not quiet:
        print(
            f"{processes} processes, one {args.slow:g} times slower, {args.slow_steps:,.0f} steps:"
        )
        for name, speed in (("without", without), ("with", with_it)):
            print(
                f"  {name:>7} mitigation {speed.env_steps_per_second:>9,.0f} env-steps/s, "
                f"held-out reward {speed.rewards.mean():.4f} per step, "
                f"{speed.cut_short:.2f} rollouts cut short per update"
            )
        print(f"  speed with / without {ratio:.2f}; reward {mean:+.4f} [{low:+.4f}, {high:+.4f}]")
    return {
        "processes": processes,
        "factor": args.slow,
        "without": without.env_steps_per_second,
        "with": with_it.env_steps_per_second,
        "ratio": ratio,
        "reward_without": float(without.rewards.mean()),
        "reward_with": float(with_it.rewards.mean()),
        "reward_gain": [mean, low, high],
    }


def _project(config: RunConfig, one: Speed, *, quiet: bool) -> list[dict[str, Any]]:
    from distrlcc.runtime.exchange import measure_exchange
    from distrlcc.runtime.scaling import project
    from distrlcc.runtime.trainer import Share, Trainer

    weights = Trainer(config, Share(0, 1)).learner.shared_state()["model"]["parameters"].numel()
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
