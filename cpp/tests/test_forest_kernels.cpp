// The vector loops against plain ones, at every length around a vector's.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/kernels.hpp"
#include "letheon/forest/score.hpp"
#include "letheon/forest/vector.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using letheon::testing::check;
using letheon::testing::kMissing;
using letheon::testing::Luck;

std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n < 40; ++n) {
    all.push_back(n);
  }
  for (const std::size_t n : {63u, 64u, 65u, 127u, 128u, 129u, 255u, 257u, 1000u}) {
    all.push_back(n);
  }
  return all;
}

// Of exactly this size on the heap, so that reading beyond it is seen.
std::vector<float> floats(Luck& luck, std::size_t n, bool missing) {
  std::vector<float> values(n);
  for (float& x : values) {
    x = missing && luck.one_in(5) ? kMissing : static_cast<float>(luck.below(50)) - 25.0f;
  }
  return values;
}

void priorities_are_mix32() {
  Luck luck(1);
  for (const std::size_t n : lengths()) {
    const std::vector<float> values = floats(luck, n, false);
    const std::uint64_t key = luck.next();
    std::vector<std::uint32_t> out(n);
    forest::priorities(key, values.data(), n, out.data());
    for (std::size_t i = 0; i < n; ++i) {
      check(out[i] == letheon::mix32(key, std::bit_cast<std::uint32_t>(values[i])), "priority");
    }
  }
}

void mix32_is_a_bijection() {
  // Equal hashes of different values would make ties that no rule decides.
  std::vector<std::uint32_t> hashes;
  for (std::uint32_t x = 0; x < 100000; ++x) {
    hashes.push_back(letheon::mix32(0x0123456789ABCDEFu, x * 40503u));
  }
  std::ranges::sort(hashes);
  check(std::ranges::adjacent_find(hashes) == hashes.end(), "no two values share a hash");
  check(letheon::mix32(0, 0) == 0 && letheon::mix32(1, 1) == 0, "x is mixed with the key first");
}

void places() {
  Luck luck(2);
  for (const std::size_t n : lengths()) {
    std::vector<std::uint32_t> numbers(n);
    for (std::size_t i = 0; i < n; ++i) {
      numbers[i] = static_cast<std::uint32_t>(i * 7 + 3);
    }
    for (std::size_t i = 0; i < n; ++i) {
      check(forest::place_of(numbers.data(), n, numbers[i]) == i, "place of a number");
    }
    for (std::uint32_t& number : numbers) {
      number = luck.below(100);
    }
    for (const std::uint32_t bound : {0u, 1u, 30u, 100u}) {
      std::vector<std::uint32_t> wanted;
      for (std::uint32_t i = 0; i < n; ++i) {
        if (numbers[i] < bound) {
          wanted.push_back(i);
        }
      }
      std::vector<std::uint32_t> out(n);
      out.resize(forest::places_below(numbers.data(), n, bound, out.data()));
      check(out == wanted, "places below a bound");
    }
  }
}

void ranges() {
  Luck luck(3);
  for (const std::size_t n : lengths()) {
    for (const bool missing : {false, true}) {
      const std::vector<float> values = floats(luck, n, missing);
      const forest::Range range = forest::range_of(values.data(), n);
      std::vector<float> present;
      std::ranges::copy_if(values, std::back_inserter(present),
                           [](float x) { return !std::isnan(x); });
      check(range.has_missing == (present.size() < n), "missing values are seen");
      if (present.empty()) {
        check(range.least > range.greatest, "nothing there");
      } else {
        const auto [least, greatest] = std::ranges::minmax(present);
        check(range.least == least && range.greatest == greatest, "least and greatest");
      }
    }
  }
}

void edges() {
  Luck luck(4);
  for (const std::size_t n_edges : {0u, 1u, 2u, 31u, 64u, 65u, 200u}) {
    std::vector<float> cuts = floats(luck, n_edges, false);
    for (std::size_t k = 0; k < n_edges; ++k) {
      cuts[k] += static_cast<float>(k) * 1e-3f;
    }
    std::ranges::sort(cuts);
    for (const std::size_t n : lengths()) {
      std::vector<float> x = floats(luck, n, false);
      if (n > 0 && n_edges > 0) {
        x[0] = cuts[luck.below(n_edges)];
      }
      std::vector<std::uint32_t> out(n);
      forest::count_edges_below(x.data(), n, cuts.data(), n_edges, out.data());
      for (std::size_t i = 0; i < n; ++i) {
        const auto below = std::ranges::count_if(cuts, [&](float cut) { return cut < x[i]; });
        check(out[i] == static_cast<std::uint32_t>(below), "edges below");
      }
    }
  }
}

