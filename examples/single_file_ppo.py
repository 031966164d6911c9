"""PPO in a single file, as CleanRL's are: of distrlcc there is the environment's id alone.

python examples/single_file_ppo.py --num-envs 256 --total-timesteps 2000000

Needs torch and Gymnasium. `gymnasium.make_vec` simulates all links in one call.
"""

from __future__ import annotations

import argparse
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

GAMMA, LAMBDA, CLIP, LR, STEPS, EPOCHS, MINIBATCHES = 0.95, 0.95, 0.2, 1e-3, 64, 3, 8


class Agent(nn.Module):
    """An actor and a critic."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))
        actions = int(envs.single_action_space.n)
        self.actor, self.critic = self._head(size, actions, 0.01), self._head(size, 1, 1.0)

    @staticmethod
    def _head(size: int, out: int, gain: float) -> nn.Sequential:
        layers = [nn.Linear(size, 64), nn.Linear(64, 64), nn.Linear(64, out)]
        for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def value(self, obs: Tensor) -> Tensor:
        """Return values ``[...]``."""
        return self.critic(obs).squeeze(-1)


def as_tensor(array: np.ndarray) -> Tensor:
    """Return an array as float32."""
    return torch.as_tensor(np.asarray(array), dtype=torch.float32)


def main() -> None:
    """Train, and print a line for each update."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env-id", default="distrlcc.env:distrlcc/Link-v0")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--total-timesteps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)

    envs = gym.make_vec(args.env_id, num_envs=args.num_envs)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
    next_obs, begin = as_tensor(envs.reset(seed=args.seed)[0]), time.monotonic()
    for update in range(1, args.total_timesteps // (STEPS * args.num_envs) + 1):
        # Collect. Episodes that are truncated go on in their last observation's value.
        rows, rewards = [], []
        for _ in range(STEPS):
            with torch.no_grad():
                policy, value = Categorical(logits=agent.actor(next_obs)), agent.value(next_obs)
                action = policy.sample()
            row = [next_obs, action, policy.log_prob(action), value]
            obs, reward, terminated, truncated, info = envs.step(action.numpy())
            reward, next_obs = as_tensor(reward), as_tensor(obs)
            rewards.append(float(reward.mean()))
            if truncated.any():
                last = np.stack(info["final_obs"][truncated]).astype(np.float32)
                with torch.no_grad():
                    reward[torch.as_tensor(truncated)] += GAMMA * agent.value(as_tensor(last))
            rows.append([*row, reward, as_tensor(terminated | truncated)])
        obs, actions, logp, values, reward, done = map(torch.stack, zip(*rows, strict=True))
        # Generalised advantage estimation.
        with torch.no_grad():
            following, last, advantages = agent.value(next_obs), 0.0, torch.zeros_like(values)
            for t in reversed(range(STEPS)):
                alive = 1.0 - done[t]
                delta = reward[t] + GAMMA * following * alive - values[t]
                last = advantages[t] = delta + GAMMA * LAMBDA * alive * last
                following = values[t]
        flat = [
            each.flatten(0, 1) for each in (obs, actions, logp, advantages, advantages + values)
        ]
        # Learn.
        for _ in range(EPOCHS):
            for chosen in np.array_split(rng.permutation(len(flat[0])), MINIBATCHES):
                o, a, old, gain, target = (each[chosen] for each in flat)
                policy = Categorical(logits=agent.actor(o))
                ratio = (policy.log_prob(a) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                error = (agent.value(o) - target).square().mean()
                loss = -surrogate + 0.5 * error - 0.003 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        steps = update * STEPS * args.num_envs
        pace = steps / (time.monotonic() - begin)
        sys.stdout.write(f"steps {steps}  reward {np.mean(rewards):.3f}  steps/s {pace:.0f}\n")
    envs.close()


if __name__ == "__main__":
    main()
