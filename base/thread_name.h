// What top and debuggers call a thread.
#pragma once

#include <pthread.h>

namespace gradwire {

// Names the calling thread. At most 15 characters.
inline void NameThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace gradwire
