// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "sampling.h"
#include "slots.h"
#include "tree.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cpu_ops;

namespace {

using Tensor = nb::ndarray<nb::device::cpu>;
template <typename T>
using Dense = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

std::string shape_of(const Tensor& tensor) {
  std::string text = "[";
  for (size_t d = 0; d < tensor.ndim(); ++d) text += (d ? ", " : "") + std::to_string(tensor.shape(d));
  return text + "]";
}

// A vector or matrix of integers.
Ints ints(const Tensor& tensor, const char* name) {
  const nb::dlpack::dtype type = tensor.dtype();
  const bool wide = type == nb::dtype<int64_t>();
  if (!wide && type != nb::dtype<int32_t>()) refuse(std::string(name) + " must hold int32 or int64");
  if (tensor.ndim() == 0 || tensor.ndim() > 2) {
    refuse(std::string(name) + " must have one or two dimensions, not shape " + shape_of(tensor));
  }
  void* data = const_cast<void*>(static_cast<const void*>(tensor.data()));
  if (tensor.ndim() == 1) return Ints(data, wide, 1, tensor.shape(0), 0, tensor.stride(0));
  return Ints(data, wide, tensor.shape(0), tensor.shape(1), tensor.stride(0), tensor.stride(1));
}

Links links(const nb::sequence& three, const char* name) {
  if (nb::len(three) != 3) refuse(std::string(name) + " must be three tensors: row, child, sibling");
  Links out{ints(nb::cast<Tensor>(three[0]), "row"), ints(nb::cast<Tensor>(three[1]), "child"),
            ints(nb::cast<Tensor>(three[2]), "sibling")};
  for (const Ints* part : {&out.child, &out.sibling}) {
    if (part->rows() != out.batch() || part->cols() != out.nodes()) {
      refuse(std::string(name) + ": row, child and sibling must have the same shape");
    }
  }
  if (out.nodes() == 0) refuse(std::string(name) + ": a tree has at least its root");
  return out;
}

void need(size_t there, size_t needed, const char* what) {
  if (there < needed) {
    refuse(std::string(what) + " has " + std::to_string(there) + " elements; " + std::to_string(needed) +
           " are needed");
  }
}

void need_shape(const Ints& matrix, size_t rows, size_t cols, const char* what) {
  if (matrix.rows() != rows || matrix.cols() != cols) {
    refuse(std::string(what) + " has shape [" + std::to_string(matrix.rows()) + ", " +
           std::to_string(matrix.cols()) + "]; [" + std::to_string(rows) + ", " + std::to_string(cols) +
           "] is needed");
  }
}

void check_links(const Links& tree) {
  const auto n = static_cast<int64_t>(tree.nodes()), rows = static_cast<int64_t>(tree.batch()) * n;
  for (size_t request = 0; request < tree.batch(); ++request) {
    for (size_t node = 0; node < tree.nodes(); ++node) {
      const int64_t row = tree.row(request, node);
      if (row < 0 || row >= rows) refuse("a row of the links is not in the batch");
      // Links point forward, so that a walk ends.
      for (const int64_t next : {tree.child(request, node), tree.sibling(request, node)}) {
        if (next != -1 && (next <= static_cast<int64_t>(node) || next >= n)) {
          refuse("a link of request " + std::to_string(request) + " leads from node " + std::to_string(node) +
                 " to " + std::to_string(next));
        }
      }
    }
  }
}

void links_from_mask_py(const Dense<const bool>& mask, const Tensor& seq_lens, const Tensor& positions,
                        const nb::sequence& out) {
  const Links to = links(out, "out");
  const Ints lengths = ints(seq_lens, "seq_lens"), places = ints(positions, "positions");
  need(mask.size(), to.batch() * to.nodes() * to.nodes(), "mask");
  need(lengths.size(), to.batch(), "seq_lens");
  need(places.size(), to.batch() * to.nodes(), "positions");
  links_from_mask(mask.data(), lengths, places, to);
}

void beam_to_tree_py(const Tensor& chosen, const Tensor& expanded, const Tensor& seq_lens, size_t topk,
                     const Tensor& positions, const Dense<bool>& mask, bool full_mask, const nb::sequence& out) {
  const Links to = links(out, "out");
  const Ints beam = ints(chosen, "chosen"), sources = ints(expanded, "expanded");
  const Ints lengths = ints(seq_lens, "seq_lens"), places = ints(positions, "positions");
  if (topk == 0) refuse("topk must be at least 1");
  need_shape(beam, to.batch(), to.nodes() - 1, "chosen");
  if (sources.rows() != to.batch()) refuse("expanded must have one row a request");
  need(lengths.size(), to.batch(), "seq_lens");
  need(places.size(), to.batch() * to.nodes(), "positions");
  beam_to_tree(beam, sources, lengths, topk, places, mask.data(), mask.size(), full_mask, to);
}

// Checked arguments of a walk down the trees.
struct Walk {
  Links tree;
  Ints drafts, predicts, accept_index, accepted;

