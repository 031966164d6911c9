"""Learning algorithms: what turns rollouts into better weights."""
