"""Say whether this machine, or each of a cluster, is fit for distributed training.

distrlcc doctor
distrlcc doctor --address head:6379
distrlcc doctor --cluster --storage /mnt/shared
distrlcc doctor --hosts hosts.txt --ip 10.0.0.1

Flags:
    --cluster  check every machine of the cluster that this one is in, and the links between them
    --address HOST:PORT  head of the cluster; without --cluster it says whether this machine could
        join
    --interface NAME =  network interface towards the head
    --storage PATH =  folder or URL that must be writable, and the same on all machines
    --hosts FILE  check the machines that 'node --hosts' would start, and the links between all
    --answer  answer another machine's 'doctor --hosts' on standard input and output
    --json FILE {json}  write the rows as JSON; - for stdout

With --hosts:
    --ip IP  this machine's address, as the others reach it
    --port P {1..65535} =29513  the port that the machines will speak over
    --remote-command COMMAND =distrlcc  the command there, if it is not on PATH

Rules:
    --hosts: needs --ip
    --cluster --address --storage: not with --hosts
    --interface: for --address
    --interface: not with --cluster
"""

from argparse import Namespace
from dataclasses import asdict

from distrlcc.cli.output import emit_json


def run(args: Namespace) -> int:
    """Check; 1 when anything fails."""
    from distrlcc.doctor.findings import Verdict, print_findings, worst

    if args.answer:
        from distrlcc.doctor.hosts import answer

        return answer()
    if args.hosts:
        from distrlcc.doctor.hosts import check_hosts
        from distrlcc.parallel.hosts import read_hosts

        findings = check_hosts(read_hosts(args.hosts), args.ip, args.port, args.remote_command)
    elif args.cluster:
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
