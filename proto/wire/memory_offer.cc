#include "proto/wire/memory_offer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/v1/aggregation.pb.h"

namespace gradwire::wire {
namespace {

constexpr std::array<char, 4> kMagic = {kMemoryOfferByte, 'W', 'M', '1'};
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kPrefixBytes = kMagic.size() + kLengthBytes;
constexpr std::size_t kMaxMessage = 4096;
// More descriptors than one are taken, to be closed.
constexpr std::size_t kMaxDescriptors = 8;

absl::Status SystemError(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status Send(int socket, const google::protobuf::MessageLite& message, int descriptor) {
  std::string bytes(kMagic.begin(), kMagic.end());
  const std::size_t size = message.ByteSizeLong();
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(size >> (8 * i) & 0xff));
  }
  message.AppendToString(&bytes);
  iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  // A short message always fits an empty socket buffer, so a peer whose buffer is full is faulty.
  // MSG_NOSIGNAL: a closed peer must not end this process with SIGPIPE.
  const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return SystemError("sendmsg");
  if (static_cast<std::size_t>(sent) != bytes.size()) {
    return absl::UnavailableError("sendmsg: the peer does not take a short message");
  }
  return absl::OkStatus();
}

std::vector<UniqueFd> DescriptorsIn(msghdr& header) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(one) + i * sizeof(int), sizeof descriptor);
      descriptors.emplace_back(descriptor);
    }
  }
  return descriptors;
}

// Whole messages only. An invalid descriptor: none came.
template <typename Message>
absl::StatusOr<std::pair<Message, UniqueFd>> Receive(int socket) {
  // One byte more than allowed, so that a message that is too long shows.
  std::array<char, kPrefixBytes + kMaxMessage + 1> bytes;
  iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received < 0) return SystemError("recvmsg");
  std::vector<UniqueFd> descriptors = DescriptorsIn(header);
  const auto bad = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory offer: ", what));
  };
  const auto size = static_cast<std::size_t>(received);
  if (size < kPrefixBytes || !std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) {
    return bad(absl::StrCat(size, " bytes that do not begin as one"));
  }
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::size_t{static_cast<unsigned char>(bytes[kMagic.size() + i])} << (8 * i);
  }
  if (length > kMaxMessage || length != size - kPrefixBytes) {
    return bad(absl::StrCat("says ", length, " bytes and has ", size - kPrefixBytes,
                            "; allowed: at most ", kMaxMessage, ", all at once"));
  }
  if (descriptors.size() > 1) {
    return bad(absl::StrCat("has ", descriptors.size(), " descriptors; allowed: at most 1"));
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    // The system does not tell which.
    return bad(absl::StrCat("its descriptors did not arrive: they are more than ", kMaxDescriptors,
                            ", or this process has none left"));
  }
  std::pair<Message, UniqueFd> result;
  if (!result.first.ParseFromArray(bytes.data() + kPrefixBytes, static_cast<int>(length))) {
    return bad("its bytes are no such message");
  }
  if (!descriptors.empty()) result.second = std::move(descriptors.front());
  return result;
}

}  // namespace

absl::Status SendMemoryRequest(int socket, const MemoryRequest& request) {
  v1::MemoryRequest message;
  message.set_token(request.token);
  message.set_start_id(request.start_id);
  message.set_attachment(request.attachment);
  message.set_probe(request.probe);
  return Send(socket, message, request.segment.get());
}

absl::StatusOr<MemoryRequest> ReceiveMemoryRequest(int socket) {
  auto received = Receive<v1::MemoryRequest>(socket);
  if (!received.ok()) return received.status();
  const v1::MemoryRequest& message = received->first;
  if (!message.probe().empty()) {
    return MemoryRequest{.start_id = message.start_id(), .probe = message.probe()};
  }
  if (!received->second.valid()) {
    return absl::InvalidArgumentError("shared memory offer: has no descriptor; allowed: 1");
  }
  return MemoryRequest{.token = message.token(),
                       .start_id = message.start_id(),
                       .attachment = message.attachment(),
                       .segment = std::move(received->second)};
}

absl::Status SendMemoryReply(int socket, const MemoryReply& reply) {
  v1::MemoryReply message;
  message.set_code(static_cast<int>(reply.status.code()));
  message.set_message(std::string(reply.status.message()).substr(0, kMaxMessage / 2));
  message.set_attachment(reply.attachment);
  message.set_segment(reply.segment);
  message.set_proof(reply.proof);
  return Send(socket, message, reply.results.get());
}

absl::StatusOr<MemoryReply> ReceiveMemoryReply(int socket,
                                               std::chrono::steady_clock::time_point deadline) {
  pollfd ready{.fd = socket, .events = POLLIN, .revents = 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  const int polled = poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  if (polled < 0) return SystemError("poll");
  if (polled == 0) {
    return absl::DeadlineExceededError("the daemon does not answer an offer of shared memory");
  }
  auto received = Receive<v1::MemoryReply>(socket);
  if (!received.ok()) return received.status();
  const v1::MemoryReply& message = received->first;
  const bool known = message.code() >= 0 && message.code() <= 16;
  return MemoryReply{.status = absl::Status(known ? static_cast<absl::StatusCode>(message.code())
                                                  : absl::StatusCode::kUnknown,
                                            message.message()),
                     .attachment = message.attachment(),
                     .segment = message.segment(),
                     .proof = message.proof(),
                     .results = std::move(received->second)};
}

}  // namespace gradwire::wire
