#include "letheon/common/discrete.hpp"

#include <bit>
#include <cmath>
#include <stdexcept>

namespace letheon {
namespace {

constexpr std::int64_t kLargestScale = std::int64_t{1} << 24;
// A candidate is one word: its sign, a fraction of the scale for its place, and its block.
constexpr int kPlaceBits = 38;
constexpr int kBlockBits = 25;
constexpr std::uint64_t kFraction = (std::uint64_t{1} << kPlaceBits) - 1;
// More than the error of a probability below 1 that was computed in floats, and of half a step of
// a uniform number of 32 bits.
constexpr double kMargin = 0x1p-44 + 0x1p-33;

}  // namespace

std::size_t keep_candidates(Law law, std::int64_t scale, std::span<const std::uint64_t> words,
                            std::span<std::int64_t> kept) {
  if (scale < 1 || scale > kLargestScale || words.size() % 3 != 0) {
    throw std::invalid_argument("two candidates need three words, and a scale from 1 to 2**24");
  }
  const std::size_t n = words.size() / 3 * 2;
  const auto factor = static_cast<std::uint64_t>(scale);
  const std::uint64_t uneven = (kFraction + 1) % factor;
  const double share = 1.0 / static_cast<double>(scale);
  const double height = law == Law::normal ? 0.8 : 1.0;
  std::size_t n_kept = 0;
  for (std::size_t i = 0; i < n && n_kept < kept.size(); ++i) {
    const std::uint64_t product = ((words[i] >> 1) & kFraction) * factor;
    const bool is_negative = (words[i] & 1) != 0;
    const int block = std::countr_one(words[i] >> (1 + kPlaceBits));
    const auto place = static_cast<std::int64_t>(product >> kPlaceBits);
    const std::int64_t absolute = block * scale + place;
    if ((product & kFraction) < uneven || (is_negative && absolute == 0)) {
      continue;
    }
    const double size = block + static_cast<double>(place) * share;
    const double energy = law == Law::normal ? size * size / 2 : size;
    const auto half = static_cast<std::uint32_t>(words[n + i / 2] >> (i % 2 == 0 ? 0 : 32));
    const double uniform = (half + 0.5) * 0x1p-32;
    const double power = static_cast<double>(std::uint64_t{1} << block);  // at most 2^25
    const double gap = height * std::exp(-energy) * power - uniform;
    if (block >= kBlockBits || std::abs(gap) <= kMargin) {
      break;
    }
    if (gap > 0) {
      kept[n_kept++] = is_negative ? -absolute : absolute;
    }
  }
  return n_kept;
}

}  // namespace letheon
