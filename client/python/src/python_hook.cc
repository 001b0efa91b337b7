#include "client/python/src/python_hook.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace nb = nanobind;

namespace gradwire::python {
namespace {

// A Python object that any thread may release: the destructor takes the GIL.
class Held {
 public:
  explicit Held(nb::object object) : object_(std::move(object)) {}
  // After the interpreter's end nothing may be released, so the reference leaks.
  ~Held() {
    if (!object_.is_valid()) return;
    if (Py_IsInitialized() == 0) {
      static_cast<void>(object_.release());
      return;
    }
    const nb::gil_scoped_acquire lock;
    object_.reset();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const nb::object& operator*() const { return object_; }

 private:
  nb::object object_;
};

// Runs `call` with the GIL; an exception becomes a status.
template <class Call>
absl::Status WithPython(const char* what, Call call) {
  const nb::gil_scoped_acquire lock;
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {  // nb::python_error and nb::cast_error among them
    return Coded(ErrorCode::kOwnHookFailed,
                 absl::InternalError(absl::StrCat("the hook's ", what, " raised ", error.what())));
  }
}

absl::StatusOr<Segment> ToSegment(const std::string& dtype, std::int64_t numel,
                                  const std::string& op) {
  const absl::StatusOr<DType> type = ParseDType(dtype);
  if (!type.ok()) return type.status();
  if (numel < 0) {
    return Coded(ErrorCode::kOwnHookFailed,
                 absl::InvalidArgumentError(
                     absl::StrCat("a segment has ", numel, " elements; allowed are 0 and more")));
  }
  if (op != "sum" && op != "mean") {
    return Coded(ErrorCode::kOwnHookFailed,
                 absl::InvalidArgumentError(
                     absl::StrCat("a segment's op is \"", op, "\"; allowed are sum and mean")));
  }
  return Segment{.dtype = *type,
                 .numel = static_cast<std::size_t>(numel),
                 .op = op == "sum" ? ReduceOp::kSum : ReduceOp::kMean};
}

// From [[(dtype, numel, op), …], …].
absl::Status ToPlans(nb::handle rounds, std::vector<RoundPlan>& plans) {
  for (const nb::handle round : rounds) {
    RoundPlan plan;
    for (const nb::handle segment : round) {
      auto made = ToSegment(nb::cast<std::string>(segment[0]), nb::cast<std::int64_t>(segment[1]),
                            nb::cast<std::string>(segment[2]));
      if (!made.ok()) return made.status();
      plan.segments.push_back(*std::move(made));
    }
    plans.push_back(std::move(plan));
  }
  return absl::OkStatus();
}

nb::list ToPython(std::span<const ParameterSpec> parameters) {
  nb::list out;
  for (const ParameterSpec& parameter : parameters) {
    out.append(nb::make_tuple(parameter.name, parameter.shape, Name(parameter.dtype)));
  }
  return out;
}

class PythonRun : public HookRunBase {
 public:
  PythonRun(nb::object run, std::vector<RoundPlan> plans)
      : run_(std::move(run)), plans_(std::move(plans)) {}

  absl::StatusOr<std::optional<RoundPlan>> Next(const RoundContext& context) override {
    absl::Status called = WithPython("run", [&] {
      const nb::object round = (*run_).attr("next")(context.world_size, context.rank);
      memory_.clear();
      if (round_ == plans_.size()) return;
      for (const nb::handle pair : round) {
        memory_.emplace_back(nb::cast<std::uintptr_t>(pair[0]), nb::cast<std::uintptr_t>(pair[1]));
      }
    });
    if (!called.ok()) return called;
    if (round_ == plans_.size()) return std::optional<RoundPlan>();
    return std::optional<RoundPlan>(plans_[round_++]);
  }

  // Chunks are copied by address and without the GIL. The hook has filled the memory in `next`.
  absl::Status Encode(ElementRange range, std::span<std::byte> out) override {
    const absl::StatusOr<std::size_t> offset = Offset(range, out.size());
    if (!offset.ok()) return offset.status();
    std::memcpy(out.data(), At(memory_[range.segment].first, *offset), out.size());
    return absl::OkStatus();
  }

