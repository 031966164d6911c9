"""A policy as an ONNX model, for programs without distrlcc.

It takes raw observations ``[N, D]`` and, for a recurrent network, a state ``[P, N, H]``, zero at
first. It returns logits or means ``[N, A]`` and the state after the step. A discrete policy's
likeliest action is the greatest logit's. The model's metadata hold the policy's spec.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import PolicyFileError
from distrlcc.plugins import is_reference, short
from distrlcc.policy.normalizer import CLIP
from distrlcc.policy.numpy_policy import LOG_STD_RANGE
from distrlcc.policy.policy_file import PolicyFile

if TYPE_CHECKING:
    import onnx

_OPSET = 17


def onnx_model(policy: PolicyFile) -> "onnx.ModelProto":
    """Return a policy's graph by the package onnx; raises PolicyFileError at a user's network."""
    if is_reference(policy.spec.kind):
        raise PolicyFileError(
            f"{short(policy.spec.kind)} is a plug-in network, which ONNX export does not support; "
            "export its module with torch.onnx, or send with 'distrlcc send'"
        )
    from onnx import TensorProto, checker, helper, numpy_helper  # noqa: PLC0415 - an extra

    spec, arrays = policy.spec, policy.arrays
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(value: NDArray[Any], name: str = "") -> str:
        name = name or f"constant{len(constants)}"
        constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def node(kind: str, *inputs: str, count: int = 1, to: str = "", **more: Any) -> Any:
        outputs = [to] if to else [f"{kind}{len(nodes)}.{k}" for k in range(count)]
        nodes.append(helper.make_node(kind, list(inputs), outputs, **more))
        return outputs if count > 1 else outputs[0]

    def linear(of: str, weight: str, bias: str, to: str = "") -> str:
        given = constant(arrays[weight], weight), constant(arrays[bias], bias)
        return str(node("Gemm", of, *given, transB=1, to=to))

    # Normalised observations, dense layers.
    mean, std = (constant(arrays[f"normalizer.{each}"]) for each in ("mean", "std"))
    bound = [constant(np.array(sign * CLIP, np.float32)) for sign in (-1, 1)]
    features = node("Clip", node("Div", node("Sub", "observation", mean), std), *bound)
    activation = "Relu" if spec.activation == "relu" else "Tanh"
    for k in range(len(spec.dense)):
        features = node(activation, linear(features, f"trunk.{k}.weight", f"trunk.{k}.bias"))
    # The recurrent layer; its state's parts lie along the first axis.
    if spec.kind != "mlp":
        first = constant(np.array([0], np.int64))
        before = [
            node("Gather", "state", constant(np.array(part, np.int64)), axis=0)
            for part in range(spec.state_shape(1)[0])
        ]
        if spec.kind == "mingru":
            gates = linear(features, "mingru.weight", "mingru.bias")
            z, candidate = node("Split", gates, count=2, axis=1)
            z, candidate = node("Sigmoid", z), node("Tanh", candidate)
            # h + z * (candidate - h)
            moved = node("Mul", z, node("Sub", candidate, before[0]))
            after = [node("Add", before[0], moved)]
        else:
            gates = linear(features, "lstm.weight_ih", "lstm.bias_ih")
            gates = node("Add", gates, linear(before[0], "lstm.weight_hh", "lstm.bias_hh"))
            i, f, g, o = node("Split", gates, count=4, axis=1)
            kept = node("Mul", node("Sigmoid", f), before[1])
            cell = node("Add", kept, node("Mul", node("Sigmoid", i), node("Tanh", g)))
            after = [node("Mul", node("Sigmoid", o), node("Tanh", cell)), cell]
        seen, features = features, after[0]
        node(
            "Concat", *(node("Unsqueeze", part, first) for part in after), axis=0, to="state_after"
        )
    if spec.post_hidden:
        features = node("Concat", seen, features, axis=1)
        features = node(activation, linear(features, "post.weight", "post.bias"))
    linear(features, "policy_head.weight", "policy_head.bias", to="head")
    # The graph, with what its user must know.
    shapes: dict[str, list[str | int | None]] = {
        "observation": ["N", spec.observation_size],
        "head": ["N", spec.action_size],
    }
    parts, _, width = spec.state_shape(1)
    shapes |= {name: [parts, "N", width] for name in ("state", "state_after")}
    used = [("observation", "head"), ("state", "state_after")][: 1 if spec.kind == "mlp" else 2]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in names]
        for names in zip(*used, strict=True)
    )
    graph = helper.make_graph(nodes, "policy", inputs, outputs, constants)
    opset = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="distrlcc")
    said = {"spec": json.dumps(asdict(spec)), "acting": policy.acting}
    if "log_std" in arrays:  # of a continuous policy, to draw actions around the means
        said["log_std"] = json.dumps(arrays["log_std"].clip(*LOG_STD_RANGE).tolist())
    helper.set_model_props(model, said)
    checker.check_model(model)
    return model
