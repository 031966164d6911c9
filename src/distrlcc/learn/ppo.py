"""Proximal policy optimisation (https://arxiv.org/abs/1707.06347), with RLlib's names and KL rule.

Left out on purpose: separate trunks, learning-rate search. With several ranks this is DD-PPO
(https://arxiv.org/abs/1911.00357): ranks average the gradient in each minibatch. They also average
the statistics of advantages and observations, and the KL that stops an update or sets the learning
rate. They agree on the number of minibatches, so that a rank whose rollout was cut short stays in
step. Where an older policy acted, V-trace corrects for it (``use_vtrace``).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distrlcc.learn.config import LR_RANGE, AlarmConfig, PPOConfig, scheduled
from distrlcc.learn.learner import Reducer
from distrlcc.learn.minibatches import Batch, batch_of, plan_minibatches
from distrlcc.learn.model import Learner
from distrlcc.learn.returns import Returns, vtrace
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.network import dense, kl_estimate
from distrlcc.policy.spec import PolicySpec
from distrlcc.seeding import bits
from distrlcc.types import TRUTH

Float32 = NDArray[np.float32]

_PRIVILEGED_WIDTH = 64
_STOP_FACTOR = 1.5  # SB3's: an update stops at a KL of so many `PPOConfig.target_kl`
_LR_FACTOR = 1.5  # rsl_rl's, of `PPOConfig.desired_kl`
_METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


@dataclass(frozen=True, slots=True)
class ExtraEntropy:
    """An addition to the weight that falls to 0 linearly."""

    amount: float = 0.0  # right after the recovery
    until: int = 0  # version of the weights from which on nothing is added
    updates: int = 1  # updates that it lasts

    @classmethod
    def after(cls, alarm: AlarmConfig, usual: float, version: int) -> "ExtraEntropy":
        """Return the addition for a recovery at a version, given the usual weight."""
        raised = alarm.entropy_factor * max(usual, alarm.entropy_floor)
        return cls(max(raised - usual, 0.0), version + alarm.decay_updates, alarm.decay_updates)

    def at(self, version: int) -> float:
        """Return what is added in the update of a version."""
        return self.amount * max(self.until - version, 0) / self.updates


class PPO(Learner):
    """PPO; its batches are rollouts."""

    config: PPOConfig

    def __init__(
        self,
        config: PPOConfig,
        spec: PolicySpec,
        seed: int = 0,
        reducer: Reducer | None = None,
        device: str = "cpu",
    ) -> None:
        # What is left out of advantages is what a critic expects that knows the link, beyond what
        # the policy's own says (an asymmetric actor-critic, https://arxiv.org/abs/1710.06542). It
        # is there in training alone, and adds nothing at first.
        self._privileged: nn.Sequential | None = None
        if config.privileged_critic:
            widths = spec.observation_size + 1 + len(TRUTH), _PRIVILEGED_WIDTH, _PRIVILEGED_WIDTH, 1
            self._privileged = dense(widths, nn.ReLU, seed)
            nn.init.zeros_([*self._privileged.parameters()][-2])
        beside = [] if self._privileged is None else [self._privileged]
        super().__init__(config, spec, seed, reducer, device, beside)
        self._kl_coeff, self._adapted_lr = float(config.kl_coeff), float(config.lr)
        self._extra_entropy = ExtraEntropy()

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from one rollout of every rank and return metrics.

        Losses, entropy, KL and clip fraction are means over ranks and the last epoch, as far as
        ``target_kl`` let it go. With ``use_vtrace`` they compare with the policy of the update's
        start.
        """
        config = self.config
        # Advantages and value targets of this rank's rollout.
        logp, returns = self._returns(rollout)
        advantages, idle = returns.advantages, rollout.idle
        if idle is not None:
            advantages[idle] = 0.0

        # One exchange of all that ranks must agree on before the first minibatch.
        wide = advantages.astype(np.float64)
        lag = [_active(x, idle).sum(dtype=np.float64) for x in (returns.rho, returns.clipped)]
        fit = (_active(x, idle).astype(np.float64) for x in (returns.targets, returns.residuals))
        spread = [s for each in fit for s in (each.sum(), np.square(each).sum())]
        sums = [rollout.samples, rollout.count, wide.sum(), np.square(wide).sum(), *spread, *lag]
        moments = self.moments(_active(rollout.obs[: rollout.steps], idle))
        agreed = self.reducer.sum(np.concatenate([sums, moments]))
        samples, envs, total, squares, *spread, rho, clipped = agreed[: len(sums)].tolist()
        count = max(samples, 1.0)
        if config.normalize_advantages:
            mean = total / count
            std = math.sqrt(max(squares / count - mean * mean, 0.0))
            advantages = (advantages - np.float32(mean)) / np.float32(std + 1e-8)

        # How samples are divided into minibatches, and the weights of this update.
        rows = -(-len(rollout.obs) // rollout.sequence_length)
        size = config.minibatch_size * self.scale.batches
        plan = plan_minibatches(samples, size, rows, envs, rollout.first_index)
        lr, factor = self._adapted_lr, self.scale.begin()
        lr = scheduled(config.lr_schedule, self._env_steps, lr)
        lr *= 1.0 if config.desired_kl else factor  # a rate that follows the KL needs no rule
        entropy_coeff = self._usual_entropy_coeff() + self._extra_entropy.at(self.version)

        # Passes over the rollout, one step of Adam a minibatch.
        columns = [logp, advantages, returns.targets]
        if self._privileged is not None:
            columns += [
                rollout.values[: rollout.steps],
                *np.moveaxis(rollout.truth[: rollout.steps], -1, 0),
            ]
        batch = self._batch(rollout, np.stack(columns))
        metric_sums, norm = torch.zeros(len(_METRICS) + 1), torch.zeros(())
        stopped, most = False, _STOP_FACTOR * (config.target_kl or 0.0)
        for epoch in range(config.num_epochs):
            if stopped:
                break
            shuffle = epoch if config.shuffle_batch_per_epoch else 0
            key = np.uint64(bits(self._minibatch_key, self.version, shuffle))
            metric_sums.zero_()
            for chosen in plan.minibatches(batch.count // rollout.count, rollout.count, key):
                chosen = batch.used(chosen)
                # None: the rollout was cut short of what other ranks have, or none was active.
                loss, own, metrics = None, 0, torch.zeros(len(_METRICS) + 1)
                if len(chosen):
                    part = batch.take(chosen.to(self.device))
                    loss, metrics = self.loss(part, entropy_coeff)
                    own = part.samples
                metric_sums += metrics.cpu()
                if most or config.desired_kl:  # all ranks see the same KL
                    *_, kl, _, seen = self.reducer.sum(metrics.cpu().double().numpy()).tolist()
                    kl /= max(seen, 1.0)
                    stopped = bool(most) and kl > most
                    if stopped:
                        break
                    lr = self._adapt_lr(kl, lr) if seen else lr
                norm = self.optimizer.step(loss, own, lr, config.grad_clip)

        self.optimizer.average()

        # What the next update starts from, and what this one was like.
        self.absorb(agreed[len(sums) :])
        means = self.means(_METRICS, metric_sums)
        means |= self._adapted_kl_coeff(means["kl"])
        staleness = float(self.version - rollout.version)
        self.version += 1
        self._env_steps += int(samples)
        if config.use_vtrace:
            means["vtrace_rho"], means["vtrace_clip_fraction"] = rho / count, clipped / count
        if most:
            means["stopped_early"] = float(stopped)
        return means | {
            "explained_variance": _explained_variance(count, spread),
            "gradient_norm": float(norm),
            "lr": lr,
            "entropy_coeff": entropy_coeff,
            "staleness": staleness,
        }

    def _returns(self, rollout: Rollout) -> tuple[Float32, Returns]:
        """Return the log-probabilities to compare with, and returns, corrected if so configured."""
        config = self.config
        lambda_ = config.lambda_ if config.use_gae else 1.0
        options: dict[str, Any] = {
            "use_critic": config.use_critic,
            "reward_scale": config.reward_scale,
        }
        if config.use_vtrace:
            logp, values = self._evaluate(rollout)
            options |= {"rho_bound": config.vtrace_rho, "c_bound": config.vtrace_c}
        else:  # the policy that acted is the one that learns: generalised advantage estimation
            logp, values = rollout.logp[: rollout.steps], rollout.values[: rollout.steps]
        if self._privileged is not None:
            rollout, values = self._corrected(rollout)
        return logp, vtrace(rollout, logp, values, config.gamma, lambda_, **options)

    def _corrected(self, rollout: Rollout) -> tuple[Rollout, Float32]:
        """Return a rollout, and its steps' values, with the privileged critic's corrections.

        The final observation of a cut episode, and the one after the rollout, come a step later
        than the critic's last: they get the same correction.
        """
        steps = rollout.steps
        obs, truth = self.normalize(rollout.obs[:steps]), rollout.truth[:steps]
        values = rollout.values[:steps]
        inputs = (torch.from_numpy(array).to(self.device) for array in (obs, values, truth))
        with torch.no_grad():
            beyond = self._beyond(*inputs).cpu().numpy()
        final = rollout.final_values.copy()
        final[:steps] += np.where(rollout.truncated[:steps], beyond, 0)
        last = rollout.last_values + beyond[-1] if steps else rollout.last_values
        return replace(rollout, final_values=final, last_values=last), values + beyond

    def _beyond(self, obs: Tensor, values: Tensor, truth: Tensor) -> Tensor:
        """Return the correction of values ``[...]``, from ``[..., D]`` and ``[..., P]``."""
        assert self._privileged is not None
        inputs = torch.cat([obs, values.unsqueeze(-1), truth], -1)
        added: Tensor = self._privileged(inputs).squeeze(-1)
        return added

    def _usual_entropy_coeff(self) -> float:
        config = self.config
        return scheduled(config.entropy_coeff_schedule, self._env_steps, config.entropy_coeff)

    def _evaluate(self, rollout: Rollout) -> tuple[Float32, Float32]:
        """Return the actions' log-probabilities and the values as they are now, ``[steps, N]``."""
        steps, count = rollout.steps, rollout.count
        batch = self._batch(rollout, np.zeros((0, steps, count), np.float32))
        network = self.network
        with torch.no_grad():
            head, values, _ = network(batch.obs, batch.starts, batch.states)
            logp = network.distribution(head).log_prob(batch.actions)
        both = torch.stack([logp, values]).unflatten(2, (-1, count))  # [2, L, S, N]
        # Back to rows, without what the last sequences were padded with.
        logp, values = both.transpose(1, 2).flatten(1, 2)[:, :steps].cpu()
        return logp.numpy(), values.numpy()

    def loss(self, batch: Batch, entropy_coeff: float) -> tuple[Tensor, Tensor]:
        """Return the loss, and ``_METRICS`` times the number of samples with that number."""
        config = self.config
        head, values, _ = self.network(batch.obs, batch.starts, batch.states)
        distribution = self.network.distribution(head)
        old_logp, advantages, targets = batch.columns[:3].unbind(0)
        log_ratio = distribution.log_prob(batch.actions) - old_logp
        if batch.valid is not None:  # what does not count shall not overflow
            log_ratio = log_ratio.where(batch.valid, 0.0)
        ratio = log_ratio.exp()

        # The clipped surrogate objective L^CLIP: https://arxiv.org/abs/1707.06347, equation 7.
        clipped_ratio = ratio.clamp(1.0 - config.clip_param, 1.0 + config.clip_param)
        policy_loss = batch.mean(-torch.min(ratio * advantages, clipped_ratio * advantages))
        value_loss = batch.mean((values - targets).square().clamp(max=config.vf_clip_param))
        entropy = batch.mean(distribution.entropy())
        kl = batch.mean(kl_estimate(log_ratio))

        # L^CLIP + c1 L^VF - c2 S: equation 9; + beta KL: equation 8.
        loss = policy_loss - entropy_coeff * entropy
        if config.use_critic:
            loss = loss + config.vf_loss_coeff * value_loss
        if self._privileged is not None:
            given, truth = batch.columns[3], batch.columns[4:].movedim(0, -1)
            error = given + self._beyond(batch.obs, given, truth) - targets
            known = batch.mean(error.square().clamp(max=config.vf_clip_param))
            loss = loss + config.vf_loss_coeff * known
        if config.use_kl_loss:
            loss = loss + self._kl_coeff * kl
        with torch.no_grad():
            clip_fraction = batch.mean((ratio != clipped_ratio).float())
            one = torch.ones((), device=loss.device)
            metrics = torch.stack([policy_loss, value_loss, entropy, kl, clip_fraction, one])
        return loss, metrics * batch.samples

    def _batch(self, rollout: Rollout, columns: Float32) -> Batch:
        """Arrange a rollout and ``columns`` ``[K, steps, N]`` as the network takes them."""
        steps = rollout.steps
        batch = batch_of(
            rollout,
            torch.from_numpy(self.normalize(rollout.obs[:steps])),
            torch.from_numpy(rollout.actions[:steps]),
            torch.from_numpy(columns),
        )
        return batch.to(self.device)

    def means(self, names: Sequence[str], sums: Tensor) -> dict[str, float]:
        """Return means over all ranks, of sums of these metrics and of the samples."""
        *totals, count = self.reducer.sum(sums.double().numpy()).tolist()
        return {name: t / max(count, 1.0) for name, t in zip(names, totals, strict=True)}

    def _adapted_kl_coeff(self, kl: float) -> dict[str, float]:
        """Adapt the penalty's weight as RLlib does; the paper's section 4 has factors of 2."""
        if not self.config.use_kl_loss:
            return {}
        if kl > 2.0 * self.config.kl_target:
            self._kl_coeff *= 1.5
        elif kl < 0.5 * self.config.kl_target:
            self._kl_coeff *= 0.5
        return {"kl_coeff": self._kl_coeff}

    def _adapt_lr(self, kl: float, lr: float) -> float:
        """Return the learning rate after a minibatch's KL, by rsl_rl's and rl_games' rule."""
        desired, (least, most) = self.config.desired_kl, LR_RANGE
        if desired is None:
            return lr
        if kl > 2.0 * desired:
            lr = max(lr / _LR_FACTOR, least)
        elif kl < 0.5 * desired:
            lr = min(lr * _LR_FACTOR, most)
        self._adapted_lr = lr
        return lr

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on all ranks: everything."""
        own = {"kl_coeff": self._kl_coeff, "extra_entropy": asdict(self._extra_entropy)}
        if self.config.desired_kl is not None:
            own["adapted_lr"] = self._adapted_lr
        return super().shared_state() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        super().load_state_dict(state)
        self._kl_coeff = float(state["kl_coeff"])
        self._adapted_lr = float(state.get("adapted_lr", self.config.lr))
        self._extra_entropy = ExtraEntropy(**state["extra_entropy"])

    def recover(self, good: dict[str, Any], alarm: AlarmConfig) -> None:
        """Go back to an earlier :meth:`shared_state`, but for its counts, and raise the entropy."""
        version, env_steps = self.version, self._env_steps
        PPO.load_state_dict(self, good)
        self.version, self._env_steps = version, env_steps
        self._extra_entropy = ExtraEntropy.after(alarm, self._usual_entropy_coeff(), version)


def _active(rows: NDArray[Any], idle: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Return those of rows ``[steps, N, ...]`` in which an agent ran, ``[samples, ...]``."""
    return rows if idle is None else rows[~idle]


def _explained_variance(count: float, sums: Sequence[float]) -> float:
    """Return the share of targets' variance that values explain, by both's sums and squares'."""
    total, squares, rest, rest_squares = sums
    variance = squares - total**2 / count
    unexplained = max(rest_squares - rest**2 / count, 0.0)
    return 1.0 - unexplained / variance if variance > 1e-9 * squares else 0.0
