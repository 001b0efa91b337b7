#include "proto/wire/local_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"

namespace gradwire::wire {

std::string ProofOf(const std::string& key, const std::string& probe) {
  std::string proof(kProofBytes, '\0');
  unsigned int size = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(probe.data()), probe.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &size);
  // Without memory. What is empty equals no proof.
  if (made == nullptr) proof.clear();
  return proof;
}

bool SameProof(const std::string& a, const std::string& b) {
  return a.size() == kProofBytes && b.size() == kProofBytes &&
         CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusOr<ProofSecret> ProofSecret::Draw() {
  std::string secret(kProofBytes, '\0');
  if (absl::Status filled = FillRandom(std::as_writable_bytes(std::span(secret))); !filled.ok()) {
    return filled;
  }
  return ProofSecret(std::move(secret));
}

std::string ProofSecret::KeyFor(std::uint64_t start_id) const {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(start_id >> shift & 0xff));
  }
  return ProofOf(secret_, bytes);
}

absl::StatusOr<std::string> ProofSecret::Answer(std::uint64_t start_id,
                                                const std::string& probe) const {
  if (probe.size() < kLeastProbeBytes || probe.size() > kMostProbeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("probe: has ", probe.size(), " bytes; allowed: ",
                                                   kLeastProbeBytes, " to ", kMostProbeBytes));
  }
  return ProofOf(KeyFor(start_id), probe);
}

}  // namespace gradwire::wire
