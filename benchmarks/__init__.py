"""Measurements that are not shipped: `python -m benchmarks --help`."""
