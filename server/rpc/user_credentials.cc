#include "server/rpc/user_credentials.h"

#include <grpcpp/security/auth_metadata_processor.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/sync.h"

namespace gradwire::server {
namespace {

constexpr char kUserProperty[] = "gradwire-uid";

// gRPC calls it for each call before the server sees the call.
class UserMark final : public grpc::AuthMetadataProcessor {
 public:
  explicit UserMark(LocalUsers::SlotUser user) : user_(std::move(user)) {}

  // It runs on gRPC's polling thread, at once.
  bool IsBlocking() const override { return false; }

  // The context is the connection's, not the call's: what is added stays for all of its calls. So
  // it is added once, and the lock orders that before every other look at it.
  grpc::Status Process(const InputMetadata& /*metadata*/, grpc::AuthContext* context,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    MutexLock lock(mutex_);
    if (context->FindPropertyValues(kUserProperty).empty()) {
      context->AddProperty(kUserProperty, absl::StrCat(user_->load(std::memory_order_acquire)));
    }
    return grpc::Status::OK;
  }

 private:
  const LocalUsers::SlotUser user_;
  Mutex mutex_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeUserCredentials(LocalUsers::SlotUser user) {
  auto credentials = grpc::experimental::LocalServerCredentials(UDS);
  credentials->SetAuthMetadataProcessor(std::make_shared<UserMark>(std::move(user)));
  return credentials;
}

std::optional<uid_t> UserOf(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(kUserProperty);
  uid_t user = 0;
  if (values.empty() ||
      !absl::SimpleAtoi(absl::string_view(values.front().data(), values.front().size()), &user)) {
    return std::nullopt;
  }
  return user;
}

}  // namespace gradwire::server
