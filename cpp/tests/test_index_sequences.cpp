// Random lives of an index: after every change it is compared with the rules, written as plain loops.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <tuple>

#include "checks.hpp"
#include "index_people.hpp"

namespace {

using letheon::IdBatch;
using letheon::index::Hits;
using letheon::index::Index;
using letheon::index::IndexRows;
using letheon::index::Kind;
using letheon::index::Metric;
using letheon::index::Spec;
using letheon::testing::check;
using letheon::testing::Luck;
using letheon::testing::Vectors;

// A row in the reference: whole numbers, and its place in the order of pivots and ties.
struct PlainRow {
  std::uint64_t hash = 0;
  std::string id;  // sorts as the ids do
  std::int64_t number = 0;
  std::vector<std::int64_t> values;
  double target = 0.0;

  [[nodiscard]] auto order() const { return std::tie(hash, id, number); }
};

std::int64_t dot(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  std::int64_t sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    sum += a[c] * b[c];
  }
  return sum;
}

std::int64_t squared(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  return dot(a, a) - 2 * dot(a, b) + dot(b, b);
}

// Written from the definition, and shares nothing with the core.
class PlainIndex {
 public:
  PlainIndex(const Spec& spec, const Vectors& rows, std::size_t n_pivots) : spec_(spec) {
    std::map<std::int64_t, std::int64_t> counts;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      PlainRow row;
      const std::int64_t person = rows.people[i];
      row.number = counts[person]++;
      row.hash = letheon::mix64(rows.owners[i], static_cast<std::uint64_t>(row.number));
      char text[32];
      std::snprintf(text, sizeof text, "%020lld", static_cast<long long>(person + 1000));
      row.id = rows.is_text ? "person " + std::to_string(person) : text;
      row.values = on_grid(rows.row(i), false);
      row.target = rows.target[i];
      rows_.push_back(row);
    }
    std::ranges::sort(rows_, {}, [](const PlainRow& row) { return row.order(); });
    n_pivots_ = std::min(n_pivots, rows_.size());
    cells_.resize(n_pivots_);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      std::size_t best = 0;
      for (std::size_t p = 1; p < n_pivots_; ++p) {
        if (squared(rows_[i].values, rows_[p].values) <
            squared(rows_[i].values, rows_[best].values)) {
          best = p;
        }
      }
      cell_of_.push_back(best);
      cells_[best].push_back(i);
    }
  }

  [[nodiscard]] std::vector<std::int64_t> on_grid(const std::vector<float>& row,
                                                  bool is_query) const {
    const std::int64_t limit = spec_.kind == Kind::int8 ? 127 : 2047;
    double length = 0.0;
    double largest = 0.0;
    for (const float x : row) {
      length += double{x} * double{x};
      largest = std::max(largest, std::fabs(double{x}));
    }
    double unit = spec_.step;
    if (spec_.metric == Metric::cosine && length > 0.0) {
      unit *= std::sqrt(length);
    }
    if (spec_.metric == Metric::inner_product && is_query && largest > 0.0) {
      unit = std::exp2(std::floor(std::log2(largest)) + 1.0) / static_cast<double>(limit + 1);
    }
    std::vector<std::int64_t> values;
    for (const float x : row) {
      const auto value = static_cast<std::int64_t>(std::rint(x / unit));
      values.push_back(std::clamp(value, -limit, limit));
    }
    return values;
  }

  // The canonical rows: values and cells by (id, number).
  [[nodiscard]] std::vector<std::int64_t> view() const {
    std::vector<std::size_t> order(rows_.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::ranges::sort(order, {}, [this](std::size_t i) {
      return std::pair(rows_[i].id, rows_[i].number);
    });
    std::vector<std::int64_t> all;
    for (const std::size_t i : order) {
      all.insert(all.end(), rows_[i].values.begin(), rows_[i].values.end());
      all.push_back(static_cast<std::int64_t>(cell_of_[i]));
    }
    return all;
  }

  [[nodiscard]] std::vector<const PlainRow*> query(const std::vector<std::int64_t>& q,
                                                   std::size_t k, std::size_t n_probe,
                                                   int modulus) const {
    const auto key = [&](const PlainRow& row) {
      return spec_.metric == Metric::l2 ? squared(q, row.values) : -dot(q, row.values);
    };
    std::vector<std::size_t> cells(n_pivots_);
    for (std::size_t p = 0; p < n_pivots_; ++p) {
      cells[p] = p;
    }
    std::ranges::stable_sort(cells, {}, [&](std::size_t p) { return key(rows_[p]); });
    std::vector<std::size_t> seen;
    for (std::size_t i = 0; i < n_pivots_ && (i < n_probe || seen.size() < k); ++i) {
      for (const std::size_t row : cells_[cells[i]]) {
        if (static_cast<int>(rows_[row].target) % modulus == 0) {
          seen.push_back(row);
        }
      }
    }
    std::ranges::sort(seen);
    std::ranges::stable_sort(seen, {}, [&](std::size_t i) { return key(rows_[i]); });
    seen.resize(std::min(k, seen.size()));
    std::vector<const PlainRow*> best;
    for (const std::size_t i : seen) {
      best.push_back(&rows_[i]);
    }
    return best;
  }

 private:
  Spec spec_;
  std::vector<PlainRow> rows_;  // pivots first
  std::size_t n_pivots_ = 0;
  std::vector<std::size_t> cell_of_;
  std::vector<std::vector<std::size_t>> cells_;
};

