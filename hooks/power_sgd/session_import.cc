// Checks and parses a saved state of the coordinator.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "hooks/cpu/kernels.h"
#include "hooks/power_sgd/session_state.h"

namespace gradwire {
namespace {

// The first place in which two lists differ. A list that ends before it has "" there.
struct Difference {
  std::size_t index = 0;
  std::string ours;
  std::string saved;
};

// Walks the lists without copying them: the saved one comes from outside, and a vector of its items
// could take many times its size.
Difference FirstDifference(const std::string& ours, const std::string& saved, char separator) {
  const auto in_session = absl::StrSplit(ours, separator);
  const auto in_state = absl::StrSplit(saved, separator);
  auto a = in_session.begin();
  auto b = in_state.begin();
  Difference found;
  while (a != in_session.end() && b != in_state.end() && *a == *b) {
    ++a;
    ++b;
    ++found.index;
  }
  if (a != in_session.end()) found.ours = std::string(*a);
  if (b != in_state.end()) found.saved = std::string(b->substr(0, 200));
  return found;
}

std::string FirstDifferentLine(const std::string& ours, const std::string& saved) {
  const Difference found = FirstDifference(ours, saved, '\n');
  return absl::StrCat("parameter ", found.index, " is \"", found.ours, "\" in the session and \"",
                      found.saved, "\" in the state");
}

// An option as users write it; the state has numbers for choices.
std::string AsWritten(const std::string& option) {
  static const auto* const kWritten = new std::map<std::string, std::string>{
      {"batched=0", "comm_hook=power_sgd"},
      {"batched=1", "comm_hook=batched_power_sgd"},
      {"warm_start=0", "warm_start=false"},
      {"warm_start=1", "warm_start=true"},
      {"batch_tensors_with_same_shape=0", "batch_tensors_with_same_shape=false"},
      {"batch_tensors_with_same_shape=1", "batch_tensors_with_same_shape=true"},
      {"error_feedback=0", "use_error_feedback=false"},
      {"error_feedback=1", "error_feedback=aggregate"},
      {"error_feedback=2", "error_feedback=local"},
  };
  if (option.empty()) return "no further option";
  const auto found = kWritten->find(option);
  return found == kWritten->end() ? option : found->second;
}

// Both list the same options as name=value, in the same order; a state of another version may not.
std::string FirstDifferentOption(const std::string& ours, const std::string& saved) {
  const Difference found = FirstDifference(ours, saved, ' ');
  return absl::StrCat("saved with ", AsWritten(found.saved), "; the session has ",
                      AsWritten(found.ours));
}

// A member knows a batched bucket by its parameters' names, a line each, a file by their positions.
absl::Status PlaceBuckets(const std::vector<ParameterSpec>& manifest,
                          std::map<std::string, std::string>& metadata) {
  std::unordered_map<std::string, std::size_t> positions;
  for (auto& [key, value] : metadata) {
    if (!key.starts_with("bucket/")) continue;
    if (positions.empty()) {
      for (std::size_t i = 0; i < manifest.size(); ++i) positions[manifest[i].name] = i;
    }
    std::string placed;
    for (const absl::string_view name : absl::StrSplit(value, '\n')) {
      const auto found = positions.find(std::string(name));
      if (found == positions.end()) {
        return Coded(ErrorCode::kStateDiffers,
                     absl::InvalidArgumentError(absl::StrCat(
                         "state: \"", key.substr(0, 600), "\" has no parameter of this session: \"",
                         name.substr(0, 600), "\"")));
      }
      absl::StrAppend(&placed, placed.empty() ? "" : " ", found->second);
    }
    value = std::move(placed);
  }
  return absl::OkStatus();
}

// Reads one state for one session.
class Reader {
 public:
  enum class Missing : std::uint8_t { kRefused, kDrawn, kDrawnElsewhere };

  // `missing`: what becomes of factors that the state lacks. kDrawnElsewhere: those of parameters
  // that are not owned are drawn, which nobody will use here; others are refused.
  Reader(const PowerSgdSession& session, const HookState& state, Missing missing,
         OwnsParameter owns)
      : session_(session),
        options_(session.options),
        manifest_(*session.manifest),
        state_(state),
        draws_(missing != Missing::kRefused),
        needs_(missing != Missing::kDrawn),
        owns_(std::move(owns)),
        read_(std::make_shared<PowerSgdImport>()) {
    for (std::size_t i = 0; i < manifest_.size(); ++i) {
      position_[manifest_[i].name] = static_cast<std::uint32_t>(i);
    }
  }

