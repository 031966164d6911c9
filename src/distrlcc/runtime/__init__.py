"""Runs: checkpoints, run directories, progress, and training on one process or many."""
