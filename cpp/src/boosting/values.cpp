#include "letheon/boosting/values.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "letheon/common/clones.hpp"
#include "letheon/common/workers.hpp"

namespace letheon::boosting {

namespace {

__extension__ using Wide = __int128;

constexpr std::size_t kCodes = 256;
constexpr std::size_t kRowsPerTask = 32768;

// Sums of one output of a round by leaf code.
struct Sums {
  std::array<std::int64_t, kCodes> g{};
  std::array<std::int64_t, kCodes> h{};
};

// What a round needs of the round before: the steps by leaf code, and the codes.
struct RoundView {
  std::vector<const std::uint8_t*> codes;             // of each output
  std::vector<const std::uint8_t*> last_codes;        // of the round before
  std::vector<std::array<State, kCodes>> last_steps;  // zeros before the first round
};

// Rows with codes, the steps of the codes of the round before, and a table of (g << 32) + h by
// state; states beyond [low, high] count as these.
struct FoldedRows {
  const std::uint8_t* codes;
  const std::uint8_t* last_codes;
  const State* steps;
  const std::int64_t* pairs;
  State low;
  State high;
};

constexpr std::size_t kPackedRows = 16384;  // whose sums of h are below 2^31

constexpr std::size_t kBatch = kMostLeaves / 2;  // half of the leaves fill a vector
typedef std::uint8_t Codes32 __attribute__((vector_size(kBatch)));
typedef State States32 __attribute__((vector_size(kBatch * sizeof(State))));

// out[i] = steps[codes[i]], where the steps of leaves above the last one are 0. Clang has no shuffle
// by variable places.
LETHEON_INLINE void look_up(const State* steps, const std::uint8_t* codes, State* out) noexcept {
#if defined(__GNUC__) && !defined(__clang__)
  States32 low;
  States32 high;
  Codes32 bytes;
  std::memcpy(&low, steps, sizeof(low));
  std::memcpy(&high, steps + kBatch, sizeof(high));
  std::memcpy(&bytes, codes, sizeof(bytes));
  const auto places = __builtin_convertvector(bytes, States32);
  const States32 found = __builtin_shuffle(low, high, places) & (places != kErased);
  std::memcpy(out, &found, sizeof(found));
#else
  for (std::size_t i = 0; i < kBatch; ++i) {
    out[i] = steps[codes[i]];
  }
#endif
}

// Moves n states on and adds their pairs up by code, in four parts: a sum waits for the one
// before it.
LETHEON_VECTOR
void add_folded(const FoldedRows& rows, State* states, std::size_t n,
                std::int64_t (&packed)[4][kCodes]) noexcept {
  constexpr std::size_t kTogether = 512;
  State places[kTogether];
  for (std::size_t begin = 0; begin < n; begin += kTogether) {
    const std::size_t size = std::min(n - begin, kTogether);
    State* const part = states + begin;
    const std::uint8_t* const codes = rows.codes + begin;
    std::size_t i = 0;
    for (; i + kBatch <= size; i += kBatch) {
      look_up(rows.steps, rows.last_codes + begin + i, places + i);
    }
    for (; i < size; ++i) {
      places[i] = rows.steps[rows.last_codes[begin + i]];
    }
    for (i = 0; i < size; ++i) {
      const auto state = static_cast<State>(part[i] + places[i]);
      part[i] = state;
      // The last bit is the class, and scores beyond the reach keep it.
      const auto score = static_cast<State>(state & ~1);
      places[i] = static_cast<State>(std::clamp(score, rows.low, rows.high) | (state & 1));
    }
    i = 0;
    for (; i + 4 <= size; i += 4) {
      packed[0][codes[i]] += rows.pairs[places[i]];
      packed[1][codes[i + 1]] += rows.pairs[places[i + 1]];
      packed[2][codes[i + 2]] += rows.pairs[places[i + 2]];
      packed[3][codes[i + 3]] += rows.pairs[places[i + 3]];
    }
    for (; i < size; ++i) {
      packed[0][codes[i]] += rows.pairs[places[i]];
    }
  }
}

// Two classes without weights: (g << 32) + h of a state from a table.
class FoldedKernel {
 public:
  explicit FoldedKernel(const ValueInput& input) : reach_((24 << input.spec.step_bits) + 1) {
    const auto n = static_cast<std::size_t>(4 * reach_ + 2);
    pairs_.resize(n);
    for (std::int32_t state = -2 * reach_; state < 2 * reach_ + 2; ++state) {
      const auto narrow = static_cast<State>(state);
      Gradient gradient;
      input.gradients_of(0, &narrow, &gradient);
      pairs_[static_cast<std::size_t>(state + 2 * reach_)] =
          (std::int64_t{gradient.g} << 32) + gradient.h;
    }
  }

