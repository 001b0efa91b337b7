#include "server/net/hand_over.h"

#include <utility>

#include "base/thread_name.h"

namespace gradwire::server {
namespace {

// So many peers that send without a pause must begin at once to keep others waiting.
constexpr int kThreads = 4;

}  // namespace

HandOver::HandOver(Give give) : give_(std::move(give)) {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] {
      NameThread("gradwire-hand");
      Run();
    });
  }
}

void HandOver::Add(Connection connection) {
  {
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(connection));
  }
  changed_.NotifyOne();
}

void HandOver::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    waiting_.clear();
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void HandOver::Run() {
  while (true) {
    Connection next;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !stopped_) changed_.Wait(mutex_);
      if (stopped_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    give_(std::move(next));
  }
}

}  // namespace gradwire::server
