"""A network: tanh units times gates, in torch to learn and in NumPy to act.

distrlcc train quickstart --set network.kind=examples/plugins/network.py:Gated 'network.hidden=[32]'
"""

import numpy as np

from distrlcc.policy.spec import Network


class Gated(Network):
    def shapes(self, spec):
        inner = (2 * spec.hidden[0], spec.observation_size)
        return {"0.weight": inner, "1.weight": (spec.action_size + 1, spec.hidden[0])}

    def module(self, spec):
        from torch import nn  # here alone: a sender has no torch

        class Layers(nn.ModuleList):
            def forward(self, obs, starts, state):
                units, gates = self[0](obs).chunk(2, -1)
                heads = self[1](units.tanh() * gates.sigmoid())
                return heads[..., :-1], heads[..., -1], state

        return Layers(nn.Linear(i, o, bias=False) for o, i in self.shapes(spec).values())

    def step(self, arrays, obs, state):
        units, gates = np.split(obs @ arrays["0.weight"].T, 2, axis=-1)
        heads = (np.tanh(units) / (1 + np.exp(-gates))) @ arrays["1.weight"].T
        return heads[:, :-1], heads[:, -1], state