  void add(const RoundView& round, State* states, std::size_t begin, std::size_t end,
           Sums& sums) const noexcept {
    const auto low = static_cast<State>(-2 * reach_);
    const auto high = static_cast<State>(2 * reach_);
    for (; begin < end; begin += kPackedRows) {
      std::int64_t packed[4][kCodes] = {};
      add_folded({round.codes[0] + begin, round.last_codes[0] + begin, round.last_steps[0].data(),
                  pairs_.data() + 2 * reach_, low, high},
                 states + begin, std::min(end - begin, kPackedRows), packed);
      for (std::size_t code = 0; code < kMostLeaves; ++code) {
        for (const auto& part : packed) {
          const auto h = static_cast<std::int32_t>(part[code]);
          sums.h[code] += h;
          sums.g[code] += (part[code] - h) >> 32;
        }
      }
    }
  }

 private:
  std::int32_t reach_;
  std::vector<std::int64_t> pairs_;
};

void add_rows(const ValueInput& input, const RoundView& round, State* states, std::size_t begin,
              std::size_t end, std::span<Sums> sums) noexcept {
  const std::size_t n_outputs = sums.size();
  std::vector<Gradient> gradients(n_outputs);
  for (std::size_t i = begin; i < end; ++i) {
    State* const row = states + i * n_outputs;
    for (std::size_t k = 0; k < n_outputs; ++k) {
      row[k] = static_cast<State>(row[k] + round.last_steps[k][round.last_codes[k][i]]);
    }
    const auto slot = static_cast<Slot>(i);
    input.gradients(slot, row, gradients.data());
    const std::int64_t weight = input.table.weight(slot);
    for (std::size_t k = 0; k < n_outputs; ++k) {
      const std::uint8_t code = round.codes[k][i];
      sums[k].g[code] += gradients[k].g * weight;
      sums[k].h[code] += gradients[k].h * weight;
    }
  }
}

}  // namespace

LeafRule::LeafRule(const Spec& spec) noexcept
    : factor_(std::int64_t{spec.rate} << spec.step_bits), l2_(spec.l2),
      most_(spec.largest_step()), key_(spec.draw(Use::dither, 0)) {}

std::int32_t LeafRule::value(const Leaf& leaf, std::uint32_t dither) const noexcept {
  // Below 2^112 in size: g and h are below 2^60, factor_ below 2^19, the unit below 2^70.
  const Wide unit = Wide{std::max<std::int64_t>(leaf.h + l2_, 1)} * kRateUnit;
  const Wide above = ((-Wide{leaf.g} * factor_) * (Wide{1} << 32)) + unit * dither;
  const Wide below = unit << 32;
  // Whether the old value is right needs no division; a wrong one is of no influence.
  const Wide old = below * leaf.step;
  if (leaf.step > -most_ && leaf.step < most_ && old <= above && above < old + below) {
    return leaf.step;
  }
  Wide value = above / below;
  value -= value * below > above ? 1 : 0;
  return static_cast<std::int32_t>(std::clamp<Wide>(value, -most_, most_));
}

State ValueInput::start(Slot slot, std::size_t output) const noexcept {
  const std::int32_t label = is_folded() ? targets.of(table, slot) : 0;
  return static_cast<State>(step(base[output]) + label);
}

void ValueInput::gradients(Slot slot, const State* states, Gradient* out) const noexcept {
  gradients_of(is_folded() ? 0 : targets.of(table, slot), states, out);
}

void ValueInput::gradients_of(std::int32_t target, const State* states,
                              Gradient* out) const noexcept {
  const std::uint32_t unit = std::uint32_t{1} << (kScoreBits - spec.step_bits);
  const auto factor = static_cast<std::int32_t>(unit);
  const LossTables& tables = loss_tables();
  if (is_folded()) {
    *out = logistic_gradient(tables, (*states >> 1) * factor, (*states & 1) != 0);
    return;
  }
  constexpr std::size_t kFew = 32;
  std::array<std::int32_t, kFew> few;
  std::vector<std::int32_t> many(targets.n_outputs > kFew ? targets.n_outputs : 0);
  std::int32_t* const scores = many.empty() ? few.data() : many.data();
  for (std::size_t k = 0; k < targets.n_outputs; ++k) {
    scores[k] = states[k] * factor;
  }
  row_gradients(spec.loss, tables, {scores, targets.n_outputs}, target, out);
}

namespace {

// One pass over all rows, round by round.
class ValuePass {
 public:
  ValuePass(const ValueInput& input, const Codes& codes, std::vector<Tree>& trees,
            std::size_t n_threads)
      : input_(input), codes_(codes), trees_(trees), rule_(input.spec), n_threads_(n_threads),
        n_outputs_(input.targets.n_outputs), n_rows_(input.table.n_slots()),
        n_tasks_(std::clamp<std::size_t>(n_rows_ / kRowsPerTask, 1,
                                         std::max<std::size_t>(n_threads, 1))),
        states_(n_rows_ * n_outputs_), sums_(n_tasks_, std::vector<Sums>(n_outputs_)) {
    round_.codes.resize(n_outputs_);
    round_.last_steps.resize(n_outputs_);
    if (input.is_folded() && !input.table.is_weighted()) {
      kernel_.emplace(input);
    }
  }

