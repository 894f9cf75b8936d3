#include "arrays.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <unordered_map>

namespace normgrad::python {
namespace {

// Looked up once per type, which is then kept alive.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  static std::unordered_map<PyTypeObject*, const dlpack::ExchangeApi*> known;
  if (const auto found = known.find(type); found != known.end()) return found->second;

  const dlpack::ExchangeApi* api = nullptr;
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  const nb::object capsule = nb::getattr(handle, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
    api = static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (api != nullptr && api->version.major != 1) api = api->previous;
    if (api != nullptr && (api->view == nullptr || api->current_stream == nullptr)) api = nullptr;
  }
  handle.inc_ref();
  known.emplace(type, api);
  return api;
}

std::string type_name(const dlpack::Tensor& tensor) {
  constexpr const char* kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const auto code = static_cast<size_t>(tensor.code);
  std::string name = code < std::size(kCodes) ? kCodes[code] : "type " + std::to_string(code) + ":";
  name += std::to_string(tensor.bits);
  if (tensor.lanes != 1) name += "x" + std::to_string(tensor.lanes);
  return name;
}

// What the steps of a BatchNorm hand to each other may be wider.
DType dtype_of(const char* name, Role role, const dlpack::Tensor& tensor) {
  const bool sums = role == kMean || role == kSavedMean || role == kSquares || role == kSumDy ||
                    role == kSumDyXmu;
  if (tensor.lanes == 1) {
    if (sums && tensor.code == dlpack::kFloat && tensor.bits == 64) return DType::kF64;
    if (role == kCount && tensor.code == dlpack::kInt && tensor.bits == 64) return DType::kI64;
    if (tensor.code == dlpack::kFloat && tensor.bits == 32) return DType::kF32;
    if (tensor.code == dlpack::kFloat && tensor.bits == 16) return DType::kF16;
    if (tensor.code == dlpack::kBfloat && tensor.bits == 16) return DType::kBF16;
    if (tensor.code == dlpack::kInt && tensor.bits == 32) return DType::kI32;
  }
  raise(Code::kBadDType, std::string(name) + ": expected float32, float16 or bfloat16" +
                             (role == kCount ? ", int64 or int32" : "") + ", got " +
                             type_name(tensor));
}

Device device_of(const char* name, const dlpack::Tensor& tensor) {
  switch (tensor.device_type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      return Device::kCpu;
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      return Device::kCuda;
  }
  raise(Code::kUnsupportedDevice, std::string(name) + ": expected memory of the CPU or of CUDA, " +
                                      "got DLPack's device type " +
                                      std::to_string(static_cast<int>(tensor.device_type)));
}

std::string device_name(Device device, int id) {
  return device == Device::kCpu ? "the CPU" : "cuda:" + std::to_string(id);
}

}  // namespace

void raise(Code code, const std::string& sentence) {
  const nb::object error =
      nb::module_::import_("normgrad.errors").attr("of_code")(static_cast<int>(code), sentence);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

Reader& Reader::required(Role role, const char* name, nb::handle array) {
  if (array.is_none()) {
    raise(Code::kNullPointer, std::string(name) + ": expected an array, got None");
  }
  return input(role, name, array);
}

void* Reader::stream() const {
  if (call_.device == Device::kCpu) return nullptr;
  if (!stream_.is_none()) return reinterpret_cast<void*>(nb::cast<uintptr_t>(stream_));
  void* stream = nullptr;
  if (api_ != nullptr && api_->current_stream(dlpack::kCuda, call_.device_id, &stream) != 0) {
    throw nb::python_error();
  }
  return stream;
}

void* Reader::memory(nb::handle array) {
  const dlpack::Tensor view = view_of("workspace", array).tensor;
  return static_cast<char*>(view.data) + view.byte_offset;
}

void Reader::read(Role role, const char* name, nb::handle array, bool output) {
  if (array.is_none()) return;
  const auto [view, read_only] = view_of(name, array);
  if (output && read_only) {
    raise(Code::kBadArgument, std::string(name) +
                                  ": expected an array to write to, got a "
                                  "read-only one");
  }
  const Device device = device_of(name, view);
  const int id = device == Device::kCpu ? 0 : view.device_id;
  if (!placed_) {
    call_.device = device;
    call_.device_id = id;
    api_ = exchange_api(Py_TYPE(array.ptr()));
    placed_ = true;
  } else if (device != call_.device || id != call_.device_id) {
    raise(Code::kBadArgument, std::string(name) + ": expected an array on " +
                                  device_name(call_.device, call_.device_id) +
                                  " like x, got one on " + device_name(device, id));
  }
  if (view.rank < 0 || view.rank > kMaxRank) {
    raise(Code::kBadShape, std::string(name) + ": expected at most " + std::to_string(kMaxRank) +
                               " axes, got " + std::to_string(view.rank));
  }
  Operand& operand = call_.operands[role];
  operand.data = static_cast<char*>(view.data) + view.byte_offset;
  operand.dtype = dtype_of(name, role, view);
  operand.rank = view.rank;
  int64_t contiguous = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    operand.shape[axis] = view.shape[axis];
    operand.strides[axis] = view.strides != nullptr ? view.strides[axis] : contiguous;
    contiguous *= view.shape[axis];
  }
}

