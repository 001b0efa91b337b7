#include "tests/bench/ladder/certificates.h"

#include <filesystem>
#include <vector>

#include "tests/bench/ladder/leftovers.h"

namespace gradwire::bench {

bool MakeCertificates(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const auto make = [&folder](const std::string& name, const std::vector<std::string>& signer) {
    const std::string path = folder + "/" + name;
    std::vector<std::string> command = {"openssl",
                                        "req",
                                        "-x509",
                                        "-newkey",
                                        "ec",
                                        "-pkeyopt",
                                        "ec_paramgen_curve:P-256",
                                        "-nodes",
                                        "-keyout",
                                        path + ".key",
                                        "-out",
                                        path + ".pem",
                                        "-days",
                                        "1",
                                        "-subj",
                                        "/CN=gradwire-bench-" + name};
    command.insert(command.end(), signer.begin(), signer.end());
    return RunCommand(command);
  };
  const std::vector<std::string> signed_by_ca = {"-CA",     folder + "/ca.pem",
                                                 "-CAkey",  folder + "/ca.key",
                                                 "-addext", "subjectAltName=IP:127.0.0.1",
                                                 "-addext", "basicConstraints=critical,CA:FALSE"};
  return make("ca", {}) && make("server", signed_by_ca) && make("client", signed_by_ca);
}

}  // namespace gradwire::bench
