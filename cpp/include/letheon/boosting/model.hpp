// A boosted model: rows, ids and trees behind one lock.
//
// After a change, `stale` chains must be grown again, and the leaves of the rounds from `settled`
// on must be computed again; nothing that depends on them is read before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "letheon/boosting/codec.hpp"
#include "letheon/boosting/coder.hpp"
#include "letheon/boosting/frame.hpp"
#include "letheon/boosting/spec.hpp"
#include "letheon/boosting/tree.hpp"
#include "letheon/boosting/values.hpp"
#include "letheon/common/gate.hpp"
#include "letheon/common/id_table.hpp"
#include "letheon/common/progress.hpp"
#include "letheon/common/row_views.hpp"
#include "letheon/common/table.hpp"

namespace letheon::boosting {

// Scores of rows after each of some rounds, row-major: (row, output).
struct Scores {
  std::size_t n_outputs = 1;
  std::vector<double> values;
};

// How the sum of the steps of a row becomes a score: steps * 2^exponent + offset.
struct ScoreScale {
  std::vector<std::int32_t> base;  // steps of each output before the first tree
  int exponent = 0;
  double offset = 0.0;
};

// What people look at: one tree in preorder.
struct TreeView {
  std::vector<std::uint8_t> kind;  // 0 leaf, 1 threshold, 2 category
  std::vector<std::int64_t> attribute, left, right;  // -1: none
  std::vector<float> threshold;                      // NaN: none
  std::vector<std::uint8_t> missing_left;
  std::vector<double> hessian;  // sum over the rows
  std::vector<double> value;    // of leaves, in units of the score; 0 for splits
};

// The codes of labels: fewer than `n_codes`; those in use in the order of their labels.
struct ClassCodes {
  std::uint32_t n_codes = 0;
  std::span<const std::uint32_t> order{};
};

// Throws std::invalid_argument unless these can be the rows of a model.
void require_batch(const Spec& spec, const Batch& batch, const ClassCodes& classes,
                   const IdBatch& ids);

class Model {
 public:
  explicit Model(Spec spec, Key hash_key = {});

  // Throws std::invalid_argument and keeps what it held on bad input.
  void fit(const Batch& batch, const ClassCodes& classes, const IdBatch& ids,
           std::size_t n_threads);
  // The same with splits from `trees_bytes`; everything else in the bytes is checked.
  void restore(const Batch& batch, const ClassCodes& classes, const IdBatch& ids,
               Bytes trees, std::size_t n_threads);
  Report learn(const Batch& batch, const ClassCodes& classes, const IdBatch& ids, bool eager,
               std::size_t n_threads);

  [[nodiscard]] Found find(const IdBatch& wanted) const;
  // Slots must be held, ascending and distinct, and all rows of some people.
  Report forget(std::span<const Slot> slots, bool eager, std::size_t n_threads);
  // `reweighed`: the weights of classes change as well, so that all chains are stale.
  [[nodiscard]] Report forget_cost(std::span<const Slot> slots, bool reweighed = false);
  // New weights of rows by class, as in Table::reweigh; all chains and values are computed again.
  Report reweigh(std::span<const std::uint32_t> before, std::span<const std::uint32_t> after);
  void settle(std::size_t n_threads);

  // Scores after `n_rounds` rounds (at most all of them).
  [[nodiscard]] Scores predict(const MatrixView& X, std::uint32_t n_rounds,
                               std::size_t n_threads);
  [[nodiscard]] RowBlock copy_rows(std::span<const Slot> slots) const;
  [[nodiscard]] RowsView rows(std::span<const std::uint32_t> order) const;
  [[nodiscard]] RowsView ids() const;
  [[nodiscard]] std::vector<std::uint8_t> trees_bytes(std::size_t n_threads);
  [[nodiscard]] TreeView tree(std::size_t index);
  [[nodiscard]] ScoreScale scale();
  [[nodiscard]] std::vector<double> importances();
  [[nodiscard]] std::vector<std::int64_t> class_counts() const;

  [[nodiscard]] const Spec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::size_t n_rows() const;
  [[nodiscard]] bool is_settled() const;
  // Rounds that were grown, plus rounds whose leaf values were computed.
  [[nodiscard]] std::size_t n_done() const noexcept { return progress_.done(); }
  [[nodiscard]] std::size_t n_bytes() const;

 private:
  friend struct ModelProbe;  // tests look for traces of removed rows

  struct Content {
    Table table;
    IdTable ids;
    std::vector<std::uint8_t> doomed;  // all 0 between changes
    std::uint64_t n_people = 0;
    TargetSums sums;                   // regression only
    std::vector<std::uint32_t> order;
    std::vector<std::uint32_t> rank;   // of each class code, in frame.classes
    Frame frame;
    std::vector<std::int32_t> y;
    std::vector<Tree> trees;
    std::vector<Coder> coders;         // of each chain
    Codes codes;
    std::vector<std::vector<State>> checks;  // the first one is not used
    std::vector<std::uint8_t> stale;         // chains
    std::uint32_t settled = 0;               // rounds whose leaves are right

    [[nodiscard]] std::size_t n_bytes() const noexcept;
  };

  [[nodiscard]] Content hold(const Batch& batch, const ClassCodes& classes,
                             const IdBatch& ids, std::size_t n_threads) const;
  [[nodiscard]] ValueInput input_of(const Content& content) const noexcept;
  void start_over(Content& content, std::size_t n_threads = 1) const;
  void settle_content(Content& content, std::size_t n_threads) const;
  void regrow(Content& content, std::size_t n_threads) const;
  void encode(Content& content, std::size_t n_threads) const;
  void encode_rows(Content& content, std::span<const Slot> rows) const;
  void set_targets(Content& content) const;
  [[nodiscard]] static RowTotals totals_of(const Content& content);
  static void sum_targets(Content& content) noexcept;
  // Moves to another frame; true if everything must be computed again.
  bool move_to(Content& content, Frame frame) const;
  void mark_chains(Content& content, std::span<const Slot> rows) const noexcept;
  void erase_rows(Content& content, std::span<const Slot> rows) const noexcept;
  Report take_in(Content& content, std::span<const Slot> rows) const;
  // Adds rows to the leaves (sign 1), or takes them away (-1), up to the first value that changes.
  void walk(Content& content, std::span<const Slot> rows, std::int64_t sign) const;
  void require_people(std::span<const Slot> slots);
  [[nodiscard]] Report report_of(const Content& content) const noexcept;
  [[nodiscard]] ScoreScale scale_of(const Frame& frame) const;
  void compact();
  template <typename Read>
  [[nodiscard]] auto settled(Read read, std::size_t n_threads);
  void predict_block(const MatrixView& X, std::size_t begin, std::size_t n, std::uint32_t n_rounds,
                     Coder::Scratch& scratch, std::int32_t* steps) const;

  Spec spec_;
  Key hash_key_;
  ModelGate gate_;
  mutable Progress progress_;
  Content content_;
};

}  // namespace letheon::boosting
