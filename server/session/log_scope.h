// What a thread's lines in the log are about, as fields of their own where the log is JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gradwire::server {

struct LogFields {
  std::string session = {};
  std::optional<std::uint64_t> generation = {};
  std::optional<std::int64_t> step = {};
  std::optional<int> rank = {};
};

// The lines that this thread writes while the scope lives have its fields. The log's formatter runs
// on the thread that writes a line (see SetUpLog), so the fields can be its own. Scopes nest: the
// innermost counts. `fields` outlives the scope.
class LogScope {
 public:
  explicit LogScope(const LogFields& fields) : outer_(current_) { current_ = &fields; }
  ~LogScope() { current_ = outer_; }
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

  // Null: none.
  static const LogFields* current() { return current_; }

 private:
  inline static thread_local const LogFields* current_ = nullptr;
  const LogFields* const outer_;
};

}  // namespace gradwire::server
