// The best split among the candidates of a block.
#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "letheon/forest/block.hpp"
#include "letheon/forest/score.hpp"
#include "lists.hpp"

namespace letheon::forest {

namespace {

constexpr std::int64_t kExactSquares = std::int64_t{1} << 26;  // squares below are exact doubles

LETHEON_VECTOR BestGini best_of(const std::uint16_t* l0, const std::uint16_t* l1, std::size_t n,
                                double total0, double total1, double* score) noexcept {
  return best_gini(l0, l1, n, total0, total1, score);
}

LETHEON_VECTOR BestGini best_of(const std::uint32_t* l0, const std::uint32_t* l1, std::size_t n,
                                double total0, double total1, double* score) noexcept {
  return best_gini(l0, l1, n, total0, total1, score);
}

}  // namespace

// Goes through all candidates and keeps the best.
template <typename Count, typename Rule>
class Block::Decision {
 public:
  Decision(Block& block, Lanes totals, const Spec& spec) noexcept
      : block_(block), totals_(totals), spec_(spec), least_(spec.min_samples_leaf) {
    n_ = kRegression ? totals[0] : class_weight(totals);
    if (2 * totals.size() > few_.size()) {
      many_.resize(2 * totals.size());
    }
    std::int64_t* const lanes = many_.empty() ? few_.data() : many_.data();
    left_ = {lanes, totals.size()};
    right_ = {lanes + totals.size(), totals.size()};
  }

  [[nodiscard]] Verdict verdict() noexcept {
    if (!consider_pairs()) {
      return {.kind = Verdict::Kind::rescan};
    }
    for (Entry& entry : block_.entries()) {
      if (!consider_list(entry)) {
        return {.kind = Verdict::Kind::rescan};
      }
    }
    best_.is_category = spec_.is_category(best_.attribute);
    return best_;
  }

 private:
  static constexpr bool kRegression = std::is_same_v<Rule, SquaredError>;
  static constexpr bool kGini = std::is_same_v<Rule, Gini>;
  static constexpr std::size_t kPiece = 64;

  [[nodiscard]] bool is_fast() const noexcept {
    return kGini && totals_.size() == 2 && n_ < kExactSquares && least_ == 1;
  }

  // The first of equals wins: ranks are places among the attributes, and the candidates of one
  // attribute come in their order.
  void offer(typename Rule::Score score, std::uint32_t rank, const Verdict& split) noexcept {
    const bool none = best_.kind != Verdict::Kind::split;
    if (none || score > score_ || (score == score_ && rank < rank_)) {
      best_ = split;
      score_ = score;
      rank_ = rank;
    }
  }

  [[nodiscard]] bool is_eligible(std::int64_t n_left) const noexcept {
    return n_left >= least_ && n_ - n_left >= least_ && n_left < n_;
  }

  // Offers the split with the lanes in `left_`.
  void offer_left(std::int64_t n_left, std::uint32_t rank, const Verdict& split) noexcept {
    if (!is_eligible(n_left)) {
      return;
    }
    for (std::size_t lane = 0; lane < totals_.size(); ++lane) {
      right_[lane] = totals_[lane] - left_[lane];
    }
    offer(Rule::of(left_, right_, n_left, n_ - n_left), rank, split);
  }

  [[nodiscard]] std::int64_t weight_left() const noexcept {
    return kRegression ? left_[0] : class_weight(left_);
  }

  // False: an attribute is constant by now.
  [[nodiscard]] bool consider_pairs() noexcept {
    const Pairs<Count> pairs(block_);
    if constexpr (kGini) {
      if (is_fast()) {
        return consider_pairs_fast(pairs);
      }
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs.lanes_left_of(i, left_);
      const std::int64_t n_left = weight_left();
      if (n_left == 0 || n_left == n_) {
        return false;
      }
      offer_left(n_left, pairs.rank(i), split(pairs.attribute(i), pairs.threshold(i)));
    }
    return true;
  }

  // With least_ = 1 every candidate with two sides is eligible, so the best score is enough.
  [[nodiscard]] bool consider_pairs_fast(const Pairs<Count>& pairs) noexcept {
    for (std::size_t i = 0; i < pairs.size(); i += kPiece) {
      const std::size_t m = std::min(pairs.size() - i, kPiece);
      const BestGini found = score(pairs.counts(0) + i, pairs.counts(1) + i, m);
      if (found.n_one_sided > 0) {
        return false;
      }
      if (best_.kind != Verdict::Kind::split || found.score > score_) {
        const std::size_t k = i + place_of(found.score);
        offer(found.score, pairs.rank(k), split(pairs.attribute(k), pairs.threshold(k)));
      }
    }
    return true;
  }

