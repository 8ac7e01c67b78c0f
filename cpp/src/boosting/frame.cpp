#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "letheon/boosting/frame.hpp"
#include "letheon/boosting/loss.hpp"
#include "letheon/common/sums.hpp"

namespace letheon::boosting {

namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::int64_t kLargestTarget = std::int64_t{1} << 28;
constexpr int kGridBits = 6;  // the grid of base scores: 64 units of 1/256

WideInt floor_divide(WideInt above, WideInt below) noexcept {
  const WideInt quotient = above / below;
  return quotient * below > above ? quotient - 1 : quotient;
}

// Powers of 1 + 1/671, whose 64th power is about 1.1, in units of 2^-32; up to 2^31 people.
const std::vector<std::uint64_t>& people_grid() {
  static const std::vector<std::uint64_t> grid = [] {
    std::vector<std::uint64_t> values;
    for (std::uint64_t value = std::uint64_t{1} << 32; value < std::uint64_t{1} << 63;
         value += value / 671) {
      values.push_back(value);
    }
    return values;
  }();
  return grid;
}

// The largest of every 64th number of the grid that is at most n; the key decides which ones.
std::uint64_t round_people(std::uint64_t n, std::uint64_t key) {
  constexpr std::size_t kSteps = 64;
  const auto& grid = people_grid();
  const auto n_below =
      static_cast<std::size_t>(std::ranges::upper_bound(grid, n << 32) - grid.begin());
  const std::size_t first = key % kSteps;
  return n_below <= first ? grid[0] : grid[(n_below - 1 - first) / kSteps * kSteps + first];
}

// By default a skeleton of 669 n^(1/4) people: accuracy grows with n, and so does the ratio of a fit
// to a request.
std::uint64_t people_of_chain(const Spec& spec, std::uint64_t people) noexcept {
  constexpr std::uint64_t kPerRoot = 669;
  const double root = std::sqrt(std::sqrt(static_cast<double>(people)));  // in units of 2^-8
  return spec.chain_people > 0
             ? std::uint64_t{spec.chain_people} << 32
             : ((kPerRoot * static_cast<std::uint64_t>(root)) << 24) / spec.n_chains;
}

void scale_squared(const Spec& spec, const TargetSums& sums, Frame& frame) noexcept {
  const Wide weight = static_cast<Wide>(sums.weight);
  const WideInt product = WideInt{sums.sum} * sums.sum;
  const Wide variance =
      (weight * static_cast<Wide>(sums.squares) - static_cast<Wide>(product)) / (weight * weight);
  // The largest scale with 2^scale <= deviation * 2^dither.
  const std::uint64_t power = sums::power_of_two(spec.draw(Use::scale, 0)) >> 47;  // 2^-16
  const Wide dithered = variance * power * power >> 32;
  const auto high = static_cast<std::uint64_t>(dithered >> 64);
  const int width = high != 0 ? 64 + static_cast<int>(std::bit_width(high))
                              : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(dithered)));
  frame.scale = width > 0 ? (width - 1) / 2 : 0;
  const WideInt unit = WideInt{sums.weight} << frame.scale;
  const auto dither = static_cast<std::uint32_t>(spec.draw(Use::scale, 1) >> 32);
  frame.centre = static_cast<std::int64_t>(
      floor_divide((WideInt{sums.sum} << 32) + unit * dither, unit << 32) << frame.scale);
}

void scale_poisson(const Spec& spec, const TargetSums& sums, Frame& frame) noexcept {
  const auto mean = static_cast<std::uint64_t>(std::max<std::int64_t>(sums.sum / sums.weight, 0));
  const std::uint64_t power = sums::power_of_two(spec.draw(Use::scale, 0)) >> 47;
  const int width = static_cast<int>(std::bit_width(mean * power >> 16));
  frame.scale = width > 0 ? width - 1 : 0;
}

