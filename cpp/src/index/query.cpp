// Answers of an index: the cells nearest to a query, and the nearest rows in them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>

#include "letheon/common/workers.hpp"
#include "letheon/index/index.hpp"

namespace letheon::index {

std::int64_t Index::key_of(std::int64_t product, std::int64_t norm) const noexcept {
  return spec_.metric == Metric::l2 ? norm - 2 * product : -product;
}

double Index::distance_of(std::int64_t key, const Query& query) const noexcept {
  if (spec_.metric == Metric::l2) {
    return std::sqrt(static_cast<double>(key + query.norm)) * spec_.step;
  }
  const double product = -static_cast<double>(key) * spec_.step * query.unit;
  // Lengths on the grid differ a little from 1, so that the product may exceed 1.
  return spec_.metric == Metric::cosine ? std::max(0.0, 1.0 - product) : -product;
}

Index::RankedCells Index::rank_cells(const Query& query, std::size_t n_probe) const {
  const std::size_t n = pivots_.slots.size();
  RankedCells ranked(n);
  std::int64_t products[kLanes];
  for (std::size_t first = 0; first < n; first += kLanes) {
    multiply_(place_in(pivots_.chunks, first), query.words.data(), spec_.n_words(), products);
    for (std::size_t p = first; p < std::min(first + kLanes, n); ++p) {
      const std::int64_t product = products[p - first] - query.correction;
      ranked[p] = {key_of(product, pivots_.norms[p]), static_cast<std::uint32_t>(p)};
    }
  }
  if (n_probe < n) {
    const auto middle = ranked.begin() + static_cast<std::ptrdiff_t>(n_probe);
    std::ranges::nth_element(ranked, middle, [this](const auto& a, const auto& b) {
      return a.first != b.first
                 ? a.first < b.first
                 : is_before(pivots_.slots[a.second], pivots_.slots[b.second]);
    });
  }
  return ranked;
}

void Index::scan_cell(const Cell& cell, const Query& query, std::span<const std::uint8_t> allowed,
                      std::size_t k, std::vector<Hit>& best) const {
  const auto is_better = [this](const Hit& a, const Hit& b) {
    return a.key != b.key ? a.key < b.key : is_before(a.slot, b.slot);
  };
  std::int64_t products[kLanes];
  for_chunks(cell, [&](std::size_t first, std::size_t n) {
    multiply_(place_in(chunks_, first), query.words.data(), spec_.n_words(), products);
    for (std::size_t i = 0; i < n; ++i) {
      const Hit hit{key_of(products[i] - query.correction, norm_at_[first + i]),
                    slot_at_[first + i]};
      if (!allowed.empty() && allowed[hit.slot] == 0) {
        continue;
      }
      if (best.size() == k) {
        if (hit.key > best.front().key || !is_better(hit, best.front())) {
          continue;
        }
        std::ranges::pop_heap(best, is_better);
        best.pop_back();
      }
      best.push_back(hit);
      std::ranges::push_heap(best, is_better);
    }
  });
}

std::size_t Index::find_nearest(const Query& query, const QueryPlan& plan,
                                std::span<const std::uint8_t> allowed,
                                std::vector<Hit>& best) const {
  RankedCells ranked = rank_cells(query, plan.n_probe);
  const std::size_t n_probe = std::min(plan.n_probe, ranked.size());
  std::size_t n_scanned = ranked.size();
  best.clear();
  for (std::size_t i = 0; i < ranked.size() && (i < n_probe || best.size() < plan.k); ++i) {
    if (i == n_probe) {
      // Too few rows: further cells, the nearest first.
      std::sort(ranked.begin() + static_cast<std::ptrdiff_t>(i), ranked.end(),
                [this](const auto& a, const auto& b) {
                  return a.first != b.first
                             ? a.first < b.first
                             : is_before(pivots_.slots[a.second], pivots_.slots[b.second]);
                });
    }
    const Cell& cell = cells_[ranked[i].second];
    scan_cell(cell, query, allowed, plan.k, best);
    n_scanned += cell.size;
  }
  std::ranges::sort(best, [this](const Hit& a, const Hit& b) {
    return a.key != b.key ? a.key < b.key : is_before(a.slot, b.slot);
  });
  return n_scanned;
}

Hits Index::query(const MatrixView& X, const QueryPlan& plan) const {
  X.validate();
  if (X.n_columns != spec_.n_columns || X.is_sparse() || plan.k == 0 || plan.n_probe == 0) {
    throw std::invalid_argument("X has other columns, or k or n_probe is 0");
  }
  const auto lock = gate_.reading();
  std::vector<std::uint8_t> allowed;
  if (!plan.allowed.empty()) {
    if (plan.allowed.size() != n_rows_) {
      throw std::invalid_argument("the mask needs one entry for each row");
    }
    allowed.resize(alive_.size());
    for (std::size_t i = 0; i < n_rows_; ++i) {
      allowed[order()[i]] = plan.allowed[i];
    }
  }
  const std::size_t n = X.n_rows * plan.k;
  Hits hits;
  hits.distances.assign(n, HUGE_VAL);
  std::vector<Slot> slots(n, kNone);
  std::atomic<std::uint64_t> n_scanned = 0;
  run_tasks(X.n_rows, plan.n_threads, [&](std::size_t, std::size_t i) {
    Query query;
    std::vector<Hit> best;
    make_query(X, i, Origin::query, query);
    n_scanned += find_nearest(query, plan, allowed, best);
    for (std::size_t j = 0; j < best.size(); ++j) {
      hits.distances[i * plan.k + j] = distance_of(best[j].key, query);
      slots[i * plan.k + j] = best[j].slot;
    }
  });
  hits.n_scanned = n_scanned;
  hits.numbers.reserve(n);
  for (const Slot slot : slots) {
    hits.numbers.push_back(slot == kNone ? -1 : std::int64_t{numbers_[slot]});
    if (!target_.empty()) {
      hits.target.push_back(slot == kNone ? 0.0 : target_[slot]);
    }
  }
  hits.ids = view_of(slots);
  return hits;
}

const std::vector<Slot>& Index::order() const {
  const std::scoped_lock lock(order_mutex_);
  if (order_.size() != n_rows_) {
    order_.clear();
    for (Slot slot = 0; slot < alive_.size(); ++slot) {
      if (alive_[slot] != 0) {
        order_.push_back(slot);
      }
    }
    std::ranges::sort(order_, [this](Slot a, Slot b) {
      const int order = ids_.compare(a, b);
      return order != 0 ? order < 0 : numbers_[a] < numbers_[b];
    });
  }
  return order_;
}

RowsView Index::view_of(std::span<const Slot> slots) const {
  RowsView view;
  view.is_text = ids_.is_text();
  view.offsets.assign(view.is_text ? 1 : 0, 0);
  for (const Slot slot : slots) {
    if (!view.is_text) {
      view.ints.push_back(slot == kNone ? 0 : ids_.int_at(slot));
      continue;
    }
    if (slot != kNone) {
      const std::string& text = ids_.text_at(slot);
      view.blob.insert(view.blob.end(), text.begin(), text.end());
    }
    view.offsets.push_back(static_cast<std::int64_t>(view.blob.size()));
  }
  return view;
}

Found Index::find(const IdBatch& wanted) const {
  const auto lock = gate_.reading();
  return ids_.find(wanted);
}

RowsView Index::ids() const {
  const auto lock = gate_.reading();
  return view_of(order());
}

IndexRows Index::rows() const {
  const auto lock = gate_.reading();
  std::vector<Slot> by_hash = pivots_.slots;
  std::ranges::sort(by_hash, [this](Slot a, Slot b) { return is_before(a, b); });
  std::vector<std::uint32_t> rank(by_hash.size());
  for (std::size_t i = 0; i < by_hash.size(); ++i) {
    rank[pivot_of_[by_hash[i]]] = static_cast<std::uint32_t>(i);
  }
  IndexRows rows;
  rows.ids = view_of(order());
  Query row;
  for (const Slot slot : order()) {
    rows.cells.push_back(rank[cell_[slot]]);
    if (!target_.empty()) {
      rows.target.push_back(target_[slot]);
    }
    if (spec_.keeps_rows) {
      rows.X.insert(rows.X.end(), float_row(slot), float_row(slot) + spec_.n_columns);
      continue;
    }
    read_row(row_at(slot), row);
    for (std::size_t c = 0; c < spec_.n_columns; ++c) {
      rows.grid.push_back(static_cast<std::int16_t>(row.value(spec_.kind, c)));
    }
  }
  return rows;
}

LeavingRows Index::copy_rows(std::span<const Slot> slots) const {
  const auto lock = gate_.reading();
  require_held(slots);
  LeavingRows rows;
  for (const Slot slot : slots) {
    if (spec_.keeps_rows) {
      rows.X.insert(rows.X.end(), float_row(slot), float_row(slot) + spec_.n_columns);
    }
    if (!target_.empty()) {
      rows.target.push_back(target_[slot]);
    }
  }
  return rows;
}

std::size_t Index::n_rows() const {
  const auto lock = gate_.reading();
  return n_rows_;
}

std::size_t Index::n_pivots() const {
  const auto lock = gate_.reading();
  return pivots_.slots.size();
}

}  // namespace letheon::index
