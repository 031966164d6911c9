"""Turn another framework's model into a policy file, or a policy into a model for others."""

from argparse import Namespace

from distrlcc.cli.parser import assignments
from distrlcc.config import override
from distrlcc.env.config import EnvConfig
from distrlcc.files import require_output, write_output
from distrlcc.policy.policy_file import find_policy, load_policy, save_policy


def run_export(args: Namespace) -> int:
    """Write a policy as an ONNX model for programs without distrlcc.

    distrlcc export one --onnx one.onnx

    Flags:
        policy POLICY  a policy's file or name, or a run
        --onnx! FILE {path}  where to write it
    """
    from distrlcc.policy.export import onnx_model

    policy = find_policy(args.policy)
    require_output(args.onnx, policy)
    write_output(args.onnx, onnx_model(load_policy(policy)).SerializeToString())
    print(f"model: {args.onnx}")
    return 0


def run_import_sb3(args: Namespace) -> int:
    """Turn a model of Stable-Baselines3 into a policy file.

    distrlcc import sb3 model.zip --out mine.safetensors

    Flags:
        model FILE {path}  the .zip that SB3's model.save wrote
        --out! FILE {path}  where to write the policy
        --activation {tanh|relu} =  SB3's activation_fn (default: as the file says)
        --set/assignments* KEY=VALUE  change a key of its environment, as action=fine
    """
    from distrlcc.sb3 import read_model

    require_output(args.out, args.model)
    config = override(EnvConfig(), assignments(args))
    save_policy(args.out, read_model(args.model, config, args.activation))
    print(f"policy: {args.out}")
    return 0