template <typename Count, bool kCategory>
void withdrawals() {
  Luck luck(5);
  for (std::size_t n = 0; n < 40; ++n) {
    const std::size_t room = forest::padded(n);
    std::vector<float> values(room, kMissing);
    std::vector<Count> counts(room);
    std::vector<Count> copies(room);
    for (std::size_t j = 0; j < n; ++j) {
      values[j] = static_cast<float>(j);
      counts[j] = static_cast<Count>(100 + luck.below(100));
      copies[j] = static_cast<Count>(1 + luck.below(4));
    }
    const std::vector<Count> counts_before = counts;
    const std::vector<Count> copies_before = copies;
    const auto x = static_cast<float>(luck.below(n + 2));
    const bool listed = x < static_cast<float>(n);
    const auto place = static_cast<std::size_t>(x);
    const std::int32_t weight = listed && luck.one_in(2)
                                    ? static_cast<std::int32_t>(copies[place])
                                    : (luck.one_in(2) ? 1 : -3);
    const forest::Change change =
        forest::withdraw_value<kCategory>(values.data(), n, x, weight, counts.data(), copies.data());
    check(change.listed == listed, "whether the value is there");
    check(change.died == (listed && copies[place] == 0), "whether no row has it now");
    for (std::size_t j = 0; j < room; ++j) {
      const std::int32_t taken_copies = x == values[j] ? weight : 0;
      const std::int32_t taken = !kCategory && x <= values[j] ? weight : taken_copies;
      check(counts[j] == static_cast<Count>(counts_before[j] - static_cast<Count>(taken)),
            "count of what lies left");
      check(copies[j] == static_cast<Count>(copies_before[j] - static_cast<Count>(taken_copies)),
            "count of the value's rows");
    }
  }
}

template <typename Count>
void withdrawals_by_attribute() {
  Luck luck(6);
  for (int round = 0; round < 50; ++round) {
    const std::vector<float> row = floats(luck, 12, false);
    std::vector<float> values = floats(luck, forest::kLanes, true);
    std::vector<std::uint32_t> attributes(forest::kLanes);
    std::vector<Count> counts(forest::kLanes, 50);
    for (std::uint32_t& attribute : attributes) {
      attribute = luck.below(12);
    }
    for (std::size_t k = 0; k < forest::kLanes; ++k) {
      values[k] = luck.one_in(2) ? row[attributes[k]] : values[k];
    }
    typename forest::CountVector<Count>::Type given;
    forest::withdraw_eight(values.data(), attributes.data(), row.data(), 3, counts.data(), given);
    for (std::size_t k = 0; k < forest::kLanes; ++k) {
      const Count wanted = row[attributes[k]] == values[k] ? 47 : 50;
      check(counts[k] == wanted && given[k] == wanted, "eight attributes at once");
    }
  }
}

struct Candidates {
  std::vector<std::uint32_t> left0;
  std::vector<std::uint32_t> left1;
  std::uint32_t total0 = 0;
  std::uint32_t total1 = 0;

  [[nodiscard]] double score(std::size_t j) const {
    const std::array<std::int64_t, 2> left{left0[j], left1[j]};
    const std::array<std::int64_t, 2> right{std::int64_t{total0} - left0[j],
                                            std::int64_t{total1} - left1[j]};
    return forest::Gini::of(left, right, left[0] + left[1], right[0] + right[1]);
  }
  [[nodiscard]] bool one_sided(std::size_t j) const {
    const std::uint64_t n = std::uint64_t{left0[j]} + left1[j];
    return n == 0 || n == std::uint64_t{total0} + total1;
  }
};

