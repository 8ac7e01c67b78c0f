// People with vectors, for tests of the index: small whole numbers, so that there are many ties.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "letheon/index/index.hpp"
#include "people.hpp"

namespace letheon::testing {

struct Vectors {
  std::uint32_t n_columns = 3;
  bool is_text = false;
  std::vector<float> X{};
  std::vector<std::int64_t> people{};
  std::vector<std::uint8_t> blob{};
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint64_t> owners{};
  std::vector<double> target{};

  void add(std::int64_t person, const std::vector<float>& row) {
    X.insert(X.end(), row.begin(), row.end());
    people.push_back(person);
    const std::string text = "person " + std::to_string(person);
    blob.insert(blob.end(), text.begin(), text.end());
    offsets.push_back(static_cast<std::int64_t>(blob.size()));
    // Some people have the same hash, so that ties are decided by ids.
    owners.push_back(mix64(7, static_cast<std::uint64_t>(person % 11)));
    target.push_back(static_cast<double>(person % 4));
  }
  [[nodiscard]] std::size_t size() const { return people.size(); }
  [[nodiscard]] std::vector<float> row(std::size_t i) const {
    const auto begin = X.begin() + static_cast<std::ptrdiff_t>(i * n_columns);
    return {begin, begin + n_columns};
  }
  [[nodiscard]] MatrixView matrix() const {
    const auto width = static_cast<std::ptrdiff_t>(sizeof(float));
    return {reinterpret_cast<const std::byte*>(X.data()), size(), n_columns, width * n_columns,
            width, false};
  }
  [[nodiscard]] index::RowsToAdd rows() const { return {matrix(), false, owners, target}; }
  [[nodiscard]] IdBatch ids() const {
    IdBatch ids;
    ids.is_text = is_text;
    if (is_text) {
      ids.blob = blob;
      ids.offsets = offsets;
    } else {
      ids.ints = people;
    }
    return ids;
  }
  [[nodiscard]] Vectors without(std::int64_t person) const {
    Vectors left{.n_columns = n_columns, .is_text = is_text};
    for (std::size_t i = 0; i < size(); ++i) {
      if (people[i] != person) {
        left.add(people[i], row(i));
      }
    }
    return left;
  }
};

}  // namespace letheon::testing
