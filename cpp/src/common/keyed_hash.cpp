#include "letheon/common/keyed_hash.hpp"

#include <bit>
#include <limits>
#include <stdexcept>

namespace letheon {
namespace {

constexpr std::size_t kWord = 8;

// Byte by byte, so that the host's byte order does not matter; compilers make one load of it.
std::uint64_t load_little_endian(const std::uint8_t* bytes) noexcept {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < kWord; ++i) {
    word |= std::uint64_t{bytes[i]} << (8 * i);
  }
  return word;
}

template <std::size_t N>
std::array<std::uint8_t, N> big_endian(std::uint64_t value) noexcept {
  std::array<std::uint8_t, N> bytes{};
  for (std::size_t i = 0; i < N; ++i) {
    bytes[i] = static_cast<std::uint8_t>(value >> (8 * (N - 1 - i)));
  }
  return bytes;
}

void sip_round(std::array<std::uint64_t, 4>& v) noexcept {
  v[0] += v[1];
  v[1] = std::rotl(v[1], 13) ^ v[0];
  v[0] = std::rotl(v[0], 32);
  v[2] += v[3];
  v[3] = std::rotl(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = std::rotl(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = std::rotl(v[1], 17) ^ v[2];
  v[2] = std::rotl(v[2], 32);
}

SipHash24 tagged(Key key, Bytes prefix, char tag) noexcept {
  SipHash24 state(key);
  state.update(prefix);
  const auto byte = static_cast<std::uint8_t>(tag);
  state.update(Bytes(&byte, 1));
  return state;
}

void require(bool condition, const char* message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

Bytes text(Bytes blob, std::int64_t begin, std::int64_t end) {
  require(0 <= begin && begin <= end && static_cast<std::uint64_t>(end) <= blob.size(),
          "offsets must not decrease and must lie inside the blob");
  require(end - begin <= std::numeric_limits<std::uint32_t>::max(),
          "a text may have at most 2**32 - 1 bytes");
  return blob.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

Key Key::from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept {
  return {load_little_endian(bytes.data()), load_little_endian(bytes.data() + kWord)};
}

SipHash24::SipHash24(Key key) noexcept
    : v_{key.k0 ^ 0x736F6D6570736575u, key.k1 ^ 0x646F72616E646F6Du,
         key.k0 ^ 0x6C7967656E657261u, key.k1 ^ 0x7465646279746573u} {}

void SipHash24::absorb(std::uint64_t word) noexcept {
  v_[3] ^= word;
  sip_round(v_);
  sip_round(v_);
  v_[0] ^= word;
}

void SipHash24::update(Bytes bytes) noexcept {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const std::size_t filled = length_ % kWord;
    if (filled == 0 && bytes.size() - i >= kWord) {
      absorb(load_little_endian(bytes.data() + i));
      i += kWord;
      length_ += kWord;
      continue;
    }
    tail_ |= std::uint64_t{bytes[i]} << (8 * filled);
    ++i;
    ++length_;
    if (filled == kWord - 1) {
      absorb(tail_);
      tail_ = 0;
    }
  }
}

std::uint64_t SipHash24::finish() const noexcept {
  SipHash24 last = *this;
  last.absorb(tail_ | (length_ << 56));  // the top byte is the length modulo 256
  last.v_[2] ^= 0xFF;
  for (int i = 0; i < 4; ++i) {
    sip_round(last.v_);
  }
  return last.v_[0] ^ last.v_[1] ^ last.v_[2] ^ last.v_[3];
}

std::uint64_t siphash24(Key key, Bytes message) noexcept {
  SipHash24 state(key);
  state.update(message);
  return state.finish();
}

void hash_ints(Key key, Bytes prefix, std::span<const std::int64_t> values,
               std::span<std::uint64_t> out) {
  require(values.size() == out.size(), "one result per value is needed");
  const SipHash24 start = tagged(key, prefix, 'i');
  for (std::size_t k = 0; k < values.size(); ++k) {
    SipHash24 state = start;
    state.update(big_endian<8>(static_cast<std::uint64_t>(values[k])));
    out[k] = state.finish();
  }
}

void hash_texts(Key key, Bytes prefix, Bytes blob, std::span<const std::int64_t> offsets,
                std::span<std::uint64_t> out) {
  require(offsets.size() == out.size() + 1, "n texts need n + 1 offsets");
  const SipHash24 start = tagged(key, prefix, 's');
  for (std::size_t k = 0; k < out.size(); ++k) {
    const Bytes bytes = text(blob, offsets[k], offsets[k + 1]);
    SipHash24 state = start;
    state.update(big_endian<4>(bytes.size()));
    state.update(bytes);
    out[k] = state.finish();
  }
}

}  // namespace letheon
