// aclgrphDumpGraph: the graph as text, once for people and once as an ONNX model for viewers. Any
// graph can be written, also one that would not compile: then as the program has described it.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "error.hpp"
#include "ge/ge_ir_build.h"
#include "kinds/check.hpp"
#include "runner/infer.hpp"

namespace normgrad::graph_mode {
namespace {

using ::ge::TensorDesc;

// As inferred from what the program stated; if that fails, only what it stated.
std::vector<Descs> describe(const Snapshot& graph) {
  try {
    return infer(graph, execution_order(graph), nullptr);
  } catch (const std::runtime_error&) {
    std::vector<Descs> descs;
    const TensorDesc unknown(::ge::Shape({::ge::UNKNOWN_DIM_NUM}), ::ge::FORMAT_ND,
                             ::ge::DT_UNDEFINED);
    for (const Snapshot::Node& node : graph.nodes) {
      descs.emplace_back();
      for (const auto& output : node.outputs) {
        descs.back().push_back(output.stated.value_or(unknown));
      }
    }
    return descs;
  }
}

std::string text(const TensorDesc& desc) {
  return graph_mode::text(desc.GetDataType()) + " " + graph_mode::text(desc.GetShape()) + " " +
         ::ge::GetFormatName(desc.GetFormat());
}

// "node.output"; "-" if there is none.
std::string text(const Snapshot& graph, const Snapshot::Value& value) {
  if (value.node < 0) return "-";
  const Snapshot::Node& node = graph.nodes[value.node];
  return node.name + "." + node.outputs[value.output].name;
}

std::string for_people(const Snapshot& graph, const std::vector<Descs>& descs) {
  std::ostringstream out;
  out << "graph " << graph.name << "\n";
  for (size_t i = 0; i < graph.feeds.size(); ++i) {
    out << "input " << i << ": " << graph.nodes[graph.feeds[i]].name << "\n";
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    out << "output " << i << ": " << text(graph, graph.outputs[i]) << "\n";
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Snapshot::Node& node = graph.nodes[i];
    out << "\nnode " << node.name << ": " << node.type << "\n";
    for (const auto& input : node.inputs) {
      out << "  input " << input.name << " <- " << text(graph, input.from) << "\n";
    }
    for (const auto& [name, value] : node.attributes) {
      out << "  attribute " << name << " = " << graph_mode::text(value) << "\n";
    }
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      out << "  output " << node.outputs[output].name << ": " << text(descs[i][output]) << "\n";
    }
  }
  return out.str();
}

// A string of the protobuf text format.
std::string quoted(const std::string& value) {
  std::string result = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result + "\"";
}

int onnx_type(::ge::DataType type) {
  switch (type) {
    case ::ge::DT_FLOAT:
      return 1;
    case ::ge::DT_FLOAT16:
      return 10;
    case ::ge::DT_BF16:
      return 16;
    default:
      return 0;
  }
}

void write_value(std::ostream& out, const char* field, const std::string& name,
                 const TensorDesc& desc) {
  out << "  " << field << " {\n    name: " << quoted(name) << "\n    type {\n      tensor_type {\n"
      << "        elem_type: " << onnx_type(desc.GetDataType()) << "\n        shape {\n";
  for (size_t axis = 0; axis < desc.GetShape().GetDimNum(); ++axis) {
    const int64_t extent = desc.GetShape().GetDim(axis);
    out << "          dim {";
    if (extent >= 0) out << " dim_value: " << extent;
    out << " }\n";
  }
  out << "        }\n      }\n    }\n  }\n";
}

std::string for_viewers(const Snapshot& graph, const std::vector<Descs>& descs) {
  std::ostringstream out;
  out << "ir_version: 8\nproducer_name: \"normgrad\"\nopset_import { domain: \"ascend\" version: 1 "
         "}\n"
      << "graph {\n  name: " << quoted(graph.name) << "\n";
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    const Snapshot::Node& node = graph.nodes[i];
    // What is fed is an input of the graph.
    if (std::find(graph.feeds.begin(), graph.feeds.end(), i) != graph.feeds.end()) continue;
    out << "  node {\n    name: " << quoted(node.name) << "\n    op_type: " << quoted(node.type)
        << "\n    domain: \"ascend\"\n";
    for (const auto& input : node.inputs) {
      out << "    input: " << quoted(text(graph, input.from)) << "\n";
    }
    for (const auto& output : node.outputs) {
      out << "    output: " << quoted(node.name + "." + output.name) << "\n";
    }
    for (const auto& [name, value] : node.attributes) {
      out << "    attribute {\n      name: " << quoted(name)
          << "\n      s: " << quoted(graph_mode::text(value)) << "\n      type: STRING\n    }\n";
    }
    out << "  }\n";
  }
  for (const int feed : graph.feeds) {
    write_value(out, "input", text(graph, {feed, 0}), descs[feed][0]);
  }
  for (const Snapshot::Value& value : graph.outputs) {
    write_value(out, "output", text(graph, value), descs[value.node][value.output]);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!graph.nodes[i].kind || !graph.nodes[i].kind->translate) continue;
    for (size_t output = 0; output < descs[i].size(); ++output) {
      const Snapshot::Value value = {static_cast<int>(i), static_cast<int>(output)};
      write_value(out, "value_info", text(graph, value), descs[i][output]);
    }
  }
  out << "}\n";
  return out.str();
}

void write(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) refuse("aclgrphDumpGraph: cannot write '" + path + "'");
}

bool is_folder(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

}  // namespace
}  // namespace normgrad::graph_mode

namespace ge {

using namespace normgrad::graph_mode;  // NOLINT: the function below is this namespace's face

graphStatus aclgrphDumpGraph(const Graph& graph, const char* file, const size_t len) {
  return guard([&]() -> uint32_t {
    const auto invalid = [](const std::string& reason) {
      return fail(GRAPH_PARAM_INVALID, "aclgrphDumpGraph: " + reason);
    };
    if (!file) return invalid("file is null");
    if (strnlen(file, PATH_MAX + 1) != len || len == 0 || len > PATH_MAX) {
      return invalid("len is " + std::to_string(len) + ", not the length of file, or too long");
    }
    if (!graph.IsValid()) return invalid("the graph has no inputs");
    const std::string path(file);
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    const std::string suffix = slash == std::string::npos ? path : path.substr(slash + 1);
    if (!is_folder(folder)) return invalid("there is no folder '" + folder + "'");

    static std::atomic<unsigned> count{0};
    char number[16];
    std::snprintf(number, sizeof(number), "%05u", count++);
    const std::string tail = std::string(number) + "_graph_0_" + suffix;
    const Snapshot snapshot = take_snapshot(graph);
    const std::vector<Descs> descs = describe(snapshot);
    write(folder + "/ge_proto_" + tail + ".txt", for_people(snapshot, descs));
    write(folder + "/ge_onnx_" + tail + ".pbtxt", for_viewers(snapshot, descs));
    return GRAPH_SUCCESS;
  });
}

}  // namespace ge