  Walk(const nb::sequence& links_in, const Tensor& drafts_in, const Tensor& predicts_in, const Tensor& index,
       const Tensor& count)
      : tree(links(links_in, "links")),
        drafts(ints(drafts_in, "drafts")),
        predicts(ints(predicts_in, "predicts")),
        accept_index(ints(index, "accept_index")),
        accepted(ints(count, "accepted_drafts")) {
    need_shape(drafts, tree.batch(), tree.nodes(), "drafts");
    need(predicts.size(), tree.batch() * tree.nodes(), "predicts");
    if (accept_index.rows() != tree.batch() || accept_index.cols() == 0) {
      refuse("accept_index must have one row a request and at least one column");
    }
    need(accepted.size(), tree.batch(), "accepted_drafts");
    check_links(tree);
  }
};

void follow_tree_py(const nb::sequence& tree, const Tensor& drafts, const Tensor& wanted, const Tensor& predicts,
                    const Tensor& accept_index, const Tensor& accepted_drafts) {
  const Walk walk(tree, drafts, predicts, accept_index, accepted_drafts);
  const Ints targets = ints(wanted, "wanted");
  need_shape(targets, walk.tree.batch(), walk.tree.nodes(), "wanted");
  follow_tree(
      walk.tree, walk.drafts, [&](size_t request, size_t node) { return targets(request, node); }, walk.predicts,
      walk.accept_index, walk.accepted);
}

using Probabilities = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Uniforms = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void sample_tree_py(const nb::sequence& tree, const Tensor& drafts, const Probabilities& probs, const Uniforms& draws,
                    const Tensor& predicts, const Tensor& accept_index, const Tensor& accepted_drafts) {
  const Walk walk(tree, drafts, predicts, accept_index, accepted_drafts);
  const size_t nodes = walk.tree.nodes(), vocabulary = probs.shape(2);
  if (probs.shape(0) != walk.tree.batch() || probs.shape(1) != nodes || vocabulary == 0) {
    refuse("probs must be [batch, nodes, vocabulary]");
  }
  need(draws.size(), walk.tree.batch() * nodes, "draws");
  const nb::gil_scoped_release release;
  follow_tree(
      walk.tree, walk.drafts,
      [&](size_t request, size_t node) {
        const size_t row = request * nodes + node;
        return draw_token(probs.data() + row * vocabulary, vocabulary, draws.data()[row]);
      },
      walk.predicts, walk.accept_index, walk.accepted);
}

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RowsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_rows(const Rows& probs, size_t limits, const RowsOut& out) {
  if (out.shape(0) != probs.shape(0) || out.shape(1) != probs.shape(1)) refuse("out must have the shape of probs");
  if (probs.shape(1) == 0) refuse("probs must have a column");
  need(limits, probs.shape(0), "the limits");
}

void top_k_renorm_py(const Rows& probs, const Tensor& top_k, const RowsOut& out) {
  const Ints limits = ints(top_k, "top_k");
  check_rows(probs, limits.size(), out);
  const nb::gil_scoped_release release;
  const size_t vocabulary = probs.shape(1);
  for (size_t row = 0; row < probs.shape(0); ++row) {
    top_k_renorm(probs.data() + row * vocabulary, vocabulary, limits[row], out.data() + row * vocabulary);
  }
}

void top_p_renorm_py(const Rows& probs, const Dense<const float>& top_p, const RowsOut& out) {
  check_rows(probs, top_p.size(), out);
  const nb::gil_scoped_release release;
  const size_t vocabulary = probs.shape(1);
  for (size_t row = 0; row < probs.shape(0); ++row) {
    top_p_renorm(probs.data() + row * vocabulary, vocabulary, top_p.data()[row], out.data() + row * vocabulary);
  }
}

using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu>;
using PoolTensor = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;
using Query = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using QueryOut = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Holds what the plan points into.
class RowAttention {
 public:
  RowAttention(Table table, const std::vector<int64_t>& rows, const std::vector<int64_t>& q_lens,
               const std::vector<int64_t>& k_lens, const nb::object& mask, const std::vector<int64_t>& mask_starts,
               const std::vector<int64_t>& mask_strides)
      : table_(std::move(table)) {
    const size_t batch = rows.size();
    if (q_lens.size() != batch || k_lens.size() != batch) refuse("rows, q_lens and k_lens must be equally long");
    if (table_.stride(1) != 1) refuse("the table's rows must be contiguous");
    plan_.table = table_.data();
    plan_.table_stride = table_.stride(0);
    plan_.rows = rows;
    plan_.k_lens = k_lens;
    plan_.q_starts.push_back(0);
    for (size_t i = 0; i < batch; ++i) {
      if (rows[i] < 0 || rows[i] >= static_cast<int64_t>(table_.shape(0)) || q_lens[i] < 0 || k_lens[i] < q_lens[i] ||
          k_lens[i] > static_cast<int64_t>(table_.shape(1))) {
        refuse("request " + std::to_string(i) + ": " + std::to_string(q_lens[i]) + " of " +
               std::to_string(k_lens[i]) + " tokens in row " + std::to_string(rows[i]) +
               " do not fit the table");
      }
      plan_.q_starts.push_back(plan_.q_starts.back() + q_lens[i]);
      for (int64_t k = 0; k < k_lens[i]; ++k) {
        const int32_t slot = plan_.table[rows[i] * plan_.table_stride + k];
        if (slot < 0) refuse("request " + std::to_string(i) + " has no slot for token " + std::to_string(k));
        last_slot_ = std::max<int64_t>(last_slot_, slot);
      }
    }
    if (mask.is_none()) return;
    mask_ = nb::cast<Mask>(mask);
    plan_.mask = mask_.data();
    plan_.mask_starts = mask_starts;
    plan_.mask_strides = mask_strides;
    if (mask_starts.size() != batch || mask_strides.size() != batch) refuse("the mask needs a start and a stride each");
    for (size_t i = 0; i < batch; ++i) {
      const int64_t last = mask_starts[i] + (q_lens[i] - 1) * mask_strides[i] + q_lens[i];
      if (mask_starts[i] < 0 || mask_strides[i] < 0 || last > static_cast<int64_t>(mask_.size())) {
        refuse("the mask of request " + std::to_string(i) + " is not in the " + std::to_string(mask_.size()) +
               " cells there are");
      }
    }
  }

