"""A network under training: flat weights and gradient, Adam, normaliser and version.

One flat vector makes zeroing, clipping, Adam and the exchange between ranks one operation each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distrlcc.errors import ConfigError
from distrlcc.learn.adam import Adam
from distrlcc.learn.learner import Weights
from distrlcc.learn.reducer import Reducer
from distrlcc.policy.network import ActorCritic
from distrlcc.policy.normalizer import Normalizer, normalize
from distrlcc.policy.numpy_network import expected_shapes
from distrlcc.policy.spec import PolicySpec

_LOADED_COUNT = 1e6


class Model:
    """What every learner trains."""

    def __init__(
        self,
        spec: PolicySpec,
        seed: int,
        reducer: Reducer,
        *,
        normalize_observations: bool,
        weight_decay: float = 0.0,
        device: str = "cpu",
    ) -> None:
        """Build the network from ``seed``: the same on every rank."""
        self.spec = spec
        self.version = 0
        self.device = torch.device(device)
        self.network = ActorCritic(spec, seed).to(self.device)
        self.normalizer = Normalizer(spec.observation_size)
        self._normalize_observations = normalize_observations
        self._reducer = reducer
        self.flat, self._gradient = _flatten(self.network)
        self._optimizer = Adam([self.flat], weight_decay=weight_decay, fused=True)

    def normalize(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalise raw observations ``[..., D]`` as the acting policy of this version did."""
        return normalize(obs, *self.normalizer.arrays())

    def learn_normalization(self, obs: NDArray[np.float32]) -> None:
        """Take all ranks' raw observations ``[..., D]`` into the running moments."""
        self.absorb(self._reducer.sum(self.moments(obs)))

    def moments(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what ranks add up of their raw observations ``[..., D]``, ``[3 * D]``."""
        local = Normalizer(self.spec.observation_size)
        local.update(obs)
        # Ranks' moments about a mean they share add up.
        shift = local.mean - self.normalizer.mean
        count = np.full_like(shift, local.count)
        return np.concatenate([count, count * shift, local.m2 + count * shift**2])

    def absorb(self, moments: NDArray[np.float64]) -> None:
        """Take all ranks' sum of :meth:`moments` into the running moments."""
        counts, first, second = moments.reshape(3, -1)
        if counts[0] == 0.0 or not self._normalize_observations:
            return
        total = Normalizer(self.spec.observation_size)
        total.count = float(counts[0])
        total.mean = self.normalizer.mean + first / counts
        total.m2 = np.maximum(second - first**2 / counts, 0.0)
        self.normalizer.merge(total)

    def descend(self, loss: Tensor | None, weight: float, lr: float, grad_clip: float) -> Tensor:
        """Take one step of Adam on all ranks' mean gradient.

        Args:
            loss: Mean over this rank's samples; None if it has none.
            weight: This rank's number of samples.
            lr: Learning rate.
            grad_clip: Largest norm of the gradient; 0 does not clip.

        Returns:
            The gradient's norm before clipping, a scalar.
        """
        self._gradient.zero_()
        if loss is not None:
            loss.backward()
        self._reducer.mean_gradient(self._gradient, weight)
        norm: Tensor = torch.linalg.vector_norm(self._gradient)
        if grad_clip > 0:
            self._gradient.mul_((grad_clip / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.param_groups[0]["lr"] = lr
        self._optimizer.step()
        return norm

    def weights(self, expert_share: float = 0.0) -> Weights:
        """Return a copy of the policy to act with."""
        arrays = {
            name: value.detach().cpu().numpy().copy()
            for name, value in self.network.named_parameters()
        }
        arrays["normalizer.mean"], arrays["normalizer.std"] = self.normalizer.arrays()
        return Weights(self.version, arrays, expert_share)

    def load_weights(self, weights: Weights) -> None:
        """Start from another policy's weights.

        The normaliser counts the given moments as a million samples, so that new observations move
        them slowly; where observations are not to be normalised afresh, they stay as given.

        Raises:
            ConfigError: If the weights are not those of this model's spec.
        """
        expected = expected_shapes(self.spec)
        given = {name: array.shape for name, array in weights.arrays.items()}
        if given != expected:
            names = sorted(n for n in expected | given if expected.get(n) != given.get(n))
            raise ConfigError(
                f"these weights belong to another policy ({', '.join(names)} differ); start from a "
                f"policy with {self.spec.kind} {self.spec.hidden}, {self.spec.observation_size} "
                f"observations and {self.spec.action_size} actions"
            )
        with torch.no_grad():
            for name, value in self.network.named_parameters():
                value.copy_(torch.from_numpy(weights.arrays[name]))
        count = _LOADED_COUNT
        mean = weights.arrays["normalizer.mean"].astype(np.float64)
        variance = np.square(weights.arrays["normalizer.std"].astype(np.float64))
        self.normalizer.load_state_dict({"count": count, "mean": mean, "m2": variance * count})

    def state_dict(self) -> dict[str, Any]:
        """Return weights, Adam's moments, normaliser and version."""
        adam = self._optimizer.state.get(self.flat, {})
        zeros = torch.zeros_like(self.flat.data)
        return {
            "version": self.version,
            "parameters": self.flat.detach().clone(),
            "adam_step": float(adam.get("step", 0.0)),
            "adam_mean": adam.get("exp_avg", zeros).clone(),
            "adam_square": adam.get("exp_avg_sq", zeros).clone(),
            "normalizer": self.normalizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        self.version = int(state["version"])
        with torch.no_grad():
            self.flat.copy_(torch.as_tensor(state["parameters"]))
        self._optimizer.state[self.flat] = {
            "step": torch.tensor(float(state["adam_step"]), device=self.device),
            "exp_avg": torch.as_tensor(state["adam_mean"]).clone().to(self.device),
            "exp_avg_sq": torch.as_tensor(state["adam_square"]).clone().to(self.device),
        }
        self.normalizer.load_state_dict(state["normalizer"])


def _flatten(network: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """Make a network's parameters and gradients views of two flat vectors; return both."""
    parameters = list(network.parameters())
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    gradient = torch.zeros_like(flat.data)
    flat.grad = gradient
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.data = flat.data[begin:end].view_as(parameter)
        parameter.grad = gradient[begin:end].view_as(parameter)
        begin = end
    return flat, gradient