class Life {
 public:
  explicit Life(std::uint64_t seed) : luck_(seed) {
    spec_.n_columns = 1 + luck_.below(9);
    spec_.kind = luck_.one_in(2) ? Kind::int8 : Kind::int16;
    spec_.metric = static_cast<Metric>(luck_.below(3));
    spec_.step = spec_.metric == Metric::cosine ? 1.0 / 64 : 0.5;
    spec_.keeps_rows = luck_.one_in(2);
    held_.n_columns = spec_.n_columns;
    held_.is_text = luck_.one_in(2);
    index_ = std::make_unique<Index>(spec_, letheon::Key{1, seed});
    add(luck_.one_in(4) ? 60 + luck_.below(80) : 1 + luck_.below(20));
  }

  void step() {
    if (luck_.one_in(3) || held_.size() < 3) {
      add(1 + luck_.below(6));
    } else {
      forget();
    }
    compare();
  }

 private:
  void add(std::size_t n) {
    Vectors batch{.n_columns = spec_.n_columns, .is_text = held_.is_text};
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> row;
      for (std::uint32_t c = 0; c < spec_.n_columns; ++c) {
        row.push_back(static_cast<float>(luck_.below(5)) - 2.0f +
                      (luck_.one_in(40) ? 3000.0f : 0.0f));
      }
      const std::int64_t person = static_cast<std::int64_t>(luck_.below(60)) - 9;
      batch.add(person, row);
      held_.add(person, row);
    }
    n_pivots_ = choose_count();
    index_->add(batch.rows(), batch.ids(), n_pivots_, 1 + luck_.below(2));
  }

  void forget() {
    Vectors gone{.n_columns = spec_.n_columns, .is_text = held_.is_text};
    Vectors left = held_;
    for (std::size_t i = 1 + luck_.below(3); i > 0 && left.size() > 1; --i) {
      const std::int64_t person = left.people[luck_.below(left.size())];
      if (left.without(person).size() > 0) {
        left = left.without(person);
        gone.add(person, std::vector<float>(spec_.n_columns));
      }
    }
    if (gone.size() == 0) {
      return;
    }
    held_ = left;
    n_pivots_ = choose_count();
    const auto slots = index_->find(gone.ids()).slots;
    index_->forget(slots, n_pivots_, 1 + luck_.below(2));
  }

  // Rarely another number, as when log2(n) is rounded; sometimes all rows.
  std::size_t choose_count() {
    if (luck_.one_in(4)) {
      wanted_ = std::size_t{1} << luck_.below(6);
    }
    return luck_.one_in(20) ? 1000 : wanted_;
  }

  void compare() {
    const PlainIndex plain(spec_, held_, n_pivots_);
    const IndexRows rows = index_->rows();
    check(rows.cells.size() == held_.size(), "the number of rows");
    if (!spec_.keeps_rows) {
      std::vector<std::int64_t> all;
      for (std::size_t i = 0; i < rows.cells.size(); ++i) {
        const auto begin = rows.grid.begin() + static_cast<std::ptrdiff_t>(i * spec_.n_columns);
        all.insert(all.end(), begin, begin + spec_.n_columns);
        all.push_back(rows.cells[i]);
      }
      check(all == plain.view(), "rows and cells are those of the rules");
    }
    compare_query(plain);
    compare_fresh(rows);
  }

  void compare_query(const PlainIndex& plain) {
    Vectors queries{.n_columns = spec_.n_columns};
    std::vector<float> row(spec_.n_columns);
    for (float& x : row) {
      x = static_cast<float>(luck_.below(9)) - 4.0f;
    }
    queries.add(0, row);
    const std::size_t k = 1 + luck_.below(7);
    const std::size_t n_probe = 1 + luck_.below(9);
    const int modulus = luck_.one_in(2) ? 1 : 2;
    const IndexRows rows = index_->rows();
    std::vector<std::uint8_t> allowed;
    for (const double target : rows.target) {
      allowed.push_back(static_cast<int>(target) % modulus == 0);
    }
    if (modulus == 1) {
      allowed.clear();
    }
    const Hits hits = index_->query(queries.matrix(), {k, n_probe, allowed, 1});
    const auto best = plain.query(plain.on_grid(row, true), k, n_probe, modulus);
    for (std::size_t j = 0; j < k; ++j) {
      check((hits.numbers[j] >= 0) == (j < best.size()), "the number of hits");
      if (j < best.size() && hits.numbers[j] >= 0) {
        check(hits.numbers[j] == best[j]->number && hits.target[j] == best[j]->target,
              "a hit is that of the rules");
      }
    }
  }

  void compare_fresh(const IndexRows& rows) {
    Index fresh(spec_, letheon::Key{5, 6});
    fresh.add(held_.rows(), held_.ids(), n_pivots_, 1);
    const IndexRows other = fresh.rows();
    check(rows.X == other.X && rows.grid == other.grid && rows.cells == other.cells &&
              rows.target == other.target && rows.ids.ints == other.ids.ints &&
              rows.ids.blob == other.ids.blob,
          "a fresh index is the same");
  }

  Luck luck_;
  Spec spec_;
  Vectors held_;
  std::unique_ptr<Index> index_;
  std::size_t wanted_ = 8;
  std::size_t n_pivots_ = 0;
};

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

int main() {
  // LETHEON_LIVES: how many lives; LETHEON_FIRST_LIFE: the seed of the first one.
  const std::uint64_t n_lives = number_of("LETHEON_LIVES", 2000);
  const std::uint64_t first = number_of("LETHEON_FIRST_LIFE", 0);
  for (std::uint64_t seed = first; seed < first + n_lives; ++seed) {
    const int n_failures = letheon::testing::failures;
    Life life(seed);
    for (int i = 0; i < 10; ++i) {
      life.step();
    }
    if (letheon::testing::failures > n_failures) {
      std::fprintf(stderr, "in the life of LETHEON_FIRST_LIFE=%llu\n",
                   static_cast<unsigned long long>(seed));
    }
  }
  return letheon::testing::result();
}
