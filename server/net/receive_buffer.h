// How much of a connection the kernel buffers before gRPC reads it. All functions do nothing on
// kernels before Linux 5.16, which could not widen a buffer again.
#pragma once

namespace gradwire::server {

// For a listening TCP socket: its connections begin with a small window. Without it, peers would
// send more than Narrow allows, and again after a timeout.
void NarrowFromTheStart(int listener_fd);

// True: the buffer is small, until Widen.
bool Narrow(int fd);

// The kernel adapts the buffer to the connection, as it usually does.
void Widen(int fd);

}  // namespace gradwire::server