  absl::StatusOr<std::shared_ptr<PowerSgdImport>> Read() {
    // The order matters: ReadTensors needs the buckets that ReadDescriptions found.
    for (auto part : {&Reader::CheckDescription, &Reader::ReadNumbers, &Reader::ReadDescriptions,
                      &Reader::ReadTensors, &Reader::CheckComplete}) {
      if (absl::Status status = (this->*part)(); !status.ok()) return status;
    }
    MakeTable();
    read_->from_file = true;
    return std::move(read_);
  }

 private:
  // The saved factors of one parameter; batched: of the bucket that begins with it.
  struct Factor {
    const StateTensor* q = nullptr;
    const StateTensor* p = nullptr;
    std::int64_t version = 0;
    std::vector<std::uint32_t> bucket{};
  };

  std::string Text(const char* key) const {
    const auto found = state_.metadata.find(key);
    return found == state_.metadata.end() ? std::string() : found->second;
  }

  // Options and layout are compared as text, so the error can show both and name the first
  // parameter that differs.
  absl::Status CheckDescription() {
    if (Text("format") != kSessionStateFormat) {
      return Coded(ErrorCode::kStateFile,
                   absl::InvalidArgumentError(
                       absl::StrCat("state: format \"", Text("format").substr(0, 80),
                                    "\" is not known; allowed: \"", kSessionStateFormat, "\"")));
    }
    for (const char* key : {"options", "iteration", "generator", "seed"}) {
      if (!state_.metadata.contains(key)) {
        return Coded(ErrorCode::kStateFile,
                     absl::InvalidArgumentError(absl::StrCat("state: \"", key, "\" is missing")));
      }
    }
    if (Text("options") != session_.OptionsText()) {
      return Coded(ErrorCode::kStateDiffers,
                   absl::FailedPreconditionError(absl::StrCat(
                       "state: ", FirstDifferentOption(session_.OptionsText(), Text("options")))));
    }
    if (const std::string layout = session_.LayoutText(); Text("layout") != layout) {
      return Coded(ErrorCode::kStateDiffers,
                   absl::FailedPreconditionError(absl::StrCat(
                       "state: of another layout: ", FirstDifferentLine(layout, Text("layout")))));
    }
    return absl::OkStatus();
  }

  absl::Status ReadNumbers() {
    PowerSgdState& out = read_->state;
    if (!absl::SimpleAtoi(Text("iteration"), &out.iteration) || out.iteration < 0) {
      return Coded(ErrorCode::kStateFile,
                   absl::InvalidArgumentError("state: iteration is no number from 0"));
    }
    auto generator = NumpyRandomState::Parse(Text("generator"));
    if (!generator.ok()) return generator.status();
    out.generator = *std::move(generator);
    if (std::uint32_t seed = 0; absl::SimpleAtoi(Text("seed"), &seed)) out.seeds = {seed};
    return ReadDrawPlan();
  }

