// Frames that say what several say.
#pragma once

#include "proto/wire/frame.h"

namespace gradwire::wire {

// Makes `last`, which has not been sent, say what `next` says as well; false: it cannot, and is as
// it was. Both are without payload. An acknowledgement takes the place of the one before; raw
// contributions, and results in place, of chunks that follow one another are joined.
bool Merge(Header& last, const Header& next);

}  // namespace gradwire::wire
