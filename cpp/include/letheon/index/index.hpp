// The rows of a vector index, in cells around keyed pivots. See src/letheon/definitions/vector-index.md.
//
// Everything is a function of the settings and the rows with their ids: after any sequence of changes
// the pivots, the cells and all answers are those of an index built from the rows that are left.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "letheon/common/gate.hpp"
#include "letheon/common/id_table.hpp"
#include "letheon/common/row_views.hpp"
#include "letheon/common/table.hpp"
#include "letheon/index/kernels.hpp"
#include "letheon/index/slab.hpp"

namespace letheon::index {

enum class Metric : std::uint8_t { l2, cosine, inner_product };

struct Spec {
  std::uint32_t n_columns = 0;
  Kind kind = Kind::int8;
  Metric metric = Metric::cosine;
  double step = 1.0;        // distance of two values of the grid
  bool keeps_rows = false;  // rows are also held as floats
  std::string path{};       // file of the cells; empty: memory

  // Throws std::invalid_argument.
  void validate() const;
  [[nodiscard]] std::size_t n_words() const noexcept {
    const std::size_t values = kind == Kind::int8 ? 4 : 2;
    return (n_columns + values - 1) / values;
  }
};

// A row as the kernels read a query: signed words, and what belongs to them. Wiped at the end.
struct Query {
  std::vector<std::uint8_t> words;
  std::int64_t correction = 0;  // 128 * sum of the values for int8, since rows are held as value + 128
  std::int64_t norm = 0;        // sum of squares
  double unit = 1.0;            // distance of two values on the grid of this row

  Query() = default;
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;
  ~Query();

  [[nodiscard]] int value(Kind kind, std::size_t column) const noexcept;
  void set_value(Kind kind, std::size_t column, int value) noexcept;
};

struct RowsToAdd {
  MatrixView X;
  bool is_grid = false;                   // X is on the grid already: whole numbers
  std::span<const std::uint64_t> owners;  // keyed hash of each row's id
  std::span<const double> target;         // empty, or one per row
};

struct ChangeReport {
  std::size_t n_pivots = 0;  // pivots that are new
  std::size_t n_moved = 0;   // rows that were held before and are now in another cell
};

struct QueryPlan {
  std::size_t k = 1;
  std::size_t n_probe = 1;
  std::span<const std::uint8_t> allowed;  // one per row in canonical order; empty: all
  std::size_t n_threads = 1;
};

// The nearest rows of each query, k each; number -1 where there are fewer.
struct Hits {
  std::vector<double> distances;
  std::vector<std::int64_t> numbers;
  std::vector<double> target;
  RowsView ids;
  std::uint64_t n_scanned = 0;  // rows whose distance was computed, pivots counted
};

// All rows by (id, number).
struct IndexRows {
  std::vector<float> X;            // the floats, if they are kept
  std::vector<std::int16_t> grid;  // otherwise the values of the grid
  RowsView ids;
  std::vector<double> target;
  std::vector<std::uint32_t> cells;  // rank of the row's pivot by hash
};

// Floats (if they are kept) and targets of some rows.
struct LeavingRows {
  std::vector<float> X;
  std::vector<double> target;
};

class Index {
 public:
  Index(Spec spec, Key id_key);

  // Adds rows. There will be `n_pivots` pivots, or as many as rows. Throws std::invalid_argument and
  // has changed nothing then.
  ChangeReport add(const RowsToAdd& rows, const IdBatch& ids, std::size_t n_pivots,
                   std::size_t n_threads);
  // Removes the rows at these slots and wipes their bytes.
  ChangeReport forget(std::span<const Slot> slots, std::size_t n_pivots, std::size_t n_threads);

  [[nodiscard]] Hits query(const MatrixView& X, const QueryPlan& plan) const;
  [[nodiscard]] Found find(const IdBatch& wanted) const;
  [[nodiscard]] RowsView ids() const;
  [[nodiscard]] IndexRows rows() const;
  [[nodiscard]] LeavingRows copy_rows(std::span<const Slot> slots) const;

  [[nodiscard]] const Spec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::size_t n_rows() const;
  [[nodiscard]] std::size_t n_pivots() const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  // The pivots, with a copy of their rows in chunks.
  struct Pivots {
    std::vector<Slot> slots;
    std::vector<std::int64_t> norms;
    Slab chunks;
  };
  // The rows of a cell: a list of chunks, all full except the first.
  struct Cell {
    std::uint32_t head = kNone;
    std::uint32_t size = 0;
  };
  struct Nearest {
    std::uint32_t pivot = kNone;
    std::int64_t distance = 0;
  };
  struct Move {
    Slot slot;
    Nearest to;
    std::int64_t norm;
  };
  // A change of pivots and cells, computed aside.
  struct Plan {
    bool has_pivots = false;
    Pivots pivots;
    std::vector<std::uint8_t> is_new;  // by pivot
    std::vector<Move> moves;
    ChangeReport report;
  };
  struct Hit {
    std::int64_t key;
    Slot slot;
  };

