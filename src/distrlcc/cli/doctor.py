"""Say whether this machine, or every machine of a cluster, is fit for distributed training.

distrlcc doctor
distrlcc doctor --address 10.0.0.1:6379
distrlcc doctor --cluster --storage /mnt/shared
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from distrlcc.cli.output import add_json, emit_json
from distrlcc.cli.parser import Parser
from distrlcc.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    add = parser.add
    text = "check every machine of the cluster that this one is in, and the links between them"
    add("--cluster", text, bool)
    text = "head of the cluster; without --cluster: see whether this machine could join it"
    add("--address HOST:PORT", text)
    add("--interface NAME", "network interface towards the head", default="")
    text = "folder or URL that must be writable, and the same on all machines"
    add("--storage PATH", text, default="")
    add_json(parser, "the rows")


def run(args: Namespace) -> int:
    """Check; 1 when anything fails."""
    from distrlcc.doctor.findings import Verdict, print_findings, worst

    if args.interface and (args.cluster or not args.address):
        raise ConfigError("--interface is for --address HOST:PORT without --cluster")
    if args.cluster:
        from distrlcc.cluster.state import node_here
        from distrlcc.doctor.cluster import check_cluster

        findings = check_cluster(args.address or node_here().ray_address, args.storage)
    else:
        from distrlcc.doctor.machine import check_here

        findings = check_here(args.address or "", args.interface, args.storage)
    if args.json != "-":
        print_findings(findings)
    verdict = worst(findings)
    emit_json(args.json, {"verdict": verdict, "rows": [asdict(each) for each in findings]})
    return 1 if verdict == Verdict.FAIL else 0
