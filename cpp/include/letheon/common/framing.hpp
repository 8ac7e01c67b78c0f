// Little-endian numbers in a buffer of bytes: writing them, and reading them with every length checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "letheon/common/keyed_hash.hpp"

namespace letheon {

// Throws std::invalid_argument: the bytes of the trees (or of another `thing`) are damaged.
[[noreturn]] inline void refuse_bytes(const std::string& thing, const std::string& what) {
  throw std::invalid_argument("the bytes of the " + thing + " are damaged: " + what);
}

template <typename T>
void put(std::vector<std::uint8_t>& out, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t k = 0; k < sizeof(T); ++k) {
    out.push_back(static_cast<std::uint8_t>(bits >> (8 * k)));
  }
}

// Reads little-endian numbers; every read is checked.
class ByteReader {
 public:
  explicit ByteReader(Bytes bytes, const char* thing = "trees") noexcept
      : bytes_(bytes), thing_(thing) {}

  template <typename T>
  [[nodiscard]] T get() {
    if (bytes_.size() - at_ < sizeof(T)) {
      refuse_bytes(thing_, "they end too early");
    }
    std::make_unsigned_t<T> bits = 0;
    for (std::size_t k = 0; k < sizeof(T); ++k) {
      bits = static_cast<std::make_unsigned_t<T>>(
          bits | static_cast<std::make_unsigned_t<T>>(bytes_[at_ + k]) << (8 * k));
    }
    at_ += sizeof(T);
    return static_cast<T>(bits);
  }

  [[nodiscard]] Bytes take(std::uint64_t n) {
    if (n > bytes_.size() - at_) {
      refuse_bytes(thing_, "they end too early");
    }
    const Bytes part = bytes_.subspan(at_, static_cast<std::size_t>(n));
    at_ += static_cast<std::size_t>(n);
    return part;
  }

  void require_end() const {
    if (at_ != bytes_.size()) {
      refuse_bytes(thing_, "there are too many of them");
    }
  }

 private:
  Bytes bytes_;
  const char* thing_;
  std::size_t at_ = 0;
};

}  // namespace letheon
