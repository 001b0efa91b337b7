// Child processes of a benchmark that work in lockstep: the parent says go, all do one repetition.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace gradwire::bench {

// A child with pipes on its standard input and output. Killed when the object goes.
class Child {
 public:
  // argv[0] is the path of the program, or its name on the PATH.
  explicit Child(const std::vector<std::string>& argv);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  void WriteLine(const std::string& line);
  // Exits the benchmark with a message when the child ends or says nothing for 60 s.
  std::string ReadLine();
  // Whether ReadLine would not have to wait.
  bool HasLine();
  int pid() const { return pid_; }
  // User and system time of all its threads so far.
  double CpuSeconds() const;

 private:
  std::string name_;
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffered_;
};

// Seconds from "go" until every child has answered.
double RunOnce(std::vector<Child>& children);

// The child's side: says "ready", then runs for each line on standard input and answers "done" with
// what the run returned. Returns when standard input ends.
void AnswerParent(const std::function<std::string()>& run);

}  // namespace gradwire::bench
