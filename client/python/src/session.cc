#include "client/python/src/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"

namespace gradwire::python {

absl::StatusOr<std::unique_ptr<Session>> Session::Join(const ClientOptions& options) {
  auto client = Client::Join(options);
  if (!client.ok()) return client.status();
  return std::unique_ptr<Session>(
      new Session(*std::move(client), options.parameters, options.device));
}

Session::Session(std::unique_ptr<Client> client, std::vector<ParameterSpec> parameters,
                 DeviceId device)
    : client_(std::move(client)),
      parameters_(std::move(parameters)),
      device_(device),
      completions_(std::make_shared<Completions>()) {}

Session::~Session() { Close(); }

absl::StatusOr<std::shared_ptr<Client>> Session::client() const {
  const MutexLock lock(mutex_);
  if (client_ == nullptr)
    return Coded(ErrorCode::kClosed, absl::FailedPreconditionError("this session is closed"));
  return client_;
}

// Never throws: every failure goes through the queue, because Python completes all futures from
// there.
void Session::AllReduce(std::uint64_t id, void* data, std::size_t numel, DType dtype,
                        const std::vector<std::size_t>& positions, void* stream) {
  std::vector<ParameterSpec> parameters;
  parameters.reserve(positions.size());
  for (const std::size_t position : positions) {
    if (position >= parameters_.size()) {
      return completions_->Push(
          id, Coded(ErrorCode::kNotOfModel,
                    absl::InvalidArgumentError(absl::StrCat(
                        "parameter ", position, " of a model of ", parameters_.size()))));
    }
    parameters.push_back(parameters_[position]);
  }
  auto bucket = GradBucket::Make(0, {dtype, data, numel, device_}, std::move(parameters));
  if (!bucket.ok()) return completions_->Push(id, bucket.status());
  const auto client = this->client();
  if (!client.ok()) return completions_->Push(id, client.status());
  (*client)
      ->AllReduce(*bucket, stream)
      .OnDone([queue = completions_, id](const absl::Status& status) { queue->Push(id, status); });
}

void Session::SetDrawPlan(const std::vector<std::vector<std::uint32_t>>& buckets) {
  if (const auto open = client(); open.ok()) (*open)->SetDrawPlan(buckets).IgnoreError();
}

void Session::EndStep(std::uint64_t id) {
  const auto client = this->client();
  if (!client.ok()) return completions_->Push(id, client.status());
  (*client)->EndStep([queue = completions_, id](const absl::StatusOr<Verdict>& verdict) {
    queue->Push(id, verdict.status(), verdict.ok() && *verdict == Verdict::kApply);
  });
}

// Called without the GIL, because the SDK's thread may need it for a hook before it ends.
void Session::Close() {
  std::shared_ptr<Client> client;
  {
    const MutexLock lock(mutex_);
    client = std::move(client_);
  }
  client.reset();  // waits for the SDK's thread
  completions_->Close();
}

// Leaks the client on purpose: its destructor would join threads that a forked child does not have.
void Session::Abandon() { static_cast<void>(new std::shared_ptr<Client>(std::move(client_))); }

}  // namespace gradwire::python
