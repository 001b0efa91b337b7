#include "tests/parity/reference_vectors.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gradwire::parity {
namespace {

static_assert(std::endian::native == std::endian::little, "the records are little endian");

constexpr std::uint32_t kMaxDimensions = 8;
constexpr std::uint8_t kFloat32 = 0;
constexpr std::uint8_t kInt64 = 2;

// Takes values off the front of some bytes; false when too few are left.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  template <class T>
  bool Take(T& value) {
    return TakeBytes(&value, sizeof(value));
  }

  bool TakeString(std::size_t size, std::string& text) {
    if (size > bytes_.size()) return false;
    text.resize(size);
    return TakeBytes(text.data(), size);
  }

  template <class T>
  bool TakeArray(std::uint64_t count, std::vector<T>& values) {
    if (count > bytes_.size() / sizeof(T)) return false;
    values.resize(count);
    return TakeBytes(values.data(), count * sizeof(T));
  }

 private:
  bool TakeBytes(void* to, std::size_t size) {
    if (size > bytes_.size()) return false;
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_.remove_prefix(size);
    return true;
  }

  std::string_view bytes_;
};

bool TakeShape(Input& input, std::vector<std::int64_t>& shape, std::uint64_t& count) {
  std::uint32_t dimensions = 0;
  if (!input.Take(dimensions) || dimensions > kMaxDimensions) return false;
  count = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    std::uint64_t size = 0;
    if (!input.Take(size) || size > std::numeric_limits<std::uint32_t>::max()) return false;
    // No file holds that many values.
    if (size > 0 && count > std::numeric_limits<std::uint32_t>::max() / size) return false;
    count *= size;
    shape.push_back(static_cast<std::int64_t>(size));
  }
  return true;
}

bool TakeRecord(Input& input, std::string& name, Tensor& tensor) {
  std::uint32_t name_length = 0;
  std::uint64_t count = 0;
  std::uint8_t type = 0;
  if (!input.Take(name_length) || !input.TakeString(name_length, name)) return false;
  if (!TakeShape(input, tensor.shape, count) || !input.Take(type)) return false;
  if (type == kFloat32) return input.TakeArray(count, tensor.values);
  if (type == kInt64) return input.TakeArray(count, tensor.integers);
  return false;
}

}  // namespace

absl::StatusOr<Vectors> Vectors::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  Vectors vectors;
  Input input(bytes);
  while (!input.empty()) {
    std::string name;
    Tensor tensor;
    if (!TakeRecord(input, name, tensor)) {
      return absl::DataLossError(absl::StrCat(path, ": record ", vectors.records_.size(), " (\"",
                                              name, "\") is cut short or of no known form"));
    }
    if (!vectors.records_.emplace(name, std::move(tensor)).second) {
      return absl::DataLossError(absl::StrCat(path, ": \"", name, "\" is there twice"));
    }
  }
  for (std::size_t i = 0;; ++i) {
    const std::string prefix = absl::StrCat("param/", i, "/");
    const auto found = vectors.records_.lower_bound(prefix);
    if (found == vectors.records_.end() || !absl::StartsWith(found->first, prefix)) break;
    vectors.parameters_.push_back({found->first.substr(prefix.size()), found->second.integers});
  }
  return vectors;
}

const Tensor* Vectors::Find(const std::string& name) const {
  const auto found = records_.find(name);
  return found == records_.end() ? nullptr : &found->second;
}

absl::StatusOr<std::vector<Configuration>> ReadIndex(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/index.txt");
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::vector<Configuration> configurations;
  std::string line;
  while (std::getline(file, line)) {
    Configuration configuration;
    std::string name;
    std::istringstream words(line);
    words >> configuration.name >> configuration.world >> configuration.steps >>
        configuration.spec >> name;
    if (!words) return absl::DataLossError(absl::StrCat(path, ": cannot read \"", line, "\""));
    configuration.path = absl::StrCat(folder, "/", name);
    configurations.push_back(std::move(configuration));
  }
  return configurations;
}

}  // namespace gradwire::parity
