// SPDX-License-Identifier: Apache-2.0
#include "slots.h"

#include <stdexcept>
#include <string>

namespace cpu_ops {

namespace {

// Throws unless table[row, start .. end) exists; returns its length.
size_t check_span(const Ints& table, int64_t row, int64_t start, int64_t end) {
  if (row < 0 || row >= static_cast<int64_t>(table.rows()) || start < 0 || end < start ||
      end > static_cast<int64_t>(table.cols())) {
    throw std::invalid_argument("request row " + std::to_string(row) + ", tokens " + std::to_string(start) + " to " +
                                std::to_string(end) + ": not in a table of " + std::to_string(table.rows()) +
                                " requests of " + std::to_string(table.cols()) + " tokens");
  }
  return static_cast<size_t>(end - start);
}

void need(size_t there, size_t needed, const char* what) {
  if (there < needed) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(there) + " elements; " +
                                std::to_string(needed) + " are needed");
  }
}

size_t check_spans(const Ints& table, const Ints& rows, const Ints& starts, const Ints& ends) {
  need(starts.size(), rows.size(), "starts");
  need(ends.size(), rows.size(), "ends");
  size_t total = 0;
  for (size_t i = 0; i < rows.size(); ++i) total += check_span(table, rows[i], starts[i], ends[i]);
  return total;
}

}  // namespace

void read_spans(const Ints& table, const Ints& rows, const Ints& starts, const Ints& ends, const Ints& out) {
  need(out.size(), check_spans(table, rows, starts, ends), "the output");
  size_t at = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t k = starts[i]; k < ends[i]; ++k) out.set(at++, table(rows[i], k));
  }
}

void write_spans(const Ints& table, const Ints& rows, const Ints& starts, const Ints& ends, const Ints& slots) {
  need(slots.size(), check_spans(table, rows, starts, ends), "slots");
  size_t at = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t k = starts[i]; k < ends[i]; ++k) table.set(rows[i], k, slots[at++]);
  }
}

void draft_slots(const Ints& table, const Ints& rows, const Ints& seq_lens, size_t width, const Ints& out,
                 const Ints& positions) {
  const size_t batch = rows.size();
  need(seq_lens.size(), batch, "seq_lens");
  need(out.size(), batch * width, "the output");
  const auto span = static_cast<int64_t>(width);
  for (size_t i = 0; i < batch; ++i) check_span(table, rows[i], seq_lens[i], seq_lens[i] + span);
  for (size_t i = 0; i < batch; ++i) {
    for (size_t k = 0; k < width; ++k) out.set(i * width + k, table(rows[i], seq_lens[i] + k));
  }
  const size_t each = batch ? positions.size() / batch : 0;
  for (size_t i = 0; i < batch * each; ++i) positions.set(i, seq_lens[i / each]);
}

void pack_front(const Ints& counts, const Ints& slots, const Ints& out) {
  const size_t batch = counts.size(), window = batch ? slots.size() / batch : 0;
  size_t total = 0;
  for (size_t i = 0; i < batch; ++i) {
    if (counts[i] < 0 || counts[i] > static_cast<int64_t>(window)) {
      throw std::invalid_argument("request " + std::to_string(i) + " takes " + std::to_string(counts[i]) +
                                  " slots of " + std::to_string(window));
    }
    total += static_cast<size_t>(counts[i]);
  }
  need(out.size(), total, "the output");
  size_t at = 0;
  for (size_t i = 0; i < batch; ++i) {
    for (int64_t k = 0; k < counts[i]; ++k) out.set(at++, slots[i * window + k]);
  }
}

void pack_accepted(const Ints& accept_index, const Ints& slots, const Ints& out) {
  size_t total = 0;
  for (size_t i = 0; i < accept_index.size(); ++i) {
    if (accept_index[i] >= static_cast<int64_t>(slots.size())) {
      throw std::invalid_argument("accepted node " + std::to_string(accept_index[i]) + " has none of the " +
                                  std::to_string(slots.size()) + " slots");
    }
    total += accept_index[i] >= 0;
  }
  need(out.size(), total, "the output");
  size_t at = 0;
  for (size_t i = 0; i < accept_index.size(); ++i) {
    if (accept_index[i] >= 0) out.set(at++, slots[accept_index[i]]);
  }
}

void last_accepted(const Ints& tokens, const Ints& lengths, size_t stride, const Ints& out) {
  const size_t batch = lengths.size();
  need(tokens.size(), batch * stride, "tokens");
  need(out.size(), batch, "the output");
  for (size_t i = 0; i < batch; ++i) {
    if (lengths[i] < 1 || lengths[i] > static_cast<int64_t>(stride)) {
      throw std::invalid_argument("request " + std::to_string(i) + " accepted " + std::to_string(lengths[i]) +
                                  " of " + std::to_string(stride) + " tokens");
    }
  }
  for (size_t i = 0; i < batch; ++i) out.set(i, tokens[i * stride + lengths[i] - 1]);
}

void branch_slots(const Ints& table, const Ints& rows, const Ints& seq_lens, size_t topk, size_t steps,
                  size_t page_size, const Ints& out) {
  const size_t batch = rows.size();
  need(seq_lens.size(), batch, "seq_lens");
  need(out.rows(), batch * topk, "the output's first dimension");
  const auto first_own = [&](int64_t length, size_t branch) {
    if (page_size == 1 || topk == 1) return length + static_cast<int64_t>(branch * steps);
    const auto page = static_cast<int64_t>(page_size);
    const int64_t pages = (length % page + static_cast<int64_t>(steps) + page - 1) / page;
    return length + static_cast<int64_t>(branch) * pages * page;
  };
  const auto own = static_cast<int64_t>(steps);
  for (size_t i = 0; i < batch; ++i) {
    const int64_t last = first_own(seq_lens[i], topk - 1);
    check_span(table, rows[i], 0, last + own);
    need(out.cols(), static_cast<size_t>(seq_lens[i] + own), "the output's second dimension");
  }
  for (size_t i = 0; i < batch; ++i) {
    const int64_t length = seq_lens[i];
    for (size_t branch = 0; branch < topk; ++branch) {
      const size_t target = i * topk + branch;
      size_t at = 0;
      for (int64_t k = 0; k < length; ++k) out.set(target, at++, table(rows[i], k));
      const int64_t start = first_own(length, branch);
      for (int64_t k = 0; k < own; ++k) out.set(target, at++, table(rows[i], start + k));
      while (at < out.cols()) out.set(target, at++, 0);
    }
  }
}

}  // namespace cpu_ops
