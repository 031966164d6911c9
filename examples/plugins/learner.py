"""A learner: REINFORCE (Williams, 1992), for networks without memory.

distrlcc train quickstart --set learner=examples/plugins/learner.py:Reinforce
"""

import numpy as np
from torch import from_numpy as tensor

from distrlcc.learn.model import Learner
from distrlcc.learn.returns import vtrace


class Reinforce(Learner):
    """Follows the gradient of E[return * log-probability], with PPO's settings."""

    def update(self, rollout):
        steps, config = rollout.steps, self.config
        old, values, seen = rollout.logp[:steps], rollout.values[:steps], rollout.obs[:steps]
        gain = vtrace(rollout, old, values, config.gamma, 1.0, use_critic=False).advantages
        *moments, total = self.reducer.sum(np.append(self.moments(seen), gain.sum()))  # all ranks'
        baseline = np.float32(total / moments[0])
        memory = self.network.initial_state(rollout.count)
        starts, obs = tensor(rollout.starts[:steps]), tensor(self.normalize(seen))
        choice = self.network.distribution(self.network(obs, starts, memory)[0])
        log_probs = choice.log_prob(tensor(rollout.actions[:steps]))
        loss = -(tensor(gain - baseline) * log_probs).mean()
        norm = self.optimizer.step(loss, rollout.samples, config.lr, config.grad_clip)
        self.absorb(np.array(moments))
        self.pass_over(int(moments[0]))  # counts the version and all ranks' steps
        return {"gradient_norm": float(norm)}
