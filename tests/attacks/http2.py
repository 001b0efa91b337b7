"""Just enough of HTTP/2 to misuse gRPC: frames by hand, headers without compression.

It parses what it must to go on: settings, windows, pings, and the ends of streams.
"""
import selectors
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path, extra=()):
    """A gRPC request's headers as HPACK literals that leave no trace in the table."""
    pairs = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "attack"),
             ("te", "trailers"), ("content-type", "application/grpc"), *extra)
    return b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
                    for name, value in pairs)


def request(stream, path, message, extra=(), compressed=False):
    """All of a unary call."""
    body = struct.pack(">BI", compressed, len(message)) + message
    return (frame(HEADERS, END_HEADERS, stream, header_block(path, extra))
            + frame(DATA, END_STREAM, stream, body))


class Closed(Exception):
    """The peer ended the connection."""


class Connection:
    """A blocking connection; `send_window` is what the peer allows now."""

    def __init__(self, address, timeout=5.0):
        self.socket = socket.create_connection(address, timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.initial_window = 65535
        self.connection_window = 65535
        self.stream_windows = {}
        self.ended = 0  # streams that the peer has ended
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from error

    def open_stream(self, stream, path, extra=()):
        self.stream_windows[stream] = self.initial_window
        self.send(frame(HEADERS, END_HEADERS, stream, header_block(path, extra)))

    def window(self, stream):
        return min(self.connection_window, self.stream_windows[stream], 16384)

    def send_data(self, stream, data):
        self.connection_window -= len(data)
        self.stream_windows[stream] -= len(data)
        self.send(frame(DATA, 0, stream, data))

    def receive(self, wait):
        """Takes what has arrived, at most after `wait` seconds. Closed: the connection has ended."""
        self.socket.settimeout(max(wait, 1e-3))
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return
        except OSError as error:
            raise Closed(str(error)) from error
        finally:
            self.socket.settimeout(5.0)
        if not data:
            raise Closed("end of stream")
        self._received += data
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            self._on_frame(kind, flags, stream, self._received[9 : 9 + length])
            self._received = self._received[9 + length :]

    def _on_frame(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for i in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[i : i + 6])
                if name == INITIAL_WINDOW_SIZE:
                    for one in self.stream_windows:
                        self.stream_windows[one] += value - self.initial_window
                    self.initial_window = value
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self.connection_window += more
            elif stream in self.stream_windows:
                self.stream_windows[stream] += more
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.ended += 1
            self.stream_windows.pop(stream, None)
        elif kind == GOAWAY:
            raise Closed("goaway")


def wait_readable(sockets, seconds):
    """Those of the sockets that have something to read, or have ended."""
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]
