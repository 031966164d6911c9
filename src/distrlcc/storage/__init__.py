"""Copies of a run at a URL."""
