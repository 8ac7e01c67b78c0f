#include "letheon/common/id_table.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace letheon {

std::string_view IdBatch::text(std::size_t i) const noexcept {
  const auto begin = static_cast<std::size_t>(offsets[i]);
  const auto end = static_cast<std::size_t>(offsets[i + 1]);
  return {reinterpret_cast<const char*>(blob.data()) + begin, end - begin};
}

void IdBatch::validate() const {
  if (!is_text) {
    return;
  }
  if (offsets.empty()) {
    throw std::invalid_argument("n texts need n + 1 offsets");
  }
  const bool ascending = std::ranges::is_sorted(offsets);
  if (!ascending || offsets.front() < 0 ||
      static_cast<std::uint64_t>(offsets.back()) > blob.size()) {
    throw std::invalid_argument("the offsets of the ids do not fit their texts");
  }
}

std::size_t IdTable::bucket_of(Slot slot) const noexcept {
  std::uint64_t hash;
  if (is_text_) {
    const std::string& text = texts_[slot];
    hash = siphash24(key_, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  } else {
    hash = mix64(key_.k0, static_cast<std::uint64_t>(ints_[slot]) ^ key_.k1);
  }
  return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
}

std::size_t IdTable::bucket_of(const IdBatch& ids, std::size_t i) const noexcept {
  std::uint64_t hash;
  if (is_text_) {
    const std::string_view text = ids.text(i);
    hash = siphash24(key_, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  } else {
    hash = mix64(key_.k0, static_cast<std::uint64_t>(ids.ints[i]) ^ key_.k1);
  }
  return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
}

bool IdTable::same(Slot slot, const IdBatch& ids, std::size_t i) const noexcept {
  return is_text_ ? texts_[slot] == ids.text(i) : ints_[slot] == ids.ints[i];
}

bool IdTable::same(Slot a, Slot b) const noexcept {
  return is_text_ ? texts_[a] == texts_[b] : ints_[a] == ints_[b];
}

std::size_t IdTable::count_people(std::span<const Slot> slots) const noexcept {
  // Each person has one row that no other one follows in the bucket.
  std::size_t n = 0;
  for (const Slot slot : slots) {
    Slot later = next_[slot];
    while (later != kEnd && !same(slot, later)) {
      later = next_[later];
    }
    n += later == kEnd ? 1 : 0;
  }
  return n;
}

bool IdTable::leaves_rows(std::span<const Slot> slots,
                          const std::vector<std::uint8_t>& doomed) const noexcept {
  for (const Slot slot : slots) {
    for (Slot other = buckets_[bucket_of(slot)]; other != kEnd; other = next_[other]) {
      if (doomed[other] == 0 && same(slot, other)) {
        return true;
      }
    }
  }
  return false;
}

void IdTable::link(Slot slot) noexcept {
  Slot& head = buckets_[bucket_of(slot)];
  next_[slot] = head;
  head = slot;
}

void IdTable::index_all() {
  buckets_.assign(std::bit_ceil(std::max<std::size_t>(next_.size(), 1)), kEnd);
  for (Slot slot = 0; slot < next_.size(); ++slot) {
    link(slot);
  }
}

void IdTable::append(const IdBatch& ids, std::span<const std::size_t> rows) {
  ids.validate();
  if (!empty() && ids.is_text != is_text_) {
    throw std::invalid_argument("ids must be all int or all text");
  }
  const std::size_t first = next_.size();
  is_text_ = ids.is_text;
  try {
    for (const std::size_t i : rows) {
      if (is_text_) {
        texts_.emplace_back(ids.text(i));
      } else {
        ints_.push_back(ids.ints[i]);
      }
    }
    next_.resize(first + rows.size(), kEnd);
    if (next_.size() > buckets_.size()) {
      index_all();
      return;
    }
  } catch (...) {
    texts_.resize(std::min(texts_.size(), first));
    ints_.resize(std::min(ints_.size(), first));
    next_.resize(first);
    throw;
  }
  for (std::size_t slot = first; slot < next_.size(); ++slot) {
    link(static_cast<Slot>(slot));
  }
}

void IdTable::erase(std::span<const Slot> slots,
                    const std::vector<std::uint8_t>& doomed) noexcept {
  for (const Slot slot : slots) {
    // All doomed slots of the bucket leave at once, so a person of many rows costs one pass.
    Slot* link = &buckets_[bucket_of(slot)];
    while (*link != kEnd) {
      if (doomed[*link] != 0) {
        const Slot gone = *link;
        *link = next_[gone];
        next_[gone] = kEnd;
      } else {
        link = &next_[*link];
      }
    }
  }
  for (const Slot slot : slots) {
    if (is_text_) {
      std::ranges::fill(texts_[slot], '\0');
      texts_[slot].clear();
      texts_[slot].shrink_to_fit();
    } else {
      ints_[slot] = 0;
    }
  }
}

void IdTable::truncate(std::size_t n_slots) noexcept {
  for (Slot& head : buckets_) {
    // New slots stand in front of the older ones of their bucket.
    while (head != kEnd && head >= n_slots) {
      head = next_[head];
    }
  }
  texts_.resize(std::min(texts_.size(), n_slots));
  ints_.resize(std::min(ints_.size(), n_slots));
  next_.resize(n_slots);
}

IdTable IdTable::kept(std::span<const Slot> slots) const {
  IdTable table(key_);
  table.is_text_ = is_text_;
  for (const Slot slot : slots) {
    if (is_text_) {
      table.texts_.push_back(texts_[slot]);
    } else {
      table.ints_.push_back(ints_[slot]);
    }
  }
  table.next_.assign(slots.size(), kEnd);
  table.index_all();
  return table;
}

Found IdTable::find(const IdBatch& wanted) const {
  Found found;
  wanted.validate();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::size_t before = found.slots.size();
    if (!empty() && wanted.is_text == is_text_) {
      for (Slot slot = buckets_[bucket_of(wanted, i)]; slot != kEnd; slot = next_[slot]) {
        if (same(slot, wanted, i)) {
          found.slots.push_back(slot);
        }
      }
    }
    if (found.slots.size() == before) {
      found.missing.push_back(i);
    }
  }
  std::ranges::sort(found.slots);
  const auto repeated = std::ranges::unique(found.slots);
  found.slots.erase(repeated.begin(), repeated.end());
  return found;
}

int IdTable::compare(Slot a, Slot b) const noexcept {
  if (is_text_) {
    // char may be signed: compare as bytes.
    const std::string& left = texts_[a];
    const std::string& right = texts_[b];
    return left.compare(right);
  }
  return ints_[a] < ints_[b] ? -1 : (ints_[a] > ints_[b] ? 1 : 0);
}

std::size_t IdTable::n_bytes() const noexcept {
  std::size_t bytes = ints_.capacity() * 8 + texts_.capacity() * sizeof(std::string) +
                      (next_.capacity() + buckets_.capacity()) * sizeof(Slot);
  for (const std::string& text : texts_) {
    bytes += text.capacity() > 15 ? text.capacity() : 0;
  }
  return bytes;
}

}  // namespace letheon
