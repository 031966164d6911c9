"""Measurements that are not shipped: run `python -m benchmarks --help` in the checkout."""

from __future__ import annotations

import sys

from distrlcc.cli.main import main

COMMANDS = {
    "sim": "ns per packet and steps per second of the simulator, beside the reference",
    "env": "steps per second of Gymnasium's environments, one and many",
    "train": "training speed and where the time goes",
    "parity": "what several processes learn, beside one",
    "scaling": "training speed on several processes, and with a slow one",
    "engines": "threads, torch RPC and Ray: start-up, calls, segments, weights",
    "actors": "what workers deliver to a trainer",
    "tune": "population-based training beside as many independent members",
    "net": "real packets: the sender, its steps, the emulator, links in real time",
    "habits": "what a policy sees in the kernel's TCP, beside the simulator",
    "map": "where a policy is good: rates and RTTs, queues and losses, flows",
    "curve": "quality against steps, of policies that runs had on the way",
    "late": "how well a sender can do that hears of its link one round trip late",
    "chaos": "random faults over every way of training, and what is lost by them",
    "cluster": "a Ray cluster of two network namespaces: joining, losing, joining again",
}

if __name__ == "__main__":
    sys.exit(main(prog="python -m benchmarks", commands=COMMANDS, package="benchmarks.bench_"))
