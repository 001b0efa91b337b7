#include "hooks/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kAlignment = 8;
constexpr std::size_t kMaxDimensions = 16;
constexpr const char* kMetadataKey = "__metadata__";
// safetensors has no checksum. The digest is a metadata entry, so other readers accept the file.
constexpr const char* kDigest = "digest";

constexpr std::array<std::pair<DType, const char*>, 4> kTypes = {{
    {DType::kFloat32, "F32"},
    {DType::kFloat64, "F64"},
    {DType::kFloat16, "F16"},
    {DType::kBFloat16, "BF16"},
}};

const char* TypeName(DType dtype) {
  for (const auto& [type, name] : kTypes) {
    if (type == dtype) return name;
  }
  return "";
}

absl::Status Refused(const std::string& what) {
  return Coded(ErrorCode::kStateFile, absl::InvalidArgumentError(absl::StrCat(
                                          "state: not a valid safetensors file: ", what)));
}

// Names from a file, fit for a message.
std::string Shown(const std::string& text) {
  constexpr std::size_t kShown = 200;
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "…\"" : "\"");
}

// Every part is hashed with its length, so that no two states have the same input.
class Digester {
 public:
  Digester() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }

  void Add(std::uint64_t number) {
    // Little-endian on every host, so that the digest belongs to the file and not to the machine.
    std::array<unsigned char, 8> bytes{};
    for (unsigned char& byte : bytes) {
      byte = static_cast<unsigned char>(number & 0xFF);
      number >>= 8;
    }
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void Add(const void* data, std::size_t size) {
    Add(size);
    if (size > 0) XXH3_64bits_update(state_.get(), data, size);
  }
  void Add(std::string_view text) { Add(text.data(), text.size()); }

  std::string Hex() const {
    return absl::StrCat(absl::Hex(XXH3_64bits_digest(state_.get()), absl::kZeroPad16));
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Free> state_;
};

// `tensors` are in the order of their names.
std::string Digest(const std::map<std::string, std::string>& metadata,
                   const std::vector<const StateTensor*>& tensors) {
  Digester digester;
  for (const auto& [key, value] : metadata) {
    // The digest cannot cover itself.
    if (key == kDigest) continue;
    digester.Add(key);
    digester.Add(value);
  }
  digester.Add(tensors.size());
  for (const StateTensor* tensor : tensors) {
    digester.Add(tensor->name);
    digester.Add(std::string_view(TypeName(tensor->dtype)));
    digester.Add(tensor->shape.size());
    for (std::int64_t side : tensor->shape) digester.Add(static_cast<std::uint64_t>(side));
    digester.Add(tensor->data.data(), tensor->data.size());
  }
  return digester.Hex();
}

std::vector<const StateTensor*> ByName(const std::vector<StateTensor>& tensors) {
  std::vector<const StateTensor*> sorted;
  sorted.reserve(tensors.size());
  for (const StateTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const StateTensor* a, const StateTensor* b) { return a->name < b->name; });
  return sorted;
}

// Invalid UTF-8 is replaced, since dump would throw otherwise.
std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Keys are sorted and the text has one form, so equal states give equal files. The format wants
// spaces up to a multiple of 8, which aligns the tensors.
std::string Header(std::map<std::string, std::string> metadata,
                   const std::vector<const StateTensor*>& tensors) {
  metadata[kDigest] = Digest(metadata, tensors);
  std::string header = absl::StrCat("{\"", kMetadataKey, "\":{");
  const char* separator = "";
  for (const auto& [key, value] : metadata) {
    absl::StrAppend(&header, separator, Quoted(key), ":", Quoted(value));
    separator = ",";
  }
  header += '}';
  std::size_t offset = 0;
  for (const StateTensor* tensor : tensors) {
    absl::StrAppend(&header, ",", Quoted(tensor->name), ":{\"dtype\":\"", TypeName(tensor->dtype),
                    "\",\"shape\":", Json(tensor->shape).dump(), ",\"data_offsets\":[", offset, ",",
                    offset + tensor->data.size(), "]}");
    offset += tensor->data.size();
  }
  header += '}';
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return header;
}

