// Operands that a kernel cannot walk where they lie: it works on copies in the workspace.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/backend.hpp"
#include "ops/operands.hpp"

namespace normgrad {

class Staging {
 public:
  using Copy = decltype(Backend::copy);

  // Gives every staged operand room behind the first `workspace` bytes, which grow accordingly,
  // and a word in the name of the kernel.
  Status plan(const Operands& operands, size_t& workspace, std::string& kernel);

  // Before the kernel: copies inputs and points `buffers` to the copies.
  Status copy_in(Copy copy, Buffers& buffers, void* workspace, void* stream) const;
  // After it: copies outputs to where `buffers` wants them.
  Status copy_out(Copy copy, const Buffers& buffers, void* workspace, void* stream) const;

 private:
  struct Stage {
    Role role;
    bool in, out;  // whether it is copied before the kernel, and after it
    CopyProblem problem, back;
    size_t offset;  // of the copy in the workspace
  };
  std::vector<Stage> stages_;
};

}  // namespace normgrad
