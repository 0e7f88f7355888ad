// SPDX-License-Identifier: Apache-2.0
// KV slots of draft tokens: read from, written to and packed out of the table of a request's slots.
//
// `table` is [requests, max_context]. Every function checks the spans it is given against it and throws
// std::invalid_argument before writing anything.
#pragma once

#include "ints.h"

namespace cpu_ops {

// Packs table[rows[i], starts[i] .. ends[i]) for all i into `out`, whose size is the number of slots.
void read_spans(const Ints& table, const Ints& rows, const Ints& starts, const Ints& ends, const Ints& out);

// Writes consecutive `slots` to table[rows[i], starts[i] .. ends[i]).
void write_spans(const Ints& table, const Ints& rows, const Ints& starts, const Ints& ends, const Ints& slots);

// Slots of the `width` tokens behind each request's `seq_lens[i]` committed ones, into out [batch * width];
// `positions`, where it has elements, gets each length repeated.
void draft_slots(const Ints& table, const Ints& rows, const Ints& seq_lens, size_t width, const Ints& out,
                 const Ints& positions);

// Packs the first counts[i] of each request's window of `slots` [batch * w] into `out`.
void pack_front(const Ints& counts, const Ints& slots, const Ints& out);

// Packs slots[index] for the non-negative ones of `accept_index` [batch, depth] into `out`.
void pack_accepted(const Ints& accept_index, const Ints& slots, const Ints& out);

// The last accepted token of each request: tokens[i * stride + lengths[i] - 1].
void last_accepted(const Ints& tokens, const Ints& lengths, size_t stride, const Ints& out);

// Slots that each draft branch reads, [batch * topk, longest + steps]: the committed tokens, then the branch's
// own. With `page_size` and `topk` above 1 a branch has pages of its own, the first of which repeats the
// tokens of the last committed page. Cells behind a branch's slots are set to 0.
void branch_slots(const Ints& table, const Ints& rows, const Ints& seq_lens, size_t topk, size_t steps,
                  size_t page_size, const Ints& out);

}  // namespace cpu_ops
