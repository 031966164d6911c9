"""One sender on one link, with one compiled call for each of its decisions.

`distrlcc.evaluation.runner` steps through Python, which takes ten times as long as all other work
for a single link. The results are the same, except for the order of sums in a network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from distrlcc.control import windows
from distrlcc.control.compiled import njit, njit_inner
from distrlcc.control.schemes import LEDBAT
from distrlcc.control.state import CWND, PACING, SCHEMES
from distrlcc.env import actions as acts
from distrlcc.env import batch as links
from distrlcc.env import observations
from distrlcc.evaluation import runner
from distrlcc.evaluation.contender import Contender
from distrlcc.policy.normalizer import CLIP
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.seeding import stream_key, uniform
from distrlcc.sim import layout as col
from distrlcc.sim import simulator
from distrlcc.sim.scenario import Flow, Scenario
from distrlcc.types import NANOSECONDS, FloatArray, IntervalStats

_RELU, _TANH, _GATES, _HEAD = range(4)
_STATS = (*IntervalStats.names(), "net_lost")
_SEEN = "duration acked net_lost rtt_sum rtt_min rtt_max rtt_last min_rtt cwnd inflight"
_COUNTED = "duration acked net_lost rtt_sum rtt_min inflight cwnd"
_OBSERVED, _GUARDED = (
    np.array([_STATS.index(name) for name in names.split()]) for names in (_SEEN, _COUNTED)
)
"""Rows of a step's statistics that observations take, and that the guard does."""
_SPACES = tuple(
    kind
    for kind in vars(observations).values()
    if isinstance(kind, type) and issubclass(kind, observations.ScaleFree)
)
_FIRST, _CLIP = np.zeros(1, np.int64), np.float32(CLIP)
_ROW, _OF_SERIES, _SUMMED = 10, slice(0, 8), [8, 1, 3, 2, 0, 9]
"""A step's row: what `runner` draws series of, the use of the link, the time guarded (s)."""


def run(
    contender: Contender,
    parts: Sequence[tuple[int, Scenario]],
    counted: runner.Counted,
    broken: list[str],
    steps: dict[int, list[FloatArray]],
    seed: int,
) -> Iterator[float]:
    """Run parts as `runner.run_parts` does: one after the other if it is known how, else so."""
    if not _known(contender, parts):
        yield from runner.run_parts(contender, parts, counted, broken, steps, seed)
        return
    for number, (place, scenario) in enumerate(parts):
        _run(contender, scenario, (number, place), counted, steps.get(place), seed)
        yield (number + 1) / len(parts)


def _known(contender: Contender, parts: Sequence[tuple[int, Scenario]]) -> bool:
    """Say whether a contender is of the networks and spaces that are compiled here."""
    if contender.policy is None:
        return False
    spec = contender.policy.spec
    ours = observations.OBSERVATIONS[spec.observation] in _SPACES
    ours &= type(acts.ACTIONS[spec.action]) is acts.WindowActions
    others = (flow.scheme for _, scenario in parts for flow in scenario.flows[1:])
    ours &= all(SCHEMES[name] <= LEDBAT for name in others)
    ours &= all(scenario.flows[0] == Flow() for _, scenario in parts)
    return ours and spec.kind in ("mlp", "mingru") and not spec.interval_rtts


def _packed(policy: NumpyPolicy) -> tuple[Any, Any, int]:
    """Return a network's layers, ``[L, 4]`` of kind, place, inputs and outputs, its numbers, H."""
    spec, arrays = policy.spec, policy.arrays
    dense = _RELU if spec.activation == "relu" else _TANH
    names = [(f"trunk.{k}", dense) for k in range(len(spec.dense))]
    names += [("mingru", _GATES)] * (spec.kind == "mingru")
    names += [("post", dense)] * bool(spec.post_hidden) + [("policy_head", _HEAD)]
    layers, numbers, place = [], [np.zeros(0, np.float32)], 0
    for name, kind in names:
        weight = arrays[f"{name}.weight"]
        layers.append((kind, place, weight.shape[1], weight.shape[0]))
        # Input by input, so that sums over inputs run along memory.
        numbers += [weight.T.reshape(-1), arrays[f"{name}.bias"]]
        place += weight.size + len(weight)
    return np.array(layers), np.concatenate(numbers), spec.state_size


