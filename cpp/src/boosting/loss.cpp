#include "letheon/boosting/loss.hpp"

namespace letheon::boosting {

namespace {

__extension__ using Wide = unsigned __int128;

// exp(-1/256) in units of 2^-64, by its series.
std::uint64_t small_decay() noexcept {
  std::uint64_t term = std::uint64_t{1} << 63;  // the first term is 1 = 2^64 / 2^64: kept halved
  std::uint64_t sum = term;
  for (std::uint64_t j = 1; term != 0; ++j) {
    term /= j << kScoreBits;
    sum = j % 2 == 1 ? sum - term : sum + term;
  }
  return sum << 1;
}

}  // namespace

LossTables::LossTables() noexcept {
  constexpr int kFine = 62;
  const Wide step = small_decay();
  fine_decay[0] = std::uint64_t{1} << kFine;
  for (std::size_t i = 1; i < fine_decay.size(); ++i) {
    fine_decay[i] = static_cast<std::uint64_t>((fine_decay[i - 1] * step) >> 64);
  }
  for (std::size_t i = 0; i < decay.size(); ++i) {
    decay[i] = static_cast<std::uint32_t>((fine_decay[i] + (std::uint64_t{1} << 31)) >> 32);
    const Wide whole = (Wide{1} << kFine) + fine_decay[i];
    const auto p = static_cast<std::uint32_t>(((Wide{kOne} << kFine) + whole / 2) / whole);
    sigmoid[kWidest + i] = static_cast<std::uint16_t>(p);
    sigmoid[kWidest - i] = static_cast<std::uint16_t>(kOne - static_cast<std::int32_t>(p));
    mean[kWidest - i] = static_cast<std::int32_t>(
        (fine_decay[i] + (std::uint64_t{1} << (kFine - 16))) >> (kFine - kGradientBits));
  }
  for (std::size_t i = 1; i <= kSteepest; ++i) {
    mean[kWidest + i] = static_cast<std::int32_t>((Wide{kOne} << kFine) / fine_decay[i]);
  }
}

const LossTables& loss_tables() noexcept {
  static const LossTables tables;
  return tables;
}

std::int32_t log_ratio(std::uint64_t numerator, std::uint64_t denominator) noexcept {
  if (numerator > denominator) {
    return -log_ratio(denominator, numerator);
  }
  // The largest i with exp(-i / 256) * denominator >= numerator.
  const auto& fine = loss_tables().fine_decay;
  const Wide wanted = Wide{numerator} << 62;
  const auto first_below = std::ranges::lower_bound(
      fine, true, {}, [&](std::uint64_t value) { return Wide{value} * denominator < wanted; });
  const auto place = static_cast<std::int32_t>(first_below - fine.begin()) - 1;
  return -std::min(place, kWidest);
}

void softmax_gradients(const LossTables& tables, std::span<const std::int32_t> scores,
                       std::uint32_t label, Gradient* out) noexcept {
  const std::int32_t highest = *std::ranges::max_element(scores);
  std::uint64_t sum = 0;
  for (std::size_t k = 0; k < scores.size(); ++k) {
    const std::uint32_t part = tables.decay[static_cast<std::size_t>(
        std::min(highest - scores[k], kWidest))];
    out[k].g = static_cast<std::int32_t>(part);  // below 2^31
    sum += part;
  }
  for (std::size_t k = 0; k < scores.size(); ++k) {
    const auto part = static_cast<std::uint64_t>(out[k].g) << kGradientBits;
    out[k] = share_gradient(static_cast<std::int32_t>((part + sum / 2) / sum), k == label);
  }
}

}  // namespace letheon::boosting
