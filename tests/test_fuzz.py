"""Every parser on documents that were whole and are not any more: only the project's errors come.

Each is spoiled with its structure in mind (`tests.hostile`), and its checksums are right again.
"""

import io
import json
import shutil
import time
import tomllib
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from safetensors.numpy import load, save

from distrlcc.actors.admission import Claim
from distrlcc.cli.run_arguments import read_nodes, run_config
from distrlcc.cluster.session import node_identity, read_row
from distrlcc.config import override, to_toml
from distrlcc.data.manifest import Spaces
from distrlcc.data.reader import StoredData
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import make_vector_env
from distrlcc.errors import DistrlccError
from distrlcc.net.emulator.link_log import ports
from distrlcc.net.receiving import ReceiveServer
from distrlcc.parallel.admission import Identity, decode
from distrlcc.parallel.decentralized import ElasticGroup
from distrlcc.parallel.gate import TunnelStore
from distrlcc.parallel.membership import Membership
from distrlcc.parallel.tunnel import Ask, Name, Port
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import PolicyFile, load_policy, save_policy
from distrlcc.policy.spec import PolicySpec, expected_shapes
from distrlcc.recipes.registry import recipe
from distrlcc.recipes.result_row import ResultRow, shipped_rows
from distrlcc.runs.checkpoint import pack
from distrlcc.runs.identity import check_identity, differences, identity
from distrlcc.runs.metrics_log import MetricsLog, read_metrics
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import env_run
from distrlcc.sim.link import read_log, replay
from distrlcc.sim.suites import load_suite
from distrlcc.sim.throughput_log import KINDS, read_throughput
from distrlcc.sim.trace import load_trace, parse_trace
from distrlcc.storage import Storage
from distrlcc.transport import wire
from distrlcc.transport.handshake import MAX_SESSIONS
from distrlcc.tune.outcome import read_best
from distrlcc.tune.report import read_reports
from distrlcc.tune.space import Distribution
from tests import guided
from tests.hostile import (
    RAW,
    Document,
    Parse,
    as_json,
    as_toml,
    check,
    framed,
    from_file,
    fuzz,
    mutated,
    spoiled,
    texts,
)
from tests.learn.toys import store

SECONDS = 60.0
"""Time for each parser in the long test."""

PARSERS: dict[str, Callable[[Path], tuple[Document, Parse]]] = {}
"""Each makes, in a folder, what documents there are and what reads one."""


def parser(make: Callable[[Path], tuple[Document, Parse]]) -> None:
    PARSERS[make.__name__] = make


SPEC = PolicySpec("scale-free", 20, "multiplicative", "discrete", 6, hidden=(4,))
SCENARIO = {
    "name": "z",
    "duration_s": 3.0,
    "seed": 1,
    "link": {"rate_mbps": 8.0, "loss": 0.1, "changes": [{"at_s": 1.0, "delay_ms": 9.0}]},
    "flows": [{"scheme": "agent"}, {"scheme": "cubic", "start_s": 1.0}],
}


@parser
def suite(folder: Path) -> tuple[Document, Parse]:
    trees = st.one_of(*(texts(t, as_toml) for t in (SCENARIO, {"scenarios": [SCENARIO] * 2})))

    def read(path: Path) -> None:
        for scenario in load_suite(str(path)).scenarios("train", 3):
            repr(scenario)

    return trees, from_file(folder / "x.toml", read)


@parser
def names(folder: Path) -> tuple[Document, Parse]:
    words = ["random", "test", "indigo", "cellular", "poisson", "/", ":", "3", "²", "-1", ".", "\0"]
    parts = st.lists(st.sampled_from([*words, "~", "9" * 30, "9" * 5000, "1e9", "nan"]), max_size=6)

    def read(name: str) -> None:
        for look_up in (load_suite, load_trace, recipe, Distribution.parse):
            with suppress(DistrlccError):
                look_up(name)
        load_policy(name)

    return parts.map("".join), read


