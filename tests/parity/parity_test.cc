// PowerSGD and the casting hooks against what PyTorch's own hooks did with the same gradients.
//
// Step by step from PyTorch's state (a difference cannot grow from step to step), except for the
// configurations named free_*, which go on from their own. Prints a line for each configuration.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/hooks/hook_spec.h"
#include "gtest/gtest.h"
#include "hooks/power_sgd/layout.h"
#include "hooks/power_sgd/options.h"
#include "hooks/power_sgd/torch_random.h"
#include "tests/parity/reference_vectors.h"
#include "tests/testing/hook_world.h"

namespace gradwire::parity {
namespace {

using ::gradwire::testing::Buckets;
using ::gradwire::testing::HookWorld;
using ::gradwire::testing::MemberGradients;

// Relative Frobenius norms of differences, largest over steps and parameters.
struct Errors {
  double gradient = 0;
  double residual = 0;
  double factor = 0;
  // Squares of distances from the exact mean of the originals, over all of it.
  double ours = 0;
  double theirs = 0;
};

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

std::vector<std::byte> Bytes(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> Floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

StateTensor ToTensor(const std::string& name, const std::vector<float>& values) {
  return {.name = name,
          .dtype = DType::kFloat32,
          .shape = {static_cast<std::int64_t>(values.size())},
          .data = Bytes(values)};
}

// One configuration: its vectors, and a session of ours.
class Replay {
 public:
  // `nudge` multiplies every other number of the factors that are taken over.
  Replay(const Configuration& configuration, Vectors vectors, float nudge = 1)
      : configuration_(configuration),
        nudge_(nudge),
        vectors_(std::move(vectors)),
        spec_(*HookSpec::Parse(configuration.spec)) {
    for (const Vectors::Parameter& parameter : vectors_.parameters()) {
      manifest_.push_back(
          {.name = parameter.name, .shape = parameter.shape, .dtype = DType::kFloat32});
    }
    world_ = *HookWorld::Make(configuration.world, spec_, manifest_);
    is_power_sgd_ = spec_.comm_hook.ends_with("power_sgd");
    if (is_power_sgd_) options_ = *PowerSgdOptions::FromSpec(spec_);
  }

  Errors Run() {
    const bool is_free = configuration_.name.starts_with("free");
    bool is_forced = false;
    for (int step = 0; step < configuration_.steps; ++step) {
      step_ = step;
      if (is_power_sgd_ && (!is_free || !is_forced)) {
        Force();
        is_forced = IsCompressed();
      }
      auto gradients = Gradients();
      const auto verdict = world_->RunStep(gradients, StepBuckets());
      EXPECT_TRUE(verdict.ok()) << verdict.status();
      if (!verdict.ok()) break;
      EXPECT_EQ(*verdict, Verdict::kApply);
      Compare(gradients);
      results_.push_back(std::move(gradients.front()));
    }
    return errors_;
  }

  // Largest relative distance of a step's gradients from another run's.
  double DistanceFrom(const Replay& other) const {
    double largest = 0;
    for (std::size_t step = 0; step < results_.size(); ++step) {
      double distance = 0;
      double norm = 0;
      for (std::size_t p = 0; p < manifest_.size(); ++p) {
        const std::vector<float> here = Floats(results_[step][p]);
        distance += std::pow(Distance(here, Floats(other.results_[step][p])), 2);
        norm += std::pow(Norm(here), 2);
      }
      largest = std::max(largest, std::sqrt(distance / norm));
    }
    return largest;
  }

 private:
  std::string Key(const std::string& rest) const { return absl::StrCat("step/", step_, "/", rest); }
  const Tensor* Find(const std::string& rest) const { return vectors_.Find(Key(rest)); }
  const Tensor& At(const std::string& name) const {
    const Tensor* found = vectors_.Find(name);
    if (found == nullptr) {
      ADD_FAILURE() << configuration_.name << " has no record " << name;
      std::abort();
    }
    return *found;
  }

  Buckets StepBuckets() const {
    Buckets buckets;
    const auto count = At(Key("buckets")).integers.at(0);
    for (std::int64_t b = 0; b < count; ++b) {
      const auto& indices = At(Key(absl::StrCat("bucket/", b))).integers;
      buckets.emplace_back(indices.begin(), indices.end());
    }
    return buckets;
  }

  std::int64_t Iteration() const { return At(Key("iter")).integers.at(0); }
  bool IsCompressed() const { return Iteration() >= options_.start_powerSGD_iter; }

  std::vector<MemberGradients> Gradients() const {
    std::vector<MemberGradients> gradients(world_->world_size());
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      for (const ParameterSpec& parameter : manifest_) {
        gradients[rank].push_back(
            Bytes(At(Key(absl::StrCat("grad/", rank, "/", parameter.name))).values));
      }
    }
    return gradients;
  }

  // Makes PyTorch's state before the step ours.
  void Force() {
    for (std::size_t rank = 0; rank < world_->world_size(); ++rank) {
      HookState state = world_->hook(rank).State();
      state.tensors.clear();
      for (const ParameterSpec& parameter : manifest_) {
        const Tensor* error = Find(absl::StrCat("error/", rank, "/", parameter.name));
        if (error == nullptr) continue;
        state.tensors.push_back(ToTensor("residual/" + parameter.name, error->values));
      }
      if (options_.batched) ForcePadding(rank, state);
      const absl::Status status = world_->hook(rank).LoadState(state, manifest_);
      ASSERT_TRUE(status.ok()) << status;
    }
    HookState state = world_->Export();
    state.tensors.clear();
    std::erase_if(state.metadata, [](const auto& entry) {
      return entry.first.starts_with("version/") || entry.first.starts_with("bucket/");
    });
    state.metadata["iteration"] = absl::StrCat(Iteration());
    state.metadata["seed"] = IsCompressed() ? "1" : "";
    if (IsCompressed()) ForceFactors(state);
    const absl::Status status = world_->Import(state);
    ASSERT_TRUE(status.ok()) << configuration_.name << " step " << step_ << ": " << status;
    world_->Reset();
  }

  void ForcePadding(std::size_t rank, HookState& state) const {
    const Buckets buckets = StepBuckets();
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const Tensor* padding = Find(absl::StrCat("batched_padding/", rank, "/", b));
      if (padding == nullptr) continue;
      const std::string& first = manifest_[buckets[b].front()].name;
      state.tensors.push_back(ToTensor("padding/" + first, padding->values));
      std::string names;
      for (std::size_t p : buckets[b]) absl::StrAppend(&names, manifest_[p].name, "\n");
      state.metadata["bucket/" + first] = names;
    }
  }

