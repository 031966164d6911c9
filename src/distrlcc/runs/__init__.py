"""Runs and how they train: configuration, state, loop, directory, recorder."""
