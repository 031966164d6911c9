"""Named experiments: each a function that returns a configuration."""
