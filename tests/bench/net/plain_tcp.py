#!/usr/bin/env python3
"""plain_tcp.py ADDRESS: the other end of a baseline without gRPC and without sums: bytes both ways at once over TCP.

Prints the port that it listens on; ends with its standard input. For each 8 bytes with a length, a peer sends so many
bytes and receives so many.
"""

import socket
import struct
import sys
import threading

READ_BYTES = 1 << 18
STALL_SECONDS = 60.0
LENGTH = struct.Struct("!Q")


def exchange(connection, count):
    """Sends and receives `count` bytes at the same time. OSError: the peer is gone, or stalls."""
    failed = []

    def send():
        try:
            connection.sendall(bytes(count))
        except OSError as error:
            failed.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    receive(connection, count)
    sender.join()
    if failed:
        raise failed[0]


def receive(connection, count):
    while count > 0:
        data = connection.recv(min(count, READ_BYTES))
        if not data:
            raise ConnectionError("the peer is gone")
        count -= len(data)


class Peer:
    """A member's end."""

    def __init__(self, address, count):
        host, port = address.rsplit(":", 1)
        self._count = count
        self._connection = socket.create_connection((host, int(port)), STALL_SECONDS)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def step(self):
        self._connection.sendall(LENGTH.pack(self._count))
        exchange(self._connection, self._count)

    def close(self):
        self._connection.close()


def serve(connection):
    try:
        while header := connection.recv(LENGTH.size, socket.MSG_WAITALL):
            connection.settimeout(STALL_SECONDS)
            exchange(connection, *LENGTH.unpack(header))
            connection.settimeout(None)
    except (OSError, struct.error):
        pass
    connection.close()


def main(address):
    listener = socket.create_server((address, 0))
    print(listener.getsockname()[1], flush=True)

    def accept():
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