// Checks the header's grammar on nlohmann's SAX events. A DOM would be several times as large as a
// hostile header of 100 MB, and its nesting could be arbitrarily deep; here both are bounded.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  struct Entry {
    StateTensor tensor;
    std::optional<DType> dtype{};
    std::optional<std::vector<std::uint64_t>> shape{};
    std::optional<std::vector<std::uint64_t>> offsets{};
  };

  bool null() override { return Fail("null"); }
  bool boolean(bool /*value*/) override { return Fail("a boolean"); }
  bool number_integer(std::int64_t /*value*/) override { return Fail("a negative number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return Fail("a number that is no integer");
  }
  bool binary(Json::binary_t& /*value*/) override { return Fail("binary data"); }

  bool number_unsigned(std::uint64_t value) override {
    // Only as many numbers as the field can have, so that a hostile header cannot fill the memory.
    if (numbers_ == nullptr) return Fail("a number");
    if (numbers_->size() == most_numbers_) {
      return Fail(absl::StrCat("more than ", most_numbers_, " numbers"));
    }
    // Shapes are int64.
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Fail("a number above 2^63");
    }
    numbers_->push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      if (metadata_.emplace(key_, value).second) return true;
      return Fail("the same key twice");
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Fail("a string");
    for (const auto& [type, name] : kTypes) {
      if (name == value) entries_.back().dtype = type;
    }
    if (entries_.back().dtype) return true;
    return Fail(absl::StrCat(Shown(value), "; allowed: F32, F64, F16, BF16"));
  }

  // The place decides what may follow: only the root has objects, which are __metadata__ and the
  // tensors.
  bool start_object(std::size_t /*elements*/) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot && key_ == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) return Fail("the same key twice");
      place_ = Place::kMetadata;
    } else if (place_ == Place::kRoot) {
      entries_.push_back({});
      entries_.back().tensor.name = key_;
      place_ = Place::kTensor;
    } else {
      return Fail("an object");
    }
    return true;
  }

  bool key(std::string& value) override {
    if (place_ != Place::kTensor) {
      key_ = value;
      return true;
    }
    field_ = value;
    const Entry& entry = entries_.back();
    if (value != "dtype" && value != "shape" && value != "data_offsets") {
      return Fail("a field that is not known; allowed: dtype, shape, data_offsets");
    }
    if ((value == "dtype" && entry.dtype) || (value == "shape" && entry.shape) ||
        (value == "data_offsets" && entry.offsets)) {
      return Fail("the same key twice");
    }
    return true;
  }

  // A tensor is complete only with its dtype, shape and offsets.
  bool end_object() override {
    if (place_ == Place::kTensor) {
      const Entry& entry = entries_.back();
      field_ = !entry.dtype ? "dtype" : !entry.shape ? "shape" : "data_offsets";
      if (!entry.dtype || !entry.shape || !entry.offsets) return Fail("nothing");
      field_.clear();
    }
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    key_.clear();
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ != Place::kTensor || numbers_ != nullptr || field_ == "dtype") {
      return Fail("an array");
    }
    const bool is_shape = field_ == "shape";
    numbers_ = &(is_shape ? entries_.back().shape : entries_.back().offsets).emplace();
    most_numbers_ = is_shape ? kMaxDimensions : 2;
    return true;
  }

  bool end_array() override {
    numbers_ = nullptr;
    if (field_ != "data_offsets" || entries_.back().offsets->size() == 2) return true;
    return Fail("not two numbers");
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    status_ = Refused(absl::StrCat("header is no JSON at byte ", position));
    return false;
  }

  const absl::Status& status() const { return status_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }
  std::vector<Entry>& entries() { return entries_; }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kEnd };

  bool Fail(const std::string& what) {
    std::string where = "header";
    if (place_ == Place::kMetadata) {
      where = absl::StrCat(kMetadataKey, ": key ", Shown(key_));
    } else if (place_ == Place::kTensor) {
      where = absl::StrCat("tensor ", Shown(key_),
                           field_.empty() ? "" : absl::StrCat(": ", Shown(field_)));
    } else if (place_ == Place::kRoot) {
      where = absl::StrCat("key ", Shown(key_));
    }
    status_ = Refused(absl::StrCat(where, " is ", what));
    return false;
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::string field_;
  bool has_metadata_ = false;
  std::vector<std::uint64_t>* numbers_ = nullptr;  // of the array that is open
  std::size_t most_numbers_ = 0;
  std::map<std::string, std::string> metadata_;
  std::vector<Entry> entries_;
  absl::Status status_;
};

