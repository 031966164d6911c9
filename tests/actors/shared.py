"""Small runs of actors and a learner, and what their workers have done so far."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distrlcc.config import override
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.recipes.registry import recipe
from tests.parallel.commands import rows

WORKERS, ENVS, LENGTH = 3, 2, 8
_TINY = f"""actors.nodes=[["0","5"],["12"]] actors.envs_per_worker={ENVS} seed=3
    network.kind=lstm network.hidden=[8] env.episode_s=0.3 held_out.links=2 held_out.seconds=0.2
    held_out.every=4 checkpoint_every=3"""
_DAGGER = f"""{_TINY} dagger.rollout_length={LENGTH} dagger.sequence_length=4
    dagger.minibatch_size=64 dagger.num_epochs=2 dagger.capacity=100"""
_PPO = f"""{_TINY} ppo.rollout_length={LENGTH} ppo.sequence_length=4 ppo.minibatch_size=32
    ppo.use_vtrace=true ppo.use_kl_loss=true max_seconds=0"""
DAGGER = override(recipe("indigo"), _DAGGER.split())
PPO = override(recipe("quickstart"), _PPO.split())
CONFIGS = pytest.mark.parametrize("config", [DAGGER, PPO], ids=["dagger", "ppo"])

SMALL = """dagger.rollout_length=64 dagger.sequence_length=32 dagger.num_epochs=1
    dagger.capacity=4000 dagger.minibatch_size=500 network.hidden=[8] env.episode_s=2
    held_out.every=50 held_out.links=2 held_out.seconds=1 checkpoint_every=20
    total_steps=1000000000 actors.envs_per_worker=1 dagger.lr_schedule=none"""
ENGINES = pytest.mark.parametrize(
    "engine", ["channel", pytest.param("torch-rpc", marks=pytest.mark.long)]
)
"""What passes the same tests."""
STOP_SECONDS = 60.0
"""What a user's signal may take on a busy machine, s."""


def workers(out: Path) -> dict[int, dict[str, Any]]:
    """Return the newest row of each worker."""
    return {row["worker"]: row for row in rows(out, "workers.jsonl")}


def acting(out: Path, count: int) -> Callable[[], bool]:
    """Return whether so many workers have acted, as a condition."""
    return lambda: sum(row["steps"] > 0 for row in workers(out).values()) == count


def told(out: Path, *words: str) -> Callable[[], bool]:
    """Return whether an event with all these words was logged, as a condition."""

    def found() -> bool:
        events = [event for row in rows(out) for event in row.get("events", [])]
        return any(all(word in event for word in words) for event in events)

    return found


def before_step(patch: pytest.MonkeyPatch, act: Callable[[LinkVectorEnv], object]) -> None:
    """Call a function with each environment before it steps."""
    step = LinkVectorEnv.step

    def both(env: LinkVectorEnv, actions: Any) -> Any:
        act(env)
        return step(env, actions)

    patch.setattr(LinkVectorEnv, "step", both)
