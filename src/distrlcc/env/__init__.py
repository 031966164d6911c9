"""Environments over the simulator; importing this registers Gymnasium's ``distrlcc/Link-v0``."""

from contextlib import suppress

# Evaluation runs in a batch, without episodes and without Gymnasium, which an extra brings.
with suppress(ModuleNotFoundError):
    import gymnasium

    gymnasium.register(
        "distrlcc/Link-v0",
        entry_point="distrlcc.env.vector:LinkEnv",
        vector_entry_point="distrlcc.env.vector:make_vector_env",
    )
