// Members that keep an account each, and the same account from whole vectors: what was given to
// hooks, and what they left in the buckets, is added up element by element in fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hooks/ledger_hook.h"
#include "tests/hooks/faulty_hook.h"
#include "tests/hooks/power_sgd_world.h"

namespace gradwire::testing {

using Vector = std::vector<double>;

// The last one has three blocks that projections read.
inline std::vector<ParameterSpec> LedgerModel(DType dtype) {
  return {{.name = "conv", .shape = {8, 4, 3, 3}, .dtype = dtype},
          {.name = "tall", .shape = {60, 6}, .dtype = dtype},
          {.name = "bias", .shape = {13}, .dtype = dtype},
          {.name = "empty", .shape = {0, 4}, .dtype = dtype},
          {.name = "scalar", .shape = {}, .dtype = dtype},
          {.name = "wide", .shape = {5, 450}, .dtype = dtype}};
}

inline bool IsRead(std::size_t element) { return element / 64 % 16 == 0; }

inline bool IsFinite(const Vector& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (IsRead(i) && !std::isfinite(values[i])) return false;
  }
  return true;
}

inline double SquaresOf(const Vector& values) {
  double sum = 0;
  double read = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!IsRead(i)) continue;
    sum += values[i] * values[i];
    read += 1;
  }
  return values.empty() ? 0 : sum * static_cast<double>(values.size()) / read;
}

// Values that no projection reads may be what they like.
inline void AddTo(Vector& sum, const Vector& values, double factor = 1) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (std::isfinite(values[i])) sum[i] += factor * values[i];
  }
}

inline double Project(const ParameterSpec& parameter, Vector values) {
  return Projector(parameter.name, values.size())
      .Of({DType::kFloat64, values.data(), values.size()})
      .value;
}

inline Vector Unpacked(DType dtype, std::span<const std::byte> bytes, double scale) {
  Vector values;
  for (const auto bits : reference::Unpack(dtype, bytes.data(), bytes.size() / ByteSize(dtype))) {
    values.push_back(static_cast<double>(reference::Decode(dtype, bits)) / scale);
  }
  return values;
}

inline std::vector<std::byte> Packed(DType dtype, const Vector& values, double scale = 1) {
  std::vector<long double> scaled(values.begin(), values.end());
  for (long double& value : scaled) value *= scale;
  return reference::PackValues(dtype, scaled);
}

class LedgerWorld {
 public:
  LedgerWorld(int size, const std::string& spec, std::vector<ParameterSpec> model)
      : model_(std::move(model)),
        dtype_(model_.front().dtype),
        expected_(static_cast<std::size_t>(size)) {
    auto made = HookWorld::Make(size, *HookSpec::Parse(spec), model_);
    EXPECT_TRUE(made.ok()) << made.status();
    world_ = *std::move(made);
    world_->Wrap([this](std::unique_ptr<Hook> hook) {
      const Fault& fault = ledgers_.empty() ? fault_ : none_;
      auto ledger = std::make_unique<LedgerHook>(
          std::make_unique<FaultyHook>(std::move(hook), fault), model_);
      ledgers_.push_back(ledger.get());
      return ledger;
    });
    for (auto& member : expected_) {
      for (const ParameterSpec& parameter : model_) {
        const Vector zeros(parameter.numel());
        member.push_back({zeros, zeros, zeros, zeros, zeros, {}});
      }
    }
  }

  HookWorld& world() { return *world_; }
  LedgerHook& ledger(std::size_t rank) { return *ledgers_[rank]; }
  std::size_t size() const { return ledgers_.size(); }
  const std::vector<ParameterSpec>& model() const { return model_; }
  // Of the next steps' runs on rank 0.
  void SetFault(Fault fault) { fault_ = fault; }
  void SetLossScale(double scale) {
    scale_ = scale;
    for (LedgerHook* ledger : ledgers_) ledger->SetLossScale(scale);
  }

  // `values` are without the loss scale. What members are left with is in results().
  Verdict Step(const Values& values, const Buckets& buckets) {
    return Run(values, buckets, /*drops=*/false, {});
  }
  // With a lost daemon. Members began `without_result`, too.
  void DroppedStep(const Values& values, const Buckets& buckets, const Buckets& without_result) {
    Rehearse(values, without_result, 0);
    for (LedgerHook* ledger : ledgers_) ledger->Drop();
    EXPECT_EQ(Run(values, buckets, /*drops=*/true, without_result), Verdict::kSkip);
  }