@parser
def throughput(folder: Path) -> tuple[Document, Parse]:
    interval = {"sum": {"seconds": 0.5, "bits_per_second": 1e6, "omitted": False}}
    lines = ["t,mbps", "0 1.5", "1,2", "1289406399 549893 59.8 10.7 248456 1188", *RAW]
    lines += ["unit_id,target,bytes_sec", "1,a,125000", "time_ms,DL_bitrate", "NA,-", "#t kbps"]
    lines += ["2019.11.28_07.27.58,5", '"0";"1"', "sep=;"]
    logs = st.lists(st.sampled_from(lines), max_size=5).map("\n".join)

    def read(path: Path) -> None:
        for kind in KINDS:
            with suppress(DistrlccError):
                log = read_throughput(str(path), kind)
                log.trace("x")
                log.scenario("x")
        read_throughput(str(path), "iperf3")

    genet = {"timestamps": [0, 1, 2], "bandwidths": [1, 2, 3], "delays": [4], "loss": 0, "queue": 9}
    rows = [{"duration": 100, "capacity": 500, "loss": 0.1, "rtt": 40, "jitter": 1}] * 2
    trees = [{"intervals": [interval] * 3}, genet, {"uplink": {"trace_pattern": rows}}]
    documents = st.one_of(*map(texts, trees)) | logs.map(lambda text: text.encode())
    return documents, from_file(folder / "x.log", read)


@parser
def config(folder: Path) -> tuple[Document, Parse]:
    tree = tomllib.loads(to_toml(recipe("distrlcc")))
    return texts(tree, as_toml), from_file(folder / "x.toml", lambda path: recipe(str(path)))


@parser
def setting(folder: Path) -> tuple[Document, Parse]:
    keys = st.sampled_from(
        ["seed", "ppo.lr", "env.suites", "network.hidden", "recipe", "x", "ppo", "held_out.keep"]
    )
    value = st.sampled_from(RAW)
    words = st.tuples(keys, value).map("=".join)
    return words, lambda word: override(recipe("quickstart"), [word])


@parser
def distribution(folder: Path) -> tuple[Document, Parse]:
    kinds = st.sampled_from(["choice", "uniform", "loguniform", "int", "x"])
    values = st.lists(st.sampled_from(RAW), max_size=4)
    words = st.tuples(kinds, st.sampled_from(":,"), values)
    return words.map(lambda drawn: f"{drawn[0]}:{drawn[1].join(drawn[2])}"), Distribution.parse


@parser
def nodes(folder: Path) -> tuple[Document, Parse]:
    tree = {"nodes": [[0, 1], [2, "random"]]}
    return texts(tree, as_toml), from_file(folder / "x.toml", lambda path: read_nodes(str(path)))


@parser
def policy(folder: Path) -> tuple[Document, Parse]:
    path = folder / "p.safetensors"
    shapes = expected_shapes(SPEC)
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_policy(path, PolicyFile(SPEC, arrays))
    whole = path.read_bytes()
    header = {"spec": asdict(SPEC), "acting": "argmax", "notes": {"a": [1]}}

    def packed(tree: Any) -> bytes:
        text = as_json(tree)
        with suppress(UnicodeEncodeError):
            return save(
                arrays, {"format": "distrlcc-policy", "format_version": "1", "policy": text}
            )
        return b""

    def read(path: Path) -> None:
        found = load_policy(path)
        NumpyPolicy(found)

    tree = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    body = whole[8 + int.from_bytes(whole[:8], "little") :]
    outer = mutated(tree).map(lambda found: framed(as_json(found), body))
    return st.one_of(mutated(header).map(packed), outer, spoiled(whole)), from_file(path, read)


@parser
def checkpoint(folder: Path) -> tuple[Document, Parse]:
    tiny = override(recipe("quickstart"), ["num_envs=2", "network.hidden=[4]"])
    state = env_run(tiny)
    run = RunDirectory.create(folder / "run", tiny, tensorboard=False)
    path = run.save(state.state_dict())
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    metadata = json.loads(whole[8 : 8 + size])["__metadata__"]
    arrays = load(whole)
    tree = json.loads(metadata["state"])

    def packed(tree: Any) -> bytes:
        from distrlcc.files import crc32

        text = as_json(tree)
        ordered = [arrays[str(number)] for number in range(len(arrays))]
        own = {"state": text, "checksum": str(crc32(text, ordered))}
        return save(arrays, metadata | own)

    def read(path: Path) -> None:
        state.load(run, lambda line: None)

    outer = mutated(metadata).map(lambda found: framed(as_json({"__metadata__": found}), b""))
    trees = mutated(tree, 2).map(packed)
    return st.one_of(trees, trees, outer, spoiled(whole)), from_file(path, read)


