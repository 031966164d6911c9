"""Gymnasium environments over the simulator; importing this registers ``distrlcc/Link-v0``."""

import gymnasium

gymnasium.register(
    "distrlcc/Link-v0",
    entry_point="distrlcc.env.vector:LinkEnv",
    vector_entry_point="distrlcc.env.vector:make_vector_env",
)