  // A file without a plan was saved with the default plan.
  absl::Status ReadDrawPlan() {
    PowerSgdState& out = read_->state;
    out.plan = DrawPlan::Default(options_, session_.manifest);
    if (state_.metadata.contains("draw_plan")) {
      DrawBuckets buckets;
      for (const auto bucket : absl::StrSplit(Text("draw_plan"), ',')) {
        // Before memory is taken for it: buckets share no parameter and are not empty.
        if (buckets.size() == manifest_.size()) {
          return Coded(ErrorCode::kStateDiffers,
                       absl::InvalidArgumentError(
                           absl::StrCat("state: draw_plan has more buckets than the session's ",
                                        manifest_.size(), " parameters")));
        }
        if (!ReadPositions(bucket, buckets.emplace_back())) {
          return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat(
                                                  "state: draw_plan has \"", bucket.substr(0, 80),
                                                  "\"; allowed: positions")));
        }
      }
      if (absl::Status status = CheckDrawBuckets(buckets, manifest_.size()); !status.ok()) {
        return Coded(ErrorCode::kStateDiffers,
                     absl::InvalidArgumentError(absl::StrCat("state: ", status.message())));
      }
      out.plan = std::make_shared<const DrawPlan>(options_, session_.manifest, std::move(buckets));
      if (!out.seeds.empty() && !ReadPositions(Text("seeds"), out.seeds)) {
        return Coded(ErrorCode::kStateFile,
                     absl::InvalidArgumentError("state: seeds are no numbers"));
      }
    }
    if (const std::size_t seeds = out.plan->Get().seeds;
        !out.seeds.empty() && out.seeds.size() != seeds) {
      return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat(
                                              "state: has ", out.seeds.size(), " seeds; allowed: ",
                                              seeds, ", one for each bucket of its draw plan")));
    }
    return absl::OkStatus();
  }

  static bool ReadPositions(absl::string_view text, std::vector<std::uint32_t>& out) {
    out.clear();
    for (const auto part : absl::StrSplit(text, ' ')) {
      if (!absl::SimpleAtoi(part, &out.emplace_back())) return false;
    }
    return true;
  }

  absl::Status ReadDescriptions() {
    for (const auto& [key, value] : state_.metadata) {
      const bool is_bucket = key.starts_with("bucket/");
      if (!is_bucket && !key.starts_with("version/")) continue;
      const std::string name = key.substr(key.find('/') + 1);
      const auto position = position_.find(name);
      if (position == position_.end()) {
        return Coded(ErrorCode::kStateDiffers, absl::InvalidArgumentError(absl::StrCat(
                                                   "state: \"", key.substr(0, 600),
                                                   "\" names no parameter of this session")));
      }
      Factor& own = factors_[position->second];
      if (!is_bucket) {
        if (absl::SimpleAtoi(value, &own.version)) continue;
        return Coded(ErrorCode::kStateFile,
                     absl::InvalidArgumentError(absl::StrCat("state: \"", key, "\" is no number")));
      }
      if (absl::Status status = ReadBucket(name, value, own); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Batched: buckets share no parameter, and a bucket's factors are stored under its first one.
  absl::Status ReadBucket(const std::string& name, const std::string& text, Factor& own) {
    for (const auto part : absl::StrSplit(text, ' ')) {
      std::uint32_t position = 0;
      if (!absl::SimpleAtoi(part, &position) || position >= manifest_.size() ||
          !in_buckets_.insert(position).second) {
        return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat(
                                                "state: \"bucket/", name, "\" is no bucket")));
      }
      own.bucket.push_back(position);
    }
    if (options_.batched && manifest_[own.bucket.front()].name == name) return absl::OkStatus();
    return Coded(ErrorCode::kStateDiffers,
                 absl::InvalidArgumentError(absl::StrCat(
                     "state: \"bucket/", name, "\" is not the bucket of that parameter")));
  }

  absl::Status ReadTensors() {
    for (const StateTensor& tensor : state_.tensors) {
      if (absl::Status status = ReadTensor(tensor); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensor(const StateTensor& tensor) {
    const bool is_p = tensor.name.starts_with("p/");
    const auto position =
        tensor.name.size() < 2 ? position_.end() : position_.find(tensor.name.substr(2));
    if ((!is_p && !tensor.name.starts_with("q/")) || position == position_.end()) {
      return Coded(ErrorCode::kStateDiffers, absl::InvalidArgumentError(absl::StrCat(
                                                 "state: tensor \"", tensor.name.substr(0, 600),
                                                 "\" is no factor of this session")));
    }
    Factor& own = factors_[position->second];
    const std::vector<std::uint32_t> alone{position->second};
    const std::vector<std::uint32_t>& bucket = options_.batched ? own.bucket : alone;
    const BucketLayout layout = MakeLayout(options_, BucketParameters(manifest_, bucket));
    const std::size_t numel = is_p ? layout.p_numel : layout.q_numel;
    const DType dtype =
        FactorDType(bucket.empty() ? DType::kFloat32 : manifest_[bucket.front()].dtype);
    if (numel == 0 || (is_p && options_.rounds != 1) || tensor.dtype != dtype ||
        tensor.data.size() != numel * ByteSize(dtype)) {
      return Coded(
          ErrorCode::kStateDiffers,
          absl::InvalidArgumentError(absl::StrCat(
              "state: tensor \"", tensor.name, "\" has ", tensor.data.size(), " bytes of ",
              Name(tensor.dtype), "; allowed: ", numel * ByteSize(dtype), " of ", Name(dtype))));
    }
    std::vector<double> values(numel);
    cpu::Convert(dtype, tensor.data.data(), DType::kFloat64, values.data(), numel);
    if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) {
      return Coded(ErrorCode::kStateFile,
                   absl::InvalidArgumentError(absl::StrCat("state: tensor \"", tensor.name,
                                                           "\" has values that are not finite")));
    }
    (is_p ? own.p : own.q) = &tensor;
    return absl::OkStatus();
  }

  absl::Status CheckComplete() {
    for (const auto& [position, own] : factors_) {
      if (own.q == nullptr || (options_.rounds == 1 && own.p == nullptr)) {
        return Coded(ErrorCode::kStateDiffers, absl::InvalidArgumentError(absl::StrCat(
                                                   "state: a factor of parameter \"",
                                                   manifest_[position].name, "\" is missing")));
      }
    }
    if (options_.batched || !needs_ || read_->state.seeds.empty()) return absl::OkStatus();
    const auto matrices = MakeLayout(options_, manifest_).matrices;
    const auto compressed = static_cast<std::size_t>(
        std::count_if(matrices.begin(), matrices.end(), [this](const LowRankMatrix& matrix) {
          return !owns_ || owns_(static_cast<std::uint32_t>(matrix.parameter));
        }));
    if (factors_.size() != compressed) {
      return Coded(ErrorCode::kStateDiffers,
                   absl::InvalidArgumentError(
                       absl::StrCat("state: has factors of ", factors_.size(),
                                    " parameters; the session compresses ", compressed)));
    }
    return absl::OkStatus();
  }

  // Blocks of factors that were averaged in the same step, since a block has one version; batched:
  // by bucket.
  void MakeTable() {
    std::map<std::int64_t, std::vector<std::uint32_t>> by_version;
    const PowerSgdState& drawn = read_->state;
    if (drawn.seeds.empty()) factors_.clear();  // they would be drawn anew
    FactorTableEdit edit(
        draws_ && !drawn.seeds.empty() ? DrawTable(options_, *drawn.plan, drawn.seeds, 0) : nullptr,
        manifest_.size());
    for (const auto& [position, own] : factors_) {
      if (options_.batched) {
        edit.Put(MakeBlock(own.bucket, own.version));
      } else {
        by_version[own.version].push_back(position);
      }
    }
    for (const auto& [version, positions] : by_version) edit.Put(MakeBlock(positions, version));
    std::vector<std::shared_ptr<const FactorArray>> none;
    read_->state.factors = edit.Finish(options_, manifest_, none);
  }

  FactorBlockRef MakeBlock(const std::vector<std::uint32_t>& positions, std::int64_t version) {
    auto block = std::make_shared<FactorBlock>();
    block->version = version;
    auto layout = std::make_shared<const FactorLayout>(options_, manifest_, positions);
    block->q.array = Copy(*layout, Side::kQ);
    if (options_.rounds == 1) block->p.array = Copy(*layout, Side::kP);
    block->layout = std::move(layout);
    return block;
  }

  // Copies, because the tensors of the file are freed after the import.
  std::shared_ptr<const FactorArray> Copy(const FactorLayout& layout, Side side) {
    const bool is_p = side == Side::kP;
    auto array =
        std::make_shared<FactorArray>(layout.dtype(), is_p ? layout.p_numel() : layout.q_numel());
    for (const LowRankMatrix& matrix : layout.matrices()) {
      const Factor& own = factors_.at(static_cast<std::uint32_t>(matrix.parameter));
      const StateTensor& from = is_p ? *own.p : *own.q;
      const std::size_t at = is_p ? matrix.p_offset : matrix.q_offset;
      cpu::Convert(from.dtype, from.data.data(), layout.dtype(),
                   array->bytes_to_write().data() + at * ByteSize(layout.dtype()),
                   is_p ? matrix.p_numel() : matrix.q_numel());
    }
    return array;
  }

  const PowerSgdSession& session_;
  const PowerSgdOptions& options_;
  const std::vector<ParameterSpec>& manifest_;
  const HookState& state_;
  const bool draws_;
  const bool needs_;  // what is owned
  const OwnsParameter owns_;
  std::unordered_map<std::string, std::uint32_t> position_;
  std::map<std::uint32_t, Factor> factors_;  // by position
  std::unordered_set<std::uint32_t> in_buckets_;
  std::shared_ptr<PowerSgdImport> read_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<PowerSgdImport>> ReadPowerSgdState(const PowerSgdSession& session,
                                                                  const HookState& state) {
  return Reader(session, state, Reader::Missing::kRefused, {}).Read();
}

absl::StatusOr<std::shared_ptr<PowerSgdImport>> ReadPowerSgdCopy(const PowerSgdSession& session,
                                                                 HookState copy,
                                                                 const OwnsParameter& owns) {
  std::map<std::string, std::string>& metadata = copy.metadata;
  const bool from_file = metadata.erase(kFromFileKey) > 0;
  metadata["format"] = kSessionStateFormat;
  metadata["options"] = session.OptionsText();
  metadata["layout"] = session.LayoutText();
  // A coordinator that never differed from a new one has said nothing of its own.
  const PowerSgdState fresh{.generator = NumpyRandomState(session.options.random_seed),
                            .plan = DrawPlan::Default(session.options, session.manifest)};
  metadata.merge(DrawMetadata(fresh));
  const std::string iteration = metadata["iteration"];
  for (const StateTensor& tensor : copy.tensors) {
    if (tensor.name.starts_with("q/")) metadata["version/" + tensor.name.substr(2)] = iteration;
  }
  if (absl::Status status = PlaceBuckets(*session.manifest, metadata); !status.ok()) return status;
  const Reader::Missing missing = !from_file ? Reader::Missing::kDrawn
                                  : owns     ? Reader::Missing::kDrawnElsewhere
                                             : Reader::Missing::kRefused;
  auto read = Reader(session, copy, missing, owns).Read();
  if (!read.ok()) return read;
  (*read)->from_file = from_file;
  return read;
}

}  // namespace gradwire
