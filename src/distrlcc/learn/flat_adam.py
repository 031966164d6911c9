"""Adam on all ranks' mean gradient, over flat vectors of parameters and gradient.

One flat vector makes zeroing, clipping, Adam and the exchange between ranks one operation each.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from distrlcc.learn.learner import NotFiniteError, Reducer
from distrlcc.learn.scaling import NoiseScale
from distrlcc.policy.network import PolicyNetwork
from distrlcc.policy.numpy_policy import LOG_STD_RANGE

_LEAST_WEIGHT = 1e-3


def _plain(method: Callable[..., Any]) -> Any:
    return getattr(method, "__wrapped__", method)


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`."""

    add_param_group = _plain(torch.optim.Adam.add_param_group)
    load_state_dict = _plain(torch.optim.Adam.load_state_dict)
    state_dict = _plain(torch.optim.Adam.state_dict)
    zero_grad = _plain(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(_plain(torch.optim.Adam.step))


class FlatAdam:
    """Takes a network's steps; the network's parameters become views of ``flat``."""

    def __init__(self, network: nn.Module, reducer: Reducer, weight_decay: float = 0.0) -> None:
        self._reducer = reducer
        parameters = list(network.parameters())
        self.flat = nn.Parameter(parameters_to_vector(parameters).detach())
        vector_to_parameters(self.flat.data, parameters)
        # Gradients are views, too.
        self._gradient = self.flat.grad = torch.zeros_like(self.flat.data)
        pieces = self._gradient.split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        self.noise = NoiseScale()
        self._steps, self._samples = 0, 0.0  # of this rank alone, since the last average
        self._optimizer = Adam([self.flat], weight_decay=weight_decay, fused=True)
        found = [part.log_std for part in network.modules() if isinstance(part, PolicyNetwork)]
        self._log_stds = [log_std.data for log_std in found if log_std is not None]

    def step(
        self, loss: Tensor | None, weight: float, lr: float, grad_clip: float | None
    ) -> Tensor:
        """Take one step of Adam and return the gradient's norm before clipping, a scalar.

        ``loss`` is the mean over this rank's ``weight`` samples, None if it has none; ``grad_clip``
        is the largest norm of the gradient, 0 and None do not clip. With the reducer's
        ``sync_every`` the step is this rank's own (local SGD, https://arxiv.org/abs/1805.09767),
        and so many are averaged.
        """
        self._gradient.zero_()
        if loss is not None:
            loss.backward()
        alone = self._alone
        spread = None if alone else self._reducer.mean_gradient(self._gradient, weight)
        norm: Tensor = torch.linalg.vector_norm(self._gradient)
        if not (alone or math.isfinite(norm)):
            raise NotFiniteError("the mean gradient is not finite")
        self.noise.add(spread, float(norm) ** 2)
        if grad_clip:
            self._gradient.mul_((grad_clip / (norm + 1e-6)).clamp(max=1.0))
        # Where no rank has a sample momentum alone would step.
        if alone or weight or (spread is not None and spread.samples >= 1.0):
            self._optimizer.param_groups[0]["lr"] = lr
            self._optimizer.step()
            for log_std in self._log_stds:  # beyond its bounds it would have no gradient any more
                log_std.clamp_(*LOG_STD_RANGE)
        if alone:
            self._steps, self._samples = self._steps + 1, self._samples + weight
            if self._steps >= self._reducer.sync_every:
                self.average()
        return norm

    @property
    def _alone(self) -> bool:
        return self._reducer.sync_every > 1 and self._reducer.size > 1

    def average(self) -> None:
        """Average ranks' own steps, with Adam's moments, by samples; all ranks call it at once."""
        if not self._steps:
            return
        adam = self._optimizer.state[self.flat]
        held = [self.flat.data, adam["exp_avg"], adam["exp_avg_sq"]]
        mean = torch.cat(held)
        # Where no rank had a sample all are the same.
        self._reducer.mean_gradient(mean, max(self._samples, _LEAST_WEIGHT))
        if not math.isfinite(torch.linalg.vector_norm(mean)):
            raise NotFiniteError("the mean of the weights is not finite")
        for vector, part in zip(held, mean.chunk(len(held)), strict=True):
            vector.copy_(part)
        self._steps, self._samples = 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and Adam's moments."""
        adam = self._optimizer.state.get(self.flat, {})
        zeros = torch.zeros_like(self.flat.data)
        return {
            "parameters": self.flat.detach().clone(),
            "adam_step": float(adam.get("step", 0.0)),
            "adam_mean": adam.get("exp_avg", zeros).clone(),
            "adam_square": adam.get("exp_avg_sq", zeros).clone(),
            **({"noise_scale": asdict(self.noise)} if self.noise.signal else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        device, self._steps, self._samples = self.flat.device, 0, 0.0
        self.noise = NoiseScale(**state.get("noise_scale", {}))
        with torch.no_grad():
            self.flat.copy_(torch.as_tensor(state["parameters"]))
        self._optimizer.state[self.flat] = {
            "step": torch.tensor(float(state["adam_step"]), device=device),
            "exp_avg": torch.as_tensor(state["adam_mean"]).clone().to(device),
            "exp_avg_sq": torch.as_tensor(state["adam_square"]).clone().to(device),
        }
