"""Compare what a policy sees in the kernel's TCP with what it sees in the simulator.

python -m research habits
python -m research habits --suite links.toml --out habits.png --json -

The kernel's observations are read from the program's own record of a connection, each 10 ms. The
simulator has the same links, with the opportunities in whole ms that the emulator gives them.

Flags:
    policy? POLICY =one  a policy's file, a run, or the name of a shipped one
    --suite SUITE  links, as 'distrlcc evaluate' takes them (default: three)
    --seconds S {1.0..600} =10.0  length of each run
    --out FILE {picture}  write the distributions as a plot, .png or .svg
    $JSON
"""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.bench_net import output
from distrlcc.cli.output import emit_json
from distrlcc.config import to_toml
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.evaluation.contender import Contender, contender_from_file
from distrlcc.evaluation.figures import STYLE, encode, panels
from distrlcc.evaluation.kernel_policy import registered
from distrlcc.evaluation.looks import BACKGROUND, INK
from distrlcc.files import write_atomically
from distrlcc.limits import limits
from distrlcc.net.emulator.link_config import uplink
from distrlcc.policy.kernel_layout import ONE, SPACES
from distrlcc.policy.policy_file import load_policy
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.suites import load_suite

LINKS = (
    Scenario("12 Mbit/s, 40 ms", Link(rate_mbps=12.0, delay_ms=20.0, queue_packets=100)),
    Scenario("48 Mbit/s, 20 ms", Link(rate_mbps=48.0, delay_ms=10.0, queue_packets=150)),
    Scenario("cellular:7, 40 ms", Link(trace="cellular:7", delay_ms=20.0, queue_packets=150)),
)
SIMULATED: dict[str, dict[str, Any]] = {
    "simulator": {},
    "kernel=true": {"kernel": True},
    "and jitter_ms=1": {"kernel": True, "jitter_ms": 1.0},
}
"""What is compared with the kernel: changes of an environment's configuration."""
_ELEMENTS = """
    delay slow-delay change fast slow top window path loss slow-loss idle age fill acks
    base wait recent-fast quick now cut slow-cut queued stood floor
    quantile above spread slow-spread
    noise above-calm calm-fast calm-top wander"""
"""Elements of ``scale-free-noise``, as docs/environment.md names them."""
_RUNS, _WARM_SECONDS, _PORT = 6, 1.0, 4730
_COLORS = ("#1a1a1a", "#0072B2", "#D55E00", "#009E73")
_PERCENTS, _TICKS = (5, 25, 50, 75, 95), (-1, -0.2, 0, 0.2, 1)
_STILL = 0.01
"""Elements that move less, in the policy's own scale, are not drawn."""

Seen = NDArray[np.float64]
"""Observations ``[steps, elements]``."""


def picture(text: str) -> Path:
    """Return the path of a picture to write."""
    path = Path(text)
    if path.suffix not in (".png", ".svg") or not path.parent.is_dir():
        raise ArgumentTypeError(f"{text!r}: expected a .png or .svg in a folder that exists")
    return path


