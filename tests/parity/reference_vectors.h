// Reads what make_vectors.py writes; README.md has the formats and the names of the records.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire::parity {

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;           // of a float32 record
  std::vector<std::int64_t> integers;  // of an int64 record
};

// The records of one configuration.
class Vectors {
 public:
  static absl::StatusOr<Vectors> Read(const std::string& path);

  // Null if there is no such record. Lives as long as this object.
  const Tensor* Find(const std::string& name) const;
  const std::map<std::string, Tensor>& records() const { return records_; }

  struct Parameter {
    std::string name;
    std::vector<std::int64_t> shape;
  };
  // In the order of the model.
  const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  std::map<std::string, Tensor> records_;
  std::vector<Parameter> parameters_;
};

struct Configuration {
  std::string name;
  int world = 0;
  int steps = 0;
  std::string spec;  // as HookSpec::Parse takes it
  std::string path;  // of its Vectors
};

// The configurations in `folder`, in the order of its index.
absl::StatusOr<std::vector<Configuration>> ReadIndex(const std::string& folder);

}  // namespace gradwire::parity
