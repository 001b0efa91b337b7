// What a process that uses gRPC wants to set for all of it.
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

// Turns off the deadlock detection of Abseil's mutexes, a debugging aid that Debian's Abseil has
// built in: with it each lock that gRPC takes costs one of the whole process too. For programs; a
// library leaves that choice to its program.
void SkipDeadlockDetection();

}  // namespace gradwire::wire
