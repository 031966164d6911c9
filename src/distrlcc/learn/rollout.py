"""A segment of experience: what crosses from actors to learners."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.policy.spec import PolicySpec

Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]

_PER_ENVIRONMENT_AXIS = {"last_values": 0, "states": 2}  # every other array is [T, N, ...]


@dataclass(slots=True)
class Rollout:
    """``T`` steps of ``N`` environments, preallocated and written by row.

    Row t holds the observation the action was chosen on and the action's result. Only the first
    ``steps`` rows count: a rollout may be cut short.
    """

    obs: Float32  # [T, N, D], raw: the user normalises them
    actions: NDArray[Any]  # int64 [T, N], or float32 [T, N, A] for continuous actions
    logp: Float32  # [T, N], the action's log-probability when it was taken
    rewards: Float32  # [T, N]
    terminated: Bool  # [T, N], the episode ended here for good: nothing follows
    truncated: Bool  # [T, N], the episode was cut off here: final_values tells what would follow
    values: Float32  # [T, N], critic's value of obs
    final_values: Float32  # [T, N], critic's value of final_obs where truncated, else 0
    expert_actions: NDArray[Any]  # like actions: the oracle's label for obs
    starts: Bool  # [T, N], obs is the first of its episode
    states: Float32  # [S, P, N, H], recurrent state before row s · sequence_length; H = 0 for MLPs
    last_values: Float32  # [N], value of the observation after row steps - 1
    active: Bool  # [T, N], False where no agent ran: such a step is in nothing that is learned
    outcomes: Float32  # [T, N, O], what the action came to on its link; O = 0 if not asked for
    truth: Float32  # [T, N, P], what the critic alone knows of the link before the step; P may be 0
    sequence_length: int  # rows between two kept recurrent states
    steps: int = 0  # rows that were written, 0 to T
    version: int = 0  # version of the weights that acted
    first_index: int = 0  # global index of the first environment

    @classmethod
    def allocate(
        cls,
        spec: PolicySpec,
        length: int,
        count: int,
        sequence_length: int = 1,
        *,
        outcomes: int = 0,
        truth: int = 0,
    ) -> "Rollout":
        """Allocate T = ``length`` rows of N = ``count``; states stand each ``sequence_length``."""
        shape = (length, count)
        # Recurrent states are kept at the start of each sequence; an MLP has none.
        sequence_length = sequence_length if spec.state_size else 1
        segments = -(-length // sequence_length) if spec.state_size else 0
        # Actions and the expert's labels are of one kind.
        actions = spec.no_actions(*shape)
        # What every step has one of.
        figures = ("logp", "rewards", "values", "final_values")
        rows: dict[str, Any] = {name: np.zeros(shape, np.float32) for name in figures}
        rows |= {name: np.zeros(shape, bool) for name in ("terminated", "truncated", "starts")}
        return cls(
            obs=np.zeros((*shape, spec.observation_size), np.float32),
            actions=actions,
            expert_actions=actions.copy(),
            states=np.zeros((segments, *spec.state_shape(count)), np.float32),
            last_values=np.zeros(count, np.float32),
            active=np.ones(shape, bool),
            outcomes=np.zeros((*shape, outcomes), np.float32),
            truth=np.zeros((*shape, truth), np.float32),
            sequence_length=sequence_length,
            **rows,
        )

    @property
    def count(self) -> int:
        """Environments ``N``."""
        return len(self.last_values)

    @property
    def samples(self) -> int:
        """Steps of active agents."""
        return int(np.count_nonzero(self.active[: self.steps]))

    @property
    def idle(self) -> Bool | None:
        """Where no agent ran, ``[steps, N]``; None if nowhere, as where each link has one."""
        active = self.active[: self.steps]
        return None if active.all() else ~active

    def copy(self) -> "Rollout":
        """Return a copy that later writes do not touch, without the rows that were not written."""
        kept: dict[str, Any] = {}
        for name, array in self.arrays().items():
            rows = self.steps if name not in _PER_ENVIRONMENT_AXIS else len(array)
            if name == "states":
                rows = -(-self.steps // self.sequence_length) if len(array) else 0
            kept[name] = array[:rows].copy()
        return replace(self, **kept)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, unwritten rows included."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: v for name, v in values.items() if isinstance(v, np.ndarray)}


def concatenate(rollouts: Sequence[Rollout]) -> Rollout:
    """Join rollouts of several workers side by side, along ``N``; the oldest version counts."""
    steps = sorted({r.steps for r in rollouts})
    if len(steps) != 1:
        raise ValueError(f"rollouts of different lengths {steps} cannot be joined side by side")
    cut = [r.copy() for r in rollouts]
    joined: dict[str, Any] = {
        name: np.concatenate(
            [r.arrays()[name] for r in cut], axis=_PER_ENVIRONMENT_AXIS.get(name, 1)
        )
        for name in cut[0].arrays()
    }
    return replace(cut[0], **joined, version=min(r.version for r in rollouts))
