"""Reinforcement learning for network congestion control."""

__version__ = "0.1.0"
