// Candidates of discrete laws: places, blocks, signs and fates, by hand.
#include "letheon/common/discrete.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include "checks.hpp"

namespace {

using letheon::Law;
using letheon::testing::check;
using letheon::testing::check_refused;

enum class Fate : std::uint8_t { rejected, kept, undecided };

struct Tried {
  std::int64_t value;
  Fate fate;
};

// A fraction of the scale, a sign, a block of ones, and a uniform number.
struct Drawn {
  double fraction = 0.0;
  bool is_negative = false;
  int n_ones = 0;
  std::uint32_t uniform = 0;
};

Tried try_one(Law law, std::int64_t scale, const Drawn& drawn) {
  const auto place = static_cast<std::uint64_t>(drawn.fraction * 0x1p38);
  const std::uint64_t block = ((std::uint64_t{1} << drawn.n_ones) - 1) << 39;
  const std::uint64_t word = block | (place << 1) | (drawn.is_negative ? 1 : 0);
  const std::uint64_t other = std::uint64_t{drawn.uniform} << 32;
  // A positive zero follows, which is kept, unless the first one stops everything.
  const std::array<std::uint64_t, 3> words{word, std::uint64_t{1} << 38, other >> 32};
  std::array<std::int64_t, 2> kept{};
  const std::size_t n = letheon::keep_candidates(law, scale, words, kept);
  return {kept[0], n == 2 ? Fate::kept : n == 1 ? Fate::rejected : Fate::undecided};
}

constexpr std::uint32_t kLarge = ~std::uint32_t{0};

void values_and_fates() {
  check(try_one(Law::laplace, 5, {.fraction = 0.7}).value == 3, "a place");
  check(try_one(Law::laplace, 5, {.fraction = 0.7, .is_negative = true, .n_ones = 1}).value == -8,
        "a block of 5 and a sign");
  // 2^38 is 4 more than a multiple of 5, so the first fractions of a place do not count.
  check(try_one(Law::laplace, 5, {.fraction = 0.0}).fate == Fate::rejected, "one too many");
  check(try_one(Law::laplace, 5, {.fraction = 0x1p-38}).fate == Fate::kept, "the next");
  check(try_one(Law::laplace, 4, {.is_negative = true}).fate == Fate::rejected, "a second zero");
  check(try_one(Law::laplace, 4, {.uniform = kLarge}).fate == Fate::undecided, "nearly 1");
  check(try_one(Law::normal, 4, {}).fate == Fate::kept, "zero, and a small number");
  // For zero the normal law keeps four of five candidates.
  check(try_one(Law::normal, 4, {.uniform = kLarge}).fate == Fate::rejected, "a large number");
  check(try_one(Law::normal, 4, {.uniform = kLarge / 5 * 4}).fate == Fate::undecided, "just below");
  check(try_one(Law::normal, 4, {.uniform = kLarge / 5 * 4 - 1}).fate == Fate::kept, "below");
  check(try_one(Law::normal, 4, {.n_ones = 25}).fate == Fate::undecided, "a block without end");
}

void bad_sizes_are_refused() {
  std::vector<std::uint64_t> words(5);
  std::vector<std::int64_t> kept(2);
  const auto attempt = [&](std::int64_t scale) {
    return letheon::keep_candidates(Law::normal, scale, words, kept);
  };
  check_refused([&] { attempt(1); }, "five words");
  words.resize(6);
  check(attempt(1) == 2, "no more than are wanted");
  check_refused([&] { attempt(0); }, "no scale");
  check_refused([&] { attempt((std::int64_t{1} << 24) + 1); }, "too large a scale");
  words.resize(0);
  check(attempt(1) == 0, "no words");
}

}  // namespace

int main() {
  values_and_fates();
  bad_sizes_are_refused();
  return letheon::testing::result();
}