// Many near-equal scores: candidates are drawn around a few splits.
Candidates random_candidates(Luck& luck, std::size_t n, std::uint64_t most) {
  Candidates made;
  made.total0 = 1 + luck.below(most);
  made.total1 = 1 + luck.below(most);
  const std::uint32_t c0 = luck.below(made.total0 + 1);
  const std::uint32_t c1 = luck.below(made.total1 + 1);
  for (std::size_t j = 0; j < n; ++j) {
    const bool near = luck.one_in(2);
    const std::uint32_t a = near ? c0 + luck.below(3) : luck.below(made.total0 + 1);
    const std::uint32_t b = near ? c1 + luck.below(3) : luck.below(made.total1 + 1);
    made.left0.push_back(std::min(a, made.total0));
    made.left1.push_back(std::min(b, made.total1));
  }
  return made;
}

// A row that is not below the split in exact doubles is counted as near, at every size.
void rivals_are_never_missed() {
  Luck luck(7);
  using Counts = forest::CountVector<std::uint32_t>::Type;
  for (int round = 0; round < 40000; ++round) {
    const std::uint64_t most = std::uint64_t{1} << (2 + round % 21);  // both below 2^24
    const Candidates made = random_candidates(luck, forest::kLanes, most);
    const std::size_t chosen = luck.below(forest::kLanes);
    if (made.one_sided(chosen)) {
      continue;
    }
    const double score = made.score(chosen);
    const auto bound = static_cast<float>(score * (1.0 - forest::kNear));
    const auto n = static_cast<std::int32_t>(1 + luck.below(forest::kLanes + 2));
    forest::GiniRivals rivals{static_cast<float>(made.total0), static_cast<float>(made.total1),
                              bound};
    Counts left0;
    Counts left1;
    forest::load(made.left0.data(), left0);
    forest::load(made.left1.data(), left1);
    rivals.count(left0, left1, n);
    std::int32_t one_sided = 0;
    for (std::size_t j = 0; j < forest::kLanes; ++j) {
      const bool inside = static_cast<std::int32_t>(j) < n;
      one_sided += inside && made.one_sided(j) ? 1 : 0;
      if (inside && !made.one_sided(j) && made.score(j) >= score) {
        check(rivals.near[j] == 1, "a rival is counted");
      }
      check(inside || rivals.near[j] == 0, "nobody beyond the end is");
    }
    check(forest::GiniRivals::sum(rivals.one_sided) == one_sided, "empty sides are counted");
  }
}

template <typename Count>
void best_gini_is_the_first_best() {
  Luck luck(8);
  for (int round = 0; round < 4000; ++round) {
    const std::size_t n = 1 + luck.below(64);
    const std::uint64_t most = sizeof(Count) == 2 ? 30000 : std::uint64_t{1} << (3 + round % 22);
    Candidates made = random_candidates(luck, n, most);
    std::vector<Count> l0(forest::padded(n), 1);
    std::vector<Count> l1(forest::padded(n), 1);
    double best = -1.0;
    std::size_t n_one_sided = 0;
    for (std::size_t j = 0; j < n; ++j) {
      l0[j] = static_cast<Count>(made.left0[j]);
      l1[j] = static_cast<Count>(made.left1[j]);
      n_one_sided += made.one_sided(j) ? 1 : 0;
      best = made.one_sided(j) ? best : std::max(best, made.score(j));
    }
    std::vector<double> scores(forest::padded(n));
    const forest::BestGini found = forest::best_gini(l0.data(), l1.data(), n,
                                                     static_cast<double>(made.total0),
                                                     static_cast<double>(made.total1),
                                                     scores.data());
    check(found.score == best, "the best of all, to the bit");
    check(found.n_one_sided == n_one_sided, "and how many have an empty side");
    for (std::size_t j = 0; j < n; ++j) {
      check(made.one_sided(j) ? std::isnan(scores[j]) : scores[j] == made.score(j), "each score");
    }
  }
}

}  // namespace

int main() {
  priorities_are_mix32();
  mix32_is_a_bijection();
  places();
  ranges();
  edges();
  withdrawals<std::uint16_t, false>();
  withdrawals<std::uint16_t, true>();
  withdrawals<std::uint32_t, false>();
  withdrawals<std::uint32_t, true>();
  withdrawals_by_attribute<std::uint16_t>();
  withdrawals_by_attribute<std::uint32_t>();
  rivals_are_never_missed();
  best_gini_is_the_first_best<std::uint16_t>();
  best_gini_is_the_first_best<std::uint32_t>();
  return letheon::testing::result();
}
