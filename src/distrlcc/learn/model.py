"""Base of every learner: a policy under training, with its optimizer, normaliser and version."""

import ctypes
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distrlcc.errors import ConfigError
from distrlcc.learn.config import DaggerConfig, ImitationConfig, PPOConfig
from distrlcc.learn.flat_adam import FlatAdam
from distrlcc.learn.learner import LocalReducer, Reducer, Weights
from distrlcc.learn.minibatches import Batch
from distrlcc.learn.scaling import Scale
from distrlcc.policy.network import Categorical, Gaussian, build_network
from distrlcc.policy.normalizer import CLIP, Normalizer, normalize
from distrlcc.policy.spec import PolicySpec, expected_shapes
from distrlcc.seeding import stream_key


def limit_threads() -> None:
    """Let torch and NumPy's BLAS compute in one thread each; processes make use of more cores.

    A second BLAS thread spins: if another process wants its core, acting takes five to thirty times
    as long. Only a BLAS of NumPy's wheels is set: for others set that library's environment
    variable before the process starts.
    """
    torch.set_num_threads(1)
    for library in Path(np.__file__).parent.parent.glob("numpy.libs/libscipy_openblas*"):
        openblas = ctypes.CDLL(str(library))
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
            if hasattr(openblas, name):
                getattr(openblas, name)(1)