@parser
def dataset(folder: Path) -> tuple[Document, Parse]:
    spaces = Spaces("scale-free", 4, "multiplicative", "discrete", 6)
    store(folder / "d", spaces, [(np.ones((9, 4)), np.full(9, 2))] * 3)
    path = folder / "d" / "manifest.json"
    tree = json.loads(path.read_bytes())

    def read(path: Path) -> None:
        data = StoredData(path.parent)
        for index in range(len(data.steps)):
            data.episode(index)

    return texts(tree), from_file(path, read)


@parser
def shard(folder: Path) -> tuple[Document, Parse]:
    spaces = Spaces("scale-free", 4, "multiplicative", "discrete", 6)
    store(folder / "d", spaces, [(np.ones((9, 4)), np.full(9, 2))] * 3)
    manifest = folder / "d" / "manifest.json"
    tree = json.loads(manifest.read_bytes())
    wholes = {}
    for kind in ("steps", "episodes"):
        path = folder / "d" / tree["shards"][0][f"{kind}_file"]
        wholes[kind] = path, path.read_bytes(), pa.ipc.open_file(path).get_batch(0)

    def with_column(drawn: tuple[str, int, Any, bool]) -> tuple[str, bytes]:
        kind, place, value, cast = drawn
        _, _, batch = wholes[kind]
        place %= batch.num_columns
        rows = batch.column(place).to_pylist()
        field = batch.schema.field(place)
        try:
            column = pa.array([value, *rows[1:]], field.type if cast else None)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return kind, b""
        changed = batch.set_column(place, field.name, column)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, changed.schema) as writer:
            writer.write_batch(changed)
        return kind, sink.getvalue().to_pybytes()

    values = st.sampled_from([None, 0, -1, 1, 2**31 - 1, 2**62, [None] * 4, [1.0] * 3, "x", 0.5])
    kinds = st.sampled_from(["steps", "episodes"])
    columns = st.tuples(kinds, st.integers(0, 8), values, st.booleans()).map(with_column)
    torn = kinds.flatmap(lambda kind: st.tuples(st.just(kind), spoiled(wholes[kind][1], 5)))

    def read(drawn: tuple[str, bytes]) -> None:
        for kind, (path, whole, _) in wholes.items():
            data = drawn[1] if kind == drawn[0] else whole
            path.unlink()  # another reader may have mapped it
            path.write_bytes(data)
            tree["shards"][0][f"{kind}_bytes"] = len(data)
        manifest.write_text(json.dumps(tree))
        found = StoredData(folder / "d")
        for index in range(len(found.steps)):
            found.episode(index)

    return st.one_of(columns, torn), read


@parser
def trace(folder: Path) -> tuple[Document, Parse]:
    lines = st.sampled_from(["1", "2", "9" * 30, "-1", "", "x", "1 2", "1e3", "\r", "7", "0", "²"])
    made = st.lists(lines, max_size=9).map(lambda found: "\n".join(found).encode())
    return st.one_of(made, spoiled(b"1\n2\n2\n9\n")), lambda data: parse_trace(data, "x")


@parser
def log(folder: Path) -> tuple[Document, Parse]:
    number = st.one_of(st.integers(0, 99), st.integers(0, 10**13), st.just("9" * 5000))
    kinds = st.sampled_from(["{} + {}", "{} # {}", "{} - {} {}", "{} d {} {}", "{} +", "{0} + -1"])
    line = st.tuples(kinds, number, number, number).map(lambda d: d[0].format(*d[1:]))
    head = ["# queue: infinite", "# queue: droptail [packets={}]", "# queue: drophead [bytes={}]"]
    first = st.tuples(st.sampled_from(head), number).map(lambda d: d[0].format(d[1]))
    base = st.tuples(st.sampled_from(["", "-"]), number).map(
        "# base timestamp: {0[0]}{0[1]}".format
    )
    made = st.tuples(first, base, st.lists(line, max_size=9))
    link = load_trace("cellular:1")
    documents = made.map(lambda d: "\n".join([d[0], d[1], *d[2]]).encode())
    return (
        st.one_of(documents, documents.flatmap(spoiled)),
        from_file(folder / "x.log", lambda path: replay(read_log(path), link)),
    )


