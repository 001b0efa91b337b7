#include "tests/testing/host_user.h"

#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace gradwire::testing {
namespace {

// One byte, with a descriptor beside it.
struct Parcel {
  Parcel() {
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = room.data();
    message.msg_controllen = room.size();
  }

  char byte = 0;
  iovec bytes{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
};

// In a child of a process with other threads: system calls only.
[[noreturn]] void ConnectAndSend(uid_t user, const sockaddr_un& where, int to) {
  // In no group but its own.
  if (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setresgid, user, user, user) != 0 ||
      syscall(SYS_setresuid, user, user, user) != 0) {
    _exit(2);
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0) _exit(1);
  Parcel parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  _exit(sendmsg(to, &parcel.message, 0) == 1 ? 0 : 3);
}

}  // namespace

UniqueFd ConnectAs(uid_t user, const std::string& path) {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  std::memcpy(where.sun_path, path.c_str(), path.size() + 1);
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd here(ends[0]);
  UniqueFd there(ends[1]);
  const pid_t child = fork();
  if (child == 0) ConnectAndSend(user, where, there.get());
  there.Reset();
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return UniqueFd();
  Parcel parcel;
  EXPECT_EQ(recvmsg(here.get(), &parcel.message, MSG_CMSG_CLOEXEC), 1);
  const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  int fd = -1;
  if (header != nullptr) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

std::shared_ptr<grpc::Channel> ChannelOf(uid_t user, const std::string& path) {
  UniqueFd connection = ConnectAs(user, path);
  EXPECT_TRUE(connection.valid()) << "uid " << user << " cannot open " << path;
  return grpc::CreateInsecureChannelFromFd("host", connection.Release());
}

}  // namespace gradwire::testing