def run(args: Namespace) -> int:
    """Measure, print and draw."""
    contender = contender_from_file(args.policy)
    assert contender.path is not None
    policy = load_policy(contender.path)
    size = SPACES[policy.spec.observation]
    scale = policy.arrays["normalizer.std"][:size].astype(float)
    names = _ELEMENTS.split()[:size]
    if not policy.spec.observation.startswith("scale-free"):
        names = [str(k) for k in range(size)]
    scenarios = list(LINKS) if args.suite is None else load_suite(args.suite).scenarios("test")
    out = sys.stderr if args.json == "-" else sys.stdout
    told, seen = {}, {}
    for scenario in scenarios:
        found = measure(contender, replace(scenario, duration_s=args.seconds))
        kernel = found["kernel"]
        seen[scenario.name] = {name: each / scale for name, each in found.items()}
        told[scenario.name] = {
            "kernel's halves": distances(kernel[: len(kernel) // 2], kernel[len(kernel) // 2 :]),
            **{name: distances(kernel, found[name]) for name in SIMULATED},
        }
        out.write(_table(scenario.name, names, told[scenario.name]))
        out.flush()
    if args.out is not None:
        write_atomically(args.out, encode(draw(seen, names), args.out.suffix[1:]))
    emit_json(args.json, {"elements": names, "distances": told})
    return 0


def measure(contender: Contender, scenario: Scenario) -> dict[str, Seen]:
    """Return what a policy sees on a link in the kernel, and in each simulator."""
    with TemporaryDirectory(prefix="distrlcc-") as folder:
        link, place = scenario.link, Path(folder)
        times = uplink(link).times
        if link.rate_mbps and not link.changes and times:
            (place / "link.up").write_text("".join(f"{time}\n" for time in times))
            link = replace(link, rate_mbps=None, trace=str(place / "link.up"))
        alone = replace(scenario, link=link, flows=(Flow("agent"),))
        (place / "link.toml").write_text(to_toml(alone), encoding="utf-8")
        found = {"kernel": _in_kernel(contender, place, scenario.duration_s)}
        for name, changes in SIMULATED.items():
            found[name] = _simulated(contender, place, scenario.duration_s, changes)
    return found


def _in_kernel(contender: Contender, folder: Path, seconds: float) -> Seen:
    file, words = folder / "kernel.npy", [sys.executable, "-m"]
    sink = shlex.join([*words, "distrlcc.net.kernel.tcp_flow", "sink"])
    link = [*words, "distrlcc", "emulate", "--scenario", str(folder / "link.toml")]
    outside = f"sh -c 'exec {sink} $MAHIMAHI_BASE {_PORT} {seconds + limits().join:g}'"
    with registered([contender]) as (control,):
        said = f"{_PORT} {control.name} {seconds:g} {shlex.quote(str(file))}"
        inner = f"exec {shlex.join([*words, 'benchmarks.record_connection'])} $MAHIMAHI_BASE {said}"
        output([*link, "--begin", "data", "--outside", outside, "--", "sh", "-c", inner], seconds)
    rows = np.load(file)
    # A step that an acknowledgement closed late stands for all that it made up for.
    assert contender.policy is not None
    size = SPACES[contender.policy.spec.observation]
    return np.asarray(rows["observation"][_begin(len(rows), seconds) :, :size] / ONE)


def _simulated(contender: Contender, folder: Path, seconds: float, changes: dict[str, Any]) -> Seen:
    config = replace(
        contender.env_config(),
        suites=(str(folder / "link.toml"),),
        episode_s=seconds,
        stagger=False,
        **changes,
    )
    options: dict[str, Any] = {"with_labels": False, "autoreset": False, "split": "test"}
    if contender.preference is not None:
        options["preferences"] = np.full(_RUNS, contender.preference)
    env = LinkVectorEnv(_RUNS, config, seed=0, **options)
    actor, rows = contender.actor(_RUNS, 0), []
    observation, _ = env.reset()
    while not env.over.any():
        observation, *_ = env.step(actor.act(observation))
        rows.append(observation[:, : env.batch.observations.size])
    return np.concatenate(rows[_begin(len(rows), seconds) :]).astype(float)


def _begin(count: int, seconds: float) -> int:
    """Return which of a run's rows is the first after its start."""
    return round(count * min(_WARM_SECONDS / seconds, 0.5))


def distances(some: Seen, others: Seen) -> list[float]:
    """Return each element's Kolmogorov-Smirnov distance: the greatest gap between two shares."""
    found = []
    # Rounded, as whole numbers and floating point differ a little.
    some, others = (np.sort(np.round(each.T, 3)) for each in (some, others))
    for a, b in zip(some, others, strict=True):
        every = np.concatenate([a, b])
        shares = (np.searchsorted(one, every, side="right") / len(one) for one in (a, b))
        found.append(float(np.abs(np.subtract(*shares)).max()))
    return found


def _table(link: str, names: list[str], told: dict[str, list[float]]) -> str:
    lines = [f"{link}: distance from the kernel", " " * 14 + "  ".join(told)]
    rows = [("mean", [float(np.mean(each)) for each in told.values()])]
    rows += [(name, [each[k] for each in told.values()]) for k, name in enumerate(names)]
    for name, values in rows:
        cells = (f"{value:{len(head)}.2f}" for head, value in zip(told, values, strict=True))
        lines.append(f"  {name:<12}" + "  ".join(cells))
    return "\n".join(lines) + "\n"


def draw(seen: dict[str, dict[str, Seen]], names: list[str]) -> Figure:
    """Draw each element's middle 90% and 50% and its median, in the policy's own scale."""
    every = np.concatenate([rows for worlds in seen.values() for rows in worlds.values()])
    moving = np.flatnonzero(np.diff(np.percentile(every, (5, 95), axis=0), axis=0)[0] > _STILL)
    with mpl.rc_context(STYLE):
        figure, axes = panels(0.9 + 1.8 * len(seen), *[1.0] * len(seen))
        for panel, (link, worlds) in zip(axes, seen.items(), strict=True):
            middle = np.median(worlds["kernel"], axis=0)
            for k, (name, rows) in enumerate(worlds.items()):
                shown = (rows - middle)[:, moving]
                low, lower, half, upper, high = np.percentile(shown, _PERCENTS, axis=0)
                x, color = np.arange(len(moving)) + 0.2 * k - 0.3, _COLORS[k]
                panel.vlines(x, low, high, color=color, lw=0.7)
                panel.vlines(x, lower, upper, color=color, lw=2.6, label=name)
                panel.plot(x, half, "_", color=BACKGROUND, ms=2.6, mew=0.8)
            # Small differences and large ones, from the kernel's median.
            panel.set_yscale("symlog", linthresh=0.2, linscale=1.0)
            panel.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
            panel.minorticks_off()
            panel.set_title(link, fontsize=8, loc="left", color=INK)
        axes[len(axes) // 2].set_ylabel("from the kernel's median (standard deviations)")
        axes[-1].set_xticks(np.arange(len(moving)), [names[k] for k in moving], rotation=90)
        axes[-1].set_xlim(-0.6, len(moving) - 0.4)
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=len(_COLORS))
    return figure
