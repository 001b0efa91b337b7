#!/usr/bin/python3
"""Runs PyTorch's own communication hooks on given gradients and writes down what they do.

make_vectors.py FOLDER [--only TEXT]

Writes FOLDER/index.txt and a file of records for each configuration; README.md has the formats.

Needs the package python3-torch: deploy/install-packages.sh parity.
"""

import argparse
import datetime
import logging
import math
import os
import pathlib
import struct
import sys
import tempfile
import time
import zlib

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

from configurations import FREE_STEPS, WORLDS, configurations

TYPES = {np.dtype("<f4"): 0, np.dtype("<i8"): 2}
TIMEOUT = datetime.timedelta(seconds=60)  # of one all-reduce
FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES
POWER_SGD_HOOKS = {
    "power_sgd": power_sgd.powerSGD_hook,
    "batched_power_sgd": power_sgd.batched_powerSGD_hook,
}
SIMPLE_HOOKS = {
    "no": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
}


def gradients(configuration, rank, step):
    """Normal numbers, on a scale of its own for each parameter, in the order of the model."""
    made = []
    for index, shape in enumerate(configuration.parameters.values()):
        seed = [zlib.crc32(configuration.name.encode()), rank, step, index]
        values = np.random.default_rng(seed).standard_normal(shape) * 10.0 ** (index % 4 - 2)
        if configuration.steps == FREE_STEPS:
            values = 0.1 * values + signal(configuration, rank, index, shape)
        made.append(torch.from_numpy(values.astype(np.float32)))
    return made


def signal(configuration, rank, index, shape):
    """What stays the same from step to step, with singular values that fall, as trained models have it."""
    seed = [zlib.crc32(configuration.name.encode()), rank, index]
    values = np.random.default_rng(seed).standard_normal((shape[0], math.prod(shape[1:])))
    u, s, v = np.linalg.svd(values, full_matrices=False)
    return ((u * (s[0] * 0.7 ** np.arange(len(s)))) @ v).reshape(shape) * 10.0 ** (index % 4 - 2)


class GivenGradients(torch.nn.Module):
    """A model whose gradients are what the caller set."""

    def __init__(self, parameters):
        super().__init__()
        for name, shape in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
        self.wanted = []

    def forward(self):
        return sum((x * wanted).sum() for x, wanted in zip(self.parameters(), self.wanted))


class RecordingRng(np.random.RandomState):
    """Goes on where `rng` is, and keeps what was drawn."""

    def __init__(self, rng):
        super().__init__()
        self.set_state(rng.get_state())
        self.drawn = []

    def randint(self, *arguments):
        self.drawn.append(super().randint(*arguments))
        return self.drawn[-1]


class Spy:
    """Listens to two functions of the hooks' module, which a hook calls in a fixed order."""

    def __init__(self):
        self.compressed = []  # for each tensor of the bucket
        self.orthogonalised = []  # (before, after): all of Q's, then all of P's
        self._should_compress = power_sgd._should_compress
        self._orthogonalize = power_sgd._orthogonalize
        power_sgd._should_compress = self.should_compress
        power_sgd._orthogonalize = self.orthogonalize

    def clear(self):
        self.compressed.clear()
        self.orthogonalised.clear()

    def should_compress(self, *arguments):
        decision = self._should_compress(*arguments)
        self.compressed.append(decision[0])
        return decision

    def orthogonalize(self, matrices, epsilon=0):
        before = matrices.clone()
        # batched_powerSGD_hook hands in one matrix, where a batch of them is asked for.
        self._orthogonalize(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)
        self.orthogonalised.append((before, matrices.clone()))


def split(flat, like):
    """Cuts `flat` into pieces of the shapes of `like`, without what is left over."""
    pieces = torch.split(flat[: sum(x.numel() for x in like)], [x.numel() for x in like])
    return [piece.view(x.shape) for piece, x in zip(pieces, like)]