  absl::Status Decode(ElementRange range, std::span<const std::byte> in) override {
    const absl::StatusOr<std::size_t> offset = Offset(range, in.size());
    if (!offset.ok()) return offset.status();
    std::memcpy(At(memory_[range.segment].second, *offset), in.data(), in.size());
    return absl::OkStatus();
  }

  void Commit() override { End("commit"); }
  void Abort() override { End("abort"); }

 private:
  static std::byte* At(std::uintptr_t address, std::size_t offset) {
    return reinterpret_cast<std::byte*>(address) +  // NOLINT(performance-no-int-to-ptr)
           offset;
  }

  // The addresses come from Python, so every range is checked against the plan.
  absl::StatusOr<std::size_t> Offset(const ElementRange& range, std::size_t bytes) const {
    if (round_ == 0 || range.segment >= memory_.size()) {
      return Coded(ErrorCode::kOwnHookFailed, absl::FailedPreconditionError("no round is open"));
    }
    const Segment& segment = plans_[round_ - 1].segments[range.segment];
    if (range.begin > range.end || range.end > segment.numel ||
        bytes != range.numel() * ByteSize(segment.dtype)) {
      return Coded(ErrorCode::kOwnHookFailed,
                   absl::InvalidArgumentError("the range lies outside the segment"));
    }
    return range.begin * ByteSize(segment.dtype);
  }

  // The step is already applied, so an exception in commit is raised by the next plan.
  void End(const char* how) {
    WithPython(how, [&] { (*run_).attr(how)(); }).IgnoreError();
  }

  const Held run_;
  const std::vector<RoundPlan> plans_;
  std::size_t round_ = 0;
  // Contribution and result of each segment of the open round; the run keeps both alive.
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> memory_;
};

class PythonHook : public HookBase {
 public:
  explicit PythonHook(nb::object adapter) : adapter_(std::move(adapter)) {}

  absl::StatusOr<std::vector<RoundPlan>> Plan(std::span<const ParameterSpec> parameters,
                                              std::int64_t step) const override {
    std::vector<RoundPlan> plans;
    absl::Status converted;
    absl::Status called = WithPython("plan", [&] {
      converted = ToPlans((*adapter_).attr("plan")(ToPython(parameters), step), plans);
    });
    called.Update(converted);
    if (!called.ok()) return called;
    return plans;
  }

  absl::StatusOr<std::unique_ptr<HookRun>> Start(GradBucket& bucket, std::int64_t step) override {
    absl::StatusOr<std::vector<RoundPlan>> plans = Plan(bucket.parameters(), step);
    if (!plans.ok()) return plans.status();
    std::unique_ptr<HookRun> run;
    const TensorView buffer = bucket.buffer();
    absl::Status called = WithPython("run", [&] {
      nb::object started =
          (*adapter_).attr("start")(reinterpret_cast<std::uintptr_t>(buffer.data), buffer.numel,
                                    Name(buffer.dtype), ToPython(bucket.parameters()), step);
      run = std::make_unique<PythonRun>(std::move(started), *std::move(plans));
    });
    if (!called.ok()) return called;
    return run;
  }

 private:
  const Held adapter_;
};

nb::object ToPython(const OptionValue& value) {
  return std::visit([](const auto& option) { return nb::cast(option); }, value);
}

}  // namespace

HookFactory PythonHookFactory(nb::object make) {
  return [maker = std::make_shared<Held>(std::move(make))](
             const HookSpec& spec) -> absl::StatusOr<std::unique_ptr<Hook>> {
    std::unique_ptr<Hook> hook;
    absl::Status called = WithPython("constructor", [&] {
      nb::dict options;
      for (const auto& [name, value] : spec.comm_state_option) {
        options[name.c_str()] = ToPython(value);
      }
      hook = std::make_unique<PythonHook>((**maker)(options));
    });
    if (!called.ok())
      return Coded(ErrorCode::kOwnHookFailed,
                   absl::InvalidArgumentError(std::string(called.message())));
    return hook;
  };
}

}  // namespace gradwire::python
