"""The observation box of a batch."""

from __future__ import annotations

import gymnasium
import numpy as np

from distrlcc.env.agents import AgentBatch

BOUND = 1000.0
"""Observations lie within plus and minus this."""


def observation_box(batch: AgentBatch) -> gymnasium.spaces.Box:
    """Return one agent's observation space."""
    return gymnasium.spaces.Box(-BOUND, BOUND, (batch.observation_size,), np.float32)
