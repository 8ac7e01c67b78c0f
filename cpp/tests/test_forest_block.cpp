// A node's cache through any history of rows that leave and come, against a fresh look at the rows.
#include "letheon/forest/block.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "checks.hpp"
#include "letheon/forest/forget.hpp"
#include "letheon/forest/scan.hpp"
#include "naive.hpp"
#include "people.hpp"

namespace {

namespace forest = letheon::forest;
using letheon::Slot;
using forest::Verdict;
using letheon::testing::agree;
using letheon::testing::check;
using letheon::testing::Luck;
using letheon::testing::naive_lists;
using letheon::testing::naive_split;
using letheon::testing::People;
using letheon::testing::Shape;
using letheon::testing::Tally;
using letheon::testing::tally_of;
using letheon::testing::weight_of;

// One greedy node of a table, with the rows it has at the moment.
class Bench {
 public:
  Bench(Luck& luck, const Shape& shape, std::uint32_t factor) : luck_(luck) {
    People people = random_people(luck, shape);
    for (std::uint32_t& weight : people.weights) {
      weight *= factor;
    }
    table_ = letheon::Table(static_cast<std::uint32_t>(shape.n_columns), shape.n_classes == 0,
                           std::nullopt);
    static_cast<void>(table_.append(people.batch(), shape.n_classes));
    table_.rescale();
    spec_ = random_spec(luck, shape);
    key_ = luck.next();
    all_ = table_.copy(letheon::testing::counting(static_cast<std::uint32_t>(shape.n_rows)));
    for (Slot slot = 0; slot < shape.n_rows; ++slot) {
      (luck.one_in(4) ? outside_ : inside_).push_back(slot);
    }
  }

  [[nodiscard]] forest::Spec& spec() noexcept { return spec_; }

  // Looks at the rows; false if no attribute varies.
  [[nodiscard]] bool pack(std::uint32_t slack) {
    forest::Scratch scratch;
    forest::Scanner scanner(table_, spec_, scratch);
    spec_.slack = slack;
    spec_.cache_rows = 2;
    scanner.load(inside_);
    scanner.greedy(key_, scanner.keep(inside_.size()), nullptr);
    if (scratch.draft.lists.empty()) {
      return false;
    }
    forest::Bytes8 packed;
    forest::Block::pack(scratch.draft, weight(), table_.is_regression(), packed);
    // Of exactly the block's size, so that reading beyond it is seen.
    storage_ = packed;
    storage_.shrink_to_fit();
    check(block().n_bytes() == packed.size() * 8, "the size is known");
    check(block().n_attributes() == scratch.draft.lists.size(), "all attributes are there");
    for (const auto& list : scratch.draft.lists) {
      check(block().has(list.attribute), "and can be asked for");
    }
    return true;
  }

  [[nodiscard]] forest::Block block() noexcept { return forest::Block(storage_.data()); }
  [[nodiscard]] Tally totals() const { return tally_of(table_, inside_); }
  [[nodiscard]] std::int64_t weight() const { return weight_of(table_, totals()); }
  [[nodiscard]] std::size_t n_inside() const noexcept { return inside_.size(); }
  [[nodiscard]] std::optional<Verdict> wanted() const {
    return naive_split(table_, inside_, key_, spec_);
  }

  // The block's verdict is that of the rows, or it asks for a look at them.
  bool decide_rightly() {
    const Tally lanes = totals();
    const Verdict verdict = block().decide(lanes, spec_);
    if (verdict.kind == Verdict::Kind::rescan) {
      return false;
    }
    check(agree(wanted(), verdict), "the verdict is that of the rows");
    return true;
  }

  [[nodiscard]] forest::RowView leave() {
    const std::size_t place = luck_.below(inside_.size());
    const Slot slot = inside_[place];
    inside_.erase(inside_.begin() + static_cast<std::ptrdiff_t>(place));
    outside_.push_back(slot);
    return forest::row_view(all_, slot);
  }
  [[nodiscard]] forest::RowView come() {
    const std::size_t place = luck_.below(outside_.size());
    const Slot slot = outside_[place];
    outside_.erase(outside_.begin() + static_cast<std::ptrdiff_t>(place));
    inside_.insert(std::ranges::lower_bound(inside_, slot), slot);
    return forest::row_view(all_, slot);
  }
  [[nodiscard]] bool can_come() const noexcept { return !outside_.empty(); }
  [[nodiscard]] std::uint64_t key() const noexcept { return key_; }

  // Attributes that were constant may vary with a new row; the lists do not know them.
  [[nodiscard]] bool same_attributes() {
    std::size_t n = 0;
    for (const auto& list : naive_lists(table_, inside_, key_, spec_.max_features, spec_)) {
      if (!block().has(list.attribute)) {
        return false;
      }
      ++n;
    }
    return n == block().n_attributes();
  }

