// OperatorKind: what the engine knows of a type of operator. One table holds them all; a new
// operator is a file with its functions and a line of the table.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/attr_value.h"
#include "graph/tensor.h"
#include "normgrad/plan.hpp"

namespace normgrad::graph_mode {

using Attributes = std::vector<std::pair<std::string, ::ge::AttrValue>>;
using Descs = std::vector<::ge::TensorDesc>;

struct OperatorKind;

// A node whose shapes are all known, its inputs and outputs in the order of its kind.
struct Invocation {
  const OperatorKind& kind;
  const std::string& node;  // its name, for sentences
  const Attributes& attributes;
  Descs inputs;
  Descs outputs;
  std::vector<bool> used;  // outputs that somebody wants
};

// The native call that an invocation became. Null pointers to members: inputs that the call does
// not read, outputs that it does not write. No output at all: there is nothing to run.
struct Translation {
  Plan plan;
  std::vector<const void * Buffers::*> inputs;
  std::vector<void * Buffers::*> outputs;
};

struct OperatorKind {
  const char* type;
  std::span<const char* const> inputs;
  std::span<const char* const> outputs;
  // Bit i: output i may be stated as DT_FLOAT whatever its inferred type is.
  unsigned float_outputs;
  // Descriptions of the outputs; extents and ranks may be unknown. Null for tensors that the graph
  // brings along or is fed.
  Descs (*infer)(const Descs& inputs);
  // Checks everything and plans; throws what is wrong.
  Translation (*translate)(const Invocation& invocation);
};

// Null if there is no such type.
NORMGRAD_GE_EXPORT const OperatorKind* find_kind(const std::string& type);

extern const OperatorKind kData, kConst, kConstant;
extern const OperatorKind kLayerNormGrad, kLayerNormGradV3, kRmsNormGrad, kBatchNormGradV3;

}  // namespace normgrad::graph_mode
