"""Actor-critic networks and action distributions in torch, for training.

Acting is in :mod:`distrlcc.policy.numpy_policy`. Left out on purpose: separate trunks for actor and
critic, which cost twice the time for no gain seen here.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from distrlcc.plugins import shaped
from distrlcc.policy.min_gru import scan
from distrlcc.policy.numpy_policy import HALF_LOG_TAU, LOG_STD_RANGE
from distrlcc.policy.spec import PolicySpec


class Categorical(NamedTuple):
    """A distribution over ``A`` actions."""

    log_probs: Tensor  # ``[..., A]``, normalised

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return log-probabilities ``[...]`` of int64 actions ``[...]``."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]``, nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class Gaussian(NamedTuple):
    """A diagonal Gaussian over action vectors of length ``A``; nothing squashes it."""

    mean: Tensor  # ``[..., A]``
    log_std: Tensor  # ``[A]``, within ``LOG_STD_RANGE``

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return log-densities ``[...]`` of actions ``[..., A]``."""
        deviation = (actions - self.mean) * (-self.log_std).exp()
        return (-0.5 * deviation.square() - self.log_std - HALF_LOG_TAU).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]``, nats; the same everywhere."""
        entropy = (self.log_std + 0.5 + HALF_LOG_TAU).sum()
        return entropy.expand(self.mean.shape[:-1])


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Estimate KL(old ‖ new) from actions the old policy took, without bias and never below 0.

    The log ratios are log new - log old probabilities of the actions, ``[...]``. The estimate is
    ``(r - 1) - log r``, the k3 of http://joschu.net/blog/kl-approx.html.
    """
    return log_ratio.expm1() - log_ratio


INITIAL_LOG_STD = -0.5  # where a Gaussian's log standard deviation starts

_ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}


class PolicyNetwork(nn.Module):
    """Base of all networks: a start, and the action distribution of their outputs.

    Time comes first: sequences are ``[L, B, ...]``. The recurrent state is one tensor ``[P, B,
    H]``, see `PolicySpec.state_shape`, so that all kinds are used alike.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.log_std: nn.Parameter | None = None

    def _add_log_std(self) -> None:
        if self.spec.action_kind == "continuous":
            self.log_std = nn.Parameter(torch.full((self.spec.action_size,), INITIAL_LOG_STD))

    def initial_state(self, count: int) -> Tensor:
        """Return the state ``[P, count, H]`` at an episode's start."""
        return torch.zeros(self.spec.state_shape(count))

    def distribution(self, head: Tensor) -> Categorical | Gaussian:
        """Return the action distribution of ``forward``'s first output."""
        if self.log_std is None:
            # Along the first axis, as `ActorCritic` lays its logits out.
            return Categorical(torch.log_softmax(head.movedim(-1, 0), dim=0).movedim(0, -1))
        return Gaussian(head, self.log_std.clamp(*LOG_STD_RANGE))


def dense(widths: Sequence[int], activation: type[nn.Module], seed: int) -> nn.Sequential:
    """Build layers of these widths, the last without activation, orthogonal by ``seed`` alone."""
    generator, layers = torch.Generator().manual_seed(seed), list[nn.Module]()
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, gain=2.0**0.5, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])


