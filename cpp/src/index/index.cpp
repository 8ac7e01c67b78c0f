#include "letheon/index/index.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "letheon/common/workers.hpp"

namespace letheon::index {

namespace {

// Rows that one task of a pass handles.
constexpr std::size_t kBlock = 256;
constexpr std::size_t kMaxRows = 1u << 31;

// Calls task(begin, end) for blocks of begin .. end - 1.
template <typename Task>
void for_blocks(std::size_t begin, std::size_t end, std::size_t n_threads, Task task) {
  const std::size_t n = end - begin;
  run_tasks((n + kBlock - 1) / kBlock, n_threads, [&](std::size_t, std::size_t block) {
    task(block, begin + block * kBlock, std::min(begin + (block + 1) * kBlock, end));
  });
}

template <typename T>
void keep_only(std::vector<T>& values, std::span<const Slot> slots) noexcept {
  for (std::size_t i = 0; i < slots.size() && !values.empty(); ++i) {
    values[i] = values[slots[i]];
  }
  std::fill(values.begin() + static_cast<std::ptrdiff_t>(std::min(slots.size(), values.size())),
            values.end(), T{});
  values.resize(std::min(slots.size(), values.size()));
}

}  // namespace

void Spec::validate() const {
  if (n_columns == 0 || n_columns > kMaxColumns) {
    throw std::invalid_argument("an index needs 1 to 65535 columns");
  }
  if (!(std::isfinite(step) && step > 0.0)) {
    throw std::invalid_argument("the step of the grid must be a positive number");
  }
}

int Query::value(Kind kind, std::size_t column) const noexcept {
  if (kind == Kind::int8) {
    return static_cast<std::int8_t>(words[column]);
  }
  std::int16_t value;
  std::memcpy(&value, words.data() + 2 * column, 2);
  return value;
}

void Query::set_value(Kind kind, std::size_t column, int value) noexcept {
  if (kind == Kind::int8) {
    words[column] = static_cast<std::uint8_t>(value);
    return;
  }
  const auto narrow = static_cast<std::int16_t>(value);
  std::memcpy(words.data() + 2 * column, &narrow, 2);
}

Query::~Query() {
  // What was read here must not stay in the heap.
  volatile std::uint8_t* bytes = words.data();
  for (std::size_t i = 0; i < words.size(); ++i) {
    bytes[i] = 0;
  }
}

Index::Index(Spec spec, Key id_key)
    : spec_(std::move(spec)), multiply_(choose_kernel(spec_.kind)), ids_(id_key) {
  spec_.validate();
  chunks_ = Slab(spec_.path);
}

bool Index::is_before(Slot a, Slot b) const noexcept {
  if (hashes_[a] != hashes_[b]) {
    return hashes_[a] < hashes_[b];
  }
  const int order = ids_.compare(a, b);
  return order != 0 ? order < 0 : numbers_[a] < numbers_[b];
}

bool Index::is_nearer(const Nearest& a, const Nearest& b, const Pivots& pivots) const noexcept {
  if (a.distance != b.distance) {
    return a.distance < b.distance;
  }
  return is_before(pivots.slots[a.pivot], pivots.slots[b.pivot]);
}

std::uint8_t* Index::place_in(const Slab& slab, std::size_t place) const noexcept {
  return slab.data() + place / kLanes * spec_.n_words() * kStride + place % kLanes * kWordBytes;
}

std::uint8_t* Index::row_at(Slot slot) const noexcept {
  return place_in(cell_[slot] == kNone ? staged_ : chunks_, place_[slot]);
}

void Index::finish_query(Query& query) const noexcept {
  query.correction = 0;
  query.norm = 0;
  for (std::size_t c = 0; c < spec_.n_columns; ++c) {
    const std::int64_t value = query.value(spec_.kind, c);
    query.correction += spec_.kind == Kind::int8 ? 128 * value : 0;
    query.norm += value * value;
  }
}

void Index::read_row(const std::uint8_t* place, Query& row) const {
  row.words.resize(spec_.n_words() * kWordBytes);
  for (std::size_t k = 0; k < row.words.size(); ++k) {
    const std::uint8_t byte = place[k / kWordBytes * kStride + k % kWordBytes];
    row.words[k] = spec_.kind == Kind::int8 ? byte ^ 0x80u : byte;
  }
  finish_query(row);
}

void Index::write_row(const Query& row, std::uint8_t* place) const noexcept {
  for (std::size_t k = 0; k < row.words.size(); ++k) {
    const std::uint8_t byte = row.words[k];
    place[k / kWordBytes * kStride + k % kWordBytes] =
        spec_.kind == Kind::int8 ? byte ^ 0x80u : byte;
  }
}

void Index::copy_row(const std::uint8_t* from, std::uint8_t* to) const noexcept {
  for (std::size_t g = 0; g < spec_.n_words(); ++g) {
    std::copy_n(from + g * kStride, kWordBytes, to + g * kStride);
  }
}

void Index::make_query(const MatrixView& X, std::size_t row, Origin origin, Query& query) const {
  double squares = 0.0;
  double largest = 0.0;
  for (std::size_t c = 0; c < spec_.n_columns; ++c) {
    const double x = X.at(row, c);
    if (!std::isfinite(x)) {
      throw std::invalid_argument("X contains NaN or infinity");
    }
    squares += x * x;
    largest = std::max(largest, std::fabs(x));
  }
  const int limit = grid_limit(spec_.kind);
  query.unit = origin == Origin::grid ? 1.0 : spec_.step;
  if (origin == Origin::query && spec_.metric == Metric::inner_product && largest > 0.0) {
    // The length of a query changes no order, so it has a grid of its own.
    int exponent = 0;
    static_cast<void>(std::frexp(largest, &exponent));
    query.unit = std::ldexp(1.0, exponent - (spec_.kind == Kind::int8 ? 7 : 11));
  }
  double divisor = query.unit;
  if (origin != Origin::grid && spec_.metric == Metric::cosine && squares > 0.0) {
    divisor *= std::sqrt(squares);
  }
  query.words.assign(spec_.n_words() * kWordBytes, 0);
  for (std::size_t c = 0; c < spec_.n_columns; ++c) {
    const double x = X.at(row, c) / divisor;
    const double rounded = std::clamp(std::nearbyint(x), -double{1} * limit, double{1} * limit);
    if (origin == Origin::grid && rounded != x) {
      throw std::invalid_argument("a value of X is not on the grid");
    }
    query.set_value(spec_.kind, c, static_cast<int>(rounded));
  }
  finish_query(query);
}

// Changes -----------------------------------------------------------------------------------------

void Index::drop_holes() {
  if (n_rows_ == alive_.size()) {
    return;
  }
  std::vector<Slot> slots;
  std::vector<Slot> new_slot(alive_.size(), kNone);
  for (Slot slot = 0; slot < alive_.size(); ++slot) {
    if (alive_[slot] != 0) {
      new_slot[slot] = static_cast<Slot>(slots.size());
      slots.push_back(slot);
    }
  }
  ids_ = ids_.kept(slots);
  // Nothing below fails.
  const std::size_t width = spec_.n_columns * sizeof(float);
  for (std::size_t i = 0; i < slots.size() && spec_.keeps_rows; ++i) {
    std::copy_n(floats_.data() + slots[i] * width, width, floats_.data() + i * width);
  }
  if (spec_.keeps_rows) {
    std::fill(floats_.data() + slots.size() * width, floats_.data() + alive_.size() * width, 0);
  }
  keep_only(alive_, slots);
  doomed_.resize(slots.size());
  keep_only(hashes_, slots);
  keep_only(numbers_, slots);
  keep_only(target_, slots);
  keep_only(pivot_of_, slots);
  keep_only(cell_, slots);
  keep_only(place_, slots);
  keep_only(distance_, slots);
  for (Slot& slot : pivots_.slots) {
    slot = new_slot[slot];
  }
  for (Slot& slot : slot_at_) {
    slot = slot == kNone ? kNone : new_slot[slot];
  }
  forget_order();
}

void Index::forget_order() noexcept {
  const std::scoped_lock lock(order_mutex_);
  order_.clear();
}

void Index::number_rows(const IdBatch& ids, std::span<const std::uint64_t> owners,
                        std::size_t first) {
  std::vector<std::size_t> rows(owners.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  const auto slot_of = [&](std::size_t i) { return static_cast<Slot>(first + i); };
  std::ranges::sort(rows, [&](std::size_t a, std::size_t b) {
    if (owners[a] != owners[b]) {
      return owners[a] < owners[b];
    }
    const int order = ids_.compare(slot_of(a), slot_of(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = rows[i];
    if (i == 0 || ids_.compare(slot_of(rows[i - 1]), slot_of(row)) != 0) {
      IdBatch one = ids;
      if (ids.is_text) {
        one.offsets = ids.offsets.subspan(row, 2);
      } else {
        one.ints = ids.ints.subspan(row, 1);
      }
      const std::vector<Slot> slots = first == 0 ? std::vector<Slot>{} : ids_.find(one).slots;
      const auto is_old = [&](Slot slot) { return slot < first; };
      number = static_cast<std::uint32_t>(std::ranges::count_if(slots, is_old));
    }
    numbers_[first + row] = number;
    hashes_[first + row] = mix64(owners[row], number);
    ++number;
  }
}

void Index::append(const RowsToAdd& rows, const IdBatch& ids, std::size_t n_threads) {
  const std::size_t first = alive_.size();
  const std::size_t n = rows.X.n_rows;
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  ids_.append(ids, all);
  alive_.resize(first + n, 1);
  doomed_.resize(first + n);
  hashes_.resize(first + n);
  numbers_.resize(first + n);
  if (!rows.target.empty()) {
    target_.insert(target_.end(), rows.target.begin(), rows.target.end());
  }
  pivot_of_.resize(first + n, kNone);
  cell_.resize(first + n, kNone);
  place_.resize(first + n);
  distance_.resize(first + n);
  number_rows(ids, rows.owners, first);
  staged_.grow((n + kLanes - 1) / kLanes * spec_.n_words() * kStride);
  if (spec_.keeps_rows) {
    const std::size_t size = (first + n) * spec_.n_columns * sizeof(float);
    if (size > floats_.size()) {
      floats_.grow(first == 0 ? size : size + size / 8);
    }
  }
  for_blocks(0, n, n_threads, [&](std::size_t, std::size_t begin, std::size_t end) {
    Query query;
    for (std::size_t i = begin; i < end; ++i) {
      make_query(rows.X, i, rows.is_grid ? Origin::grid : Origin::row, query);
      write_row(query, place_in(staged_, i));
      place_[first + i] = static_cast<std::uint32_t>(i);
      for (std::size_t c = 0; c < spec_.n_columns && spec_.keeps_rows; ++c) {
        float_row(static_cast<Slot>(first + i))[c] = rows.X.at(i, c);
      }
    }
  });
}

void Index::take_back(std::size_t n_slots) noexcept {
  if (spec_.keeps_rows && n_slots < alive_.size() && floats_.data() != nullptr) {
    std::fill(floats_.data() + n_slots * spec_.n_columns * sizeof(float),
              floats_.data() + floats_.size(), 0);
  }
  ids_.truncate(n_slots);
  alive_.resize(std::min(n_slots, alive_.size()));
  doomed_.resize(std::min(n_slots, doomed_.size()));
  hashes_.resize(std::min(n_slots, hashes_.size()));
  numbers_.resize(std::min(n_slots, numbers_.size()));
  target_.resize(std::min(n_slots, target_.size()));
  pivot_of_.resize(std::min(n_slots, pivot_of_.size()));
  cell_.resize(std::min(n_slots, cell_.size()));
  place_.resize(std::min(n_slots, place_.size()));
  distance_.resize(std::min(n_slots, distance_.size()));
  staged_ = Slab();
}

std::vector<Slot> Index::choose_pivots(std::size_t n_pivots, std::size_t first) const {
  std::vector<Slot> slots;
  const auto is_doomed = [&](Slot slot) { return doomed_[slot] != 0; };
  const bool is_complete = pivots_.slots.size() == first || n_pivots <= pivots_.slots.size();
  if (is_complete && std::ranges::none_of(pivots_.slots, is_doomed)) {
    slots = pivots_.slots;
    for (std::size_t slot = first; slot < alive_.size(); ++slot) {
      slots.push_back(static_cast<Slot>(slot));
    }
  } else {
    for (Slot slot = 0; slot < alive_.size(); ++slot) {
      if (alive_[slot] != 0 && doomed_[slot] == 0) {
        slots.push_back(slot);
      }
    }
  }
  if (n_pivots < slots.size()) {
    const auto middle = slots.begin() + static_cast<std::ptrdiff_t>(n_pivots);
    std::ranges::nth_element(slots, middle,
                             [this](Slot a, Slot b) { return is_before(a, b); });
    slots.resize(n_pivots);
  }
  return slots;
}

Index::Pivots Index::copy_pivots(std::vector<Slot> slots) const {
  Pivots pivots;
  pivots.slots = std::move(slots);
  const std::size_t n = pivots.slots.size();
  pivots.chunks.grow((n + kLanes - 1) / kLanes * spec_.n_words() * kStride);
  Query row;
  for (std::size_t p = 0; p < n; ++p) {
    const Slot slot = pivots.slots[p];
    copy_row(row_at(slot), place_in(pivots.chunks, p));
    if (cell_[slot] == kNone) {
      read_row(row_at(slot), row);
    }
    pivots.norms.push_back(cell_[slot] == kNone ? row.norm : norm_at_[place_[slot]]);
  }
  return pivots;
}

Index::Nearest Index::search(const Query& row, const Pivots& pivots) const {
  Nearest best;
  std::int64_t products[kLanes];
  const std::size_t n = pivots.slots.size();
  for (std::size_t first = 0; first < n; first += kLanes) {
    multiply_(place_in(pivots.chunks, first), row.words.data(), spec_.n_words(), products);
    for (std::size_t p = first; p < std::min(first + kLanes, n); ++p) {
      const std::int64_t product = products[p - first] - row.correction;
      const Nearest other{static_cast<std::uint32_t>(p),
                          pivots.norms[p] - 2 * product + row.norm};
      if (best.pivot == kNone ||
          (other.distance <= best.distance && is_nearer(other, best, pivots))) {
        best = other;
      }
    }
  }
  return best;
}

void Index::find_moves(std::uint32_t cell, std::size_t first, std::size_t n,
                       const std::vector<Query>& fresh, std::span<const std::uint32_t> numbers,
                       const Pivots& pivots, std::vector<Move>& moves) const {
  Nearest best[kLanes];
  std::int64_t products[kLanes];
  for (std::size_t i = 0; i < n; ++i) {
    best[i] = {cell, distance_[slot_at_[first + i]]};
  }
  for (std::size_t j = 0; j < fresh.size(); ++j) {
    multiply_(place_in(chunks_, first), fresh[j].words.data(), spec_.n_words(), products);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t product = products[i] - fresh[j].correction;
      const Nearest other{numbers[j], norm_at_[first + i] - 2 * product + fresh[j].norm};
      if (other.distance <= best[i].distance && is_nearer(other, best[i], pivots)) {
        best[i] = other;
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Slot slot = slot_at_[first + i];
    if (best[i].pivot != cell && doomed_[slot] == 0) {
      moves.push_back({slot, best[i], norm_at_[first + i]});
    }
  }
}

Index::Plan Index::plan_change(std::vector<Slot> wanted, std::size_t first,
                               std::size_t n_threads) const {
  Plan plan;
  const std::size_t n_pivots = wanted.size();
  std::vector<Slot> slots(n_pivots, kNone);
  std::vector<Slot> added;
  for (const Slot slot : wanted) {
    const std::uint32_t number = pivot_of_[slot];
    if (number != kNone && number < n_pivots) {
      slots[number] = slot;
    } else {
      added.push_back(slot);
    }
  }
  plan.has_pivots = !added.empty() || n_pivots != pivots_.slots.size();
  plan.is_new.assign(n_pivots, 0);
  std::vector<std::uint32_t> numbers;  // of the added pivots
  for (std::size_t p = 0; p < n_pivots; ++p) {
    if (slots[p] == kNone) {
      plan.is_new[p] = 1;
      slots[p] = added[numbers.size()];
      numbers.push_back(static_cast<std::uint32_t>(p));
    }
  }
  if (plan.has_pivots) {
    plan.pivots = copy_pivots(std::move(slots));
  }
  plan.report.n_pivots = numbers.size();
  const Pivots& pivots = plan.has_pivots ? plan.pivots : pivots_;
  std::vector<Query> fresh(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    read_row(place_in(pivots.chunks, numbers[i]), fresh[i]);
  }

  const auto search_all = [&](Slot slot, Query& row, std::vector<Move>& moves) {
    read_row(row_at(slot), row);
    moves.push_back({slot, search(row, pivots), row.norm});
  };
  // A row whose pivot stays can only move to a new pivot; any other row may move to each of them.
  const auto visit_cell = [&](std::uint32_t cell, std::vector<Move>& moves) {
    const bool stays = cell < n_pivots && plan.is_new[cell] == 0;
    Query row;
    for_chunks(cells_[cell], [&](std::size_t first, std::size_t n) {
      if (stays) {
        find_moves(cell, first, n, fresh, numbers, pivots, moves);
        return;
      }
      for (std::size_t place = first; place < first + n; ++place) {
        if (doomed_[slot_at_[place]] == 0) {
          search_all(slot_at_[place], row, moves);
        }
      }
    });
  };
  const std::size_t n_cells = plan.has_pivots ? cells_.size() : 0;
  const std::size_t n_blocks = (alive_.size() - first + kBlock - 1) / kBlock;
  std::vector<std::vector<Move>> parts(n_cells + n_blocks);
  run_tasks(parts.size(), n_threads, [&](std::size_t, std::size_t task) {
    if (task < n_cells) {
      visit_cell(static_cast<std::uint32_t>(task), parts[task]);
      return;
    }
    const std::size_t begin = first + (task - n_cells) * kBlock;
    Query row;
    for (std::size_t slot = begin; slot < std::min(begin + kBlock, alive_.size()); ++slot) {
      search_all(static_cast<Slot>(slot), row, parts[task]);
    }
  });
  for (const std::vector<Move>& part : parts) {
    plan.moves.insert(plan.moves.end(), part.begin(), part.end());
  }
  const auto was_held = [&](const Move& move) { return cell_[move.slot] != kNone; };
  plan.report.n_moved = static_cast<std::size_t>(std::ranges::count_if(plan.moves, was_held));
  return plan;
}

void Index::make_room(const Plan& plan) {
  cells_.resize(std::max(cells_.size(), plan.is_new.size()));
  // Each cell has at most one chunk that is not full.
  const std::size_t needed = alive_.size() / kLanes + cells_.size() + 2;
  const std::size_t n_before = next_chunk_.size();
  if (needed <= n_before) {
    return;
  }
  const std::size_t n = n_before == 0 ? needed : needed + needed / 8;
  chunks_.grow(n * spec_.n_words() * kStride);
  slot_at_.resize(n * kLanes, kNone);
  norm_at_.resize(n * kLanes);
  next_chunk_.reserve(n);
  while (next_chunk_.size() < n) {
    next_chunk_.push_back(free_chunk_);
    free_chunk_ = static_cast<std::uint32_t>(next_chunk_.size() - 1);
  }
}

void Index::put_in_cell(const Move& move) noexcept {
  const auto& [slot, to, norm] = move;
  Cell& cell = cells_[to.pivot];
  if (cell.size % kLanes == 0) {
    const std::uint32_t chunk = free_chunk_;
    free_chunk_ = next_chunk_[chunk];
    next_chunk_[chunk] = cell.head;
    cell.head = chunk;
  }
  const std::size_t place = cell.head * kLanes + cell.size % kLanes;
  ++cell.size;
  copy_row(row_at(slot), place_in(chunks_, place));
  slot_at_[place] = slot;
  norm_at_[place] = norm;
  cell_[slot] = to.pivot;
  place_[slot] = static_cast<std::uint32_t>(place);
  distance_[slot] = to.distance;
}

void Index::take_from_cell(std::uint32_t number, std::size_t place) noexcept {
  Cell& cell = cells_[number];
  --cell.size;
  const std::size_t last = cell.head * kLanes + cell.size % kLanes;
  if (last != place) {
    copy_row(place_in(chunks_, last), place_in(chunks_, place));
    slot_at_[place] = slot_at_[last];
    norm_at_[place] = norm_at_[last];
    place_[slot_at_[place]] = static_cast<std::uint32_t>(place);
  }
  for (std::size_t g = 0; g < spec_.n_words(); ++g) {
    std::fill_n(place_in(chunks_, last) + g * kStride, kWordBytes, std::uint8_t{0});
  }
  slot_at_[last] = kNone;
  norm_at_[last] = 0;
  if (cell.size % kLanes == 0) {
    const std::uint32_t chunk = cell.head;
    cell.head = next_chunk_[chunk];
    next_chunk_[chunk] = free_chunk_;
    free_chunk_ = chunk;
  }
}

void Index::commit(Plan& plan) noexcept {
  if (plan.has_pivots) {
    for (const Slot slot : pivots_.slots) {
      pivot_of_[slot] = kNone;
    }
    std::swap(pivots_, plan.pivots);
    for (std::size_t p = 0; p < pivots_.slots.size(); ++p) {
      pivot_of_[pivots_.slots[p]] = static_cast<std::uint32_t>(p);
    }
  }
  for (const Move& move : plan.moves) {
    const std::uint32_t cell = cell_[move.slot];
    const std::size_t place = place_[move.slot];
    put_in_cell(move);
    if (cell != kNone) {
      take_from_cell(cell, place);
    }
  }
  forget_order();
}

ChangeReport Index::add(const RowsToAdd& rows, const IdBatch& ids, std::size_t n_pivots,
                        std::size_t n_threads) {
  ids.validate();
  rows.X.validate();
  const std::size_t n = rows.X.n_rows;
  if (rows.X.n_columns != spec_.n_columns || rows.X.is_sparse() || ids.size() != n ||
      rows.owners.size() != n || (!rows.target.empty() && rows.target.size() != n) ||
      n == 0 || n_pivots == 0) {
    throw std::invalid_argument("rows, ids, owners and target do not match");
  }
  const auto lock = gate_.changing();
  if (n_rows_ > 0 && rows.target.empty() != target_.empty()) {
    throw std::invalid_argument("either all rows have a target or none");
  }
  if (n >= kMaxRows - n_rows_) {
    throw std::invalid_argument("an index holds fewer than 2^31 rows");
  }
  drop_holes();
  const std::size_t first = alive_.size();
  ChangeReport report;
  try {
    append(rows, ids, n_threads);
    Plan plan = plan_change(choose_pivots(n_pivots, first), first, n_threads);
    make_room(plan);
    commit(plan);
    report = plan.report;
  } catch (...) {
    take_back(first);
    throw;
  }
  staged_ = Slab();
  n_rows_ += n;
  chunks_.sync();
  return report;
}

void Index::require_held(std::span<const Slot> slots) const {
  for (const Slot slot : slots) {
    if (slot >= alive_.size() || alive_[slot] == 0) {
      throw std::invalid_argument("a slot is not held");
    }
  }
}

ChangeReport Index::forget(std::span<const Slot> slots, std::size_t n_pivots,
                           std::size_t n_threads) {
  const auto lock = gate_.changing();
  require_held(slots);
  Plan plan;
  try {
    bool has_pivot = false;
    for (const Slot slot : slots) {
      if (doomed_[slot] != 0) {
        throw std::invalid_argument("a slot is given twice");
      }
      doomed_[slot] = 1;
      has_pivot |= pivot_of_[slot] != kNone;
    }
    const std::size_t n_wanted = std::min(n_pivots, n_rows_ - slots.size());
    if (has_pivot || n_wanted != pivots_.slots.size()) {
      plan = plan_change(choose_pivots(n_wanted, alive_.size()), alive_.size(), n_threads);
      make_room(plan);
    }
  } catch (...) {
    for (const Slot slot : slots) {
      doomed_[slot] = 0;
    }
    throw;
  }
  for (const Slot slot : slots) {
    take_from_cell(cell_[slot], place_[slot]);
  }
  commit(plan);
  ids_.erase(slots, doomed_);
  for (const Slot slot : slots) {
    alive_[slot] = doomed_[slot] = 0;
    hashes_[slot] = 0;
    numbers_[slot] = place_[slot] = 0;
    cell_[slot] = pivot_of_[slot] = kNone;
    distance_[slot] = 0;
    if (!target_.empty()) {
      target_[slot] = 0.0;
    }
    if (spec_.keeps_rows) {
      std::fill_n(float_row(slot), spec_.n_columns, 0.0f);
    }
  }
  n_rows_ -= slots.size();
  chunks_.sync();
  return plan.report;
}

}  // namespace letheon::index