  [[nodiscard]] Tally left_of(const Verdict& split) const {
    std::vector<Slot> left;
    std::ranges::copy_if(inside_, std::back_inserter(left), [&](Slot slot) {
      return split.sends_left(table_.column(split.attribute).at(slot));
    });
    return tally_of(table_, left);
  }

 private:
  Luck& luck_;
  letheon::Table table_;
  forest::Spec spec_;
  letheon::RowBlock all_;
  std::uint64_t key_ = 0;
  std::vector<Slot> inside_;
  std::vector<Slot> outside_;
  forest::Bytes8 storage_;
};

int n_decided = 0;
int n_admitted = 0;
int n_confirmed = 0;

void rows_leave(Luck& luck, const Shape& shape, std::uint32_t factor) {
  Bench bench(luck, shape, factor);
  if (!bench.pack(luck.below(8)) || !bench.decide_rightly()) {
    check(!bench.wanted(), "a fresh look is always enough");
    return;
  }
  while (bench.n_inside() > 2) {
    bench.block().withdraw(bench.leave());
    if (!bench.decide_rightly()) {
      if (!bench.pack(luck.below(8))) {
        return;
      }
      check(bench.decide_rightly(), "a fresh look is always enough");
    }
    ++n_decided;
  }
}

void rows_come_and_leave(Luck& luck, const Shape& shape, std::uint32_t factor) {
  Bench bench(luck, shape, factor);
  bool valid = bench.pack(luck.below(8)) && bench.decide_rightly();
  for (int step = 0; step < 80 && bench.n_inside() > 3; ++step) {
    const bool comes = luck.one_in(2) && bench.can_come();
    if (comes) {
      const forest::RowView row = bench.come();
      valid = valid && bench.same_attributes() &&
              bench.block().admit(row, bench.key(), bench.spec(), bench.weight());
      n_admitted += valid ? 1 : 0;
    } else {
      const forest::RowView row = bench.leave();
      if (valid) {
        bench.block().withdraw(row);
      }
    }
    valid = (valid && bench.decide_rightly()) ||
            (bench.pack(luck.below(8)) && bench.decide_rightly());
  }
}

// Whenever the quick look says so, the split is indeed the same.
void confirmations(Luck& luck, Shape shape, std::uint32_t factor) {
  shape.n_classes = 2;
  Bench bench(luck, shape, factor);
  bench.spec().criterion = forest::Criterion::gini;
  bench.spec().min_samples_leaf = 1;
  bool valid = bench.pack(6) && bench.decide_rightly();
  std::optional<Verdict> before = bench.wanted();
  while (valid && before && bench.n_inside() > 2) {
    const forest::RowView row = bench.leave();
    const Tally totals = bench.totals();
    const Tally left = bench.left_of(*before);
    if (bench.block().withdraw_and_confirm(row, left.data(), totals.data())) {
      check(agree(bench.wanted(), *before), "a confirmed split is the best");
      ++n_confirmed;
    } else {
      valid = bench.decide_rightly() || (bench.pack(6) && bench.decide_rightly());
      before = bench.wanted();
    }
  }
}

void many_candidates_of_every_number() {
  // One list of every size and every n_thresholds near it.
  Luck luck(78);
  for (std::uint32_t size = 2; size < 90; size += 1 + size / 20) {
    for (std::uint32_t n_thresholds = size > 4 ? size - 4 : 1; n_thresholds < size + 2;
         ++n_thresholds) {
      Bench bench(luck, {.n_rows = size + size / 3 + 1, .n_columns = 1}, 1);
      bench.spec().n_thresholds = n_thresholds;
      bench.spec().criterion = forest::Criterion::gini;
      bench.spec().min_samples_leaf = 1;
      check(bench.pack(0) && bench.decide_rightly(), "every number of candidates");
    }
  }
}

}  // namespace

int main() {
  many_candidates_of_every_number();
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    Luck luck(seed);
    const Shape shape{.n_rows = 8 + luck.below(60),
                      .n_columns = 1 + luck.below(9),
                      .n_classes = static_cast<std::uint32_t>(seed % 4),
                      .missing = luck.one_in(3),
                      .weighted = luck.one_in(2)};
    // Weights beyond 2^16 need wide counts.
    const std::uint32_t factor = luck.one_in(3) ? 5000 : 1;
    rows_leave(luck, shape, factor);
    rows_come_and_leave(luck, shape, factor);
    confirmations(luck, shape, factor);
  }
  check(n_decided > 1000 && n_admitted > 100 && n_confirmed > 200, "every path was gone often");
  return letheon::testing::result();
}
