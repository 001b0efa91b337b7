#include "server/session/sum_threads.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/thread_name.h"

namespace gradwire::server {

SumThreads::~SumThreads() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads = std::move(threads_);
  }
  work_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

// If the system refuses more threads, the existing ones and the caller suffice.
void SumThreads::StartThreads() {
  try {
    while (threads_.size() < most_) {
      threads_.emplace_back([this] {
        NameThread("gradwire-sum");
        Help();
      });
    }
  } catch (const std::system_error&) {
    return;
  }
}

// The job is on this thread's stack. It leaves `jobs_` when its last task is taken, and Run returns
// only after the last task is done, so no thread can refer to it afterwards.
void SumThreads::Run(std::size_t count, Task task) {
  // A single sum would only pay for the wake-up of another thread.
  if (count <= 1 || most_ == 0) {
    for (std::size_t i = 0; i < count; ++i) task(i);
    return;
  }
  Job job{.task = task, .count = count};
  MutexLock lock(mutex_);
  StartThreads();
  jobs_.push_back(&job);
  work_.NotifyAll();
  while (job.next < job.count) Take(job);
  while (job.done < job.count) done_.Wait(mutex_);
}

void SumThreads::Take(Job& job) {
  const std::size_t index = job.next++;
  if (job.next == job.count) jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
  mutex_.Unlock();
  job.task(index);
  mutex_.Lock();
  if (++job.done == job.count) done_.NotifyAll();
}

void SumThreads::Help() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (jobs_.empty()) {
      work_.Wait(mutex_);
    } else {
      Take(*jobs_.front());
    }
  }
}

}  // namespace gradwire::server