@njit_inner
def _head(layers: Any, numbers: Any, state: Any, x: Any, y: Any) -> None:
    """Run a network on the inputs in ``x``, and leave its head in ``y``."""
    for number in range(len(layers)):
        kind, place, n_in, n_out = layers[number]
        for k in range(n_out):
            y[k] = numbers[place + n_in * n_out + k]
        for j in range(n_in):
            value = x[j]
            if value != 0.0:
                for k in range(n_out):
                    y[k] += numbers[place + j * n_out + k] * value
        if kind == _GATES:
            size = len(state)
            first = layers[number + 1, 2] - size  # what comes next may read the inputs, too
            for k in range(size):
                gate = np.float32(0.5) * (math.tanh(np.float32(0.5) * y[k]) + np.float32(1.0))
                state[k] += gate * (math.tanh(y[size + k]) - state[k])
                x[first + k] = state[k]
        else:
            for k in range(n_out):
                x[k] = max(y[k], np.float32(0.0)) if kind == _RELU else math.tanh(y[k])


@njit_inner
def _chosen(head: Any, draw: float) -> int:
    """Return the action of the greatest logit, or with a draw in [0, 1) by their softmax."""
    best = 0
    for k in range(len(head)):
        best = k if head[k] > head[best] else best
    if draw < 0.0:
        return best
    total = 0.0
    for k in range(len(head)):
        total += math.exp(head[k] - head[best])
    left = draw * total
    for k in range(len(head) - 1):
        left -= math.exp(head[k] - head[best])
        if left < 0.0:
            return k
    return len(head) - 1


@njit
def _decide(
    draw: float, last: int, simulated: Any, kept: Any, network: Any, rule: Any, row: Any
) -> Any:
    """Count the step that has ended in ``row``; hold the next one's window, and return its action.

    Args:
        draw: Of the action; below 0: the most likely one.
        last: The action of the step that has ended; -1: there was no step yet.
        simulated: The simulator's durations, flows, control, averages and results; the wait.
        kept: Rows of the observation and the guard, and room for what is seen and chosen.
        network: `_packed`'s layers and numbers, means and inverse deviations, preference, state.
        rule: Factors and offsets of actions; pacing, the guard's bound, the noise that is held.
        row: What is kept of a step.
    """
    durations, flows, control, averages, results, wait = simulated
    seen_rows, guard_rows, stats, observed, guarded, elements, base_rtt, x, y, out, lowered = kept
    layers, numbers, mean, scale, preference, state = network
    factors, offsets, pacing, bound, held_noise = rule
    size = elements.shape[1]
    for k in range(len(mean)):
        x[k] = 0.0
    if last >= 0:
        # What the sender saw, and the guard.
        simulator._fill_stats(_FIRST, durations, flows, control, averages, stats)
        stats[17, 0] = stats[3, 0] - stats[16, 0]
        for k in range(len(_OBSERVED)):
            observed[k, 0] = stats[_OBSERVED[k], 0]
        for k in range(len(_GUARDED)):
            guarded[k, 0] = stats[_GUARDED[k], 0]
        links._base_rtts(results, flows, wait, base_rtt)
        duration, acked, rtt_sum = stats[0, 0], stats[2, 0], stats[5, 0]
        row[0], row[1], row[2], row[3] = duration, results[0, col.CAPACITY], acked, rtt_sum
        row[4], row[5], row[6] = base_rtt[0, 0], results[0, col.QUEUE], control[0, CWND]
        if control[0, PACING] > 0.0:
            rtt = rtt_sum / acked if acked > 0.0 else base_rtt[0, 0]
            row[6] = min(row[6], control[0, PACING] * rtt)
        row[7] = 0.0
        for f in range(1, len(flows)):
            row[7] += flows[f, col.STEP_ACKED]
        row[8], row[9] = results[0, col.USED], duration * lowered[0]
        if pacing > 0.0 or bound > 0.0:
            windows.observe(guard_rows, guarded, bound, held_noise)
        observations._observe(seen_rows, observed, elements)
        for k in range(size):
            x[k] = elements[0, k]
        x[size + last] = 1.0
    for k in range(len(preference)):
        x[len(mean) - 1] = preference[k]
    # The action, and what the guard makes of it.
    for k in range(len(mean)):
        x[k] = min(max((x[k] - mean[k]) * scale[k], -_CLIP), _CLIP)
    _head(layers, numbers, state, x, y)
    action = _chosen(y[: len(factors)], draw)
    held = control[0, CWND]
    out[0, 0] = acts._bounded(held * factors[action] + offsets[action])
    out[1, 0] = control[0, PACING]
    windows.hold(guard_rows, control[:1, CWND], out, lowered, pacing, bound)
    control[0, CWND], control[0, PACING] = out[0, 0], out[1, 0]
    return action


