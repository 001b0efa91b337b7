#pragma once

namespace gradwire::wire {

// Keeps gRPC initialised until the process ends. Without this the last channel or server of the
// process shuts gRPC down where it is destroyed, and gRPC 1.51 then joins threads that may poll a
// socket for 10 s more. Any thread, any number of times.
void KeepGrpc();

}  // namespace gradwire::wire
