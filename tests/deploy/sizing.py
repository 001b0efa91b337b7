"""What the daemon reserves for sessions of well-known models: the sizing table of deploy/README.md.

sizing.py prints the table. It joins one member of each session; the reservation is made then.
"""
import contextlib
import math
import os
import random
import re
import sys
import tempfile

from daemon import Daemon
from table import need, run
from tools import DEPLOY, REPOSITORY, tool

MEMBERS = (2, 4, 8, 16, 64)
HOOKS = {"no": {}, "fp16": {}, "power_sgd": {"matrix_approximation_rank": 2}}
MIB = 1 << 20


def resnet18():
    """Of torchvision, 11.7 million parameters."""
    shapes, before = [(64, 3, 7, 7), (64,), (64,)], 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*shapes, (1000, 512), (1000,)]


def gpt2(layers, width):
    """Of transformers: 124 million parameters with 12 layers of width 768, 1558 million with 48 of 1600."""
    layer = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,), (width,), (width,),
             (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width), *layer * layers, (width,), (width,)]


MODELS = {"ResNet-18": resnet18(), "GPT-2": gpt2(12, 768), "GPT-2 XL": gpt2(48, 1600)}


def generated(folder):
    """The protocol's messages and stubs, as modules."""
    run(tool("protoc"), f"-I{REPOSITORY / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}",
        f"--plugin=protoc-gen-grpc_python={tool('grpc_python_plugin')}", "gradwire/v1/aggregation.proto")
    sys.path.insert(0, folder)
    try:
        from gradwire.v1 import aggregation_pb2, aggregation_pb2_grpc
    finally:
        sys.path.remove(folder)
    return aggregation_pb2, aggregation_pb2_grpc


def reserved(daemon):
    return int(float(re.search(r"^gradwire_memory_reserved_bytes (\S+)", daemon.get("/metrics")[1], re.MULTILINE)[1]))


def join(pb, stub, session, members, hook, shapes):
    options = {name: pb.OptionValue(int_value=value) for name, value in HOOKS[hook].items()}
    manifest = [pb.Parameter(name=f"layers.{number}.weight", shape=shape, dtype=pb.DATA_TYPE_FLOAT32)
                for number, shape in enumerate(shapes)]
    stub.Join(pb.JoinRequest(
        min_protocol_version=1, max_protocol_version=1, session=session, world_size=members, rank=0,
        start_id=random.getrandbits(63) + 1, hook=pb.HookSpec(comm_hook=hook, comm_state_option=options),
        manifest=manifest), timeout=60)


def measure():
    """{(model, hook): reserved bytes for each of MEMBERS}"""
    import grpc
    sizes = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        pb, rpc = generated(folder)
        address = f"unix:{os.path.join(folder, 'gradwire.sock')}"
        flags = [f"--listen={address}", "--http-listen=127.0.0.1:0", "--memory-limit=1024GiB", "--drain-timeout=1s"]
        daemon = stack.enter_context(Daemon(flags))
        stub = rpc.AggregationServiceStub(stack.enter_context(grpc.insecure_channel(address)))
        for model, shapes in MODELS.items():
            for hook in HOOKS:
                for members in MEMBERS:
                    before = reserved(daemon)
                    join(pb, stub, f"{model}-{hook}-{members}".replace(" ", "-"), members, hook, shapes)
                    sizes.setdefault((model, hook), []).append(reserved(daemon) - before)
    return sizes


def rows():
    """The table's lines."""
    sizes = measure()
    for model, shapes in MODELS.items():
        parameters = sum(math.prod(shape) for shape in shapes)
        need(sizes[model, "no"] == sizes[model, "fp16"], f"{model}: no and fp16 reserve different sizes")
        for hook, label in (("no", "`no`, `fp16`"), ("power_sgd", "`power_sgd`, rank 2")):
            cells = [f"{size / MIB:.0f}" for size in sizes[model, hook]]
            yield f"| {model}, {parameters / 1e6:.0f} M | {label} | " + " | ".join(cells) + " |"


def check_sizing():
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    missing = [row for row in rows() if row not in text]
    need(not missing, "deploy/README.md lacks these rows:\n" + "\n".join(missing))
    return f"ok, {len(MODELS) * len(HOOKS) * len(MEMBERS)} sessions"


if __name__ == "__main__":
    print("\n".join(rows()))
