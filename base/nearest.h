// What somebody who misspelled a name is likely to have meant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradwire {

// Takes the names that exist one after the other. '-', '.' and '_' count as the same letter, as
// flags, keys and variables have them.
class Nearest {
 public:
  explicit Nearest(std::string_view unknown);

  // `meant` is what to suggest for `name`. The first of equally near names stays.
  void Consider(std::string_view name, std::string_view meant);

  // "": nothing is near: more than a third of the letters, and more than two, differ.
  const std::string& meant() const { return meant_; }

 private:
  const std::string unknown_;
  std::size_t distance_;  // only nearer ones count
  std::string meant_;
};

}  // namespace gradwire
