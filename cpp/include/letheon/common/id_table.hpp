// Whose row each slot is: ids that are all int or all text, and a hash index over them.
//
// The hash is keyed with the process's own randomness, so an attacker cannot choose ids that collide;
// originals are compared on every hit. A person may own many rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "letheon/common/table.hpp"
#include "letheon/common/keyed_hash.hpp"

namespace letheon {

// Ids as they arrive: ints, or texts as one buffer with n + 1 offsets.
struct IdBatch {
  bool is_text = false;
  std::span<const std::int64_t> ints;
  std::span<const std::uint8_t> blob;
  std::span<const std::int64_t> offsets;

  [[nodiscard]] std::size_t size() const noexcept {
    return is_text ? offsets.size() - 1 : ints.size();
  }
  [[nodiscard]] std::string_view text(std::size_t i) const noexcept;
  // Throws std::invalid_argument when the offsets do not fit the buffer.
  void validate() const;
};

struct Found {
  std::vector<Slot> slots;            // of all wanted ids, ascending
  std::vector<std::size_t> missing;  // numbers of the requested ids that are unknown
};

class IdTable {
 public:
  explicit IdTable(Key hash_key = {}) noexcept : key_(hash_key) {}

  // Gives the ids numbered `rows` the slots that follow the last one. No slot may have been erased
  // since the table was made by `kept`.
  void append(const IdBatch& ids, std::span<const std::size_t> rows);
  void erase(std::span<const Slot> slots, const std::vector<std::uint8_t>& doomed) noexcept;
  // Takes the slots that `append` has given last back again.
  void truncate(std::size_t n_slots) noexcept;
  // The ids at these ascending slots, and no others.
  [[nodiscard]] IdTable kept(std::span<const Slot> slots) const;

  [[nodiscard]] Found find(const IdBatch& wanted) const;
  // Number of people among these slots, which must hold all rows of each of them, or all new ones.
  [[nodiscard]] std::size_t count_people(std::span<const Slot> slots) const noexcept;
  // Whether a row without a mark has the id of one of these slots.
  [[nodiscard]] bool leaves_rows(std::span<const Slot> slots,
                                 const std::vector<std::uint8_t>& doomed) const noexcept;

  [[nodiscard]] bool is_text() const noexcept { return is_text_; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return next_.size(); }
  [[nodiscard]] std::int64_t int_at(Slot slot) const noexcept { return ints_[slot]; }
  [[nodiscard]] const std::string& text_at(Slot slot) const noexcept { return texts_[slot]; }
  // Order of the canonical bytes: ints by value, texts by their UTF-8.
  [[nodiscard]] int compare(Slot a, Slot b) const noexcept;
  [[nodiscard]] std::size_t n_bytes() const noexcept;

 private:
  static constexpr Slot kEnd = 0xFFFFFFFFu;

  [[nodiscard]] std::size_t bucket_of(Slot slot) const noexcept;
  [[nodiscard]] std::size_t bucket_of(const IdBatch& ids, std::size_t i) const noexcept;
  [[nodiscard]] bool same(Slot slot, const IdBatch& ids, std::size_t i) const noexcept;
  [[nodiscard]] bool same(Slot a, Slot b) const noexcept;
  void link(Slot slot) noexcept;
  void index_all();

  Key key_;
  bool is_text_ = false;
  std::vector<std::int64_t> ints_;
  std::vector<std::string> texts_;
  std::vector<Slot> next_;     // the next slot of the same bucket
  std::vector<Slot> buckets_;  // first slot of each
};

}  // namespace letheon
