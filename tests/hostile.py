"""Documents that were whole and are not any more, for fuzzing.

A document is taken apart, some of its values are replaced by hostile ones, moved, doubled or left
out, and it is put together again; at last some bytes may change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from distrlcc.errors import DistrlccError

Document = st.SearchStrategy[Any]
Parse = Callable[[Any], object]
SLOW = 10.0
"""Time that reading one document may take, s."""
WORDS = """null true -1 0 3 0.5 1e999 -1e-999 nan inf NaN 18446744073709551616 [] {} [[]] [null] ""
    "none" "nan" "1e9" "agent" "../../x" "/etc/passwd" "." "a/b" "\\u0000" "\\u001b[31m" "\\n"
    "\\ud800" "²" "random" "cellular:1" "lstm" {"a":1} [1,2] [["a",1]] ["dict",[]] ["array",0]
    ["tensor",9] ["scalar",-1] ["tuple",[]] ["list",[1]] 1979-05-27T07:32:00Z '''"""
RAW = [
    *WORDS.split(),
    "9" * 5000,
    "[" * 50_000,
    "[" * 300 + "]" * 300,
    '{"a":' * 50_000,
    f'"{"x" * 100_000}"',
    f'"{"x " * 50_000}"',
    f"[{'1,' * 20_000}1]",
]
"""Hostile values, as JSON and TOML write them."""
MARK = "\ue000{}\ue001"


@st.composite
def mutated(draw: st.DrawFn, tree: Any, most: int = 3) -> Any:
    """Return a tree some of whose nodes are hostile."""
    result = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, most))):
        node: Any = {"": result}
        place: Any = ""
        while isinstance(node[place], dict | list) and node[place] and draw(st.integers(0, 5)):
            node = node[place]
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            place = draw(st.sampled_from(list(keys)))
        hostile = MARK.format(draw(st.integers(0, len(RAW) - 1)))
        kind = draw(st.sampled_from(["value", "value", "value", "gone", "key", "other", "deep"]))
        if place == "":
            result = hostile
            break
        if kind == "gone":
            del node[place]
        elif kind == "key" and isinstance(node, dict):
            node[draw(st.sampled_from(["", "x", "name", "a.b", "é", place.upper()]))] = node[place]
        elif kind == "other":
            node[place] = json.loads(json.dumps(draw(st.sampled_from(list(_values(tree))))))
        elif kind == "deep":
            node[place] = [node[place]]
        else:
            node[place] = hostile
    return result


def _values(tree: Any) -> list[Any]:
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [tree, *(value for item in below for value in _values(item))]


def _raw(text: str, quote: str = '"') -> str:
    """Put hostile texts where their marks stand."""
    for number, raw in enumerate(RAW):
        mark = MARK.format(number)
        for shown in (mark, json.dumps(mark)[1:-1]):
            text = text.replace(f"{quote}{shown}{quote}", raw)
    return text


def as_json(tree: Any) -> str:
    return _raw(json.dumps(tree))


def as_toml(tree: Any) -> str:
    with suppress(TypeError, AttributeError):  # what TOML has no place for
        return _raw(tomli_w.dumps(tree))
    return as_json(tree)


@st.composite
def spoiled(draw: st.DrawFn, data: bytes, most: int = 3) -> bytes:
    """Return bytes some of which are others, gone or doubled."""
    result = bytearray(data)
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, max(len(result) - 1, 0)))
        size = draw(st.sampled_from([0, 1, 1, 2, 8, 100]))
        new = draw(st.one_of(st.binary(max_size=9), st.just(bytes(result[at : at + size]) * 2)))
        result[at : at + size] = new
    return bytes(result)


def texts(tree: Any, write: Callable[[Any], str] = as_json) -> Document:
    """Return documents of a tree as text, one in some with other bytes, too."""

    def encoded(found: Any) -> bytes:
        return write(found).encode(errors="surrogatepass")

    hostile = mutated(tree).map(encoded)
    return st.one_of(hostile, hostile, spoiled(write(tree).encode(), 6))


def framed(header: str, body: bytes) -> bytes:
    """Return a file of safetensors, whatever its header says."""
    text = header.encode(errors="surrogatepass")
    return len(text).to_bytes(8, "little") + text + body


def from_file(path: Path, read: Callable[[Path], object]) -> Parse:
    """Return what reads documents by their path."""

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        read(path)

    return parse


def check(parse: Parse, document: Any) -> None:
    """See that reading a document gives nothing but a short, plain error of the project's own."""
    begin = time.monotonic()
    try:
        parse(document)
    except DistrlccError as error:
        lines = str(error).split("\n  ")
        assert all(line.isprintable() and len(line) < 1000 for line in lines), lines
        assert len(lines) < 30
    assert time.monotonic() - begin < SLOW


def fuzz(documents: Document, parse: Parse, seconds: float = 0.0) -> None:
    """Check the reading of documents that are drawn, for so long."""

    def read(document: Any) -> None:
        check(parse, document)

    end = time.monotonic() + seconds
    for number in count():
        drawn = settings(
            max_examples=400 if seconds else 30,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        seed(number)(drawn(given(documents)(read)))()
        if time.monotonic() > end:
            break