@parser
def stored(folder: Path) -> tuple[Document, Parse]:
    run = RunDirectory.create(folder / "run", recipe("quickstart"), tensorboard=False)
    run.save({"update": 1})
    place = Storage(str(folder / "store"), "run", "id")
    with place.claim():
        found = place.push(run.path)
        (folder / "store" / "run" / "owner.json").rename(folder / "owner.json")
    path = folder / "store" / "run" / found.place / "manifest.json"
    owner = json.loads((folder / "owner.json").read_text())
    tree = [json.loads(path.read_text()), owner]

    def read(data: bytes) -> None:
        one, _, other = data.partition(b"\n\n")
        path.write_bytes(one)
        (path.parents[1] / "owner.json").write_bytes(other)
        shutil.rmtree(folder / "again", ignore_errors=True)
        known = place.owner()
        if known is not None:
            known.yields_to(known)
        place.read_config()
        place.pull(folder / "again")

    both = st.tuples(texts(tree[0]), texts(tree[1])).map(b"\n\n".join)
    return both, read


@parser
def master(folder: Path) -> tuple[Document, Parse]:
    own = identity(recipe("quickstart"), processes=2)
    toml = mutated(tomllib.loads(own["config"])).map(lambda tree: own | {"config": as_toml(tree)})

    def read(data: Any) -> None:
        with suppress(ValueError, RecursionError):  # the tunnel's own part
            check_identity(json.loads(data) if isinstance(data, bytes) else data, own)

    return st.one_of(texts(own), toml), read


@parser
def head(folder: Path) -> tuple[Document, Parse]:
    own = node_identity()

    def read(data: bytes) -> None:
        with patch("distrlcc.cluster.session.ask_store", lambda *_: data):
            differences(read_row("10.0.0.1:6379", "token"), own)

    return texts(own | {"config": "x"}), read


@parser
def members(folder: Path) -> tuple[Document, Parse]:
    claim = {"host": "10.0.0.1", "process": 7, "name": "a"}
    member = {"slot": 1, "pid": 7, "ready": True, "builds": 2, "group": "g"}

    def read(data: bytes) -> None:
        for kind in (Claim, Identity):
            with suppress(DistrlccError):
                decode(data, kind, "a member")
        with suppress(ValueError, RecursionError, TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = dict(json.loads(data))  # as torchft hands it over
            one = SimpleNamespace(data=said, replica_id="1-a", address="10.0.0.1", step=3)
            Membership._read(SimpleNamespace(_odd=set()), one)  # type: ignore[arg-type]

    return texts(claim) | texts(member), read


@parser
def told(folder: Path) -> tuple[Document, Parse]:
    gloo = b"\x02\x00\x12\x34\x7f\x00\x00\x01" + bytes(8)
    wholes = [
        b"distrlcc gateway 10.0.0.1:29500\n%b" % data
        for data in (gloo, b"uv://127.0.0.1:4660", b"uv://127.0.0.1:" + b"9" * 5000)
    ]
    places = st.sampled_from(
        ["x", "\0", "²", "-1", "10.0.0.1", "0", "65536", "9" * 5000, "x" * 9999]
    )
    made = st.tuples(places, places, st.sampled_from(wholes)).map(
        lambda d: (
            b"distrlcc gateway %b:%b\n%b" % (d[0].encode(), d[1].encode(), d[2].partition(b"\n")[2])
        )
    )

    def way(gateway: str, port: int) -> int:
        host, _, number = gateway.rpartition(":")
        with suppress(ValueError):  # as the tunnel does
            msgspec.json.decode(msgspec.json.encode(Ask(port, host, int(number))), type=Ask)
        return port

    def read(data: bytes) -> None:
        store = TunnelStore(SimpleNamespace(get=lambda key: data), SimpleNamespace(way=way))  # type: ignore[arg-type]
        for own in (("", 0), ("10.0.0.1:29500", 1), ("9.0.0.1:29500", 1)):
            store._own = own
            store.get("0/0")

    return st.sampled_from(wholes).flatmap(spoiled) | made, read


@parser
def tunnel(folder: Path) -> tuple[Document, Parse]:
    headers = [msgspec.msgpack.encode(target) for target in (29500, "store", "x" * 200, -1)]

    def read(drawn: tuple[bytes, bytes]) -> None:
        with suppress(ValueError):
            msgspec.msgpack.decode(drawn[0], type=Port | Name)
        with suppress(ValueError):
            msgspec.json.decode(drawn[1], type=Ask)

    asks = texts({"target": 29500, "host": "10.0.0.1", "port": 29500})
    return st.tuples(st.sampled_from(headers).flatmap(spoiled), asks), read


@parser
def newest(folder: Path) -> tuple[Document, Parse]:
    state = env_run(override(recipe("quickstart"), ["num_envs=2", "network.hidden=[4]"]))
    more = {"rows": {3: {"update": 3, "reward": 0.5}}, "events": ["gone: rank 1"]}
    more |= {"saved": [2, "0a1b"]}
    whole = pack(state.shared_state() | more)
    metadata = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]
    tree, arrays = json.loads(metadata["state"]), load(whole)
    trees = mutated(tree, 2).map(lambda found: save(arrays, {"state": as_json(found)}))
    group = SimpleNamespace(rank=1, members=["rank 0 (a)", "rank 1 (b)"])
    elastic = ElasticGroup(group, *[SimpleNamespace()] * 2)  # type: ignore[arg-type]

    def read(data: bytes) -> None:
        group.broadcast = lambda payload, source: data
        recorder: Any = SimpleNamespace(rows={}, saved=(0, ""), close=lambda: None)
        elastic._recorder, elastic._events = recorder, []
        elastic._receive(state, None, 0)
        sorted(recorder.rows.items())
        " ".join(elastic._events)

    return st.one_of(trees, trees, spoiled(whole)), read


