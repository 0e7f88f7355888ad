// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <mutex>
#include <optional>
#include <stdexcept>

#include "proposer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Ids = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Parents = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Serialises calls from several threads; every call runs without the interpreter lock.
class SharedProposer {
 public:
  SharedProposer(const sam::Config& config, uint32_t vocab_size) : proposer_(config, vocab_size) {}

  void begin(uint64_t id, Tokens tokens, size_t shared_from, const std::string& space) {
    if (shared_from > tokens.size()) throw std::invalid_argument("shared_from is past the end of tokens");
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    proposer_.begin(id, tokens.data(), tokens.size(), shared_from, space);
  }

  void step(Ids ids, Tokens tokens, Tokens offsets, std::optional<Tokens> hint_tokens,
            std::optional<Parents> hint_parents, Out<uint8_t> block) {
    const size_t n = ids.size(), width = proposer_.config().draft_token_num;
    if (offsets.size() != n + 1) throw std::invalid_argument("offsets must have one element more than ids");
    for (size_t i = 0; i < n; ++i) {
      if (offsets.data()[i] > offsets.data()[i + 1]) throw std::invalid_argument("offsets must not decrease");
    }
    if (offsets.data()[0] < 0 || offsets.data()[n] > static_cast<int64_t>(tokens.size())) {
      throw std::invalid_argument("offsets must lie within tokens");
    }
    if (block.size() != sam::StepOutput::bytes(n, width) || reinterpret_cast<uintptr_t>(block.data()) % 8) {
      throw std::invalid_argument("the output block must be aligned and as large as the batch needs");
    }
    const bool hints = hint_tokens && hint_parents;
    if (hints && (hint_tokens->size() != n * width || hint_parents->size() != n * width)) {
      throw std::invalid_argument("hints must be trees of draft_token_num places, one a request");
    }
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    proposer_.step(ids.data(), n, tokens.data(), offsets.data(), hints ? hint_tokens->data() : nullptr,
                   hints ? hint_parents->data() : nullptr, sam::StepOutput::in(block.data(), n, width));
  }

  void append(uint64_t id, Tokens tokens) {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    proposer_.append(id, tokens.data(), tokens.size());
  }

  void lengths(Ids ids, Out<int64_t> out) {
    if (out.size() < ids.size()) throw std::invalid_argument("the output array is too small for the batch");
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < ids.size(); ++i) out.data()[i] = proposer_.length(ids.data()[i]);
  }

  void end(uint64_t id) {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    proposer_.end(id);
  }

  void reset() {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    proposer_.reset();
  }

  void forget(const std::string& space) {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    proposer_.forget(space);
  }

  nb::dict counters() {
    sam::Counters c;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard<std::mutex> lock(mutex_);
      c = proposer_.counters();
    }
    nb::dict out;
    out["requests"] = c.requests;
    out["own_tokens"] = c.own_tokens;
    out["shared_tokens"] = c.shared_tokens;
    out["own_bytes"] = c.own_bytes;
    out["shared_bytes"] = c.shared_bytes;
    out["own_tokens_dropped"] = c.own_dropped;
    out["shared_tokens_dropped"] = c.shared_dropped;
    out["requests_dropped"] = c.requests_dropped;
    out["namespaces"] = c.namespaces;
    out["namespaces_dropped"] = c.namespaces_dropped;
    out["steps"] = c.steps;
    out["drafted"] = c.drafted;
    out["accepted"] = c.accepted;
    out["pauses"] = c.pauses;
    out["recoveries"] = c.recoveries;
    out["paused_steps"] = c.paused_steps;
    return out;
  }

 private:
  std::mutex mutex_;
  sam::Proposer proposer_;
};

// [(k, N, {token: share}), ...] shortest context first, for the suffixes of `query`.
template <typename Index>
nb::list match(const Index& index, const Tokens& query, uint32_t ahead) {
  if (ahead != 1 && ahead != 2) throw std::invalid_argument("ahead must be 1 or 2");
  uint32_t context[sam::kMaxDepth];
  uint32_t n = 0;
  for (size_t i = query.size(); i-- > 0 && n < sam::kMaxDepth;) context[n++] = static_cast<uint32_t>(query.data()[i]);
  sam::Chain chain;
  index.match(context, n, chain);
  nb::list out;
  for (uint32_t i = 0; i < chain.size; ++i) {
    sam::Successors next;
    index.read(chain.at[i].ref, ahead, next);
    nb::dict shares;
    for (uint32_t j = 0; j < next.size; ++j) shares[nb::int_(next.token[j])] = next.share[j];
    out.append(nb::make_tuple(chain.at[i].k, next.count, shares));
  }
  return out;
}