class UserNetwork(PolicyNetwork):
    """A network that a user brings; see `distrlcc.policy.spec.Network`."""

    def __init__(self, spec: PolicySpec, seed: int = 0) -> None:
        super().__init__(spec)
        assert spec.network is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = spec.network.module(spec)
        self._add_log_std()

    def forward(self, obs: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the network over a sequence; see `ActorCritic.forward`."""
        head, values, state = self.body(obs, starts, state)
        shaped("network", self.spec.kind, head, *obs.shape[:2], self.spec.action_size)
        shaped("network", self.spec.kind, values, *obs.shape[:2])
        return head, values, state


def build_network(spec: PolicySpec, seed: int = 0) -> "UserNetwork | ActorCritic":
    """Return a spec's network with weights drawn from ``seed`` alone."""
    return ActorCritic(spec, seed) if spec.network is None else UserNetwork(spec, seed)


class ActorCritic(PolicyNetwork):
    """Dense layers, an optional recurrent layer, a dense one of its inputs and state, two heads."""

    def __init__(self, spec: PolicySpec, seed: int = 0) -> None:
        super().__init__(spec)
        widths = (spec.observation_size, *spec.dense)
        self.trunk = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        width = widths[-1]
        self.lstm: nn.LSTMCell | None = None
        self.mingru: nn.Linear | None = None
        if spec.kind == "lstm":
            self.lstm = nn.LSTMCell(width, spec.state_size)
        elif spec.kind == "mingru":
            self.mingru = nn.Linear(width, 2 * spec.state_size)
        self.post: nn.Linear | None = None
        if spec.post_hidden:
            self.post = nn.Linear(width + spec.state_size, spec.post_hidden)
        width = spec.post_hidden or spec.state_size or width
        self.policy_head = nn.Linear(width, spec.action_size)
        self.value_head = nn.Linear(width, 1)
        self._add_log_std()
        self._initialize(torch.Generator().manual_seed(seed))

    def _initialize(self, generator: torch.Generator) -> None:
        # Orthogonal weights and a small policy head: https://arxiv.org/abs/2006.05990, section 3.2.
        for name, parameter in self.named_parameters():
            if name == "log_std":
                continue
            if parameter.dim() < 2:
                nn.init.zeros_(parameter)
            elif name.startswith(("lstm.", "mingru.")):
                for gate in parameter.data.split(self.spec.state_size):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                gain = {"policy_head": 0.01, "value_head": 1.0}.get(
                    name.split(".")[0], math.sqrt(2.0)
                )
                nn.init.orthogonal_(parameter, gain, generator=generator)
        if self.lstm is not None:
            size = self.spec.state_size
            # Remember by default: https://proceedings.mlr.press/v37/jozefowicz15.html.
            nn.init.ones_(self.lstm.bias_ih.data[size : 2 * size])
        if self.mingru is not None:
            size = self.spec.state_size
            # Units remember 2 to 32 steps: https://arxiv.org/abs/1804.11188, section 3.
            self.mingru.bias.data[:size] = -torch.linspace(0.0, math.log(31.0), size)

    def forward(self, obs: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the network over a sequence; one step is a sequence of length 1.

        Observations are normalised, ``[L, B, D]``; starts ``[L, B]`` are True where the state is
        zero; the state ``[P, B, H]`` is that before the first row. Returns logits or means ``[L, B,
        A]``, values ``[L, B]`` and the state ``[P, B, H]`` after the last row.
        """
        activate = _ACTIVATIONS[self.spec.activation]
        # Features come first inside, [D, L·B]: a sixth off an update's time, as softmax and loss
        # then run along contiguous memory.
        features = obs.flatten(0, 1).t()
        for layer in self.trunk:
            assert isinstance(layer, nn.Linear)
            features = activate(torch.addmm(layer.bias.unsqueeze(1), layer.weight, features))
        seen = features
        if self.lstm is not None:
            inputs = features.t().unflatten(0, starts.shape)
            outputs, state = self._unroll(self.lstm, inputs, starts, state)
            features = outputs.flatten(0, 1).t()
        elif self.mingru is not None:
            gates = torch.addmm(self.mingru.bias.unsqueeze(1), self.mingru.weight, features)
            states = scan(gates.unflatten(1, starts.shape), starts, state[0].t())
            features, state = states.flatten(1), states[:, -1].t().unsqueeze(0)
        if self.post is not None:
            layer = self.post
            features = torch.cat([seen, features])
            features = activate(torch.addmm(layer.bias.unsqueeze(1), layer.weight, features))
        # Both heads are one product.
        weight = torch.cat([self.policy_head.weight, self.value_head.weight])
        bias = torch.cat([self.policy_head.bias, self.value_head.bias])
        heads = torch.addmm(bias.unsqueeze(1), weight, features).unflatten(1, starts.shape)
        return heads[:-1].movedim(0, -1), heads[-1], state

    def _unroll(
        self, cell: nn.LSTMCell, inputs: Tensor, starts: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        keep = (~starts).unsqueeze(-1).to(inputs.dtype)
        h, c = state.unbind(0)
        outputs = []
        for row, kept in zip(inputs.unbind(0), keep.unbind(0), strict=True):
            h, c = cell(row, (h * kept, c * kept))
            outputs.append(h)
        return torch.stack(outputs), torch.stack((h, c))
