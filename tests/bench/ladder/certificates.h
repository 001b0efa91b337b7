#pragma once

#include <string>

namespace gradwire::bench {

// Makes the folder with an authority (ca.pem) and a server's and a client's certificate and key
// (server.pem, server.key, client.pem, client.key), for 127.0.0.1 and a day. Whether it could.
bool MakeCertificates(const std::string& folder);

}  // namespace gradwire::bench