class Run:
    """One configuration on one rank; `records` has all that this rank saw."""

    def __init__(self, configuration, spy):
        self.configuration = configuration
        self.spy = spy
        self.names = list(configuration.parameters)
        self.module = GivenGradients(configuration.parameters)
        self.records = {}
        self.step = 0
        self.buckets = 0
        size = configuration.bucket_bytes
        # The first bucket has a limit of its own.
        dist._DEFAULT_FIRST_BUCKET_BYTES = size or FIRST_BUCKET_BYTES
        self.model = DistributedDataParallel(self.module, bucket_cap_mb=(size or 2**25) / 2**20)
        self.state = None
        if configuration.hook in POWER_SGD_HOOKS:
            self.state = power_sgd.PowerSGDState(process_group=None, **configuration.options)
            self.state.rng = RecordingRng(self.state.rng)
        self.model.register_comm_hook(self.state, self.make_hook())

    def record(self, key, values):
        if not torch.is_tensor(values):
            values = torch.tensor(values, dtype=torch.int64)
        name = f"step/{self.step}/{key}"
        assert name not in self.records, name
        self.records[name] = values.detach().clone().numpy()

    def make_hook(self):
        def hook(state, bucket):
            names = self.record_bucket(bucket)
            if state is None:
                return SIMPLE_HOOKS[self.configuration.hook](state, bucket)
            return self.call_power_sgd(bucket, names)

        return hook

    def record_bucket(self, bucket):
        """Checks that the bucket has the gradients that were asked for; returns their names."""
        at = {x.data_ptr(): index for index, x in enumerate(self.module.parameters())}
        indices = [at[x.data_ptr()] for x in bucket.parameters()]
        for index, gradient in zip(indices, bucket.gradients()):
            assert torch.equal(gradient, self.module.wanted[index]), self.names[index]
        assert bucket.index() == self.buckets
        self.buckets += 1
        self.record(f"bucket/{bucket.index()}", indices)
        return [self.names[index] for index in indices]

    def call_power_sgd(self, bucket, names):
        state, b = self.state, bucket.index()
        compresses = state.iter >= state.start_powerSGD_iter
        slices = [torch.empty_like(x) for x in bucket.gradients()]  # for their shapes
        errors = state.error_dict.get(b)
        kept = state.q_memory_dict[b].clone() if b in state.q_memory_dict else None
        self.spy.clear()
        state.rng.drawn.clear()
        future = POWER_SGD_HOOKS[self.configuration.hook](state, bucket)
        # With several buckets under way at once, their callbacks would wait for each other forever.
        future.wait()
        assert compresses or not self.spy.orthogonalised
        if not compresses:
            return future
        if state.rng.drawn:
            self.record(f"seed/{b}", state.rng.drawn)
        for suffix, values in (("", errors), ("_after", state.error_dict.get(b))):
            if values is not None:
                self.record_errors(suffix, values, names, slices, b)
        q_after = state.q_memory_dict.get(b)
        if self.configuration.hook == "batched_power_sgd":
            self.record_factors(bool(state.rng.drawn), [[f"/{b}"]], kept, q_after, "batched_")
        else:
            units = self.units(names, slices)
            self.record_factors(bool(state.rng.drawn), units, kept, q_after)
        return future

    def units(self, names, slices):
        """The compressed parameters in the order of torch's P and Q, in those that it stacks."""
        assert len(self.spy.compressed) == len(names)
        groups = {}
        for name, x, compressed in zip(names, slices, self.spy.compressed):
            if compressed:
                groups.setdefault((x.shape[0], math.prod(x.shape[1:])), []).append("/" + name)
        if self.state.batch_tensors_with_same_shape:
            return list(groups.values())
        return [[name] for group in groups.values() for name in group]

    def record_errors(self, suffix, values, names, slices, b):
        rank = dist.get_rank()
        for name, piece in zip(names, split(values, slices)):
            self.record(f"error{suffix}/{rank}/{name}", piece)
        padding = values[sum(x.numel() for x in slices) :]
        if self.configuration.hook == "batched_power_sgd":
            self.record(f"batched_padding{suffix}/{rank}/{b}", padding)
        else:
            assert padding.numel() == 0

    def record_factors(self, drawn, units, kept, q_after, prefix=""):
        calls = self.spy.orthogonalised
        assert len(calls) == 2 * len(units)
        q_calls, p_calls = calls[: len(units)], calls[len(units) :]
        shapes = [before for before, _ in q_calls]
        factors = {
            "p_sum": [before for before, _ in p_calls],
            "p": [after for _, after in p_calls],
        }
        if drawn:
            factors["q_raw"] = [before for before, _ in q_calls]
            factors["q_drawn"] = [after for _, after in q_calls]
        for kind, block in (("q", kept), ("q_after", q_after)):
            if block is not None:
                assert block.numel() == sum(x.numel() for x in shapes)
                factors[kind] = split(block.view(-1), shapes)
        if kept is not None:
            assert all(torch.equal(x, y) for x, y in zip(factors["q"], shapes))
        for kind, stacks in factors.items():
            for unit, stack in zip(units, stacks):
                matrices = stack if stack.dim() == 3 else stack.unsqueeze(0)
                assert len(unit) == len(matrices)
                for name, matrix in zip(unit, matrices):
                    self.record(f"{prefix}{kind}{name}", matrix)

    def run_step(self, step):
        self.step, self.buckets = step, 0
        rank = dist.get_rank()
        self.module.wanted = gradients(self.configuration, rank, step)
        for name, wanted in zip(self.names, self.module.wanted):
            self.record(f"grad/{rank}/{name}", wanted)
        if self.state is not None:
            self.record("iter", [self.state.iter])
        self.model.zero_grad(set_to_none=True)
        self.model().backward()
        self.record("buckets", [self.buckets])
        for name, parameter in self.module.named_parameters():
            self.record(f"result/{name}", parameter.grad)
        if self.state is not None:
            self.record("stats_after", self.state.compression_stats()[1:])

    def run(self):
        for step in range(self.configuration.steps):
            self.run_step(step)
        return self.records