Reader::View Reader::view_of(const char* name, nb::handle array) {
  if (const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(array.ptr()))) {
    View view;
    if (api->view(array.ptr(), &view.tensor) != 0) throw nb::python_error();
    return view;
  }
  if (nb::isinstance<nb::tuple>(array)) return from_tuple(name, nb::borrow<nb::tuple>(array));
  return from_capsule(name, array);
}

Reader::View Reader::from_tuple(const char* name, nb::tuple array) {
  struct Type {
    std::string_view name;
    dlpack::TypeCode code;
    uint8_t bits;
  };
  constexpr Type kTypes[] = {{"float32", dlpack::kFloat, 32},
                             {"float16", dlpack::kFloat, 16},
                             {"bfloat16", dlpack::kBfloat, 16},
                             {"float64", dlpack::kFloat, 64},
                             {"int32", dlpack::kInt, 32},
                             {"int64", dlpack::kInt, 64},
                             {"uint8", static_cast<dlpack::TypeCode>(1), 8}};
  View view = {};
  dlpack::Tensor& tensor = view.tensor;
  tensor.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(array[0]));
  const std::string dtype(nb::cast<const char*>(array[1]));
  for (const Type& type : kTypes) {
    if (type.name != dtype) continue;
    tensor.code = type.code;
    tensor.bits = type.bits;
    tensor.lanes = 1;
  }
  if (tensor.lanes != 1) {
    raise(Code::kBadDType,
          std::string(name) + ": expected float32, float16 or bfloat16, got " + dtype);
  }
  const nb::tuple shape = nb::borrow<nb::tuple>(array[2]);
  tensor.rank = static_cast<int32_t>(shape.size());
  if (shape.size() > kMaxRank) return view;  // `read` refuses it
  tensor.shape = words_.data();
  for (size_t axis = 0; axis < shape.size(); ++axis) words_[axis] = nb::cast<int64_t>(shape[axis]);
  if (!array[3].is_none()) {
    const nb::tuple strides = nb::borrow<nb::tuple>(array[3]);
    tensor.strides = words_.data() + kMaxRank;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      tensor.strides[axis] = nb::cast<int64_t>(strides[axis]);
    }
  }
  tensor.device_type = static_cast<dlpack::DeviceType>(nb::cast<int>(array[4]));
  tensor.device_id = nb::cast<int>(array[5]);
  return view;
}

// Asks for a versioned capsule, takes any. A GPU's array is asked to be ready on our stream, where
// 0 is not allowed and 1 is the legacy default stream.
Reader::View Reader::from_capsule(const char* name, nb::handle array) {
  if (!nb::hasattr(array, "__dlpack__") || !nb::hasattr(array, "__dlpack_device__")) {
    raise(Code::kBadDType, std::string(name) + ": expected an array with __dlpack__, got " +
                               nb::type_name(array.type()).c_str());
  }
  nb::dict arguments;
  const nb::tuple device = nb::cast<nb::tuple>(array.attr("__dlpack_device__")());
  if (nb::cast<int>(device[0]) == dlpack::kCuda) {
    const auto stream = reinterpret_cast<uintptr_t>(this->stream());
    arguments["stream"] = stream == 0 ? 1 : stream;
  }
  const nb::object export_array = array.attr("__dlpack__");
  nb::object capsule;
  try {
    capsule = export_array(nb::arg("max_version") = nb::make_tuple(1, 0), **arguments);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = export_array(**arguments);
  }
  kept_.push_back(capsule);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1) {
      raise(Code::kBadDType, std::string(name) + ": expected DLPack 1.x, got " +
                                 std::to_string(managed->version.major) + ".x");
    }
    return {managed->tensor, (managed->flags & dlpack::kReadOnly) != 0};
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    raise(Code::kBadDType, std::string(name) + ": __dlpack__ gave no DLPack capsule");
  }
  return {
      static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor};
}

}  // namespace normgrad::python