  [[nodiscard]] BestGini score(const Count* first, const Count* second, std::size_t m) noexcept {
    return best_of(first, second, m, static_cast<double>(totals_[0]),
                   static_cast<double>(totals_[1]), scores_.data());
  }

  // The first candidate of this score.
  [[nodiscard]] std::size_t place_of(double wanted) const noexcept {
    return static_cast<std::size_t>(std::ranges::find(scores_, wanted) - scores_.begin());
  }

  // False: constant by now, or too few candidates are left on the list.
  [[nodiscard]] bool consider_list(Entry& entry) noexcept {
    const List<Count> list(block_, entry);
    const std::int64_t n_missing = list.missing_weight();
    if (list.size() + (n_missing > 0 ? 1 : 0) < 2) {
      return false;
    }
    std::size_t n_valid = 0;
    if constexpr (kGini) {
      n_valid = is_fast() && n_missing == 0 ? consider_fast(list, entry)
                                            : consider(list, entry, n_missing);
    } else {
      n_valid = consider(list, entry, n_missing);
    }
    return n_valid >= spec_.n_thresholds || !list.truncated();
  }

  // Both return the number of valid candidates considered, at most n_thresholds. The greatest
  // value is none, unless rows without a value can go right of it. All categories are candidates:
  // there are two or more of them, or rows without a value.
  [[nodiscard]] std::size_t consider_fast(const List<Count>& list, Entry& entry) noexcept {
    std::size_t n_valid = 0;
    std::size_t j = 0;
    while (j < list.size() && n_valid < spec_.n_thresholds) {
      const std::size_t wanted = std::size_t{spec_.n_thresholds} - n_valid;
      const std::size_t m = std::min({list.size() - j, kPiece, wanted});
      const BestGini found = score(list.counts(0) + j, list.counts(1) + j, m);
      n_valid += m - found.n_one_sided;
      const bool none = best_.kind != Verdict::Kind::split;
      if (found.score > 0.0 && (none || found.score >= score_)) {
        offer(found.score, entry.rank,
              split(entry.attribute, list.values()[j + place_of(found.score)]));
      }
      j += m;
    }
    entry.n_used = static_cast<std::uint32_t>(j);
    entry.n_one_sided = static_cast<std::uint8_t>(j - n_valid);
    return n_valid;
  }

  [[nodiscard]] std::size_t consider(const List<Count>& list, const Entry& entry,
                                     std::int64_t n_missing) noexcept {
    std::size_t n_valid = 0;
    for (std::size_t j = 0; j < list.size() && n_valid < spec_.n_thresholds; ++j) {
      list.lanes_left_of(j, left_);
      const std::int64_t n_left = weight_left();
      if (n_missing == 0 && n_left == n_) {
        continue;
      }
      ++n_valid;
      Verdict candidate = split(entry.attribute, list.values()[j]);
      candidate.saw_missing = n_missing > 0;
      offer_left(n_left, entry.rank, candidate);
      if (n_missing > 0) {
        for (std::size_t lane = 0; lane < totals_.size(); ++lane) {
          left_[lane] += list.missing()[lane];
        }
        candidate.missing_left = true;
        offer_left(n_left + n_missing, entry.rank, candidate);
      }
    }
    return n_valid;
  }

  [[nodiscard]] static Verdict split(std::uint32_t attribute, float threshold) noexcept {
    return {Verdict::Kind::split, attribute, threshold, false, false};
  }

  Block& block_;
  Lanes totals_;
  const Spec& spec_;
  std::int64_t n_;
  std::int64_t least_;
  Verdict best_;
  typename Rule::Score score_{};
  std::uint32_t rank_ = 0;
  std::array<double, kPiece> scores_;
  // Lanes of the two sides: on the stack unless there are many classes.
  std::array<std::int64_t, 32> few_;
  std::vector<std::int64_t> many_;
  std::span<std::int64_t> left_;
  std::span<std::int64_t> right_;
};

Verdict Block::decide(Lanes totals, const Spec& spec) noexcept {
  const bool narrow = header().layout == Layout::narrow;
  switch (spec.criterion) {
    case Criterion::gini:
      return narrow ? Decision<std::uint16_t, Gini>(*this, totals, spec).verdict()
                    : Decision<std::uint32_t, Gini>(*this, totals, spec).verdict();
    case Criterion::entropy:
      return narrow ? Decision<std::uint16_t, Entropy>(*this, totals, spec).verdict()
                    : Decision<std::uint32_t, Entropy>(*this, totals, spec).verdict();
    default:
      return Decision<std::uint32_t, SquaredError>(*this, totals, spec).verdict();
  }
}

}  // namespace letheon::forest
