#include "letheon/discrete.hpp"

#include <bit>
#include <cmath>
#include <stdexcept>

namespace letheon {
namespace {

constexpr std::int64_t kLargestScale = std::int64_t{1} << 40;
// More than the error of a probability below 1 that was computed in floats.
constexpr double kMargin = 0x1p-44;

}  // namespace

void try_candidates(Law law, std::int64_t scale, std::span<const std::uint64_t> words,
                    std::span<std::int64_t> values, std::span<Fate> fates) {
  const std::size_t n = values.size();
  if (scale < 1 || scale > kLargestScale || words.size() != 3 * n || fates.size() != n) {
    throw std::invalid_argument("a candidate needs three words and a scale from 1 to 2**40");
  }
  const std::uint64_t mask = std::bit_ceil(static_cast<std::uint64_t>(scale)) - 1;
  const int halvings = law == Law::normal ? 1 : 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto place = static_cast<std::int64_t>((words[i] >> 1) & mask);
    const bool is_negative = (words[i] & 1) != 0;
    const int block = std::countr_one(words[n + i]);
    const std::int64_t absolute = block * scale + place;
    values[i] = is_negative ? -absolute : absolute;
    if (place >= scale || (is_negative && absolute == 0)) {
      fates[i] = Fate::rejected;
      continue;
    }
    const double size = block + static_cast<double>(place) / static_cast<double>(scale);
    const double energy = law == Law::normal ? size * size / 2 : size;
    const double uniform = static_cast<double>(words[2 * n + i] >> 11) * 0x1p-53;
    const double gap = std::ldexp(std::exp(-energy), block - halvings) - uniform;
    const bool is_clear = block < 64 && std::abs(gap) > kMargin;
    fates[i] = !is_clear ? Fate::undecided : gap > 0 ? Fate::kept : Fate::rejected;
  }
}

}  // namespace letheon
