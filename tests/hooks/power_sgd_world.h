// A model, gradients for it, and members in one loop: what tests of PowerSGD have in common.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/hook_world.h"

namespace gradwire::testing {

inline std::vector<ParameterSpec> Model(DType dtype) {
  return {{.name = "conv", .shape = {8, 4, 3, 3}, .dtype = dtype},
          {.name = "tall", .shape = {60, 6}, .dtype = dtype},
          {.name = "bias", .shape = {13}, .dtype = dtype},
          {.name = "same", .shape = {60, 6}, .dtype = dtype},
          {.name = "scalar", .shape = {}, .dtype = dtype},
          {.name = "wide", .shape = {5, 90}, .dtype = dtype}};
}

inline const Buckets kOne = {{0, 1, 2, 3, 4, 5}};
inline const Buckets kTwo = {{5, 4, 3}, {2, 1, 0}};
inline const Buckets kShuffled = {{1, 5}, {3, 0, 2}, {4}};

// By rank, parameter and element.
using Values = std::vector<std::vector<std::vector<double>>>;

inline Values RandomGradients(const std::vector<ParameterSpec>& model, std::size_t world,
                              std::uint32_t seed) {
  std::mt19937 words(seed);
  std::normal_distribution<double> normal;
  Values values(world);
  for (auto& member : values) {
    for (const ParameterSpec& parameter : model) {
      std::vector<double>& out = member.emplace_back(parameter.numel());
      for (double& value : out) {
        value = normal(words);
        if (parameter.dtype != DType::kFloat64)
          value = static_cast<double>(static_cast<float>(value));
      }
    }
  }
  return values;
}

template <class T>
std::vector<MemberGradients> Pack(const Values& values) {
  std::vector<MemberGradients> packed(values.size());
  for (std::size_t r = 0; r < values.size(); ++r) {
    for (const std::vector<double>& from : values[r]) {
      std::vector<std::byte>& bytes = packed[r].emplace_back(from.size() * sizeof(T));
      for (std::size_t i = 0; i < from.size(); ++i) {
        const T value = static_cast<T>(from[i]);
        std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
      }
    }
  }
  return packed;
}

template <class T>
double At(const std::vector<std::byte>& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

inline std::unique_ptr<HookWorld> World(int size, const std::string& spec,
                                        DType dtype = DType::kFloat32) {
  auto parsed = HookSpec::Parse(spec);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  auto world = HookWorld::Make(size, *parsed, Model(dtype));
  EXPECT_TRUE(world.ok()) << world.status();
  return *std::move(world);
}

// The residual of one parameter, zeros if there is none yet.
template <class T>
std::vector<double> Residual(const HookState& state, const ParameterSpec& parameter) {
  std::vector<double> values(parameter.numel());
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.name != "residual/" + parameter.name) continue;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = At<T>(tensor.data, i);
  }
  return values;
}

inline bool SameTensors(const HookState& a, const HookState& b) {
  const auto sorted = [](const HookState& state) {
    std::map<std::string, std::vector<std::byte>> tensors;
    for (const StateTensor& tensor : state.tensors) tensors[tensor.name] = tensor.data;
    return tensors;
  };
  return sorted(a) == sorted(b) && a.metadata == b.metadata;
}

// Everything that members and coordinator hold.
struct Snapshot {
  std::vector<HookState> members;
  HookState coordinator;

  explicit Snapshot(HookWorld& world) : coordinator(world.Export()) {
    for (std::size_t r = 0; r < world.world_size(); ++r) members.push_back(world.hook(r).State());
  }
  bool operator==(const Snapshot& other) const {
    for (std::size_t r = 0; r < members.size(); ++r) {
      if (!SameTensors(members[r], other.members[r])) return false;
    }
    return SameTensors(coordinator, other.coordinator);
  }
};

// Each form that PowerSGD has; Form makes its spec.
inline const auto kForms = ::testing::Values(
    "power_sgd", "power_sgd,error_feedback=local", "power_sgd,use_error_feedback=false",
    "power_sgd,warm_start=false", "power_sgd,rounds=1", "power_sgd,comm_wrapper=fp16",
    "batched_power_sgd", "batched_power_sgd,rounds=1", "batched_power_sgd,warm_start=false");

inline std::string Form(const char* hook_and_options) {
  const std::string text = hook_and_options;
  const std::size_t comma = text.find(',');
  return text.substr(0, comma) + ",start_powerSGD_iter=2,matrix_approximation_rank=2" +
         (comma == std::string::npos ? "" : text.substr(comma));
}

}  // namespace gradwire::testing
