#pragma once

#include "gradwire/client.h"

namespace gradwire {

// Fills an empty address or session from GRADWIRE_ADDRESS or GRADWIRE_SESSION.
ClientOptions WithEnvironment(ClientOptions options);

}  // namespace gradwire