  void run(const Query& query, const PoolTensor& keys, const PoolTensor& values, float scale, const QueryOut& out,
           int threads) const {
    const size_t heads = keys.shape(1), q_heads = query.shape(1);
    if (heads == 0 || q_heads % heads != 0) refuse("query heads must be a multiple of key heads");
    if (keys.shape(2) != query.shape(2)) refuse("keys and query must have one head dimension");
    if (values.shape(0) != keys.shape(0) || values.shape(1) != heads) refuse("keys and values must be of one pool");
    if (keys.stride(2) != 1 || values.stride(2) != 1) refuse("a head of the pool must be contiguous");
    if (last_slot_ >= static_cast<int64_t>(keys.shape(0))) {
      refuse("slot " + std::to_string(last_slot_) + " is not in a pool of " + std::to_string(keys.shape(0)));
    }
    const auto rows = static_cast<size_t>(plan_.q_starts.back());
    if (query.shape(0) != rows || out.shape(0) != rows || out.shape(1) != q_heads || out.shape(2) != values.shape(2)) {
      refuse("query or out does not have the plan's " + std::to_string(rows) + " rows");
    }
    const Pool pool{keys.data(),      values.data(),    keys.stride(0), keys.stride(1),
                    values.stride(0), values.stride(1), heads,          keys.shape(2),
                    values.shape(2)};
    const nb::gil_scoped_release release;
    attend_rows(plan_, pool, query.data(), q_heads, scale, out.data(), threads);
  }

 private:
  RowPlan plan_;
  Table table_;
  Mask mask_;
  int64_t last_slot_ = 0;
};

}  // namespace

