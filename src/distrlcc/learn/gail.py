"""Generative adversarial imitation (https://arxiv.org/abs/1606.03476) around PPO.

The environment's reward is not used. A step's reward is log D - log(1 - D), the logit of the
discriminator's belief that it is the expert's. It is scaled to mean 0 and variance 1 over all
ranks' rollouts. PPO learns from it as from any other; then the discriminator learns from the same
rollout.

The discriminator, which training alone needs, sees observation, action and the step's outcome. The
outcome is there because experts know the link. A sender that stands still at half of a link's rate
sees the same as one that stands still at all of it.
"""

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from distrlcc.data.reader import StoredData
from distrlcc.errors import CheckpointError, ConfigError, DatasetError
from distrlcc.learn.config import AlarmConfig, GailConfig, PPOConfig
from distrlcc.learn.flat_adam import FlatAdam
from distrlcc.learn.imitation import flaw
from distrlcc.learn.learner import Reducer
from distrlcc.learn.minibatches import plan_minibatches
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.network import dense
from distrlcc.policy.spec import PolicySpec
from distrlcc.seeding import bits, stream_key, uniform

_LEAST_OUTCOME = np.float32(0.01)  # of the link, a round trip or the packets: as good as nothing


class Demonstrations:
    """``R`` steps of an expert.

    Observations stay as they are, near 1 in size. Scaled by the expert's own moments, a delay that
    it never has would lie tens of deviations away, where a discriminator no longer tells how far.
    """

    def __init__(self, config: GailConfig, spec: PolicySpec, seed: int) -> None:
        """Read whole episodes, the same on every rank."""
        if not config.demonstrations:
            raise ConfigError(
                "gail.demonstrations is empty: collect an expert's trajectories, undisturbed "
                "(docs/imitation.md), and set gail.demonstrations=DATA"
            )
        data = StoredData(Path(config.demonstrations))
        order = np.argsort(uniform(stream_key(seed, "demonstrations"), np.arange(len(data.steps))))
        count = int(np.searchsorted(np.cumsum(data.steps[order]), config.steps)) + 1
        episodes = [data.episode(int(k)) for k in order[:count]]
        obs = np.concatenate([e.observations for e in episodes])[: config.steps]
        self.spec = spec
        actions = np.concatenate([e.expert_actions for e in episodes])[: config.steps]
        if problem := flaw(spec, obs, actions):
            raise DatasetError(f"{data.folder}: {problem}; collect it again")
        outcomes = np.concatenate([e.outcomes for e in episodes])[: config.steps]
        self.features = self.features_of(obs, actions, outcomes)
        """float32 ``[R, F]``, with F = D + A + 3."""
        self.digest = hashlib.sha256(self.features.numpy().tobytes()).hexdigest()  # of all of them

    def features_of(
        self, obs: NDArray[np.float32], actions: NDArray[Any], outcomes: NDArray[np.float32]
    ) -> Tensor:
        """Put observations ``[R, D]``, actions (one-hot if discrete) and log outcomes together.

        Logarithms put a tenth of a round trip as far from none as one from a tenth.
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


def classification_loss(expert: Tensor, policy: Tensor) -> Tensor:
    """Return GAIL's objective (equation 15) of logits ``[R]``, with D for the expert.

    That is the mean of -log D(expert) - log(1 - D(policy)) (https://arxiv.org/abs/1606.03476).
    """
    return functional.softplus(-expert).mean() + functional.softplus(policy).mean()


def gradient_penalty(network: nn.Module, expert: Tensor, policy: Tensor, mix: Tensor) -> Tensor:
    """Return the mean squared deviation of the slope from 1 (https://arxiv.org/abs/1704.00028).

    The slope is taken between each two of ``[R, F]`` steps: ``mix`` ``[R]``, in [0, 1], says where.
    """
    between = torch.lerp(policy, expert, mix[:, None]).requires_grad_(True)
    (slope,) = torch.autograd.grad(network(between).sum(), between, create_graph=True)
    penalty: Tensor = (slope.norm(dim=1) - 1.0).square().mean()
    return penalty


def divergence(expert: Tensor, policy: Tensor) -> Tensor:
    """Return the discriminator's lower bound of the Jensen-Shannon divergence, nats, of logits.

    It is 0 if it cannot tell policy and expert apart, log 2 if it always can, and below 0 if it is
    worse than a guess. Logits are ``[R]``.
    """
    proved: Tensor = torch.tensor(2.0).log() - 0.5 * classification_loss(expert, policy)
    return proved


_METRICS = ("gail_loss", "gail_accuracy", "gail_divergence", "gail_penalty")


class Gail(PPO):
    """PPO whose rewards are the discriminator's, and the discriminator."""

    def __init__(
        self,
        config: GailConfig,
        ppo: PPOConfig,
        spec: PolicySpec,
        seed: int = 0,
        reducer: Reducer | None = None,
        device: str = "cpu",
    ) -> None:
        """Build generator and discriminator; all arguments are the same on every rank."""
        super().__init__(ppo, spec, seed, reducer, device)
        self._gail = config
        self._expert = Demonstrations(config, spec, seed)
        # Its output is D's logit, ``[R]`` of ``[R, F]`` steps' features.
        layers = dense((self._expert.features.shape[1], *config.hidden, 1), nn.Tanh, seed)
        self._discriminator = nn.Sequential(*layers, nn.Flatten(0)).to(self.device)
        self._discriminator_adam = FlatAdam(self._discriminator, self.reducer)
        self._deal_key = stream_key(seed, "discriminator's minibatches")
        self._draw_key = stream_key(seed, "discriminator's expert")

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Reward a rollout, in place, learn from it, then let the discriminator; return metrics."""
        version = self.version
        kept = (rollout.obs, rollout.actions, rollout.outcomes)
        flat = (a[: rollout.steps].reshape(rollout.samples, *a.shape[2:]) for a in kept)
        features = self._expert.features_of(*flat).to(self.device)
        reward = self._reward(rollout, features)
        return super().update(rollout) | reward | self._discriminate(rollout, features, version)

    def _reward(self, rollout: Rollout, features: Tensor) -> dict[str, float]:
        with torch.no_grad():
            logits = self._discriminator(features).cpu().numpy().astype(np.float64)
        sums = np.array([len(logits), logits.sum(), np.square(logits).sum()])
        samples, total, squares = self.reducer.sum(sums).tolist()
        mean = total / max(samples, 1.0)
        std = math.sqrt(max(squares / max(samples, 1.0) - mean * mean, 0.0))
        scaled = (logits - mean) / (std + 1e-8)
        rollout.rewards[: rollout.steps] = scaled.reshape(rollout.steps, rollout.count)
        return {"gail_reward": mean, "gail_reward_std": std}

    def _discriminate(self, rollout: Rollout, features: Tensor, version: int) -> dict[str, float]:
        config, rows = self._gail, len(rollout.obs)
        counts = np.array([rollout.samples, rollout.count], np.float64)
        samples, envs = self.reducer.sum(counts).tolist()
        size, lr = config.minibatch_size * self.scale.batches, config.lr * self.scale.factor
        plan = plan_minibatches(samples, size, rows, envs, rollout.first_index)
        sums, draws = torch.zeros(len(_METRICS) + 1, dtype=torch.float64), 0
        for epoch in range(config.num_epochs):
            key = np.uint64(bits(self._deal_key, version, epoch))
            sums.zero_()
            for chosen in plan.minibatches(rollout.steps, rollout.count, key):
                draw = np.uint64(bits(self._draw_key, version, draws))
                draws += 1
                if not len(chosen):  # this rank's rollout was cut short of what the others have
                    self._discriminator_adam.step(None, 0, lr, 0.0)
                    continue
                policy = features[chosen.to(self.device)]
                expert = self._expert.draw(draw, rollout.first_index, len(chosen))
                loss, metrics = self._judge(expert.to(self.device), policy, draw)
                self._discriminator_adam.step(loss, len(chosen), lr, 0.0)
                sums += metrics.cpu() * len(chosen)
        self._discriminator_adam.average()
        return self.means(_METRICS, sums)

    def _judge(self, expert: Tensor, policy: Tensor, draw: np.uint64) -> tuple[Tensor, Tensor]:
        """Return the loss of ``R`` steps of each, and ``_METRICS`` with a 1."""
        logits = self._discriminator(torch.cat([expert, policy]))
        ours, theirs = logits[: len(expert)], logits[len(expert) :]
        loss = classification_loss(ours, theirs)
        penalty = torch.zeros((), device=self.device)
        if self._gail.gradient_penalty:
            mix = torch.from_numpy(uniform(draw, np.arange(len(expert)))).float()
            penalty = gradient_penalty(self._discriminator, expert, policy, mix.to(self.device))
        with torch.no_grad():
            accuracy = 0.5 * ((ours > 0).float().mean() + (theirs < 0).float().mean())
            proved = divergence(ours, theirs)
            one = torch.ones((), device=self.device)
            metrics = torch.stack([loss, accuracy, proved, penalty, one]).double()
        return loss + self._gail.gradient_penalty * penalty, metrics

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on all ranks: everything except the demonstrations themselves."""
        return {
            "ppo": super().shared_state(),
            "discriminator": self._discriminator_adam.state_dict(),
            "demonstrations": self._expert.digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state; refused where the demonstrations were others."""
        if state["demonstrations"] != self._expert.digest:
            raise CheckpointError(
                f"{self._gail.demonstrations} is not the data set that this run began with; give "
                "it back its place, or begin a new run"
            )
        super().load_state_dict(state["ppo"])
        self._discriminator_adam.load_state_dict(state["discriminator"])

    def recover(self, good: dict[str, Any], alarm: AlarmConfig) -> None:
        """Go back to an earlier state of both, and weigh the generator's entropy more."""
        super().recover(good["ppo"], alarm)
        self._discriminator_adam.load_state_dict(good["discriminator"])
