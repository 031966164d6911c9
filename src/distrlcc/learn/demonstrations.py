"""An expert's steps in memory, as a discriminator sees them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distrlcc.data.reader import StoredData
from distrlcc.errors import ConfigError, DatasetError
from distrlcc.learn.config import GailConfig
from distrlcc.policy.spec import PolicySpec
from distrlcc.seeding import stream_key, uniform

_LEAST_OUTCOME = np.float32(0.01)
"""A hundredth of the link, of a round trip or of the packets is as good as nothing."""
_SPACES = ("observation", "observation_size", "action", "action_kind", "action_size")


class Demonstrations:
    """``R`` steps of an expert.

    Observations stay as they are, near 1 in size. Scaled by the expert's own moments, a delay that
    it never has would lie tens of deviations away, where a discriminator tells no more how far.
    """

    def __init__(self, config: GailConfig, spec: PolicySpec, seed: int) -> None:
        """Read whole episodes, the same on every rank.

        Raises:
            ConfigError: No folder is named.
            DatasetError: They are missing, damaged, or of other observations or actions.
        """
        if not config.demonstrations:
            raise ConfigError(
                "gail.demonstrations is empty: collect an expert's trajectories (distrlcc collect "
                "--scheme oracle --disturb 0 --out DATA) and add --set gail.demonstrations=DATA"
            )
        data = StoredData(Path(config.demonstrations))
        _check_spaces(data, spec)
        order = np.argsort(uniform(stream_key(seed, "demonstrations"), np.arange(len(data.steps))))
        count = int(np.searchsorted(np.cumsum(data.steps[order]), config.steps)) + 1
        episodes = [data.episode(int(k)) for k in order[:count]]
        obs = np.concatenate([e.observations for e in episodes])[: config.steps]
        if not np.isfinite(obs).all():
            raise DatasetError(f"{data.folder}: an observation is not finite; collect it again")
        self.spec = spec
        actions = np.concatenate([e.expert_actions for e in episodes])[: config.steps]
        outcomes = np.concatenate([e.outcomes for e in episodes])[: config.steps]
        self.features = self.features_of(obs, actions, outcomes)
        """float32 ``[R, F]``, with F = D + A + 3."""
        self.digest = hashlib.sha256(self.features.numpy().tobytes()).hexdigest()
        """Of all of them."""

    def features_of(
        self, obs: NDArray[np.float32], actions: NDArray[Any], outcomes: NDArray[np.float32]
    ) -> Tensor:
        """Put observations ``[R, D]``, actions (one-hot where discrete) and outcomes together.

        Outcomes as logarithms: from a tenth of a round trip to none is as far as from one to that.
        """
        if self.spec.action_kind == "discrete":
            chosen = torch.from_numpy(np.asarray(actions, np.int64))
            done = torch.nn.functional.one_hot(chosen, self.spec.action_size).float()
        else:
            done = torch.from_numpy(np.asarray(actions, np.float32))
        logs = np.log(np.maximum(outcomes, 0.0) + _LEAST_OUTCOME)
        return torch.cat([torch.from_numpy(obs), done, torch.from_numpy(logs)], dim=1)

    def draw(self, key: np.uint64, first: int, count: int) -> Tensor:
        """Draw steps with replacement, ``[count, F]``; other ``first``, other steps."""
        chosen = uniform(key, first, np.arange(count)) * len(self.features)
        return self.features[torch.from_numpy(chosen.astype(np.int64))]


def _check_spaces(data: StoredData, spec: PolicySpec) -> None:
    spaces = data.manifest.spaces
    differ = [name for name in _SPACES if getattr(spaces, name) != getattr(spec, name)]
    if differ:
        have = ", ".join(f"{name} {getattr(spaces, name)}" for name in differ)
        want = ", ".join(f"{name} {getattr(spec, name)}" for name in differ)
        raise DatasetError(
            f"{data.folder} has {have}; expected {want}, as this configuration says: collect with "
            "--recipe and --set of this run"
        )
