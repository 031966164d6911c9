"""Write a generated trace, or one of a log of throughput, in mahimahi's format.

distrlcc trace cellular:7 --out links/seven.trace
distrlcc trace --from hsdpa report.log --out links/metro.trace
distrlcc trace --from iperf3 measured.json --out links/measured.trace
distrlcc trace --from csv drive.csv --columns Timestamp,DL_bitrate --out links/drive.trace
distrlcc trace --from genet trace.json --out links/trace.toml

Flags:
    trace TRACE  cellular:SEED, poisson:MBPS:SEED, constant:MBPS or a file; with --from a log
    --from/kind {csv|fcc|hsdpa|iperf3|genet|alphartc}  TRACE is a log of throughput: columns of
        times and rates (csv), FCC's curr_webget.csv, a Norwegian HSDPA log, the output of iperf3
        -J, or Genet's or AlphaRTC's JSON
    --columns TIME,RATE =  columns of a CSV, by the names of its head or by number from 1
    --unit UNIT =  units that a CSV's head does not name, as kbps, or ms,kbps; dates need none
    --out! FILE {path}  a trace; or NAME.toml, a scenario that has delays and losses over time, too

Rules:
    --columns --unit: for --from; they describe a log
"""

import shlex
from argparse import Namespace

from distrlcc.cli.output import note
from distrlcc.config import to_toml
from distrlcc.errors import ConfigError
from distrlcc.files import require_output, write_output
from distrlcc.sim.throughput_log import read_throughput
from distrlcc.sim.trace import load_trace


def run(args: Namespace) -> int:
    require_output(args.out, args.trace)
    as_scenario = args.out.suffix == ".toml"
    if args.kind is None and as_scenario:
        raise ConfigError("--out NAME.toml is for a log; say which --from")
    log = args.kind and read_throughput(args.trace, args.kind, args.columns, args.unit)
    for line in log.notes if log else ():
        note(f"{args.trace}: {line}")
    if log and as_scenario:
        scenario = log.scenario(args.out.stem)
        write_output(args.out, to_toml(scenario).encode())
        print(f"{args.out}: {scenario.duration_s:.1f} s, {len(scenario.link.changes)} changes")
        print(f"evaluate it with: distrlcc evaluate one --suite {shlex.quote(str(args.out))}")
        return 0
    trace = log.trace(args.trace) if log else load_trace(args.trace)
    write_output(args.out, trace.lines())
    seconds, count = trace.period_ns / 1e9, len(trace.times_ns)
    print(f"{args.out}: {seconds:.1f} s, {count} opportunities, {trace.mean_mbps:.2f} Mbit/s")
    if log and (flags := log.flags()):
        shown = shlex.quote(str(args.out))
        print(f"evaluate it with: distrlcc evaluate one --trace {shown}{flags}")
        if log.unsaid():
            print(f"these flags leave out: {log.unsaid()}; --out NAME.toml has all in a scenario")
    return 0