  // Each member runs the buckets up to the result of round `rounds`, and gives up. As it is alone,
  // results are what it contributed.
  void Rehearse(const Values& values, const Buckets& buckets, std::size_t rounds) {
    for (std::size_t r = 0; r < size(); ++r) {
      for (const auto& positions : buckets) RehearseBucket(r, values[r], positions, rounds);
    }
  }

  // The member's residuals are replaced, as by LoadState.
  void ExpectLoaded(std::size_t rank) {
    for (std::size_t p = 0; p < model_.size(); ++p) {
      Expected& expected = expected_[rank][p];
      AddTo(expected.contributed, expected.residual, -1);
      expected.residual = ResidualOf(rank, p);
      AddTo(expected.contributed, expected.residual);
      expected.squares.residual_squares = SquaresOf(expected.residual);
    }
  }

  // By rank and parameter.
  const Values& results() const { return results_; }

  // Compares the accounts with the vectors.
  void ExpectAccounts() {
    for (std::size_t r = 0; r < size(); ++r) {
      std::vector<LedgerRow> want(LedgerRowsOf(model_.size()));
      for (std::size_t p = 0; p < model_.size(); ++p) {
        want[LedgerRowOf(p, model_.size())] += Row(model_[p], expected_[r][p]);
      }
      const std::vector<LedgerRow>& got = ledger(r).account();
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double squares =
            want[i].contributed_squares + want[i].residual_squares + want[i].rounded_squares;
        int field = 0;
        LedgerRow row = got[i];
        row.ForEach(want[i], [&](double value, double wanted) {
          const bool is_norm = field >= 6;
          EXPECT_NEAR(value, wanted, 1e-11 * (is_norm ? squares : std::sqrt(squares)))
              << "member " << r << ", row " << i << ", field " << field;
          ++field;
        });
      }
    }
  }

  // The sum of all accounts.
  std::vector<LedgerRow> Sum() const {
    std::vector<LedgerRow> sum(LedgerRowsOf(model_.size()));
    for (const LedgerHook* ledger : ledgers_) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += ledger->account()[i];
    }
    return sum;
  }

  // How far a row may be open if each rounding is by `unit` at most.
  double Tolerance(double unit, const LedgerRow& sum) const {
    return unit * 8 * std::sqrt(static_cast<double>(size()) * sum.rounded_squares);
  }

  // All rows are closed, and so are the whole vectors.
  void ExpectClosed(double unit) {
    const std::vector<LedgerRow> sum = Sum();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_LE(std::abs(sum[i].balance()), Tolerance(unit, sum[i])) << "row " << i;
    }
    for (std::size_t p = 0; p < model_.size(); ++p) {
      const double norm = std::sqrt(SquaresOf(Open(p)));
      EXPECT_LE(norm, Tolerance(unit, sum[LedgerRowOf(p, model_.size())])) << model_[p].name;
    }
  }

 private:
  // Of one member and parameter.
  struct Expected {
    Vector contributed;
    Vector applied;
    Vector residual;
    Vector skipped;
    Vector dropped;
    LedgerRow squares;  // these fields only
  };

  static LedgerRow Row(const ParameterSpec& parameter, const Expected& expected) {
    LedgerRow row = expected.squares;
    row.contributed = Project(parameter, expected.contributed);
    row.applied = Project(parameter, expected.applied);
    row.residual = Project(parameter, expected.residual);
    row.skipped = Project(parameter, expected.skipped);
    row.dropped = Project(parameter, expected.dropped);
    return row;
  }

  // What is not accounted for, of all members.
  Vector Open(std::size_t p) const {
    Vector open(model_[p].numel());
    for (const auto& member : expected_) {
      AddTo(open, member[p].contributed);
      for (const Vector Expected::*part :
           {&Expected::applied, &Expected::residual, &Expected::skipped, &Expected::dropped}) {
        AddTo(open, member[p].*part, -1);
      }
    }
    return open;
  }

  Vector ResidualOf(std::size_t rank, std::size_t p) {
    for (const StateTensor& tensor : ledger(rank).State().tensors) {
      if (tensor.name != "residual/" + model_[p].name) continue;
      return Unpacked(tensor.dtype, tensor.data, scale_);
    }
    return Vector(model_[p].numel());
  }

  Verdict Run(const Values& values, const Buckets& buckets, bool drops,
              const Buckets& without_result) {
    std::vector<MemberGradients> gradients(size());
    Values given(size());
    for (std::size_t r = 0; r < size(); ++r) {
      for (const Vector& from : values[r]) {
        gradients[r].push_back(Packed(dtype_, from, scale_));
        given[r].push_back(Unpacked(dtype_, gradients[r].back(), scale_));
      }
    }
    const auto verdict = world_->RunStep(gradients, buckets, drops);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    results_.assign(size(), {});
    for (std::size_t r = 0; r < size(); ++r) {
      for (const auto& bytes : gradients[r]) {
        results_[r].push_back(Unpacked(dtype_, bytes, scale_));
      }
      for (const auto& bucket : buckets) {
        for (const std::size_t p : bucket)
          Count(r, p, given[r][p], &results_[r][p], *verdict, drops);
      }
      for (const auto& bucket : without_result) {
        for (const std::size_t p : bucket) Count(r, p, given[r][p], nullptr, *verdict, drops);
      }
    }
    return *verdict;
  }

  // One parameter's step, which counts as nothing if a part of it that is read is not finite.
  void Count(std::size_t rank, std::size_t p, const Vector& gradient, const Vector* mean,
             Verdict verdict, bool drops) {
    if (!IsFinite(gradient) || (mean != nullptr && !IsFinite(*mean))) return;
    Expected& expected = expected_[rank][p];
    const double squares = SquaresOf(gradient);
    AddTo(expected.contributed, gradient);
    expected.squares.contributed_squares += squares;
    if (verdict == Verdict::kSkip) {
      AddTo(drops ? expected.dropped : expected.skipped, gradient);
      (drops ? expected.squares.dropped_squares : expected.squares.skipped_squares) += squares;
      return;
    }
    const double before = SquaresOf(expected.residual);
    AddTo(expected.applied, *mean);
    expected.residual = ResidualOf(rank, p);
    const double after = SquaresOf(expected.residual);
    expected.squares.residual_squares = after;
    expected.squares.rounded_squares += before + squares + SquaresOf(*mean) + after;
  }

  void RehearseBucket(std::size_t rank, const std::vector<Vector>& values,
                      const std::vector<std::size_t>& positions, std::size_t rounds) {
    std::vector<ParameterSpec> parameters;
    std::vector<std::byte> bytes;
    for (const std::size_t p : positions) {
      parameters.push_back(model_[p]);
      const auto packed = Packed(dtype_, values[p], scale_);
      bytes.insert(bytes.end(), packed.begin(), packed.end());
    }
    auto bucket =
        GradBucket::Make(0, {dtype_, bytes.data(), bytes.size() / ByteSize(dtype_)}, parameters);
    ASSERT_TRUE(bucket.ok()) << bucket.status();
    auto run = ledger(rank).Start(*bucket, 0);
    ASSERT_TRUE(run.ok()) << run.status();
    for (std::size_t round = 0;; ++round) {
      const auto plan = (*run)->Next({.world_size = 1});
      ASSERT_TRUE(plan.ok()) << plan.status();
      if (!plan->has_value() || round == rounds) break;
      for (std::size_t s = 0; s < (*plan)->segments.size(); ++s) {
        std::vector<std::byte> wire((*plan)->segments[s].bytes());
        const ElementRange all{.segment = s, .begin = 0, .end = (*plan)->segments[s].numel};
        ASSERT_TRUE((*run)->Encode(all, wire).ok());
        ASSERT_TRUE((*run)->Decode(all, wire).ok());
      }
    }
    (*run)->Abort();
  }

  const std::vector<ParameterSpec> model_;
  const DType dtype_;
  const Fault none_ = Fault::kNone;
  Fault fault_ = Fault::kNone;
  double scale_ = 1;
  std::unique_ptr<HookWorld> world_;
  std::vector<LedgerHook*> ledgers_;             // by rank
  std::vector<std::vector<Expected>> expected_;  // by rank and parameter
  Values results_;
};

}  // namespace gradwire::testing
