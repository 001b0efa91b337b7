"""An ordinary Python gRPC client, with code generated from the .proto files, joins a session and takes
part in its steps beside two C++ members.

python_member_test.py --daemon GRADWIRED --member TEST_MEMBER --proto-dir DIR

Exits 77 when a package that it needs is not installed.
"""

import argparse
import array
import os
import queue
import random
import subprocess
import sys
import tempfile
import time

STEPS = 3
ELEMENTS = 300_000
WORLD_SIZE = 3
RANK = 1
DEADLINE_S = 60


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def generate_code(proto_dir, folder):
    try:
        plugin = subprocess.run(["which", "grpc_python_plugin"], capture_output=True, text=True, check=True)
        subprocess.run(
            [
                "protoc",
                f"-I{proto_dir}",
                f"--python_out={folder}",
                f"--grpc_python_out={folder}",
                f"--plugin=protoc-gen-grpc_python={plugin.stdout.strip()}",
                "gradwire/v1/aggregation.proto",
            ],
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        skip("protoc or grpc_python_plugin (package protobuf-compiler-grpc) is missing")
    sys.path.insert(0, folder)


def gradient(rank, step):
    """What tests/testing/gradients.cc computes."""
    mixed = ((i * 2654435761 + rank * 40503 + step * 977) % 2**32 for i in range(ELEMENTS))
    return array.array("f", (x / 2147483648.0 - 1.0 for x in mixed))


def contribution(rank, step):
    """The hook "no" divides by the world size, in the gradients' own type."""
    return array.array("f", (x / WORLD_SIZE for x in gradient(rank, step)))


def expected_result(step):
    """Summed in rank order in double precision, rounded once."""
    return array.array("f", map(sum, zip(*(contribution(rank, step) for rank in range(WORLD_SIZE)))))


class Member:
    def __init__(self, address, pb, rpc, grpc):
        self.pb = pb
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", 32 << 20), ("grpc.enable_http_proxy", 0)]
        )
        self.stub = rpc.AggregationServiceStub(self.channel)
        self.start_id = random.getrandbits(63) + 1
        self.joined = self.join()
        self.recovers = False
        self.outgoing = queue.Queue()
        self.incoming = self.stub.Exchange(iter(self.outgoing.get, None), timeout=DEADLINE_S)
        self.send(hello=pb.Hello(token=self.joined.token, start_id=self.start_id))

    def join(self):
        request = self.pb.JoinRequest(
            min_protocol_version=1,
            max_protocol_version=1,
            session="python",
            world_size=WORLD_SIZE,
            rank=RANK,
            start_id=self.start_id,
            hook=self.pb.HookSpec(comm_hook="no"),
            manifest=[self.pb.Parameter(name="w", shape=[ELEMENTS], dtype=self.pb.DATA_TYPE_FLOAT32)],
        )
        return self.stub.Join(request, timeout=DEADLINE_S, wait_for_ready=True)

    def send(self, payload=b"", **body):
        self.outgoing.put(self.pb.Frame(header=self.pb.Header(**body), payload=payload))

    def receive(self, kind):
        for frame in self.incoming:
            got = frame.header.WhichOneof("body")
            if got == "failure":
                raise RuntimeError(frame.header.failure.message)
            if got == kind:
                return frame
            if got != "heartbeat":
                raise RuntimeError(f"got a {got} frame, expected {kind}")
            self.send(heartbeat=self.pb.Heartbeat())
        raise RuntimeError(f"the stream ended before {kind}")

    def train_step(self, step):
        pb = self.pb
        segment = pb.Segment(dtype=pb.DATA_TYPE_FLOAT32, numel=ELEMENTS, op=pb.REDUCE_OP_SUM)
        self.send(
            announce=pb.Announce(
                step=step,
                generation=self.joined.generation,
                parameters=[0],
                rounds=[pb.RoundPlan(segments=[segment])],
            )
        )
        round_id = self.receive("grant").header.grant.id
        data = contribution(RANK, step).tobytes()
        size = self.joined.chunk_bytes
        chunks = [data[i : i + size] for i in range(0, len(data), size)]
        result = b""
        sent = 0
        for received in range(len(chunks)):
            while sent < len(chunks) and sent < received + self.joined.window_chunks:
                self.send(
                    payload=chunks[sent],
                    contribution=pb.Contribution(
                        id=round_id,
                        generation=self.joined.generation,
                        rank=RANK,
                        chunk=sent,
                        received=received,
                    ),
                )
                sent += 1
            frame = self.receive("result")
            assert frame.header.result.chunk == received, frame.header
            result += frame.payload
        self.send(ack=pb.Ack(id=round_id, received=len(chunks)))
        if self.recovers:  # the session outlives its daemon
            prepared = self.receive("prepared").header.prepared
            self.send(
                ready=pb.Ready(
                    step=step,
                    generation=self.joined.generation,
                    verdict=prepared.verdict,
                    digest=prepared.digest,
                )
            )
        done = self.receive("step_done").header.step_done
        assert (done.step, done.verdict) == (step, pb.STEP_VERDICT_APPLY), done
        assert result == expected_result(step).tobytes(), f"the result of step {step} is wrong"

    def leave(self):
        request = self.pb.LeaveRequest(token=self.joined.token, start_id=self.start_id)
        self.stub.Leave(request, timeout=DEADLINE_S)
        self.outgoing.put(None)
        self.channel.close()


def run(arguments, folder, processes):
    generate_code(arguments.proto_dir, folder)
    try:
        import grpc
        from gradwire.v1 import aggregation_pb2, aggregation_pb2_grpc
    except ImportError as error:
        skip(f"python3-grpcio or python3-protobuf is missing ({error})")
    address = f"unix:{folder}/daemon.sock"
    processes.append(subprocess.Popen([arguments.daemon, "--listen", address, "--log-level", "warning"]))
    while not os.path.exists(f"{folder}/daemon.sock"):
        time.sleep(0.01)
    members = []
    for rank in set(range(WORLD_SIZE)) - {RANK}:
        command = [arguments.member, "--address", address, "--session", "python", "--rank", str(rank)]
        command += ["--world-size", str(WORLD_SIZE), "--elements", str(ELEMENTS), "--steps", str(STEPS)]
        members.append(subprocess.Popen(command))
    processes += members
    member = Member(address, aggregation_pb2, aggregation_pb2_grpc, grpc)
    member.recovers = member.receive("welcome").header.welcome.HasField("recovery")
    for step in range(STEPS):
        member.train_step(step)
    member.leave()
    for process in members:
        assert process.wait(timeout=DEADLINE_S) == 0, "a C++ member failed"
    print(f"{STEPS} steps of {ELEMENTS} elements with {len(members)} C++ members: every bit as expected")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--member", required=True)
    parser.add_argument("--proto-dir", required=True)
    processes = []
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        try:
            run(parser.parse_args(), folder, processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
