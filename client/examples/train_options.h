// The command line of train_digits.
#pragma once

#include <cstdint>
#include <string>

namespace digits {

struct TrainOptions {
  std::string address = "localhost:29610";
  std::string session = "digits";
  int rank = -1;
  int world_size = 1;
  std::string hook = "no";
  bool single = false;  // one process on the whole batch, without a daemon

  std::string data = "client/examples/data/digits.csv";
  int epochs = 15;
  int batch = 128;  // of all members together
  std::uint64_t seed = 1;
  float learning_rate = 0.02F;

  std::string out;        // where the parameters and the summary go; empty: nowhere
  bool progress = false;  // report on stdout
  std::string label;      // begins each line of progress; empty: the hook
  bool hold = false;      // stay in the session until stdin ends
};

// Exits with a message if the command line is wrong, and with the help if it asks for it.
TrainOptions ParseTrainOptions(int argc, char** argv);

}  // namespace digits
