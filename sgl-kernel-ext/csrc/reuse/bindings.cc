// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "best_ratios.h"
#include "page_hashes.h"

namespace nb = nanobind;

namespace {

// A view of an object's memory for the time of one call: cheaper to take than an array type, and an `array.array`
// can grow again afterwards.
class View {
 public:
  View(nb::handle object, const char* what, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0) {
      throw nb::python_error();
    }
    if (view_.len % 8 != 0 || (view_.itemsize != 8 && view_.len != 0)) {
      PyBuffer_Release(&view_);
      throw std::invalid_argument(std::string(what) + " must have elements of 8 bytes");
    }
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { PyBuffer_Release(&view_); }

  std::size_t size() const { return static_cast<std::size_t>(view_.len) / 8; }
  template <typename T>
  T* as() const {
    static_assert(sizeof(T) == 8, "elements have 8 bytes");
    return static_cast<T*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

void hash_pages(nb::handle tokens, std::size_t first, std::size_t page_size, bool pairs, std::uint64_t position,
                std::uint64_t base, nb::handle out) {
  const View from(tokens, "tokens", false), to(out, "out", true);
  if (page_size == 0) throw std::invalid_argument("page_size must be at least 1");
  const std::size_t pages = to.size();
  // Divided, because a product could wrap.
  if (first > from.size() || pages > (from.size() - first) / page_size ||
      (pairs && pages && first + pages * page_size + 1 > from.size())) {
    throw std::invalid_argument(std::to_string(pages) + " pages of " + std::to_string(page_size) + " from token " +
                                std::to_string(first) + " on exceed " + std::to_string(from.size()) + " tokens");
  }
  reuse::page_hashes(from.as<const std::int64_t>() + first, position, pages, page_size, pairs, base,
                     to.as<std::uint64_t>());
}

void index_of(nb::handle hazard, nb::handle widths, nb::handle out) {
  const View z(hazard, "hazard", false), w(widths, "widths", false), to(out, "out", true);
  if (w.size() == 0 || z.size() % w.size() != 0 || to.size() != z.size()) {
    throw std::invalid_argument("hazard and out must both have a multiple of " + std::to_string(w.size()) +
                                " elements, not " + std::to_string(z.size()) + " and " + std::to_string(to.size()));
  }
  reuse::best_ratios(z.as<const double>(), w.as<const double>(), z.size() / w.size(), w.size(), to.as<double>());
}

}  // namespace

NB_MODULE(_reuse, m) {
  m.def("page_hashes", &hash_pages, nb::arg("tokens"), nb::arg("first"), nb::arg("page_size"), nb::arg("pairs"),
        nb::arg("position"), nb::arg("base"), nb::arg("out"));
  m.def("best_ratios", &index_of, nb::arg("hazard"), nb::arg("widths"), nb::arg("out"));
}
