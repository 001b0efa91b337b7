#!/usr/bin/env python3
"""relay.py LISTEN TARGET DELAY_MS [JITTER_MS]: passes TCP connections on, each byte DELAY_MS later, both ways.

With JITTER_MS bytes come up to so much later than that, in their order. LISTEN and TARGET are host:port. Prints the
port that it listens on. Ends with its standard input. Messages, grants and windows above TCP see the delay; TCP
itself sees two connections without it.
"""

import asyncio
import collections
import random
import sys

READ_BYTES = 64 << 10
# In flight in one direction of one connection: 100 ms at 1 Gbit/s. More stays with the sender.
MOST_BYTES = 12 << 20


async def pump(reader, writer, delay, jitter):
    loop = asyncio.get_running_loop()
    waiting = collections.deque()
    held, ended = 0, False
    changed = asyncio.Condition()

    async def read():
        nonlocal held, ended
        while True:
            data = await reader.read(READ_BYTES)
            async with changed:
                waiting.append((loop.time() + delay + random.uniform(0, jitter), data))
                held += len(data)
                changed.notify_all()
                if not data:
                    return
                await changed.wait_for(lambda: held < MOST_BYTES)

    task = asyncio.create_task(read())
    try:
        while True:
            async with changed:
                await changed.wait_for(lambda: waiting)
                due, data = waiting.popleft()
            await asyncio.sleep(due - loop.time())
            if not data:
                return
            writer.write(data)
            await writer.drain()
            async with changed:
                held -= len(data)
                changed.notify_all()
    finally:
        task.cancel()


async def serve(reader, writer, target, delay, jitter):
    try:
        there_reader, there_writer = await asyncio.open_connection(*target)
    except OSError:
        writer.close()
        return
    both = ((reader, there_writer), (there_reader, writer))
    pumps = [asyncio.create_task(pump(*ends, delay, jitter)) for ends in both]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in (there_writer, writer):
            end.close()


async def main(listen, target, delay_ms, jitter_ms="0"):
    (host, port), (there, there_port) = (text.rsplit(":", 1) for text in (listen, target))
    delay, jitter = float(delay_ms) / 1000, float(jitter_ms) / 1000
    server = await asyncio.start_server(
        lambda reader, writer: serve(reader, writer, (there, int(there_port)), delay, jitter), host, int(port))
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    server.close()


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