// The start of an output in units of 1/256, before it is rounded.
std::int32_t exact_base(const Spec& spec, const RowTotals& totals, const Frame& frame,
                        std::size_t output) noexcept {
  const TargetSums& sums = totals.sums;
  const auto& weights = totals.class_weights;
  if (spec.loss == Loss::squared) {
    const WideInt above = (WideInt{sums.sum} - WideInt{sums.weight} * frame.centre) *
                          (1 << kScoreBits);
    return static_cast<std::int32_t>(floor_divide(above, WideInt{sums.weight} << frame.scale));
  }
  if (spec.loss == Loss::poisson) {
    return std::min(log_ratio(static_cast<std::uint64_t>(std::max<std::int64_t>(sums.sum, 0)) >>
                                  frame.scale,
                              static_cast<std::uint64_t>(sums.weight)),
                    kSteepest);
  }
  std::uint64_t all = 0;
  for (const std::uint32_t code : frame.classes) {
    all += static_cast<std::uint64_t>(weights[code]);
  }
  if (frame.n_outputs > 1) {
    return log_ratio(static_cast<std::uint64_t>(weights[frame.classes[output]]), all);
  }
  // One class alone is the negative one.
  const std::uint64_t positive =
      frame.classes.size() < 2
          ? 0
          : static_cast<std::uint64_t>(weights[frame.classes[1]]);
  return log_ratio(positive, all - positive);
}

// The largest hash below the share part / whole of all hashes.
std::uint64_t last_of_share(Wide part, std::uint64_t whole) noexcept {
  return part >= whole ? ~std::uint64_t{0} : static_cast<std::uint64_t>(((part << 64) - 1) / whole);
}

}  // namespace

std::optional<std::uint32_t> Frame::chain_of(const Spec& spec,
                                             std::uint64_t owner) const noexcept {
  const std::uint64_t hash = spec.draw(Use::chain, owner);
  if (Wide{chain_people} * spec.n_chains >= people) {  // everyone is in one
    return static_cast<std::uint32_t>(Wide{hash} * spec.n_chains >> 64);
  }
  const auto place = static_cast<std::uint64_t>(Wide{hash} * people >> 64);
  if (place >= chain_people * spec.n_chains) {
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(place / chain_people);
}

std::uint64_t Frame::last_hash(const Spec& spec) const noexcept {
  return last_of_share(Wide{chain_people} * spec.n_chains, people);
}

std::uint64_t guess_last_hash(const Spec& spec, std::uint64_t n_rows) {
  const std::uint64_t people = round_people(n_rows, spec.draw(Use::people, 0));
  constexpr std::uint64_t kRowsOfPerson = 2;
  return last_of_share(Wide{people_of_chain(spec, people)} * spec.n_chains * kRowsOfPerson, people);
}

std::int32_t Frame::target(std::int64_t q) const noexcept {
  const std::int64_t moved = q - centre;
  const int shift = scale - kGradientBits;
  const std::int64_t scaled =
      shift > 0 ? (moved + (std::int64_t{1} << (shift - 1))) >> shift : moved * (1 << -shift);
  return static_cast<std::int32_t>(std::clamp(scaled, -kLargestTarget, kLargestTarget));
}

Frame make_frame(const Spec& spec, const RowTotals& totals,
                 std::span<const std::uint32_t> order) {
  Frame frame;
  frame.people = round_people(totals.n_people, spec.draw(Use::people, 0));
  frame.chain_people = people_of_chain(spec, frame.people);
  if (spec.is_regression()) {
    frame.y_exponent = totals.y_exponent;
    if (spec.loss == Loss::squared) {
      scale_squared(spec, totals.sums, frame);
    } else {
      scale_poisson(spec, totals.sums, frame);
    }
  } else {
    for (const std::uint32_t code : order) {
      if (totals.class_weights[code] > 0) {
        frame.classes.push_back(code);
      }
    }
    frame.n_outputs = frame.classes.size() > 2 ? static_cast<std::uint32_t>(frame.classes.size())
                                               : 1;
  }
  for (std::size_t k = 0; k < frame.n_outputs; ++k) {
    const std::int32_t exact = exact_base(spec, totals, frame, k);
    const auto dither = static_cast<std::int32_t>(spec.draw(Use::base, k) >> (64 - kGridBits));
    const std::int32_t place = (exact + dither) >> kGridBits;
    frame.base.push_back(place * (1 << (spec.step_bits - 2)));
  }
  return frame;
}

}  // namespace letheon::boosting