// Gives the tensor its bytes, which begin at `offset` of `data`.
absl::Status Fill(HeaderReader::Entry& entry, std::string_view data, std::uint64_t& offset) {
  StateTensor& tensor = entry.tensor;
  const auto refused = [&](const std::string& what) {
    return Refused(absl::StrCat("tensor ", Shown(tensor.name), ": ", what));
  };
  tensor.dtype = *entry.dtype;
  std::uint64_t bytes = ByteSize(tensor.dtype);
  for (std::uint64_t side : *entry.shape) {
    // The sizes come from the file: an overflow would make a large shape match a short range.
    if (__builtin_mul_overflow(bytes, side, &bytes)) return refused("shape is too large");
    tensor.shape.push_back(static_cast<std::int64_t>(side));
  }
  const std::uint64_t begin = entry.offsets->front();
  const std::uint64_t end = entry.offsets->back();
  // No gaps and no overlaps, so that every byte of the file is covered by the digest.
  if (begin != offset) {
    return refused(absl::StrCat("data_offsets begin at ", begin, "; the tensor before ends at ",
                                offset, ", in the order of names"));
  }
  if (end < begin || end > data.size()) {
    return refused(absl::StrCat("data_offsets end at ", end, "; allowed: ", begin, " to ",
                                data.size(), ", the bytes of data"));
  }
  if (end - begin != bytes) {
    return refused(
        absl::StrCat("data_offsets span ", end - begin, " bytes; dtype and shape take ", bytes));
  }
  const auto* from = reinterpret_cast<const std::byte*>(data.data()) + begin;
  // All sizes are checked against the file by now, so this takes no more memory than the file has.
  tensor.data.assign(from, from + bytes);
  offset = end;
  return absl::OkStatus();
}

// The length is little-endian, read byte by byte so that the host's byte order does not matter. It
// is checked against both the limit and the file before anything is parsed.
absl::StatusOr<std::string_view> HeaderOf(std::string_view bytes) {
  if (bytes.size() < kLengthBytes) {
    return Refused(
        absl::StrCat("has ", bytes.size(), " bytes; its header's length takes ", kLengthBytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  }
  if (length > kMaxSafetensorsHeader) {
    return Refused(absl::StrCat("its first 8 bytes give a header length of ", length,
                                "; allowed: 0 to ", kMaxSafetensorsHeader));
  }
  if (length > bytes.size() - kLengthBytes) {
    return Refused(absl::StrCat("header length ", length, " is beyond the ",
                                bytes.size() - kLengthBytes, " bytes that follow"));
  }
  const std::string_view header = bytes.substr(kLengthBytes, static_cast<std::size_t>(length));
  // nlohmann's parser takes a zero byte for the end of the input and would ignore what follows.
  if (const std::size_t at = header.find('\0'); at != std::string_view::npos) {
    return Refused(absl::StrCat("header has a zero at byte ", at));
  }
  return header;
}

}  // namespace

std::string WriteSafetensors(const HookState& state) {
  const std::vector<const StateTensor*> tensors = ByName(state.tensors);
  const std::string header = Header(state.metadata, tensors);
  std::size_t total = kLengthBytes + header.size();
  for (const StateTensor* tensor : tensors) total += tensor->data.size();
  std::string bytes;
  bytes.reserve(total);
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
  }
  bytes += header;
  for (const StateTensor* tensor : tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size());
  }
  return bytes;
}

absl::StatusOr<HookState> ReadSafetensors(std::string_view bytes) {
  const absl::StatusOr<std::string_view> header = HeaderOf(bytes);
  if (!header.ok()) return header.status();
  HeaderReader reader;
  if (!Json::sax_parse(header->begin(), header->end(), &reader)) return reader.status();

  std::vector<HeaderReader::Entry>& entries = reader.entries();
  // WriteSafetensors writes the data in the order of names, and Fill relies on it to find gaps and
  // overlaps.
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.tensor.name < b.tensor.name; });
  const auto twice = std::adjacent_find(
      entries.begin(), entries.end(),
      [](const auto& a, const auto& b) { return a.tensor.name == b.tensor.name; });
  if (twice != entries.end()) {
    return Refused(absl::StrCat("tensor ", Shown(twice->tensor.name), " occurs twice"));
  }
  const std::string_view data = bytes.substr(kLengthBytes + header->size());
  HookState state{.metadata = std::move(reader.metadata()), .tensors = {}};
  std::uint64_t offset = 0;
  for (HeaderReader::Entry& entry : entries) {
    if (absl::Status status = Fill(entry, data, offset); !status.ok()) return status;
    state.tensors.push_back(std::move(entry.tensor));
  }
  if (offset != data.size()) {
    return Refused(absl::StrCat("has ", data.size(), " bytes of data; its tensors take ", offset));
  }
  const auto digest = state.metadata.find(kDigest);
  if (digest == state.metadata.end()) return Refused("digest is missing");
  const std::string is = Digest(state.metadata, ByName(state.tensors));
  if (digest->second != is) {
    return Refused(absl::StrCat("digest is ", Shown(digest->second), "; the content's is \"", is,
                                "\": the bytes were damaged or changed"));
  }
  // WriteSafetensors computes it again; hooks never see it.
  state.metadata.erase(digest);
  return state;
}

}  // namespace gradwire
