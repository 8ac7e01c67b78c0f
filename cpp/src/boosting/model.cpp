#include "letheon/boosting/model.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "letheon/boosting/chain.hpp"
#include "letheon/common/workers.hpp"

namespace letheon::boosting {

Model::Model(Spec spec, Key hash_key) : spec_(std::move(spec)), hash_key_(hash_key) {
  spec_.validate();
}

ValueInput Model::input_of(const Content& content) const noexcept {
  return {spec_, content.table,
          {spec_.loss, content.frame.n_outputs, content.rank, content.y}, content.frame.base};
}

void require_batch(const Spec& spec, const Batch& batch, const ClassCodes& classes,
                   const IdBatch& ids) {
  ids.validate();
  if (ids.size() != batch.X.n_rows || batch.owners.size() != batch.X.n_rows) {
    throw std::invalid_argument("one id and one owner hash per row are needed");
  }
  std::vector<std::uint8_t> seen(classes.n_codes, 0);
  for (const std::uint32_t code : classes.order) {
    if (code >= seen.size() || ++seen[code] > 1) {
      throw std::invalid_argument("the order must name class codes, each once");
    }
  }
  if (std::ranges::any_of(batch.labels, [&](auto code) {
        return code >= seen.size() || seen[code] == 0;
      })) {
    throw std::invalid_argument("a label is not in the order of the classes");
  }
  if (spec.loss == Loss::poisson &&
      std::ranges::any_of(batch.y, [](double y) { return y < 0.0; })) {
    throw std::invalid_argument("y holds a negative value; the Poisson loss needs y >= 0");
  }
}

namespace {

// The rows with weight. Those of the skeleton are first, chain by chain, so that a chain reads its
// rows from one place; nothing else depends on their order.
std::vector<std::size_t> order_rows(const Spec& spec, const Batch& batch) {
  std::vector<std::size_t> rows = rows_with_weight(batch);
  const std::uint64_t last = guess_last_hash(spec, rows.size());
  std::vector<std::pair<std::uint64_t, std::size_t>> skeleton;
  std::erase_if(rows, [&](std::size_t row) {
    const std::uint64_t hash = spec.draw(Use::chain, batch.owners[row]);
    if (hash <= last) {
      skeleton.emplace_back(hash, row);
    }
    return hash <= last;
  });
  std::ranges::sort(skeleton);
  std::vector<std::size_t> order;
  order.reserve(skeleton.size() + rows.size());
  for (const auto& [hash, row] : skeleton) {
    order.push_back(row);
  }
  order.insert(order.end(), rows.begin(), rows.end());
  return order;
}

}  // namespace

RowTotals Model::totals_of(const Content& content) {
  return {content.n_people, content.table.class_weights(), content.table.exponent(), content.sums};
}

void Model::sum_targets(Content& content) noexcept {
  content.sums = {};
  for (Slot slot = 0; content.table.is_regression() && slot < content.table.n_slots(); ++slot) {
    if (content.table.is_alive(slot)) {
      content.sums.add(content.table.weight(slot), content.table.q(slot));
    }
  }
}

Model::Content Model::hold(const Batch& batch, const ClassCodes& classes, const IdBatch& ids,
                           std::size_t n_threads) const {
  require_batch(spec_, batch, classes, ids);
  Content content;
  content.table = Table(spec_.n_columns, spec_.is_regression(), spec_.y_exponent);
  content.ids = IdTable(hash_key_);
  const auto rows = order_rows(spec_, batch);
  std::vector<Slot> slots;
  run_tasks(2, n_threads, [&](std::size_t, std::size_t part) {
    if (part == 0) {
      slots = content.table.append(batch, classes.n_codes, rows, n_threads);
    } else {
      content.ids.append(ids, rows);
    }
  });
  if (slots.empty()) {
    throw std::invalid_argument("there is no row of positive weight");
  }
  content.table.rescale();
  content.doomed.assign(slots.size(), 0);
  content.n_people = content.ids.count_people(slots);
  content.order.assign(classes.order.begin(), classes.order.end());
  sum_targets(content);
  content.frame = make_frame(spec_, totals_of(content), content.order);
  return content;
}

// Makes room for trees that are all still to be grown.
void Model::start_over(Content& content, std::size_t n_threads) const {
  const std::size_t n_trees = std::size_t{spec_.n_rounds} * content.frame.n_outputs;
  const std::size_t n_slots = content.table.n_slots();
  set_targets(content);
  content.trees.assign(n_trees, Tree{});
  content.coders.assign(spec_.n_chains, Coder{});
  content.codes.resize(n_trees);
  run_tasks(n_trees, n_threads, [&](std::size_t, std::size_t t) {
    content.codes[t].assign(n_slots, kErased);
  });
  content.checks.assign((spec_.n_rounds - 1) / kCheckRounds + 1,
                        std::vector<State>(n_slots * content.frame.n_outputs, 0));
  content.stale.assign(spec_.n_chains, 1);
  content.settled = 0;
}

void Model::set_targets(Content& content) const {
  content.rank.assign(content.table.n_classes(), 0);
  for (std::size_t place = 0; place < content.frame.classes.size(); ++place) {
    content.rank[content.frame.classes[place]] = static_cast<std::uint32_t>(place);
  }
  if (spec_.is_regression()) {
    content.y.resize(content.table.n_slots());
    for (std::size_t i = 0; i < content.y.size(); ++i) {
      content.y[i] = content.frame.target(content.table.q(static_cast<Slot>(i)));
    }
  }
}

void Model::fit(const Batch& batch, const ClassCodes& classes, const IdBatch& ids,
                std::size_t n_threads) {
  Content content = hold(batch, classes, ids, n_threads);
  start_over(content, n_threads);
  settle_content(content, n_threads);
  const auto lock = gate_.changing();
  content_ = std::move(content);
}

void Model::restore(const Batch& batch, const ClassCodes& classes, const IdBatch& ids,
                    Bytes trees, std::size_t n_threads) {
  Content content = hold(batch, classes, ids, n_threads);
  auto kept = read_trees(trees, content.frame.n_outputs, spec_);
  start_over(content, n_threads);
  content.trees = std::move(kept);
  content.stale.assign(spec_.n_chains, 0);
  settle_content(content, n_threads);
  const auto bytes = write_trees(content.trees, content.frame.base, spec_);
  if (!std::ranges::equal(bytes, trees)) {
    throw std::invalid_argument(
        "the bytes of the trees are damaged: the leaves are not those of the rows");
  }
  const auto lock = gate_.changing();
  content_ = std::move(content);
}

void Model::settle_content(Content& content, std::size_t n_threads) const {
  regrow(content, n_threads);
  encode(content, n_threads);
  if (content.settled < spec_.n_rounds) {
    compute_values(input_of(content), content.settled, content.codes, content.trees,
                   content.checks, n_threads, progress_);
    content.settled = spec_.n_rounds;
  }
}

void Model::regrow(Content& content, std::size_t n_threads) const {
  std::vector<std::uint32_t> chains;
  for (std::uint32_t chain = 0; chain < spec_.n_chains; ++chain) {
    if (content.stale[chain] != 0) {
      chains.push_back(chain);
    }
  }
  if (chains.empty()) {
    return;
  }
  std::vector<std::vector<Slot>> members(spec_.n_chains);
  const std::uint64_t last_hash = content.frame.last_hash(spec_);
  for (Slot slot = 0; slot < content.table.n_slots(); ++slot) {
    if (spec_.draw(Use::chain, content.table.owner(slot)) > last_hash) {
      continue;  // most people are in no chain
    }
    const auto chain = content.frame.chain_of(spec_, content.table.owner(slot));
    if (chain && content.stale[*chain] != 0 && content.table.is_alive(slot)) {
      members[*chain].push_back(slot);
    }
  }
  const ValueInput input = input_of(content);
  run_tasks(chains.size(), n_threads, [&](std::size_t, std::size_t i) {
    const std::uint32_t chain = chains[i];
    auto trees = grow_chain(spec_, chain, content.table, input.targets, members[chain],
                            progress_);
    const std::size_t first = std::size_t{spec_.first_round(chain)} * content.frame.n_outputs;
    for (std::size_t t = 0; t < trees.size(); ++t) {
      Tree& old = content.trees[first + t];
      if (!old.coded || old.splits != trees[t].splits) {
        old = std::move(trees[t]);
      }
    }
  });
  content.stale.assign(spec_.n_chains, 0);
}

void Model::encode(Content& content, std::size_t n_threads) const {
  if (std::ranges::all_of(content.trees, &Tree::coded)) {
    return;  // as after most requests
  }
  const std::size_t n_outputs = content.frame.n_outputs;
  std::vector<std::vector<std::uint32_t>> todo(spec_.n_chains);  // trees of each chain
  for (std::uint32_t chain = 0; chain < spec_.n_chains; ++chain) {
    const std::size_t first = spec_.first_round(chain) * n_outputs;
    const std::size_t last = spec_.first_round(chain + 1) * n_outputs;
    for (std::size_t t = first; t < last; ++t) {
      if (!content.trees[t].coded) {
        todo[chain].push_back(static_cast<std::uint32_t>(t - first));
      }
    }
    if (!todo[chain].empty()) {
      content.coders[chain] = Coder(std::span(content.trees).subspan(first, last - first));
      content.coders[chain].read_codes(content.table);
    }
  }
  const std::size_t n_slots = content.table.n_slots();
  const std::size_t n_blocks = (n_slots + kBlockRows - 1) / kBlockRows;
  std::vector<Coder::Scratch> scratch(useful_threads(n_blocks, n_threads));
  run_tasks(n_blocks, n_threads, [&](std::size_t worker, std::size_t block) {
    std::array<std::uint8_t, kBlockRows> leaves;
    const std::size_t begin = block * kBlockRows;
    const std::size_t n = std::min(kBlockRows, n_slots - begin);
    for (std::uint32_t chain = 0; chain < spec_.n_chains; ++chain) {
      if (todo[chain].empty()) {
        continue;
      }
      const std::size_t first = spec_.first_round(chain) * n_outputs;
      content.coders[chain].read(content.table, begin, n, scratch[worker]);
      for (const std::uint32_t t : todo[chain]) {
        content.coders[chain].find_leaves(t, scratch[worker], leaves.data());
        std::uint8_t* const out = content.codes[first + t].data() + begin;
        const std::uint8_t* const alive = content.table.alive() + begin;
        for (std::size_t i = 0; i < n; ++i) {
          out[i] = static_cast<std::uint8_t>(leaves[i] | (alive[i] - 1));  // 255: kErased
        }
      }
    }
  });
  for (Tree& tree : content.trees) {
    tree.coded = true;
  }
}

Found Model::find(const IdBatch& wanted) const {
  const auto lock = gate_.reading();
  return content_.ids.find(wanted);
}

std::size_t Model::n_rows() const {
  const auto lock = gate_.reading();
  return content_.table.n_rows();
}

bool Model::is_settled() const {
  const auto lock = gate_.reading();
  return content_.settled == spec_.n_rounds;
}

std::size_t Model::Content::n_bytes() const noexcept {
  std::size_t bytes = table.n_bytes() + ids.n_bytes() + doomed.capacity() + y.capacity() * 4;
  for (const auto& column : codes) {
    bytes += column.capacity();
  }
  for (const auto& states : checks) {
    bytes += states.capacity() * sizeof(State);
  }
  for (const Tree& tree : trees) {
    bytes += sizeof(Tree) + tree.splits.capacity() * sizeof(Split) +
             tree.leaves.capacity() * sizeof(Leaf);
  }
  return bytes;
}

std::size_t Model::n_bytes() const {
  const auto lock = gate_.reading();
  return content_.n_bytes();
}

}  // namespace letheon::boosting
