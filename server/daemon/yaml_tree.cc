#include "server/daemon/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/printable.h"

namespace gradwire::server {
namespace {

constexpr std::size_t kDeepest = 8;
constexpr std::size_t kMostNodes = 10'000;

// yaml-cpp counts from 0.
absl::Status Problem(const YAML::Mark& mark, const std::string& text) {
  return Coded(ErrorCode::kConfigKey,
               absl::InvalidArgumentError(
                   absl::StrCat(mark.line + 1, ":", mark.column + 1, ": ", Printable(text))));
}

// Builds the tree from yaml-cpp's events: its own tree would resolve aliases, and has no limits.
// What is refused is thrown as yaml-cpp's own exception, which ends the parser.
class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (std::exchange(started_, true)) Refuse(mark, "a second document; allowed is one");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Close(NewNode(YamlNode::Kind::kEmpty, mark, "", anchor));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    Refuse(mark, "aliases are not supported; write the value out");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    YamlNode node = NewNode(YamlNode::Kind::kText, mark, tag, anchor);
    node.text = text;
    node.quoted = tag == kQuotedTag;
    Close(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    Open(mark, NewNode(YamlNode::Kind::kList, mark, tag, anchor));
  }
  void OnSequenceEnd() override { CloseLast(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    Open(mark, NewNode(YamlNode::Kind::kMapping, mark, tag, anchor));
  }
  void OnMapEnd() override { CloseLast(); }

 private:
  // yaml-cpp's tags of texts that have none.
  static constexpr char kQuotedTag[] = "!";
  static constexpr char kPlainTag[] = "?";

  [[noreturn]] static void Refuse(const YAML::Mark& mark, const std::string& why) {
    throw YAML::ParserException(mark, why);
  }

  YamlNode NewNode(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
                   YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) Refuse(mark, "anchors are not supported");
    if (!tag.empty() && tag != kQuotedTag && tag != kPlainTag) {
      Refuse(mark, "tags are not supported; remove what begins with an exclamation mark");
    }
    if (++nodes_ > kMostNodes) {
      Refuse(mark, absl::StrCat("more than ", kMostNodes, " keys and values"));
    }
    return {.kind = kind, .line = mark.line + 1, .column = mark.column + 1};
  }

  void Open(const YAML::Mark& mark, YamlNode node) {
    if (open_.size() >= kDeepest) {
      Refuse(mark, absl::StrCat("values are nested more than ", kDeepest, " deep"));
    }
    open_.push_back(std::move(node));
  }

  void CloseLast() {
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    Close(std::move(node));
  }

  void Close(YamlNode node) {
    (open_.empty() ? root_ : open_.back().items.emplace_back()) = std::move(node);
  }

  YamlNode root_;
  std::vector<YamlNode> open_;  // the innermost last
  std::size_t nodes_ = 0;
  bool started_ = false;
};

// yaml-cpp would take a byte order mark for another encoding, and end the text at some of these.
std::optional<absl::Status> FindControlByte(const std::string& text) {
  const auto control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f || byte >= 0xf8;
  };
  const auto found = std::find_if(text.begin(), text.end(), control);
  if (found == text.end()) return std::nullopt;
  YAML::Mark mark;
  mark.line = static_cast<int>(std::count(text.begin(), found, '\n'));
  const std::size_t at = static_cast<std::size_t>(found - text.begin());
  const std::size_t end = text.substr(0, at).rfind('\n');
  mark.column = static_cast<int>(end == std::string::npos ? at : at - end - 1);
  return Problem(mark, "a control character; the file is text in UTF-8");
}

}  // namespace

absl::StatusOr<YamlNode> ParseYaml(const std::string& text) {
  if (auto problem = FindControlByte(text)) return *problem;
  TreeBuilder builder;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    return Problem(error.mark, error.msg);
  }
  return builder.TakeRoot();
}

}  // namespace gradwire::server
