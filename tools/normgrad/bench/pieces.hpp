// A case in pieces that share no element of dx: some rows of a LayerNorm or RMSNorm, some channels
// of a BatchNorm. The oracle takes 40 bytes per element; in pieces it has room for any case, and
// several threads do it.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "normgrad/plan.hpp"
#include "reference/cases.hpp"

namespace normgrad::tool {

struct Piece {
  int64_t begin = 0, end = 0;  // rows or channels
  reference::Call call;
  Buffers buffers;
};

// Rows are (rows, columns); channels are any axis of a contiguous tensor.
std::vector<Piece> pieces_of(const reference::Call& call, const Buffers& buffers);

// Calls visit(piece) for each one, on all CPUs. Throws what it throws.
template <class Visit>
void for_each_piece(const std::vector<Piece>& pieces, const Visit& visit) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) visit(pieces[i]);
  };
  std::vector<std::future<void>> helpers;
  for (unsigned i = 1; i < std::thread::hardware_concurrency() && i < pieces.size(); ++i) {
    helpers.push_back(std::async(std::launch::async, work));
  }
  work();
  for (std::future<void>& helper : helpers) helper.get();
}

}  // namespace normgrad::tool
