// Tells who a caller is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "server/access/caller.h"
#include "server/access/token_table.h"

namespace gradwire::server {

// What comes with a call.
struct Proof {
  bool local = false;  // on a unix socket, which lets in the daemon's own user only
  std::string certificate =
      {};  // the name in the client's certificate, which TLS has checked; or ""
  std::string authorization = {};  // the header of this name; "": there is none
  std::string peer = {};           // its address, for the audit log only; "": on a unix socket
};

// Thread-safe.
class AccessControl {
 public:
  // `path`: of the tokens, see TokenTable. Empty: tokens are not asked for, and every caller is an
  // operator. Errors: TokenTable's, and Unavailable for a file that cannot be read.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Open(const std::string& path);

  // Who may call the method with this proof. Unauthenticated if a token is missing or unknown,
  // PermissionDenied if the method is not for its role. Where tokens are asked for, a caller on a
  // unix socket may do without one.
  absl::StatusOr<Caller> Admit(const std::string& method, const Proof& proof) const
      GRADWIRE_EXCLUDES(mutex_);

  // Who has this proof, whether or not it may call the method. Unauthenticated as above.
  absl::StatusOr<Caller> Identify(const std::string& method, const Proof& proof) const
      GRADWIRE_EXCLUDES(mutex_);

  // Reads the file again. True: the next calls go by what has changed; calls that are open go on.
  // An error: nothing has changed.
  absl::StatusOr<bool> Reload() GRADWIRE_EXCLUDES(mutex_);

  bool has_file() const { return !path_.empty(); }

 private:
  AccessControl(std::string path, std::shared_ptr<const TokenTable> tokens)
      : path_(std::move(path)), tokens_(std::move(tokens)) {}

  absl::StatusOr<Caller> Recognize(const std::string& method, const Proof& proof) const
      GRADWIRE_EXCLUDES(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  std::shared_ptr<const TokenTable> tokens_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