  // What a row is read for: to be held, to be searched for, or to be held as it is on the grid.
  enum class Origin : std::uint8_t { row, query, grid };

  [[nodiscard]] bool is_before(Slot a, Slot b) const noexcept;
  [[nodiscard]] bool is_nearer(const Nearest& a, const Nearest& b,
                               const Pivots& pivots) const noexcept;

  // Rows and their bytes.
  [[nodiscard]] std::uint8_t* place_in(const Slab& slab, std::size_t place) const noexcept;
  [[nodiscard]] std::uint8_t* row_at(Slot slot) const noexcept;
  [[nodiscard]] float* float_row(Slot slot) const noexcept {
    return reinterpret_cast<float*>(floats_.data()) + std::size_t{slot} * spec_.n_columns;
  }
  void make_query(const MatrixView& X, std::size_t row, Origin origin, Query& query) const;
  void finish_query(Query& query) const noexcept;
  void read_row(const std::uint8_t* place, Query& row) const;
  void write_row(const Query& row, std::uint8_t* place) const noexcept;
  void copy_row(const std::uint8_t* from, std::uint8_t* to) const noexcept;

  // Changes.
  void drop_holes();
  void forget_order() noexcept;
  void append(const RowsToAdd& rows, const IdBatch& ids, std::size_t n_threads);
  void take_back(std::size_t n_slots) noexcept;
  void number_rows(const IdBatch& ids, std::span<const std::uint64_t> owners, std::size_t first);
  [[nodiscard]] std::vector<Slot> choose_pivots(std::size_t n_pivots, std::size_t first) const;
  [[nodiscard]] Pivots copy_pivots(std::vector<Slot> slots) const;
  [[nodiscard]] Nearest search(const Query& row, const Pivots& pivots) const;
  [[nodiscard]] Plan plan_change(std::vector<Slot> wanted, std::size_t first,
                                 std::size_t n_threads) const;
  // Adds the rows of a chunk of `cell` that are nearer to one of the `fresh` pivots to `moves`.
  void find_moves(std::uint32_t cell, std::size_t first, std::size_t n,
                  const std::vector<Query>& fresh, std::span<const std::uint32_t> numbers,
                  const Pivots& pivots, std::vector<Move>& moves) const;
  // Calls visit(first place, number of rows) for each chunk of a cell.
  template <typename Visit>
  void for_chunks(const Cell& cell, Visit visit) const {
    std::size_t left = cell.size;
    for (std::uint32_t chunk = cell.head; left > 0; chunk = next_chunk_[chunk]) {
      const std::size_t n = (left - 1) % kLanes + 1;
      visit(chunk * kLanes, n);
      left -= n;
    }
  }
  void make_room(const Plan& plan);
  void commit(Plan& plan) noexcept;
  void put_in_cell(const Move& move) noexcept;
  void take_from_cell(std::uint32_t number, std::size_t place) noexcept;
  void require_held(std::span<const Slot> slots) const;

  // Queries.
  using RankedCells = std::vector<std::pair<std::int64_t, std::uint32_t>>;
  [[nodiscard]] std::int64_t key_of(std::int64_t product, std::int64_t norm) const noexcept;
  [[nodiscard]] double distance_of(std::int64_t key, const Query& query) const noexcept;
  [[nodiscard]] RankedCells rank_cells(const Query& query, std::size_t n_probe) const;
  void scan_cell(const Cell& cell, const Query& query, std::span<const std::uint8_t> allowed,
                 std::size_t k, std::vector<Hit>& best) const;
  // Fills `best` in order; returns how many rows were scanned.
  std::size_t find_nearest(const Query& query, const QueryPlan& plan,
                           std::span<const std::uint8_t> allowed, std::vector<Hit>& best) const;
  [[nodiscard]] const std::vector<Slot>& order() const;
  [[nodiscard]] RowsView view_of(std::span<const Slot> slots) const;

  Spec spec_;
  Multiply multiply_;
  IdTable ids_;
  std::size_t n_rows_ = 0;

  // By slot.
  std::vector<std::uint8_t> alive_;
  std::vector<std::uint8_t> doomed_;  // marks during a change, zeros otherwise
  std::vector<std::uint64_t> hashes_;
  std::vector<std::uint32_t> numbers_;
  std::vector<double> target_;
  std::vector<std::uint32_t> pivot_of_;  // number of the pivot that the slot is, or kNone
  std::vector<std::uint32_t> cell_;
  std::vector<std::uint32_t> place_;
  std::vector<std::int64_t> distance_;  // to the pivot of the cell, squared
  Slab floats_;

  // By place: 16 in each chunk.
  Slab chunks_;
  std::vector<Slot> slot_at_;
  std::vector<std::int64_t> norm_at_;
  std::vector<std::uint32_t> next_chunk_;
  std::uint32_t free_chunk_ = kNone;
  Slab staged_;  // new rows until they are in a cell

  Pivots pivots_;
  std::vector<Cell> cells_;

  mutable std::mutex order_mutex_;
  mutable std::vector<Slot> order_;
  ModelGate gate_;
};

}  // namespace letheon::index
