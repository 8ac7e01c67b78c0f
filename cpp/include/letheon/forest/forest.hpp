// The forest: rows, ids and trees behind one lock.
//
// Readers may run together; whatever changes the forest runs alone. A reader that meets an unbuilt
// node gives its lock back, has the node built, and starts again, so it sees one state only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "letheon/common/gate.hpp"
#include "letheon/common/id_table.hpp"
#include "letheon/common/progress.hpp"
#include "letheon/common/row_views.hpp"
#include "letheon/forest/inspect.hpp"
#include "letheon/forest/predict.hpp"
#include "letheon/forest/scan.hpp"
#include "letheon/forest/spec.hpp"
#include "letheon/common/table.hpp"
#include "letheon/forest/tree.hpp"

namespace letheon::forest {

struct Answer {
  std::size_t width = 0;
  std::vector<double> values;  // row-major
};

class Forest {
 public:
  explicit Forest(Spec spec, Key hash_key = {});

  // Starts from nothing. Throws std::invalid_argument and keeps what it held on bad input.
  void fit(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids, std::size_t n_threads);
  // The same with trees from `trees_bytes`, whose splits are taken and whose counts are checked.
  // The blocks follow in the order of the trees; one block may hold all of them.
  void restore(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids,
               std::span<const Bytes> blocks, std::size_t n_threads);
  Report learn(const Batch& batch, std::uint32_t n_classes, const IdBatch& ids, bool eager,
               std::size_t n_threads);

  // New weights of rows by class, as in Table::reweigh; all trees are regrown when needed.
  Report reweigh(std::span<const std::uint32_t> before, std::span<const std::uint32_t> after);

  [[nodiscard]] Found find(const IdBatch& wanted) const;
  // Slots must be held, ascending and distinct; std::invalid_argument otherwise.
  Report forget(std::span<const Slot> slots, bool eager, std::size_t n_threads);
  [[nodiscard]] Report forget_cost(std::span<const Slot> slots, std::size_t n_threads) const;
  Report settle(std::size_t n_threads);

  // Whether all rows except those in `without` have the same value in a column.
  [[nodiscard]] bool is_constant(std::uint32_t column, std::span<const Slot> without) const;
  // Makes this the forest of other columns: column j is the old column layout[j] with the same
  // key, or (-1) a new one that is fills[j] in all rows. Columns that are left out must be
  // constant. Throws std::invalid_argument and has changed nothing if the trees would change.
  void move_columns(std::span<const std::int64_t> layout, std::span<const std::uint32_t> keys,
                    std::span<const float> fills, std::uint32_t max_features);

  [[nodiscard]] Answer predict(const MatrixView& X, std::size_t n_threads);
  [[nodiscard]] std::vector<std::int64_t> apply(const MatrixView& X, std::size_t n_threads);

  // The rows at these slots, which must be held.
  [[nodiscard]] RowBlock copy_rows(std::span<const Slot> slots) const;
  // Rows in canonical order; the labels become places in `order` (as in trees_bytes).
  [[nodiscard]] RowsView rows(std::span<const std::uint32_t> order) const;
  // Ids of the rows, sorted.
  [[nodiscard]] RowsView ids() const;
  // Canonical bytes of the trees; `order` lists the class codes in the order of their labels.
  [[nodiscard]] std::vector<std::uint8_t> trees_bytes(std::span<const std::uint32_t> order,
                                                      std::size_t n_threads);
  [[nodiscard]] TreeView tree(std::size_t index);
  [[nodiscard]] std::vector<double> importances(std::size_t n_threads);
  [[nodiscard]] std::vector<std::int64_t> class_counts() const;

  [[nodiscard]] const Spec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::size_t n_rows() const;
  [[nodiscard]] std::size_t n_unbuilt() const;
  [[nodiscard]] std::size_t n_nodes() const;
  [[nodiscard]] std::size_t n_bytes() const;
  // Trees that `fit` has grown so far.
  [[nodiscard]] std::size_t n_done() const noexcept { return progress_.done(); }

 private:
  struct Content {
    Table table;
    IdTable ids;
    std::vector<Tree> trees;
  };

  [[nodiscard]] Content hold(const Batch& batch, std::uint32_t n_classes,
                             const IdBatch& ids) const;
  [[nodiscard]] std::vector<Slot> rows_of_tree(const Table& table, std::size_t t,
                                               std::span<const Slot> slots) const;
  [[nodiscard]] bool is_member(const Table& table, std::size_t t, Slot slot) const noexcept;
  // Numbers of the rows of a block that are in tree t.
  void choose_members(const RowBlock& block, std::size_t t,
                      std::vector<std::uint32_t>& members) const;
  void require_held(std::span<const Slot> slots) const;
  // The new number of every old column, or kNoColumn.
  [[nodiscard]] std::vector<std::uint32_t> new_numbers(std::span<const std::int64_t> layout,
                                                       const Spec& spec) const;
  void require_width(const MatrixView& X) const;
  void compact();
  [[nodiscard]] std::size_t n_rows_of_trees() const noexcept;
  void reset_trees() noexcept;
  [[nodiscard]] std::vector<Tree> fresh_trees() const;
  void settle_if_possible(std::size_t n_threads) noexcept;
  Report learn_slots(std::span<const Slot> slots, std::size_t n_threads);
  Report settle_locked(std::size_t n_threads);
  void build(const Missing& missing);
  [[nodiscard]] bool answer(const MatrixView& X, std::size_t n_threads, Answer& answer,
                            Missing& missing) const;
  template <typename Read>
  [[nodiscard]] auto settled(Read read, std::size_t n_threads);

  [[nodiscard]] auto reading() const { return gate_.reading(); }
  [[nodiscard]] auto changing() { return gate_.changing(); }

  Spec spec_;
  Key hash_key_;
  ModelGate gate_;
  Progress progress_;
  Content content_;
};

}  // namespace letheon::forest
