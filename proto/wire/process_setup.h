// Process-wide settings for a process that uses gRPC.
#pragma once

namespace gradwire::wire {

// Keeps gRPC initialised until the process ends. Without this the last channel or server of the
// process shuts gRPC down where it is destroyed, and gRPC 1.51 then joins threads that may poll a
// socket for 10 s more. Any thread, any number of times.
void KeepGrpc();

// Has the C library keep up to some 16 MiB of freed memory at hand, instead of 128 KiB, as it does
// of its own accord once a program has freed a large block: gRPC's read buffers would be faulted in
// anew for every chunk. A program that has set malloc's thresholds itself keeps its own. Any
// thread, any number of times.
void KeepFreedMemory();

// Disables the deadlock detection of Abseil's mutexes, a debugging aid that is built into Debian's
// Abseil: with it each lock that gRPC takes also takes a process-wide one. Only for programs; a
// library leaves that choice to its program.
void SkipDeadlockDetection();

// Drops gRPC's own log lines, unless GRPC_VERBOSITY is set: what they say also comes as the status
// of the call. Only for programs that print it; before the first use of gRPC and the first thread.
void SilenceGrpc();

}  // namespace gradwire::wire