  void ForceFactors(HookState& state) {
    const Buckets buckets = StepBuckets();
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      std::vector<ParameterSpec> bucket;
      for (std::size_t p : buckets[b]) bucket.push_back(manifest_[p]);
      if (const Tensor* seed = Find(absl::StrCat("seed/", b))) CheckDraw(b, bucket, *seed);
      for (const LowRankMatrix& matrix : MakeLayout(options_, bucket).matrices) {
        const std::string& name = bucket[matrix.parameter].name;
        const std::string record =
            options_.batched ? absl::StrCat("/", b) : absl::StrCat("/", name);
        const std::string prefix = options_.batched ? "batched_" : "";
        const Tensor* raw = Find(prefix + "q_raw" + record);
        const Tensor& q = raw != nullptr ? *raw : At(Key(prefix + "q" + record));
        std::vector<float> values = q.values;
        for (std::size_t i = 0; i < values.size(); i += 2) values[i] *= nudge_;
        state.tensors.push_back(ToTensor("q/" + name, values));
        state.metadata["version/" + name] = "0";
        if (options_.batched) state.metadata["bucket/" + name] = absl::StrJoin(buckets[b], " ");
      }
    }
  }

  // Our generator's numbers for the seed that PyTorch drew.
  void CheckDraw(std::size_t b, const std::vector<ParameterSpec>& bucket, const Tensor& seed) {
    TorchGenerator normals(static_cast<std::uint32_t>(seed.integers.at(0)));
    const BucketLayout layout = MakeLayout(options_, bucket);
    for (std::size_t i = 0; i < layout.matrices.size();) {
      std::size_t end = i + 1;
      while (options_.batch_tensors_with_same_shape && !options_.batched &&
             end < layout.matrices.size() &&
             layout.matrices[end].shape == layout.matrices[i].shape) {
        ++end;
      }
      const std::size_t numel = layout.matrices[i].q_numel();
      std::vector<float> drawn(numel * (end - i));
      normals.Normal(drawn);
      for (std::size_t at = 0; i < end; ++i, at += numel) {
        const std::string record = options_.batched
                                       ? absl::StrCat("batched_q_raw/", b)
                                       : "q_raw/" + bucket[layout.matrices[i].parameter].name;
        const std::vector<float>& expected = At(Key(record)).values;
        ASSERT_EQ(expected.size(), numel);
        for (std::size_t j = 0; j < numel; ++j) {
          ASSERT_EQ(drawn[at + j], expected[j]) << Key(record) << " " << j;
        }
      }
    }
  }