uint32_t checked_depth(uint32_t depth) {
  if (depth < 1 || depth > sam::kMaxDepth) throw std::invalid_argument("depth must be between 1 and 32");
  return depth;
}

// The two automata by themselves, for tests and for exploring.
class Automaton {
 public:
  explicit Automaton(uint32_t depth) : index_(checked_depth(depth), true) {}

  void extend(Tokens tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t token = tokens.data()[i];
      index_.append(token < 0 || token >= sam::kSeparator ? sam::kSeparator : static_cast<uint32_t>(token));
    }
  }
  nb::list match(Tokens query, uint32_t ahead) const { return ::match(index_, query, ahead); }
  size_t tokens() const { return index_.tokens(); }
  size_t states() const { return index_.states(); }
  size_t bytes() const { return index_.bytes(); }

 private:
  sam::OwnIndex index_;
};

class SharedAutomaton {
 public:
  explicit SharedAutomaton(uint32_t depth) : index_(checked_depth(depth), true) {}

  // Returns the new end of the text that ended at `end` (-1: a new text).
  int64_t append(int64_t end, int64_t token) {
    if (end < -1 || end >= static_cast<int64_t>(index_.tokens())) throw std::out_of_range("end is not a position");
    if (token < 0 || token >= sam::kSeparator) throw std::out_of_range("token is not an id");
    return index_.append(end < 0 ? sam::kNone : static_cast<uint32_t>(end), static_cast<uint32_t>(token));
  }
  nb::list match(Tokens query, uint32_t ahead) const { return ::match(index_, query, ahead); }
  size_t tokens() const { return index_.tokens(); }
  size_t states() const { return index_.states(); }
  size_t bytes() const { return index_.bytes(); }

 private:
  sam::SharedIndex index_;
};

}  // namespace

NB_MODULE(_sam, m) {
  m.doc() = "Suffix-automaton draft proposer; sgl_kernel_ext.suffix_automaton documents it.";
  m.attr("MAX_WIDTH") = sam::kMaxWidth;
  m.attr("MAX_DEPTH") = sam::kMaxDepth;

  nb::class_<sam::Config>(m, "Config")
      .def(nb::init<>())
      .def_rw("full", &sam::Config::full)
      .def_rw("draft_token_num", &sam::Config::draft_token_num)
      .def_rw("children", &sam::Config::children)
      .def_rw("own_depth", &sam::Config::own_depth)
      .def_rw("shared_depth", &sam::Config::shared_depth)
      .def_rw("shared", &sam::Config::shared)
      .def_rw("threshold", &sam::Config::threshold)
      .def_rw("max_request_tokens", &sam::Config::max_request_tokens)
      .def_rw("max_own_tokens", &sam::Config::max_own_tokens)
      .def_rw("max_shared_tokens", &sam::Config::max_shared_tokens)
      .def_rw("kill_rate", &sam::Config::kill_rate)
      .def_rw("kill_window", &sam::Config::kill_window);

  nb::class_<SharedProposer>(m, "Proposer")
      .def(nb::init<const sam::Config&, uint32_t>(), "config"_a, "vocab_size"_a)
      .def("begin", &SharedProposer::begin, "id"_a, "tokens"_a, "shared_from"_a, "namespace"_a)
      .def("step", &SharedProposer::step, "ids"_a, "tokens"_a, "offsets"_a, "hint_tokens"_a.none(),
           "hint_parents"_a.none(), "block"_a)
      .def("append", &SharedProposer::append, "id"_a, "tokens"_a)
      .def("lengths", &SharedProposer::lengths, "ids"_a, "out"_a)
      .def("end", &SharedProposer::end, "id"_a)
      .def("reset", &SharedProposer::reset)
      .def("forget", &SharedProposer::forget, "namespace"_a)
      .def("counters", &SharedProposer::counters);

  nb::class_<Automaton>(m, "Automaton")
      .def(nb::init<uint32_t>(), "depth"_a)
      .def("extend", &Automaton::extend, "tokens"_a)
      .def("match", &Automaton::match, "query"_a, "ahead"_a)
      .def_prop_ro("tokens", &Automaton::tokens)
      .def_prop_ro("states", &Automaton::states)
      .def_prop_ro("bytes", &Automaton::bytes);

  nb::class_<SharedAutomaton>(m, "SharedAutomaton")
      .def(nb::init<uint32_t>(), "depth"_a)
      .def("append", &SharedAutomaton::append, "end"_a, "token"_a)
      .def("match", &SharedAutomaton::match, "query"_a, "ahead"_a)
      .def_prop_ro("tokens", &SharedAutomaton::tokens)
      .def_prop_ro("states", &SharedAutomaton::states)
      .def_prop_ro("bytes", &SharedAutomaton::bytes);
}
