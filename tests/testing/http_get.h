// Reads a page of the daemon's HTTP address.
#pragma once

#include <string>

namespace gradwire::testing {

// The body of http://ADDRESS/PATH, with the token if it is not empty. Empty: there was no answer
// with status 200 within 10 s. `address` is "127.0.0.1:PORT".
std::string HttpGet(const std::string& address, const std::string& path,
                    const std::string& token = "");

}  // namespace gradwire::testing