def merge(per_rank):
    """One set of records; what is not of one rank must be the same on all."""
    merged = {}
    for records in per_rank:
        for name, values in records.items():
            known = merged.setdefault(name, values)
            assert known.shape == values.shape and known.tobytes() == values.tobytes(), name
    return merged


def write(path, configuration, records):
    shapes = {
        f"param/{index}/{name}": np.array(shape, dtype=np.int64)
        for index, (name, shape) in enumerate(configuration.parameters.items())
    }
    with open(path, "wb") as file:
        for name, values in {**shapes, **records}.items():
            values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
            file.write(struct.pack("<I", len(name)) + name.encode())
            file.write(struct.pack(f"<I{values.ndim}Q", values.ndim, *values.shape))
            file.write(struct.pack("<B", TYPES[values.dtype]))
            file.write(values.tobytes())


def run_rank(rank, world, chosen, folder, meeting_point):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=world, timeout=TIMEOUT
    )
    spy = Spy()
    for configuration in chosen:
        records = Run(configuration, spy).run()
        gathered = [None] * world if rank == 0 else None
        dist.gather_object(records, gathered)
        if rank == 0:
            write(folder / f"{configuration.name}.bin", configuration, merge(gathered))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="those with TEXT in the name")
    args = parser.parse_args()
    chosen = [x for x in configurations() if args.only in x.name]
    if not chosen:
        parser.error(f"no configuration has {args.only!r} in its name")
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.disable(logging.INFO)
    for world in WORLDS:
        in_world = [x for x in chosen if x.world == world]
        if not in_world:
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as meeting:
            torch.multiprocessing.start_processes(
                run_rank,
                args=(world, in_world, args.folder, f"{meeting}/store"),
                nprocs=world,
                start_method="fork",
            )
        seconds = time.monotonic() - started
        print(f"world {world}: {len(in_world)} configurations in {seconds:.1f} s", file=sys.stderr)
    lines = (f"{x.name} {x.world} {x.steps} {x.spec()} {x.name}.bin\n" for x in chosen)
    (args.folder / "index.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
