// SPDX-License-Identifier: Apache-2.0
// Draft trees: from a mask or a beam to links, and down along the target's choices.
//
// A tree of n nodes is numbered so that a parent precedes its children; node 0 is the last accepted
// token. It comes as a boolean matrix whose row i marks the ancestors of node i and the node itself,
// or as three links a node: its row in the batch, its first child, its next sibling (-1 for none).
#pragma once

#include "ints.h"

namespace cpu_ops {

// Links of a batch of trees, each [batch, n].
struct Links {
  Ints row, child, sibling;

  size_t batch() const { return row.rows(); }
  size_t nodes() const { return row.cols(); }
};

// From mask [batch, n, n] and the committed tokens of each request [batch]; writes positions [batch * n]
// (committed tokens plus depth) and links. A node other than the root without ancestors hangs nowhere.
void links_from_mask(const bool* mask, const Ints& seq_lens, const Ints& positions, const Links& out);

// From what EAGLE's beam search leaves: `chosen` [batch, n - 1], beam indices of the chosen tokens, ascending;
// `expanded` [batch, m], the beam index of each expanded token, entry 0 for the root. The tokens
// topk * j .. topk * j + topk - 1 of the beam descend from the j-th expanded one. Writes positions, links and
// the mask: one [n, n] a request, or with `full` one [n, seq_len + n] of which only the last n columns
// are written. `mask_size` is its number of cells.
// A token whose parent was not chosen (its score ties with it) hangs nowhere: below the root in the mask, in no link.
void beam_to_tree(const Ints& chosen, const Ints& expanded, const Ints& seq_lens, size_t topk, const Ints& positions,
                  bool* mask, size_t mask_size, bool full, const Links& out);

// Walks each tree as far as the target's choices were drafted. `choose(request, node)` is the target's token
// after a node and is asked once for each accepted node, root first. Writes `predicts` [batch * n] at accepted
// nodes, `accept_index` [batch, depth] (rows of the accepted nodes, the rest untouched) and `accepted_drafts` [batch].
template <typename Choose>
void follow_tree(const Links& links, const Ints& drafts, Choose choose, const Ints& predicts, const Ints& accept_index,
                 const Ints& accepted_drafts) {
  const size_t depth = accept_index.cols();
  for (size_t request = 0; request < links.batch(); ++request) {
    size_t node = 0, length = 1;
    accept_index.set(request, 0, links.row(request, 0));
    while (true) {
      const int64_t wanted = choose(request, node);
      predicts.set(static_cast<size_t>(links.row(request, node)), wanted);
      if (length == depth) break;
      int64_t child = links.child(request, node);
      while (child != -1 && drafts(request, static_cast<size_t>(child)) != wanted) {
        child = links.sibling(request, static_cast<size_t>(child));
      }
      if (child == -1) break;
      node = static_cast<size_t>(child);
      accept_index.set(request, length++, links.row(request, node));
    }
    accepted_drafts.set(request, static_cast<int64_t>(length) - 1);
  }
}

}  // namespace cpu_ops
