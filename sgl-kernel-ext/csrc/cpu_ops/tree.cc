// SPDX-License-Identifier: Apache-2.0
#include "tree.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace cpu_ops {

namespace {

// Children in ascending order; a node with a negative parent is linked to nothing.
void write_links(size_t request, const std::vector<int64_t>& parents, const Links& out) {
  const size_t n = parents.size();
  for (size_t node = 0; node < n; ++node) {
    out.row.set(request, node, static_cast<int64_t>(request * n + node));
    out.child.set(request, node, -1);
    out.sibling.set(request, node, -1);
  }
  for (size_t node = n; node-- > 1;) {
    if (parents[node] < 0) continue;
    const auto parent = static_cast<size_t>(parents[node]);
    out.sibling.set(request, node, out.child(request, parent));
    out.child.set(request, parent, static_cast<int64_t>(node));
  }
}

}  // namespace

void links_from_mask(const bool* mask, const Ints& seq_lens, const Ints& positions, const Links& out) {
  const size_t n = out.nodes();
  std::vector<int64_t> parents(n);
  for (size_t request = 0; request < out.batch(); ++request) {
    for (size_t node = 0; node < n; ++node) {
      const bool* row = mask + (request * n + node) * n;
      // Ancestors are numbered along the path, so the nearest is the last.
      int64_t depth = 0, nearest = -1;
      for (size_t other = 0; other < node; ++other) {
        if (!row[other]) continue;
        ++depth;
        nearest = static_cast<int64_t>(other);
      }
      parents[node] = nearest;
      positions.set(request * n + node, seq_lens[request] + depth);
    }
    write_links(request, parents, out);
  }
}

void beam_to_tree(const Ints& chosen, const Ints& expanded, const Ints& seq_lens, size_t topk, const Ints& positions,
                  bool* mask, size_t mask_size, bool full, const Links& out) {
  const size_t n = out.nodes();
  std::vector<int64_t> parents(n), depth(n);
  size_t start = 0;
  for (size_t request = 0; request < out.batch(); ++request) {
    const int64_t length = seq_lens[request];
    const size_t columns = full ? static_cast<size_t>(length) + n : n;
    if (start + n * columns > mask_size) throw std::invalid_argument("the draft-tree mask is too small for the batch");
    bool* cells = mask + start + (columns - n);
    start += n * columns;
    parents[0] = -1;
    depth[0] = 0;
    for (size_t node = 0; node < n; ++node) {
      bool* row = cells + node * columns;
      if (node > 0) {
        const int64_t index = chosen(request, node - 1);
        const auto source = static_cast<size_t>(index) / topk;
        size_t parent = 0;
        bool linked = true;
        if (source != 0) {
          if (source >= expanded.cols()) {
            throw std::invalid_argument("draft tree of request " + std::to_string(request) + ": beam index " +
                                        std::to_string(index) + " descends from no expanded token");
          }
          const int64_t wanted = expanded(request, source);
          // Chosen indices ascend, and a parent's index is below its children's.
          size_t low = 1, high = node;
          while (low < high) {
            const size_t middle = (low + high) / 2;
            if (chosen(request, middle - 1) < wanted) {
              low = middle + 1;
            } else {
              high = middle;
            }
          }
          linked = low < node && chosen(request, low - 1) == wanted;
          if (linked) parent = low;
        }
        parents[node] = linked ? static_cast<int64_t>(parent) : -1;
        depth[node] = depth[parent] + 1;
        std::copy_n(cells + parent * columns, n, row);
      } else {
        std::fill_n(row, n, false);
      }
      row[node] = true;
      positions.set(request * n + node, length + depth[node]);
    }
    write_links(request, parents, out);
  }
}

}  // namespace cpu_ops
