// Candidates of discrete laws: places, blocks, signs and fates, by hand.
#include "letheon/discrete.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include "checks.hpp"

namespace {

using letheon::Fate;
using letheon::Law;
using letheon::testing::check;
using letheon::testing::check_refused;

struct Tried {
  std::int64_t value;
  Fate fate;
};

Tried try_one(Law law, std::int64_t scale, std::uint64_t first, std::uint64_t block,
              std::uint64_t uniform) {
  const std::array<std::uint64_t, 3> words{first, block, uniform};
  std::array<std::int64_t, 1> values{};
  std::array<Fate, 1> fates{};
  letheon::try_candidates(law, scale, words, values, fates);
  return {values[0], fates[0]};
}

constexpr std::uint64_t kLarge = ~std::uint64_t{0};

void values_and_fates() {
  // The scale is 5, so places have 3 bits: 5, 6 and 7 are outside of the block.
  check(try_one(Law::laplace, 5, 3 << 1, 0, 0).value == 3, "a place");
  check(try_one(Law::laplace, 5, (3 << 1) | 1, 1, 0).value == -8, "a block of 5 and a sign");
  check(try_one(Law::laplace, 5, 5 << 1, 0, 0).fate == Fate::rejected, "outside of the block");
  check(try_one(Law::laplace, 5, 1, 0, 0).fate == Fate::rejected, "a second zero");
  check(try_one(Law::laplace, 5, 0, 0, kLarge).fate == Fate::undecided, "1 against nearly 1");
  check(try_one(Law::normal, 5, 0, 0, 0).fate == Fate::kept, "zero, and a small number");
  // For zero the normal law keeps half of the candidates.
  check(try_one(Law::normal, 5, 0, 0, kLarge).fate == Fate::rejected, "a large number");
  check(try_one(Law::normal, 5, 0, 0, kLarge / 2 + 1).fate == Fate::undecided, "just half");
  check(try_one(Law::normal, 5, 0, kLarge, 0).fate == Fate::undecided, "a block without end");
}

void bad_sizes_are_refused() {
  std::vector<std::uint64_t> words(5);
  std::vector<std::int64_t> values(2);
  std::vector<Fate> fates(2);
  const auto attempt = [&](std::int64_t scale) {
    letheon::try_candidates(Law::normal, scale, words, values, fates);
  };
  check_refused([&] { attempt(1); }, "five words for two candidates");
  words.resize(6);
  attempt(1);
  check_refused([&] { attempt(0); }, "no scale");
  check_refused([&] { attempt((std::int64_t{1} << 40) + 1); }, "too large a scale");
}

}  // namespace

int main() {
  values_and_fates();
  bad_sizes_are_refused();
  return letheon::testing::result();
}