  void Compare(const std::vector<MemberGradients>& gradients) {
    double distance = 0;
    double norm = 0;
    for (std::size_t p = 0; p < manifest_.size(); ++p) {
      for (std::size_t rank = 1; rank < gradients.size(); ++rank) {
        EXPECT_EQ(gradients[rank][p], gradients[0][p]);
      }
      const std::vector<float>& want = At(Key("result/" + manifest_[p].name)).values;
      if (!is_power_sgd_) {
        ComparePlain(p, Floats(gradients[0][p]), want);
        continue;
      }
      distance += std::pow(Distance(Floats(gradients[0][p]), want), 2);
      norm += std::pow(Norm(want), 2);
      CompareFactor(manifest_[p]);
    }
    if (is_power_sgd_) errors_.gradient = std::max(errors_.gradient, std::sqrt(distance / norm));
    if (is_power_sgd_) CompareResiduals();
  }

  // Bitwise with two members; with more, how far both are from the exact mean.
  void ComparePlain(std::size_t p, const std::vector<float>& ours, const std::vector<float>& want) {
    if (world_->world_size() == 2) {
      EXPECT_EQ(Bytes(ours), Bytes(want)) << configuration_.name << " " << manifest_[p].name;
      return;
    }
    const auto gradient = [&](std::size_t rank) -> const std::vector<float>& {
      return At(Key(absl::StrCat("grad/", rank, "/", manifest_[p].name))).values;
    };
    const auto world = static_cast<double>(world_->world_size());
    double scale = 0;  // the result may be nearly nothing
    for (std::size_t rank = 0; rank < world_->world_size(); ++rank) scale += Norm(gradient(rank));
    for (std::size_t i = 0; i < want.size(); ++i) {
      double mean = 0;
      for (std::size_t rank = 0; rank < world_->world_size(); ++rank) mean += gradient(rank)[i];
      mean /= world;
      errors_.ours += std::pow((ours[i] - mean) / scale, 2);
      errors_.theirs += std::pow((want[i] - mean) / scale, 2);
    }
    errors_.gradient = std::max(errors_.gradient, Distance(ours, want) * world / scale);
  }

