// The SendPriority of a frame.
#pragma once

#include "proto/wire/frame.h"
#include "proto/wire/send_priority.h"

namespace gradwire::wire {

// `payload` may be null; bytes in shared memory count like bytes in the frame.
SendPriority PriorityOf(const Header& header, const Payload* payload);

}  // namespace gradwire::wire