@parser
def results(folder: Path) -> tuple[Document, Parse]:
    tree = json.loads(json.dumps(asdict(next(iter(shipped_rows().values())))))
    return texts(tree), from_file(folder / "x.json", ResultRow.load)


@parser
def reports(folder: Path) -> tuple[Document, Parse]:
    segment = {"update": 0, "member": 0, "values": {"ppo.lr": 1e-3}}
    numbers = dict.fromkeys(["member", "update", "steps"], 1)
    scores = dict.fromkeys(
        ["score", "reward", "utilisation", "queueing_delay", "loss", "seconds"], 0.5
    )
    tree = numbers | scores | {"acting": "sample", "schedule": [segment]}

    def read(path: Path) -> None:
        read_reports(path)
        read_best(folder)

    return texts(tree), from_file(folder / "best.json", read)


@parser
def metrics(folder: Path) -> tuple[Document, Parse]:
    line = texts({"update": 3, "reward": 0.5})
    documents = st.lists(line, max_size=4).map(b"\n".join)

    def read(path: Path) -> None:
        with closing(MetricsLog(folder, path.name, tensorboard=False)) as log:
            log.begin_after(2)
            assert log.newest <= 2

    return documents, from_file(folder / "metrics.jsonl", read)


@parser
def rows(folder: Path) -> tuple[Document, Parse]:
    line = texts({"update": 3, "reward": 0.5})
    documents = st.lists(line, max_size=4).map(lambda lines: b"".join(x + b"\n" for x in lines))
    return documents, from_file(folder / "metrics.jsonl", read_metrics)


KEY = wire.session_key(1, bytes(16), bytes(16))


@parser
def datagram(folder: Path) -> tuple[Document, Parse]:
    wholes = [
        wire.encode_hello(wire.Hello(1, bytes(16), 1400)),
        wire.encode_answer(wire.Answer(1, refusal="no room"), KEY),
        wire.data_header(1, 9, 3).ljust(wire.MIN_DATAGRAM, b"\0"),
        wire.encode_ack(wire.Acknowledgement(1, ((7, 9), (1, 3))), KEY),
        bytes.fromhex("4500001c000000004011000001020304050607080102030400080000"),
    ]

    def read(data: bytes) -> None:
        ports(data)
        wire.authentic(data, KEY)
        wire.decode(data)

    return st.sampled_from(wholes).flatmap(spoiled), read


@parser
def session(folder: Path) -> tuple[Document, Parse]:
    """What several machines send to one receiver, in any order."""
    numbers = st.sampled_from([0, 1, 2, 3, 7, 900, 1 << 32, (1 << 33) + 5, wire.MAX_NUMBER - 1])
    sessions = st.integers(1, 3)
    data = st.tuples(sessions, numbers, numbers, st.booleans()).map(
        lambda d: wire.data_header(*d[:3], fin=d[3]).ljust(wire.MIN_DATAGRAM, b"\0")
    )
    hello = st.tuples(st.one_of(sessions, st.integers(1, 200)), st.sampled_from([512, 1472, 65507]))
    others = [
        wire.encode_answer(wire.Answer(1, refusal="no room"), KEY),
        wire.encode_ack(wire.Acknowledgement(1, ((7, 9), (1, 3))), KEY),
        b"DLCC" + bytes([wire.VERSION + 1]) + bytes(600),
    ]
    datagrams = st.one_of(
        data,
        data,
        hello.map(lambda d: wire.encode_hello(wire.Hello(d[0], bytes(16), d[1]))),
        st.sampled_from(others),
        data.flatmap(spoiled),
    )
    sender = st.integers(1, 3).map(lambda host: (f"10.0.0.{host}", 4000))
    batch = st.tuples(st.lists(st.tuples(datagrams, sender), max_size=8), st.integers(0, 1 << 36))

    def read(batches: list[tuple[list[tuple[bytes, Any]], int]]) -> None:
        sent: list[bytes] = []
        socket: Any = SimpleNamespace(send=lambda datagrams, address: sent.extend(datagrams))
        server, now = ReceiveServer(socket), time.monotonic_ns()
        for found, wait in batches:
            now += wait
            server._receive(found, now)
            server._drop_silent(now)
            assert len(sent) <= len(found)
            assert len(server._incoming) == len(server._admission.sessions) <= MAX_SESSIONS
            for reply in sent:
                assert len(reply) < wire.MIN_DATAGRAM
                assert isinstance(wire.decode(reply), wire.Answer | wire.Acknowledgement)
            sent.clear()

    return st.lists(batch, max_size=12), read