  // Up to the signs of columns: PyTorch's QR turns some.
  void CompareFactor(const ParameterSpec& parameter) {
    const Tensor* want = Find("q_after/" + parameter.name);
    if (want == nullptr) return;
    const HookState state = world_->Export();
    for (const StateTensor& tensor : state.tensors) {
      if (tensor.name != "q/" + parameter.name) continue;
      std::vector<float> ours = Floats(tensor.data);
      const auto rank = static_cast<std::size_t>(want->shape.back());
      for (std::size_t k = 0; k < rank; ++k) {
        double dot = 0;
        for (std::size_t i = k; i < ours.size(); i += rank) dot += ours[i] * want->values[i];
        for (std::size_t i = k; i < ours.size() && dot < 0; i += rank) ours[i] = -ours[i];
      }
      errors_.factor = std::max(errors_.factor,
                                Distance(ours, want->values) / std::max(Norm(want->values), 1e-30));
    }
  }

  // Of the gradients' size: a residual is a difference of such numbers.
  void CompareResiduals() {
    for (std::size_t rank = 0; rank < world_->world_size(); ++rank) {
      double distance = 0;
      double norm = 0;
      for (const StateTensor& tensor : world_->hook(rank).State().tensors) {
        if (!tensor.name.starts_with("residual/")) continue;
        const std::string record = absl::StrCat(rank, "/", tensor.name.substr(9));
        const Tensor* want = Find("error_after/" + record);
        if (want == nullptr) continue;
        distance += std::pow(Distance(Floats(tensor.data), want->values), 2);
        norm += std::pow(Norm(At(Key("grad/" + record)).values), 2);
      }
      if (norm > 0) errors_.residual = std::max(errors_.residual, std::sqrt(distance / norm));
    }
  }

  const Configuration configuration_;
  const float nudge_;
  const Vectors vectors_;
  const HookSpec spec_;
  PowerSgdOptions options_;
  bool is_power_sgd_ = false;
  std::vector<ParameterSpec> manifest_;
  std::unique_ptr<HookWorld> world_;
  int step_ = 0;
  Errors errors_;
  std::vector<MemberGradients> results_;  // of rank 0, by step
};

// On their own, rounding differences grow with warm starts and error feedback, the faster the
// closer the singular values are. How fast is measured: with the first Q moved by about one
// rounding.
constexpr float kNudge = 1 + 0x1p-22F;
constexpr double kDriftFactor = 5;

TEST(Parity, WithPyTorchsHooks) {
  const char* folder = std::getenv("GRADWIRE_PARITY_VECTORS");
  ASSERT_NE(folder, nullptr) << "GRADWIRE_PARITY_VECTORS names no folder";
  const auto configurations = ReadIndex(folder);
  ASSERT_TRUE(configurations.ok()) << configurations.status();
  ASSERT_GE(configurations->size(), 40U);
  std::cout << "largest relative difference from torch\n"
            << std::left << std::setw(34) << "configuration" << std::setw(12) << "gradient"
            << std::setw(12) << "residual"
            << "Q\n";
  for (const Configuration& configuration : *configurations) {
    auto vectors = Vectors::Read(configuration.path);
    ASSERT_TRUE(vectors.ok()) << vectors.status();
    Replay replay(configuration, *vectors);
    const Errors errors = replay.Run();
    std::cout << std::setw(34) << configuration.name << std::setprecision(2) << std::scientific
              << std::setw(12) << errors.gradient << std::setw(12) << errors.residual
              << errors.factor;
    EXPECT_LE(errors.ours, errors.theirs) << configuration.name << ": further from the exact mean";
    if (configuration.name.starts_with("free")) {
      Replay nudged(configuration, *std::move(vectors), kNudge);
      nudged.Run();
      const double own = replay.DistanceFrom(nudged);
      std::cout << "  own drift " << own;
      EXPECT_LE(errors.gradient, kDriftFactor * own) << configuration.name;
    } else if (configuration.spec.find("power_sgd") != std::string::npos) {
      EXPECT_LE(errors.gradient, 1e-6) << configuration.name;
      EXPECT_LE(errors.residual, 1e-6) << configuration.name;
    }
    std::cout << "\n";
  }
}

}  // namespace
}  // namespace gradwire::parity
