// Tells who a caller is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "server/access/caller.h"
#include "server/access/host_users.h"
#include "server/access/token_table.h"

namespace gradwire::server {

// What comes with a call.
struct Proof {
  std::optional<uid_t> user = {};  // who connected, on a unix socket
  std::string certificate =
      {};  // the name in the client's certificate, which TLS has checked; or ""
  std::string authorization = {};  // the header of this name; "": there is none
  std::string peer = {};           // its address, for the logs only; "": on a unix socket
  bool over_http = false;          // not a call of gRPC: errors say what a reader of pages can do
};

// Thread-safe.
class AccessControl {
 public:
  // `path`: of the tokens, see TokenTable. Empty: tokens are not asked for, and every caller is an
  // operator; on a unix socket that `users` says others can open, only those are who are operators
  // there. Errors: TokenTable's, and Unavailable for a file that cannot be read.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Open(const std::string& path,
                                                             HostUsers users = {});

  // What Open would say of the file.
  static absl::Status CheckFile(const std::string& path);

  // Who may call the method with this proof. Unauthenticated if a token is missing or unknown,
  // PermissionDenied if the method is not for its role. A caller on a unix socket may do without a
  // token if it is an operator of the host, or has a line of its own.
  absl::StatusOr<Caller> Admit(const std::string& method, const Proof& proof) const
      GRADWIRE_EXCLUDES(mutex_);

  // Who has this proof, whether or not it may call the method. Unauthenticated as above.
  absl::StatusOr<Caller> Identify(const std::string& method, const Proof& proof) const
      GRADWIRE_EXCLUDES(mutex_);

  // Reads the file again. True: the next calls go by what has changed; calls that are open go on.
  // An error: nothing has changed.
  absl::StatusOr<bool> Reload() GRADWIRE_EXCLUDES(mutex_);

  bool has_file() const { return !path_.empty(); }
  const std::string& path() const { return path_; }

 private:
  AccessControl(std::string path, HostUsers users, std::shared_ptr<const TokenTable> tokens)
      : path_(std::move(path)), users_(std::move(users)), tokens_(std::move(tokens)) {}

  absl::StatusOr<Caller> Recognize(const std::string& method, const Proof& proof) const
      GRADWIRE_EXCLUDES(mutex_);

  // By the connection alone; nullopt: it does not tell enough.
  std::optional<Caller> WithoutToken(const Proof& proof, const TokenTable* tokens) const;
  std::string WhyTokenIsNeeded(const Proof& proof, bool has_tokens) const;

  const std::string path_;
  const HostUsers users_;
  mutable Mutex mutex_;
  std::shared_ptr<const TokenTable> tokens_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::server
