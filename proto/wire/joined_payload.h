// Payloads made of others, without copies.
#pragma once

#include <vector>

#include "proto/wire/frame.h"

namespace gradwire::wire {

// The payloads' bytes one after another. One payload is its own join; none may be null.
PayloadRef Join(std::vector<PayloadRef> payloads);

// Bytes [offset, offset + bytes) of `whole`, which has as many.
PayloadRef Part(PayloadRef whole, std::size_t offset, std::size_t bytes);

}  // namespace gradwire::wire
