#include "proto/wire/keep_grpc.h"

#include <grpc/grpc.h>

namespace gradwire::wire {

void KeepGrpc() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  static_cast<void>(kept);
}

}  // namespace gradwire::wire