def _run(
    contender: Contender,
    scenario: Scenario,
    places: tuple[int, int],
    counted: runner.Counted,
    drawn: list[FloatArray] | None,
    seed: int,
) -> None:
    """Run a link, one of several; its second place is where it counts."""
    (number, place), policy, config = places, contender.policy, contender.env_config()
    assert policy is not None
    batch = runner.loaded(contender, [scenario], config, with_histograms=True)
    # What compiled code reads and writes.
    sim, seen, actions = batch.simulator, batch.observations, batch.actions
    assert isinstance(seen, observations.ScaleFree)
    assert isinstance(actions, acts.WindowActions)
    layers, numbers, state_size = _packed(policy)
    widest = int(layers[:, 2:].sum(axis=1).max())
    room = (
        *(np.zeros((len(names), 1)) for names in (_STATS, _OBSERVED, _GUARDED)),
        *(np.zeros((1, width)) for width in (seen.size, batch.n_flows)),
        *(np.zeros(widest, np.float32) for _ in "xy"),
        np.zeros((2, 1)),
        np.zeros(1, bool),
    )
    kept = (seen.values["rows"], batch.windows.state, *room)
    mean, std = (policy.arrays[f"normalizer.{name}"] for name in ("mean", "std"))
    preference = np.array([] if contender.preference is None else [contender.preference])
    scale, state = np.float32(1.0) / std, np.zeros(state_size, np.float32)
    network = layers, numbers, mean, scale, preference, state
    guard = batch.windows
    rule = actions.factors, actions.offsets, guard.pacing, guard.guard, guard.held
    # The first second, and the steps with their draws.
    step, end = round(config.step_ms * 1e6), round(scenario.duration_s * NANOSECONDS)
    warm = min(int(runner.WARMUP_S * NANOSECONDS), end // 2)
    begins = np.arange(0, end, step)
    draws = np.full(len(begins) + 1, -1.0)
    if policy.acting == "sample":
        draws = uniform(stream_key(seed, "evaluate"), number, np.arange(len(draws)))
    simulated = sim._duration, sim.flows, sim.control, sim.ewmas, sim.results, batch._wait
    rows, action, one = np.zeros((len(begins), _ROW)), -1, np.zeros(1, int)
    for k, draw in enumerate(draws.tolist()):
        action = _decide(draw, action, simulated, kept, network, rule, rows[k - 1])
        if k == len(begins):
            break
        sim.advance(step)
        for moment, sign in ((warm, -1), (end, 1)):
            if begins[k] < moment <= begins[k] + step:
                counted.add(batch, one, one + place, sign)
    for phase, inside in enumerate((begins < warm, begins >= warm)):
        counted.sums[phase, :, place] += rows[inside][:, _SUMMED].sum(axis=0)
    if drawn is not None:
        drawn += list(rows[:, _OF_SERIES])
