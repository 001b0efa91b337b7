#pragma once

#include <functional>
#include <string>

#include "gradwire/client.h"

namespace gradwire {

// Fills an empty address or session from GRADWIRE_ADDRESS or GRADWIRE_SESSION.
ClientOptions WithEnvironment(ClientOptions options);

// Hands a line about a wait to `on_wait`, or, where that is empty, writes it to standard error.
void SayWait(const std::function<void(const std::string& line)>& on_wait, const std::string& line);

}  // namespace gradwire
