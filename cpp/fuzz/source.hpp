// What the inputs of all fuzzers have in common: numbers from bytes, and rows as an input spells them.
#pragma once

#include <bit>
#include <cstdint>

#include "letheon/common/keyed_hash.hpp"
#include "people.hpp"

namespace letheon::fuzz {

// Reads bytes from the front; zeros after the end.
class Source {
 public:
  explicit Source(Bytes bytes) noexcept : bytes_(bytes) {}

  std::uint8_t byte() noexcept {
    if (bytes_.empty()) {
      return 0;
    }
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  template <typename T>
  T number() noexcept {
    T value = 0;
    for (std::size_t k = 0; k < sizeof(T); ++k) {
      value = static_cast<T>(value | static_cast<T>(byte()) << (8 * k));
    }
    return value;
  }
  [[nodiscard]] Bytes rest() const noexcept { return bytes_; }

 private:
  Bytes bytes_;
};

// Rows as the input spells them: anything goes, also what a model must refuse.
inline void read_rows(Source& source, testing::People& people) {
  const std::size_t n = people.n_rows();
  for (float& x : people.X) {
    x = std::bit_cast<float>(source.number<std::uint32_t>());
  }
  for (std::uint32_t& label : people.labels) {
    label = source.byte() % 6u;
  }
  for (double& y : people.y) {
    y = std::bit_cast<double>(source.number<std::uint64_t>());
  }
  for (std::uint32_t& weight : people.weights) {
    const std::uint8_t byte = source.byte();
    weight = byte < 250 ? byte % 4u : std::uint32_t{byte} << 22;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const auto id = static_cast<std::int8_t>(source.byte());
    if (people.is_text) {
      people.offsets[i + 1] = people.offsets[i] + id % 8;
    } else {
      people.ints[i] = id;
    }
  }
}

}  // namespace letheon::fuzz