  // Begins with the states before a round; empty: those before the first one.
  void start(std::span<const State> states, std::uint32_t number) {
    std::ranges::copy(states, states_.begin());
    for (std::size_t i = 0; states.empty() && i < n_rows_; ++i) {
      for (std::size_t k = 0; k < n_outputs_; ++k) {
        states_[i * n_outputs_ + k] = input_.start(static_cast<Slot>(i), k);
      }
    }
    look_at(number);
    round_.last_codes = round_.codes;
  }

  // Goes past a round whose leaves are right.
  void skip(std::uint32_t number) {
    look_at(number);
    run([&](std::size_t, std::size_t begin, std::size_t end) {
      for (std::size_t k = 0; k < n_outputs_; ++k) {
        const std::uint8_t* const codes = round_.last_codes[k];
        const auto& steps = round_.last_steps[k];
        for (std::size_t i = begin; i < end; ++i) {
          State& state = states_[i * n_outputs_ + k];
          state = static_cast<State>(state + steps[codes[i]]);
        }
      }
    });
    finish(number);
  }

  void compute(std::uint32_t number) {
    look_at(number);
    run([&](std::size_t task, std::size_t begin, std::size_t end) {
      std::ranges::fill(sums_[task], Sums{});
      if (kernel_) {
        kernel_->add(round_, states_.data(), begin, end, sums_[task][0]);
      } else {
        add_rows(input_, round_, states_.data(), begin, end, sums_[task]);
      }
    });
    for (std::size_t k = 0; k < n_outputs_; ++k) {
      const std::size_t t = number * n_outputs_ + k;
      const std::uint32_t dither = rule_.dither(number, k);
      for (std::size_t l = 0; l < trees_[t].leaves.size(); ++l) {
        Leaf leaf;
        for (const auto& part : sums_) {
          leaf.g += part[k].g[l];
          leaf.h += part[k].h[l];
        }
        leaf.step = rule_.value(leaf, dither);
        trees_[t].leaves[l] = leaf;
      }
    }
    finish(number);
  }

  // The states before the round that was computed last.
  [[nodiscard]] const std::vector<State>& states() const noexcept { return states_; }

 private:
  template <typename Part>
  void run(Part part) {
    run_tasks(n_tasks_, n_threads_, [&](std::size_t, std::size_t task) {
      part(task, n_rows_ * task / n_tasks_, n_rows_ * (task + 1) / n_tasks_);
    });
  }

  void look_at(std::uint32_t number) {
    for (std::size_t k = 0; k < n_outputs_; ++k) {
      round_.codes[k] = codes_[number * n_outputs_ + k].data();
    }
  }

  void finish(std::uint32_t number) {
    for (std::size_t k = 0; k < n_outputs_; ++k) {
      const Tree& tree = trees_[number * n_outputs_ + k];
      for (std::size_t leaf = 0; leaf < tree.leaves.size(); ++leaf) {
        round_.last_steps[k][leaf] = input_.step(tree.leaves[leaf].step);
      }
    }
    round_.last_codes = round_.codes;
  }

  const ValueInput& input_;
  const Codes& codes_;
  std::vector<Tree>& trees_;
  LeafRule rule_;
  std::size_t n_threads_;
  std::size_t n_outputs_;
  std::size_t n_rows_;
  std::size_t n_tasks_;
  std::optional<FoldedKernel> kernel_;
  RoundView round_;
  std::vector<State> states_;
  std::vector<std::vector<Sums>> sums_;
};

}  // namespace

void compute_values(const ValueInput& input, std::uint32_t first, const Codes& codes,
                    std::vector<Tree>& trees, std::vector<std::vector<State>>& checks,
                    std::size_t n_threads, Progress& progress) {
  ValuePass pass(input, codes, trees, n_threads);
  // A check point at `first` itself is as old as the value that changed in the round before it.
  std::uint32_t number = (first > 0 ? first - 1 : 0) / kCheckRounds * kCheckRounds;
  pass.start(number == 0 ? std::span<const State>() : checks[number / kCheckRounds], number);
  for (; number < first; ++number) {
    pass.skip(number);
  }
  for (; number < input.spec.n_rounds; ++number) {
    pass.compute(number);
    progress.add();
    if (number % kCheckRounds == 0 && number > 0) {
      std::ranges::copy(pass.states(), checks[number / kCheckRounds].begin());
    }
  }
}

}  // namespace letheon::boosting
