"""Named experiments, each a configuration in a file of its own."""