NB_MODULE(_cpu_ops, m) {
  m.doc() = "Operators of the reference CPU platform on host tensors; arguments named out and the like are overwritten.";
  m.def("links_from_mask", &links_from_mask_py, "mask"_a, "seq_lens"_a, nb::kw_only(), "positions"_a, "out"_a);
  m.def("beam_to_tree", &beam_to_tree_py, "chosen"_a, "expanded"_a, "seq_lens"_a, nb::kw_only(), "topk"_a,
        "positions"_a, "mask"_a, "full_mask"_a, "out"_a);
  m.def("follow_tree", &follow_tree_py, "links"_a, "drafts"_a, "wanted"_a, nb::kw_only(), "predicts"_a,
        "accept_index"_a, "accepted_drafts"_a);
  m.def("sample_tree", &sample_tree_py, "links"_a, "drafts"_a, "probs"_a, "draws"_a, nb::kw_only(), "predicts"_a,
        "accept_index"_a, "accepted_drafts"_a);
  m.def("top_k_renorm", &top_k_renorm_py, "probs"_a, "top_k"_a, "out"_a);
  m.def("top_p_renorm", &top_p_renorm_py, "probs"_a, "top_p"_a, "out"_a);
  m.def(
      "read_spans",
      [](const Tensor& table, const Tensor& rows, const Tensor& starts, const Tensor& ends, const Tensor& out) {
        read_spans(ints(table, "table"), ints(rows, "rows"), ints(starts, "starts"), ints(ends, "ends"),
                   ints(out, "out"));
      },
      "table"_a, "rows"_a, "starts"_a, "ends"_a, "out"_a);
  m.def(
      "write_spans",
      [](const Tensor& table, const Tensor& rows, const Tensor& starts, const Tensor& ends, const Tensor& slots) {
        write_spans(ints(table, "table"), ints(rows, "rows"), ints(starts, "starts"), ints(ends, "ends"),
                    ints(slots, "slots"));
      },
      "table"_a, "rows"_a, "starts"_a, "ends"_a, "slots"_a);
  m.def(
      "draft_slots",
      [](const Tensor& table, const Tensor& rows, const Tensor& seq_lens, size_t width, const Tensor& out,
         const nb::object& positions) {
        const Ints places =
            positions.is_none() ? Ints(nullptr, true, 1, 0, 0, 1) : ints(nb::cast<Tensor>(positions), "positions");
        draft_slots(ints(table, "table"), ints(rows, "rows"), ints(seq_lens, "seq_lens"), width, ints(out, "out"),
                    places);
      },
      "table"_a, "rows"_a, "seq_lens"_a, "width"_a, "out"_a, "positions"_a.none() = nb::none());
  m.def(
      "pack_front",
      [](const Tensor& counts, const Tensor& slots, const Tensor& out) {
        pack_front(ints(counts, "counts"), ints(slots, "slots"), ints(out, "out"));
      },
      "counts"_a, "slots"_a, "out"_a);
  m.def(
      "pack_accepted",
      [](const Tensor& accept_index, const Tensor& slots, const Tensor& out) {
        pack_accepted(ints(accept_index, "accept_index"), ints(slots, "slots"), ints(out, "out"));
      },
      "accept_index"_a, "slots"_a, "out"_a);
  m.def(
      "last_accepted",
      [](const Tensor& tokens, const Tensor& lengths, size_t stride, const Tensor& out) {
        last_accepted(ints(tokens, "tokens"), ints(lengths, "lengths"), stride, ints(out, "out"));
      },
      "tokens"_a, "lengths"_a, "stride"_a, "out"_a);
  m.def(
      "branch_slots",
      [](const Tensor& table, const Tensor& rows, const Tensor& seq_lens, size_t topk, size_t steps, size_t page_size,
         const Tensor& out) {
        if (topk == 0 || page_size == 0) refuse("topk and page_size must be at least 1");
        branch_slots(ints(table, "table"), ints(rows, "rows"), ints(seq_lens, "seq_lens"), topk, steps, page_size,
                     ints(out, "out"));
      },
      "table"_a, "rows"_a, "seq_lens"_a, nb::kw_only(), "topk"_a, "steps"_a, "page_size"_a, "out"_a);
  nb::class_<RowAttention>(m, "RowAttention")
      .def(nb::init<Table, const std::vector<int64_t>&, const std::vector<int64_t>&, const std::vector<int64_t>&,
                    const nb::object&, const std::vector<int64_t>&, const std::vector<int64_t>&>(),
           "table"_a, "rows"_a, "q_lens"_a, "k_lens"_a, "mask"_a.none() = nb::none(),
           "mask_starts"_a = std::vector<int64_t>(), "mask_strides"_a = std::vector<int64_t>())
      .def("run", &RowAttention::run, "query"_a, "keys"_a, "values"_a, "scale"_a, "out"_a, "threads"_a);
}
