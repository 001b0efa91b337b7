#include "server/ctl/doctor/model.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/error_code.h"
#include "base/printable.h"

namespace gradwire::ctl {
namespace {

// torchvision.models.resnet18: 62 parameters, 11,689,512 elements.
constexpr char kResnet18[] =
    "64x3x7x7,2*64,"
    "64x64x3x3,2*64,64x64x3x3,2*64,64x64x3x3,2*64,64x64x3x3,2*64,"
    "128x64x3x3,2*128,128x128x3x3,2*128,128x64x1x1,2*128,128x128x3x3,2*128,128x128x3x3,2*128,"
    "256x128x3x3,2*256,256x256x3x3,2*256,256x128x1x1,2*256,256x256x3x3,2*256,256x256x3x3,2*256,"
    "512x256x3x3,2*512,512x512x3x3,2*512,512x256x1x1,2*512,512x512x3x3,2*512,512x512x3x3,2*512,"
    "1000x512,1000";

// transformers' GPT2Model with its smallest configuration: 148 parameters, 124,439,808 elements.
constexpr char kGpt2[] =
    "50257x768,1024x768,"
    "24*768,12*768x2304,12*2304,12*768x768,12*768,24*768,12*768x3072,12*3072,12*3072x768,12*768,"
    "2*768";

// A small multilayer perceptron: 6 parameters, 1,863,690 elements.
constexpr char kMlp[] = "1024x784,1024,1024x1024,1024,10x1024,10";

const std::map<std::string, std::string>& Models() {
  static const auto* const kModels = new std::map<std::string, std::string>{
      {"gpt2", kGpt2}, {"mlp", kMlp}, {"resnet18", kResnet18}};
  return *kModels;
}

absl::Status BadItem(absl::string_view item, const std::string& why) {
  return Coded(ErrorCode::kCtlUsage,
               absl::InvalidArgumentError(absl::StrCat(
                   "shapes: \"", Printable(std::string(item)), "\" ", why,
                   "; allowed: sizes from 1 joined by x, such as 512x256, and N* before them")));
}

absl::StatusOr<std::vector<std::int64_t>> ParseShape(absl::string_view item,
                                                     absl::string_view text) {
  std::vector<std::int64_t> shape;
  std::size_t elements = 1;
  for (const absl::string_view part : absl::StrSplit(text, 'x')) {
    std::int64_t size = 0;
    if (!absl::SimpleAtoi(part, &size) || size < 1) return BadItem(item, "is no shape");
    if (static_cast<std::size_t>(size) > kMostElements / elements) {
      return BadItem(item, absl::StrCat("has more than ", kMostElements, " elements"));
    }
    elements *= static_cast<std::size_t>(size);
    shape.push_back(size);
  }
  return shape;
}

}  // namespace

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const auto& [name, shapes] : Models()) names.push_back(name);
  return names;
}

absl::StatusOr<std::vector<ParameterSpec>> ModelByName(const std::string& name) {
  const auto found = Models().find(name);
  if (found == Models().end()) {
    return Coded(ErrorCode::kCtlUsage, absl::InvalidArgumentError(absl::StrCat(
                                           "model: there is none named \"", Printable(name),
                                           "\"; allowed: ", absl::StrJoin(ModelNames(), ", "))));
  }
  return ParseShapes(found->second);
}

absl::StatusOr<std::vector<ParameterSpec>> ParseShapes(const std::string& text) {
  std::vector<ParameterSpec> parameters;
  std::size_t elements = 0;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(item, absl::MaxSplits('*', 1));
    const bool repeated = item.find('*') != absl::string_view::npos;
    std::size_t count = 1;
    if (repeated && (!absl::SimpleAtoi(halves.first, &count) || count < 1)) {
      return BadItem(item, "has no number before the *");
    }
    const auto shape = ParseShape(item, repeated ? halves.second : halves.first);
    if (!shape.ok()) return shape.status();
    if (count > kMostParameters - parameters.size()) {
      return BadItem(item, absl::StrCat("makes more than ", kMostParameters, " parameters"));
    }
    for (std::size_t i = 0; i < count; ++i) {
      parameters.push_back(
          {.name = absl::StrCat(parameters.size()), .shape = *shape, .dtype = DType::kFloat32});
      elements += parameters.back().numel();
      if (elements > kMostElements) {
        return BadItem(item, absl::StrCat("makes more than ", kMostElements, " elements"));
      }
    }
  }
  return parameters;
}

std::size_t Elements(const std::vector<ParameterSpec>& parameters) {
  std::size_t elements = 0;
  for (const ParameterSpec& parameter : parameters) elements += parameter.numel();
  return elements;
}

}  // namespace gradwire::ctl
