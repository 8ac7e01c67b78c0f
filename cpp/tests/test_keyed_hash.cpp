// SipHash-2-4 against its official vectors, frames and the mixer against published values.
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "letheon/common/keyed_hash.hpp"

namespace {

int failures = 0;

void check(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "FAILED: %s\n", what);
    ++failures;
  }
}

template <typename Call>
void check_refused(Call call, const char* what) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return;
  }
  check(false, what);
}

// Key 00 01 .. 0f, message 00 01 .. of 0 to 63 bytes.
constexpr std::uint64_t kOfficial[64] = {
    0x726fdb47dd0e0e31u, 0x74f839c593dc67fdu, 0x0d6c8009d9a94f5au, 0x85676696d7fb7e2du,
    0xcf2794e0277187b7u, 0x18765564cd99a68du, 0xcbc9466e58fee3ceu, 0xab0200f58b01d137u,
    0x93f5f5799a932462u, 0x9e0082df0ba9e4b0u, 0x7a5dbbc594ddb9f3u, 0xf4b32f46226bada7u,
    0x751e8fbc860ee5fbu, 0x14ea5627c0843d90u, 0xf723ca908e7af2eeu, 0xa129ca6149be45e5u,
    0x3f2acc7f57c29bdbu, 0x699ae9f52cbe4794u, 0x4bc1b3f0968dd39cu, 0xbb6dc91da77961bdu,
    0xbed65cf21aa2ee98u, 0xd0f2cbb02e3b67c7u, 0x93536795e3a33e88u, 0xa80c038ccd5ccec8u,
    0xb8ad50c6f649af94u, 0xbce192de8a85b8eau, 0x17d835b85bbb15f3u, 0x2f2e6163076bcfadu,
    0xde4daaaca71dc9a5u, 0xa6a2506687956571u, 0xad87a3535c49ef28u, 0x32d892fad841c342u,
    0x7127512f72f27cceu, 0xa7f32346f95978e3u, 0x12e0b01abb051238u, 0x15e034d40fa197aeu,
    0x314dffbe0815a3b4u, 0x027990f029623981u, 0xcadcd4e59ef40c4du, 0x9abfd8766a33735cu,
    0x0e3ea96b5304a7d0u, 0xad0c42d6fc585992u, 0x187306c89bc215a9u, 0xd4a60abcf3792b95u,
    0xf935451de4f21df2u, 0xa9538f0419755787u, 0xdb9acddff56ca510u, 0xd06c98cd5c0975ebu,
    0xe612a3cb9ecba951u, 0xc766e62cfcadaf96u, 0xee64435a9752fe72u, 0xa192d576b245165au,
    0x0a8787bf8ecb74b2u, 0x81b3e73d20b49b6fu, 0x7fa8220ba3b2eceau, 0x245731c13ca42499u,
    0xb78dbfaf3a8d83bdu, 0xea1ad565322a1a0bu, 0x60e61c23a3795013u, 0x6606d7e446282b93u,
    0x6ca4ecb15c5f91e1u, 0x9f626da15c9625f3u, 0xe51b38608ef25f57u, 0x958a324ceb064572u,
};

constexpr letheon::Key kOfficialKey{0x0706050403020100u, 0x0F0E0D0C0B0A0908u};

letheon::Bytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::vector<std::uint8_t> counting(std::size_t size) {
  std::vector<std::uint8_t> message(size);
  for (std::size_t i = 0; i < size; ++i) {
    message[i] = static_cast<std::uint8_t>(i);
  }
  return message;
}

void official_vectors() {
  const auto raw = counting(16);
  const auto key = letheon::Key::from_bytes(std::span<const std::uint8_t, 16>(raw.data(), 16));
  check(key.k0 == kOfficialKey.k0 && key.k1 == kOfficialKey.k1, "key is little-endian");
  for (std::size_t size = 0; size < 64; ++size) {
    check(letheon::siphash24(key, counting(size)) == kOfficial[size], "official vector");
  }
}

void any_cut_gives_the_same_hash() {
  const auto message = counting(41);
  for (std::size_t cut = 0; cut <= message.size(); ++cut) {
    letheon::SipHash24 state(kOfficialKey);
    state.update(letheon::Bytes(message).first(cut));
    state.update(letheon::Bytes(message).subspan(cut));
    check(state.finish() == kOfficial[message.size()], "message in two pieces");
    check(state.finish() == kOfficial[message.size()], "finish does not change the state");
  }
}

void framed_values() {
  constexpr letheon::Key zero{0, 0};
  const letheon::Bytes shard = bytes_of({"s\0\0\0\5shard", 10});
  const std::vector<std::int64_t> values{17};
  const std::vector<std::int64_t> offsets{1, 3};
  std::vector<std::uint64_t> out(1);
  letheon::hash_ints(zero, shard, values, out);
  check(out[0] == 0x8221378770FDDBC2u, "frame of an int");
  letheon::hash_texts(zero, shard, bytes_of("<17>"), offsets, out);
  check(out[0] == 0x6FAFF12B574C20A5u, "frame of a text inside a blob");
}

void bad_offsets_are_refused() {
  std::vector<std::uint64_t> out(2);
  const auto hash = [&out](std::initializer_list<std::int64_t> offsets) {
    const std::vector<std::int64_t> held(offsets);
    letheon::hash_texts(kOfficialKey, {}, bytes_of("abcd"), held, out);
  };
  hash({0, 2, 4});
  check_refused([&] { hash({0, 2, 5}); }, "offset beyond the blob");
  check_refused([&] { hash({0, 3, 2}); }, "decreasing offsets");
  check_refused([&] { hash({-1, 2, 4}); }, "negative offset");
  check_refused([&] { hash({0, 4}); }, "too few offsets");
  check_refused([&] { letheon::hash_ints(kOfficialKey, {}, {}, out); }, "too few values");
}

void mixer() {
  // The first output of SplitMix64 seeded with 0, as its authors print it.
  static_assert(letheon::finalise(0x9E3779B97F4A7C15u) == 0xE220A8397B1DCDAFu);
  static_assert(letheon::mix64(0xE220A8397B1DCDAFu, 0) == 0);
  check(letheon::mix64(0, 1) == 0xDCE423FC82C0D5B8u, "golden mix");
}

}  // namespace

int main() {
  official_vectors();
  any_cut_gives_the_same_hash();
  framed_values();
  bad_offsets_are_refused();
  mixer();
  return failures == 0 ? 0 : 1;
}
