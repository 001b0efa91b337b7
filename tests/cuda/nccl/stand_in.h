// A stand-in for libnccl.so.2: NCCL's C interface between processes of this machine, each with an
// emulated GPU. Its transfers are work of the emulated streams, which gets on when somebody queries
// or waits for them; a communicator gets on when it is asked for its state. A group is given to its
// stream as late as NCCL allows: just before the state is not "in progress" any more.
//
// As NCCL, it does not notice that a peer has died. What NCCL forbids is added to the violations of
// the emulation.
#pragma once

namespace gradwire::stand_in {

// The environment variable that makes it fail: a list of these, as in "version=21300,hang=2".
//   version=N        NCCL's number for the version, for ncclGetVersion
//   refuse           ncclCommInitRankConfig returns ncclSystemError
//   duplicate        connecting fails as with two members on one GPU
//   hang=N           the N-th group of a communicator never ends
//   error=N          the N-th group never ends, and from its turn on the state is ncclRemoteError
inline constexpr const char* kFaults = "GRADWIRE_STAND_IN_NCCL";

}  // namespace gradwire::stand_in
