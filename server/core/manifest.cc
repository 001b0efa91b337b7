#include "server/core/manifest.h"

#include "absl/strings/str_cat.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kMaxNamesInMessage = 3;

std::size_t BytesOf(const ParameterSpec& parameter) {
  return parameter.numel() * ByteSize(parameter.dtype);
}

}  // namespace

std::size_t Manifest::GradientBytes() const {
  std::size_t bytes = 0;
  for (const ParameterSpec& parameter : *list_) bytes += BytesOf(parameter);
  return bytes;
}

std::size_t Manifest::GradientBytes(std::span<const std::uint32_t> positions) const {
  std::size_t bytes = 0;
  for (const std::uint32_t p : positions) bytes += BytesOf((*list_)[p]);
  return bytes;
}

std::string Manifest::BucketName(std::span<const std::uint32_t> positions) const {
  std::string text = "[";
  for (std::size_t i = 0; i < positions.size() && i < kMaxNamesInMessage; ++i) {
    const std::uint32_t p = positions[i];
    absl::StrAppend(&text, i == 0 ? "" : ", ",
                    p < size() ? (*list_)[p].name : absl::StrCat("#", p));
  }
  if (positions.size() > kMaxNamesInMessage) {
    absl::StrAppend(&text, ", and ", positions.size() - kMaxNamesInMessage, " more");
  }
  return text + "]";
}

}  // namespace gradwire::server
