"""A contender's policy for the kernel, and how often it does there what it does here."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import noise_held
from distrlcc.evaluation.contender import KERNEL, Contender
from distrlcc.evaluation.runner import loaded
from distrlcc.net.kernel.tcp import KernelControl, register
from distrlcc.net.kernel.trial import Trial, intervals
from distrlcc.policy.kernel_layout import ONE, RATE_ONE, fixed
from distrlcc.policy.policy_file import load_policy
from distrlcc.policy.quantise import quantise
from distrlcc.seeding import normal, stream_key, uniform
from distrlcc.sim.scenario import Scenario

SAME_RATE, SAME_WINDOW = 1e-3, 1e-2  # greatest relative differences of the same


def kernel_policy(contender: Contender) -> NDArray[np.void]:
    """Return a contender's policy as the kernel's program takes it, or refuse what does not fit."""
    assert contender.path is not None
    policy = load_policy(contender.path)
    actions = ACTIONS[policy.spec.action]
    record = quantise(policy, actions, preference=contender.preference, name=contender.name)
    held = 0.0 if contender.always else noise_held(policy.spec.observation)
    record["noise_us"] = round(1e6 * held)
    return record


@contextmanager
def registered(contenders: Sequence[Contender]) -> Iterator[list[KernelControl]]:
    """Have contenders' policies in the kernel's TCP while the context lasts, by passing names."""
    records = [kernel_policy(contender) for contender in contenders]
    with ExitStack() as held:
        controls = []
        for contender, record in zip(contenders, records, strict=True):
            controls.append(register(record, contender.name))
            held.callback(controls[-1].close)
        yield controls


def kernel_work(control: KernelControl) -> str:
    """Return a sentence on what a policy did in the kernel."""
    counts = control.counts()
    each = counts["ns"] / max(counts["decisions"], 1) / 1e3
    return (
        f"{KERNEL}{control.label} is {control.label} in this machine's kernel: "
        f"{counts['decisions']} decisions of {each:.1f} µs, of which its guard left "
        f"{control.guarded_share():.2%} less than was chosen."
    )


def same_action(
    contender: Contender, trial: Trial, scenarios: Sequence[Scenario], seconds: float
) -> tuple[float, int]:
    """Return how often a trial decides on simulated links as its policy does, and of how many.

    They agree if, given the same draws, the action or the rate and the window after the guard are
    the same. The program keeps its own features and recurrent state, but is told the previous
    action. It takes no ACKs here, so decisions under CUBIC's rule do not count.
    """
    # The links, with the policy as every agent.
    assert contender.policy is not None
    agents = max(sum(f.scheme == "agent" for f in s.flows) for s in scenarios) or 1
    config = replace(contender.env_config(), agents=agents, outside=False)  # not in a trial
    batch = loaded(contender, scenarios, config)
    numbers = np.arange(len(batch.active))
    policy, rows = contender.policy, trial.begun(len(numbers))
    state, seen = policy.initial_state(len(rows)), batch.first_observation(numbers)
    key, discrete = stream_key(0, "same action"), policy.spec.action_kind == "discrete"
    # Both act on what the links showed; the policy's actions are taken.
    decisions = same = 0
    fresh = np.ones(len(rows), np.bool_)
    for step in range(round(seconds * 1000 / config.step_ms)):
        draws = normal(key, numbers, step) if not discrete else uniform(key, numbers, step)
        whole = fixed(draws) if not discrete else np.floor(draws * 2.0**32).astype(np.int64)
        given = whole / ONE if not discrete else whole / 2.0**32
        actions, state = policy.act(seen, state, given if discrete else given[:, None])
        trial.step(rows, whole, fresh)
        _, pacing = batch.actions.apply(actions, *batch.held())
        if discrete:
            agree = rows["action"] == actions
        else:
            agree = np.abs(rows["rate"] / RATE_ONE / pacing - 1) < SAME_RATE
        left, before = rows["cwnd"] / ONE, batch.active.copy()
        seen, _ = batch.step(actions)
        stats, active = batch.newest, before & (batch.windows.on == 0)
        if discrete:
            agree &= np.abs(left - stats.cwnd) <= SAME_WINDOW * stats.cwnd
        decisions, same = decisions + int(active.sum()), same + int(agree[active].sum())
        # What the program is told.
        rows["now"] = intervals(stats)
        rows["cwnd"], rows["rate"] = fixed(stats.cwnd), fixed(stats.pacing_rate, RATE_ONE)
        if discrete:
            rows["action"] = actions
        else:
            rows["answer"] = fixed(batch.actions.encode(actions)[:, 0])
        fresh = batch.active & ~batch.acted
        state[:, fresh] = 0.0
    return same / max(decisions, 1), decisions