@parser
def model(folder: Path) -> tuple[Document, Parse]:
    pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3")
    import torch

    from distrlcc.sb3 import read_model

    size = make_vector_env(1).batch.observation_size
    layer = "mlp_extractor.policy_net.0"
    shapes = {f"{layer}.weight": (4, size), f"{layer}.bias": (4,)}
    shapes |= {"action_net.weight": (6, 4), "action_net.bias": (6,), "log_std": (6,)}
    names = [*shapes, *shapes, f"{layer[:-1]}{'9' * 5000}.weight", "x", "\ud800", 3, None]
    made = [torch.ones(shape) for shape in ((), (0,), (4,), (6, 4), (4, size), (2, 2, 2))]
    made += [made[2].to(kind) for kind in (torch.complex64, torch.bool, torch.bfloat16)]
    made += [made[2] * torch.nan, torch.ones(4).to_sparse(), torch.ones(1).expand(1 << 40)]
    changes: st.SearchStrategy[Any] = st.lists(
        st.tuples(st.sampled_from(names), st.sampled_from([*made, None, 3, "x", [1], {}])),
        max_size=2,
    )

    def saved(changed: list[tuple[Any, Any]]) -> bytes:
        weights = {name: torch.ones(shape) for name, shape in shapes.items()} | dict(changed)
        torch.save(weights, data := io.BytesIO())
        return data.getvalue()

    def zipped(weights: bytes) -> bytes:
        with zipfile.ZipFile(data := io.BytesIO(), "w") as file:
            file.writestr("policy.pth", weights)
        return data.getvalue()

    def read(path: Path) -> None:
        found = read_model(path, EnvConfig())
        save_policy(folder / "x.safetensors", found)
        NumpyPolicy(found)

    trees = changes.map(saved).map(zipped)
    torn = spoiled(saved([])).map(zipped) | spoiled(zipped(saved([])))
    return st.one_of(trees, trees, torn), from_file(folder / "x.zip", read)


@parser
def resumed(folder: Path) -> tuple[Document, Parse]:
    run = RunDirectory.create(folder / "run", recipe("quickstart"), tensorboard=False)
    tree = tomllib.loads((run.path / "config.toml").read_text())
    said = {"assignments": [], "keys": {}, "resume": True, "out": run.path, "recipe": None}
    words = Namespace(**said, storage="", tensorboard=False)

    def read(path: Path) -> None:
        RunDirectory.resume(run.path, run_config(words)).close()

    return texts(tree, as_toml), from_file(run.path / "config.toml", read)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "retry=0.0001")


@pytest.mark.filterwarnings("ignore:.*has no checksum")
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("name", PARSERS)
def test_only_errors_of_our_own_come(tmp_path: Path, name: str) -> None:
    fuzz(*PARSERS[name](tmp_path))


@pytest.mark.filterwarnings("ignore:.*has no checksum")
@pytest.mark.parametrize("name", guided.RAW)
def test_what_reached_new_code_is_read_again(tmp_path: Path, name: str) -> None:
    read = guided.reader(name, tmp_path)
    kept = sorted((guided.CORPUS / name).iterdir())
    assert len(kept) > 10
    for path in kept:
        check(read, path.read_bytes())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*has no checksum")
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("name", PARSERS)
def test_only_errors_of_our_own_come_within_a_minute(tmp_path: Path, name: str) -> None:
    fuzz(*PARSERS[name](tmp_path), SECONDS)
