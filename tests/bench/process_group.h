// Child processes of a benchmark that work in lockstep: the parent says go, all do one repetition.
#pragma once

#include <string>
#include <vector>

namespace gradwire::bench {

// A child with pipes on its standard input and output. Killed when the object goes.
class Child {
 public:
  // argv[0] is the path of the program.
  explicit Child(const std::vector<std::string>& argv);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  void WriteLine(const std::string& line);
  // Exits the benchmark with a message when the child ends or says nothing for 60 s.
  std::string ReadLine();
  int pid() const { return pid_; }

 private:
  std::string name_;
  int pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffered_;
};

// Seconds from "go" until every child has answered.
double RunOnce(std::vector<Child>& children);

}  // namespace gradwire::bench
