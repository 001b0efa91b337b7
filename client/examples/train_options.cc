#include "client/examples/train_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace digits {

TrainOptions ParseTrainOptions(int argc, char** argv) {
  TrainOptions options;
  CLI::App app{"Trains a neural network on handwritten digits, together with other processes."};
  app.option_defaults()->always_capture_default();
  app.add_option("--address", options.address, "The daemon: unix:/path or host:port");
  app.add_option("--session", options.session, "Names the training job, the same for all members");
  app.add_option("--rank", options.rank, "This member's place, from 0; -1: the daemon picks");
  app.add_option("--world-size", options.world_size, "How many members train together")
      ->check(CLI::Range(1, 1024));
  app.add_option(
      "--hook", options.hook,
      "How gradients travel: no, fp16, power_sgd,start_powerSGD_iter=10, ... (PowerSGD begins "
      "after 1000 steps unless told otherwise)");
  app.add_flag("--single", options.single, "Train alone on the whole batch, without a daemon");
  app.add_option("--data", options.data, "The data set as CSV");
  app.add_option("--epochs", options.epochs, "Passes over the training part")
      ->check(CLI::Range(1, 10000));
  app.add_option("--batch", options.batch, "Images in a step, of all members together")
      ->check(CLI::Range(1, 1437));
  app.add_option("--seed", options.seed, "Of the initial parameters and the order of images");
  app.add_option("--learning-rate", options.learning_rate, "Of SGD with momentum 0.9")
      ->check(CLI::PositiveNumber);
  app.add_option("--out", options.out,
                 "Write the final parameters here (raw fp32) and a summary to the same name with "
                 "\".summary\"");
  app.add_flag("--progress", options.progress, "Report progress");
  app.add_option("--label", options.label, "Begins each line of progress");
  app.add_flag("--hold", options.hold, "When done, stay in the session until stdin ends");
  try {
    app.parse(argc, argv);
    if (options.single) options.world_size = 1;
    if (options.label.empty()) options.label = options.single ? "single" : options.hook;
    if (options.batch % options.world_size != 0) {
      throw CLI::ValidationError("--batch", std::to_string(options.batch) +
                                                " is no multiple of the world size " +
                                                std::to_string(options.world_size));
    }
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  return options;
}

}  // namespace digits
