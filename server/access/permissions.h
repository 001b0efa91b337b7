// Which role may call which method.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/access/caller.h"

namespace gradwire::server {

struct Permission {
  std::string method;       // "/package.Service/Method"
  bool everybody = false;   // also callers without a token
  std::vector<Role> roles;  // besides operators, who may call all of them
  bool admin = false;       // only on the admin addresses, where the daemon has some
};

// Of all methods of the daemon. A method that is not among them is nobody's.
const std::vector<Permission>& Permissions();

// Whether callers without a token may call the method.
bool IsForEverybody(const std::string& method);

// Whether the members' addresses refuse the method where the daemon has admin addresses.
bool IsForAdminAddresses(const std::string& method);

// PermissionDenied if the caller's role may not call the method.
absl::Status CheckMethod(const Caller& caller, const std::string& method);

// PermissionDenied if the session is not among the caller's. The answer is the same whether there
// is such a session or not.
absl::Status CheckSession(const Caller& caller, const std::string& session);

}  // namespace gradwire::server
