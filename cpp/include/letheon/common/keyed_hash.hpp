// Keyed hashing: SipHash-2-4 over framed messages, and a cheap mixer for inner loops.
//
// The byte-level rules stand in the text of src/letheon/seeds.py and are frozen: every digest
// depends on them. Nothing here knows Python; nothing here allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace letheon {

using Bytes = std::span<const std::uint8_t>;

// The 128-bit key of SipHash, two little-endian words.
struct Key {
  std::uint64_t k0;
  std::uint64_t k1;

  static Key from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept;
};

// SipHash-2-4 in pieces. Copying a state that has absorbed a common prefix is how many messages
// share the work of that prefix.
class SipHash24 {
 public:
  explicit SipHash24(Key key) noexcept;

  void update(Bytes bytes) noexcept;
  [[nodiscard]] std::uint64_t finish() const noexcept;

 private:
  void absorb(std::uint64_t word) noexcept;

  std::array<std::uint64_t, 4> v_;
  std::uint64_t tail_ = 0;    // bytes that do not fill a word yet, little-endian
  std::uint64_t length_ = 0;  // bytes seen so far
};

[[nodiscard]] std::uint64_t siphash24(Key key, Bytes message) noexcept;

// out[k] = siphash24(key, prefix + "i" + big-endian values[k]).
// Throws std::invalid_argument unless `out` is as long as `values`.
void hash_ints(Key key, Bytes prefix, std::span<const std::int64_t> values,
               std::span<std::uint64_t> out);

// out[k] = siphash24(key, prefix + "s" + length + text k), text k = blob[offsets[k], offsets[k+1]).
// Throws std::invalid_argument when the offsets decrease, leave the blob, cut a text of more than
// 2^32 - 1 bytes, or are not one more than `out`.
void hash_texts(Key key, Bytes prefix, Bytes blob, std::span<const std::int64_t> offsets,
                std::span<std::uint64_t> out);

// The finaliser of SplitMix64 (Stafford's variant 13), a bijection.
[[nodiscard]] constexpr std::uint64_t finalise(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The hash of inner loops: for one key a bijection of the 64-bit values.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t key, std::uint64_t bits) noexcept {
  return finalise(key ^ finalise(bits + 0x9E3779B97F4A7C15u));
}

// The hash of single-precision values: for one key a bijection of the 32-bit values. Only 32-bit
// products, so that compilers turn a loop of it into vector instructions.
[[nodiscard]] constexpr std::uint32_t mix32(std::uint64_t key, std::uint32_t bits) noexcept {
  std::uint32_t x = bits ^ static_cast<std::uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  x = x ^ (x >> 16) ^ static_cast<std::uint32_t>(key >> 32);
  x = (x ^ (x >> 15)) * 0x9E3779B1u;
  return x ^ (x >> 16);
}

}  // namespace letheon