class Learner(ABC):
    """Turns what was collected, as rollouts or epochs of a data set, into better weights."""

    config: Any

    def __init__(
        self,
        config: PPOConfig | DaggerConfig | ImitationConfig,
        spec: PolicySpec,
        seed: int = 0,
        reducer: Reducer | None = None,
        device: str = "cpu",
        beside: Sequence[nn.Module] = (),
    ) -> None:
        """Build the learner of the same config, spec and seed on every rank.

        The module ``beside`` the network is trained with it, and is part of no policy.
        """
        if spec.state_size and config.minibatch_size < config.sequence_length:
            raise ConfigError(
                f"minibatch_size is {config.minibatch_size}: expected {config.sequence_length} or "
                "more, one sequence of the recurrent layer (sequence_length)"
            )
        self.config, self.spec, self.device = config, spec, torch.device(device)
        self.version = 0
        self.network = build_network(spec, seed).to(self.device)
        self.normalizer = Normalizer(spec.observation_size)
        self.reducer = reducer or LocalReducer()
        self.scale = Scale(self.reducer)  # how batches and rates follow the number of ranks
        weight_decay = 0.0 if isinstance(config, PPOConfig) else config.l2
        trained = nn.ModuleList([self.network, *beside]).to(self.device)
        self.optimizer = FlatAdam(trained, self.reducer, weight_decay)
        self._minibatch_key = stream_key(seed, "minibatches")
        self._env_steps = 0

    def advice(self) -> str:
        """Say how many processes would pay; empty while one alone has learned."""
        return self.optimizer.noise.advice(self.config.minibatch_size)

    @abstractmethod
    def update(self, batch: Any) -> dict[str, float]:
        """Learn from one batch, return metrics; where that raises, :meth:`undo_update` follows."""

    def normalize(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalise raw observations ``[..., D]`` as the acting policy of this version did."""
        return normalize(obs, *self.normalizer.arrays())

    def moments(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what ranks add up of their raw observations ``[..., D]``, ``[3 * D]``."""
        local = Normalizer(self.spec.observation_size)
        local.update(obs)
        if not self.config.normalize_observations:
            mean, std = self.normalizer.arrays()
            if (np.abs(obs - mean) > CLIP * std).any():  # said once
                what = f"observations beyond {CLIP:g} count as {CLIP:g}, as normalize_observations"
                warnings.warn(f"{what} is false: scale them where they are made", stacklevel=2)
        # Ranks' moments about a mean they share add up.
        shift = local.mean - self.normalizer.mean
        count = np.full_like(shift, local.count)
        return np.concatenate([count, count * shift, local.m2 + count * shift**2])

    def absorb(self, moments: NDArray[np.float64]) -> None:
        """Take all ranks' sum of :meth:`moments` into the running moments."""
        counts, first, second = moments.reshape(3, -1)
        if counts[0] == 0.0 or not self.config.normalize_observations:
            return
        mean = self.normalizer.mean + first / counts
        self.normalizer.merge(float(counts[0]), mean, np.maximum(second - first**2 / counts, 0.0))

    def imitate(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Compare what the policy does with an expert's actions, at each of ``[L, B]`` steps.

        Returns:
            The loss, which is the cross-entropy or for continuous actions the squared error; what
            to subtract from it, so that a deviation learns how far off the mean is without pulling
            at the mean itself; and the hits.
        """
        head, _, _ = self.network(batch.obs, batch.starts, batch.states)
        distribution, actions = self.network.distribution(head), batch.actions
        if isinstance(distribution, Categorical):
            loss = -distribution.log_prob(actions)
            return loss, torch.zeros_like(loss), (head.argmax(-1) == actions).float()
        error = (head - actions).square().mean(-1)
        spread = Gaussian(head.detach(), distribution.log_std).log_prob(actions)
        return error, spread, torch.zeros_like(error)

    def weights(self) -> Weights:
        """Return a copy of the policy to act with."""
        arrays = {
            name: value.detach().cpu().numpy().copy()
            for name, value in self.network.named_parameters()
        }
        arrays["normalizer.mean"], arrays["normalizer.std"] = self.normalizer.arrays()
        return Weights(self.version, arrays)

    def load_weights(self, weights: Weights) -> None:
        """Start from another policy's weights.

        The normaliser counts the given moments as a million samples, so that new observations move
        them slowly. Observations that are not normalised afresh stay as given, as do those that the
        policy took as they are: scaled by and by, it would become another one.
        """
        expected = expected_shapes(self.spec)
        given = {name: array.shape for name, array in weights.arrays.items()}
        if given != expected:
            names = sorted(n for n in expected | given if expected.get(n) != given.get(n))
            raise ConfigError(
                f"these weights belong to another policy ({', '.join(names)} differ); start from a "
                f"policy with {self.spec.network_text}, {self.spec.observation_size} "
                f"observations and {self.spec.action_size} actions"
            )
        with torch.no_grad():
            for name, value in self.network.named_parameters():
                value.copy_(torch.from_numpy(weights.arrays[name]))
        mean = weights.arrays["normalizer.mean"].astype(np.float64)
        plain = not mean.any() and np.ptp(weights.arrays["normalizer.std"]) == 0
        count = 1e18 if plain else 1e6
        if plain and self.config.normalize_observations:
            why = "the policy to start from takes them as they are, and so does this run"
            warnings.warn(f"observations are not normalised: {why}", stacklevel=2)
        variance = np.square(weights.arrays["normalizer.std"].astype(np.float64))
        self.normalizer.load_state_dict({"count": count, "mean": mean, "m2": variance * count})

    def shared_state(self) -> dict[str, Any]:
        """Return the part of :meth:`state_dict` that is the same on all ranks."""
        model = {
            "version": self.version,
            **self.optimizer.state_dict(),
            "normalizer": self.normalizer.state_dict(),
        }
        return {"model": model, "env_steps": self._env_steps, "scaled_to": self.scale.ranks}

    def state_dict(self) -> dict[str, Any]:
        """Return all that a bit-identical resume needs: nested dicts of arrays and scalars."""
        return self.shared_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state, or the shared part of it."""
        self.version = int(state["model"]["version"])
        self.optimizer.load_state_dict(state["model"])
        self.normalizer.load_state_dict(state["model"]["normalizer"])
        self._env_steps = int(state.get("env_steps", 0))
        self.scale.ranks = float(state.get("scaled_to", 1.0))

    def undo_update(self, before: dict[str, Any]) -> None:
        """Leave no trace of a broken update; ``before`` is :meth:`shared_state` before it."""
        self.load_state_dict(before)

    def pass_over(self, steps: int) -> None:
        """Count an update from which nothing was learned, and all ranks' steps in it."""
        self.version += 1
        self._env_steps += steps
