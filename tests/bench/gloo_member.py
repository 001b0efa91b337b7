#!/usr/bin/python3
"""One rank of torch on gloo that reduces one bucket, in step with a benchmark's other processes.

    gloo_member.py --rank R --world-size N --store FILE --mebibytes M --hook no|fp16 [--threads T]

Prints "ready" once all ranks are there; for each line "go" it hands the bucket to torch's own hook,
waits for the result and prints "done". Ends with its standard input.
"""

import argparse
import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

HOOKS = {"no": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook}
TIMEOUT = datetime.timedelta(seconds=60)  # to meet, and of one all-reduce


class Bucket:
    """What the hooks ask of DistributedDataParallel's bucket."""

    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def buffer(self) -> torch.Tensor:
        return self._flat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--store", required=True, help="a file that does not exist yet")
    parser.add_argument("--mebibytes", type=float, default=25)
    parser.add_argument("--hook", choices=HOOKS, default="no")
    parser.add_argument("--threads", type=int, default=1, help="of torch's operators")
    arguments = parser.parse_args()

    # The answers only: some versions of gloo print to standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(arguments.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.path.abspath(arguments.store)}",
        rank=arguments.rank,
        world_size=arguments.world_size,
        timeout=TIMEOUT,
    )
    numel = int(arguments.mebibytes * 2**20) // 4
    bucket = Bucket(torch.full((numel,), 1.0 + arguments.rank))
    dist.barrier()
    print("ready", file=answers)
    for _ in sys.stdin:
        result = HOOKS[arguments.hook](None, bucket).wait()
        # The mean of 1 to N, which it stays.
        assert result[0] == result[-1] == (1 + arguments.world_size) / 2, result
        print("done", file=answers)
    answers.flush()
    os._exit(0)  # gloo's own end may wait for ranks that have gone already


if __name__ == "__main__":
    main()
