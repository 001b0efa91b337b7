// The models whose steps doctor and bench talk about.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/hooks/grad_bucket.h"

namespace gradwire::ctl {

// Limits on what the command line asks for: bench allocates it once for each member.
inline constexpr std::size_t kMostElements = std::size_t{1} << 30;
inline constexpr std::size_t kMostParameters = 100000;

// Names that ModelByName knows.
std::vector<std::string> ModelNames();

// The float32 parameters of a well-known model, with the shapes that torchvision or transformers
// give them. InvalidArgument names the models that there are.
absl::StatusOr<std::vector<ParameterSpec>> ModelByName(const std::string& name);

// "64x3x7x7,64,12*768x768": shapes of float32 parameters, with a factor for repetitions.
// InvalidArgument names the item and what is allowed.
absl::StatusOr<std::vector<ParameterSpec>> ParseShapes(const std::string& text);

std::size_t Elements(const std::vector<ParameterSpec>& parameters);

}  // namespace gradwire::ctl
